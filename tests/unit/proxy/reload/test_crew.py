"""proxy.reload.crew: one of several processes asks its supervisor to renew them all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from popgate.testing.clock import MovableClock
from proxy.config.error import SettingsWrong
from proxy.config.handover import Settled, settle
from proxy.config.loader import load_settings
from proxy.reload.crew import CrewReloads
from proxy.reload.reloader import Outcome
from proxy.reload.settings_process import LONGEST_S, OfAnotherVersion
from proxy.workers.membership import Membership
from tests.support.waiting import until


class Crew:
    """The supervisor, and this process's part in the gateway: a renewal begins as soon as it is asked for."""

    def __init__(self, *, silent: bool = False, renewing: bool = False) -> None:
        self.roster = SimpleNamespace(reload={"count": 0}, renewing=renewing)
        self.silent = silent
        self.draining = False
        self.orphaned = False
        self.addresses = ["grpc://127.0.0.1:1"]
        self.told: list[dict[str, Any]] = []

    def tell(self, message: dict[str, Any]) -> None:
        self.told.append(message)
        if self.silent:
            return
        self.roster.reload = {"count": 1, "at_ms": 1, "reason": message["renew"]}


def reloads(crew: Crew, read: Settled | SettingsWrong, clock: MovableClock | None = None) -> CrewReloads:
    async def read_anew() -> Settled:
        if isinstance(read, SettingsWrong):
            raise read
        return read

    return CrewReloads(cast(Membership, crew), _settings(), clock or MovableClock(), read_anew)


def _settings(**flags: Any) -> Settled:
    return settle(load_settings(environment={}, flags=flags))


async def test_the_supervisor_is_asked_and_what_changes_is_told() -> None:
    crew = Crew()
    outcome = await reloads(crew, _settings(reflection=False)).reload()
    assert crew.told == [{"renew": ""}]
    assert outcome.message == "1 changed: the processes are renewed in turn"
    assert [change.name for change in outcome.changes] == ["reflection"]


async def test_wrong_settings_are_told_to_the_supervisor_and_renew_nobody() -> None:
    crew = Crew()
    with pytest.raises(SettingsWrong, match="no size"):
        await reloads(crew, SettingsWrong("'many' is no size")).reload()
    assert crew.told == [{"renew": "'many' is no size"}]


async def test_another_version_is_what_the_supervisor_becomes() -> None:
    """An upgrade: only what changes is not known here."""
    crew = Crew()
    outcome = await reloads(crew, OfAnotherVersion("the program is another version now")).reload()
    assert crew.told == [{"renew": ""}]
    assert outcome.message == "another version: the processes are renewed in turn"
    assert (outcome.changes, outcome.waiting) == ([], [])


async def waited(crew: Crew) -> Outcome:
    """The outcome after as long as the supervisor may take."""
    clock = MovableClock()
    asked = asyncio.ensure_future(reloads(crew, _settings(reflection=False), clock).reload())
    await until(lambda: crew.told, pause_s=0)
    clock.advance(LONGEST_S + 1)
    return await asked


async def test_a_reload_during_a_renewal_is_done_after_it() -> None:
    """The supervisor looks at the settings when the renewal is over, however long its drains take."""
    outcome = await waited(Crew(silent=True, renewing=True))
    assert outcome.message == "1 changed: the processes are renewed in turn when the renewal before is over"
    assert [change.name for change in outcome.changes] == ["reflection"]


async def test_a_supervisor_that_says_nothing_is_an_error() -> None:
    with pytest.raises(SettingsWrong, match="did not say"):
        await waited(Crew(silent=True))


async def test_a_process_that_is_renewed_itself_does_not_wait_for_its_end() -> None:
    """The renewal waits for this process, and that for its answers to operators."""
    crew = Crew(silent=True, renewing=True)
    crew.draining = True
    outcome = await reloads(crew, _settings()).reload()
    assert outcome.message == "0 changed: the processes are renewed in turn when the renewal before is over"


async def test_a_process_that_ends_by_itself_waits_for_what_the_supervisor_finds() -> None:
    """As one that an operator stops: the settings are being looked at, and are taken all the same."""
    crew = Crew(silent=True)
    crew.draining = True
    clock = MovableClock()
    asked = asyncio.ensure_future(reloads(crew, _settings(reflection=False), clock).reload())
    await until(lambda: crew.told, pause_s=0)
    crew.roster.reload = {"count": 1, "at_ms": 1, "reason": ""}
    clock.advance(1)
    outcome = await asked
    assert outcome.message == "1 changed: the processes are renewed in turn"


def test_what_waits_for_a_restart_is_told_as_long_as_it_does() -> None:
    crew = Crew()
    standing = reloads(crew, _settings()).standing
    assert standing().figures()["config_restart_pending"] == 0
    crew.roster.reload = {"count": 1, "at_ms": 1, "reason": "", "waiting": ["share_broker"]}
    assert standing().facts()["needs_restart"] == ["share_broker"]
    assert standing().figures()["config_restart_pending"] == 1
