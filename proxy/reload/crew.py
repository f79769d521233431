"""A reload of a gateway with several processes: the supervisor renews them in turn, with the new settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from popgate.clock import Clock, pause
from proxy.config.error import SettingsWrong
from proxy.config.handover import Settled
from proxy.reload.changes import Change, changes
from proxy.reload.effects import Effect
from proxy.reload.reloader import Outcome, ReloadState
from proxy.reload.settings_process import LONGEST_S, OfAnotherVersion, read_anew

if TYPE_CHECKING:
    from proxy.workers.membership import Membership

_LOOK_S: Final = 0.05
_RESTART: Final = frozenset({"share_broker"})
"""Settings that a supervisor keeps: the address at which its processes reach the broker."""


class CrewReloads:
    """The reload interface of one process of several: a `proxy.reload.reloader.Reloads`.

    `settings` are those of its supervisor.
    """

    def __init__(
        self,
        membership: Membership,
        settings: Settled,
        clock: Clock,
        read: Callable[[], Awaitable[Settled]] = read_anew,
    ) -> None:
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self.read = read
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<CrewReloads of {self._membership!r}>"

    def standing(self) -> ReloadState:
        state = self._membership.roster.reload
        reason = state.get("reason", "")
        return ReloadState(state.get("at_ms", 0), not reason, reason, list(state.get("waiting", ())))

    async def look(self) -> list[Change]:
        async with self._lock:
            return _renewed(changes(self._settings, await self.read()))

    async def reload(self) -> Outcome:
        """Done when the supervisor has found the settings good: then the processes are renewed in turn.

        During a renewal it looks at them later. That is the outcome after a minute, or when this process is
        to end, which the renewal waits for.
        """
        async with self._lock:
            try:
                differences = _renewed(changes(self._settings, await self.read()))
                renewed = f"{len(differences)} changed"
            except OfAnotherVersion:
                # An upgrade: the supervisor becomes that version, which reads them itself.
                differences, renewed = [], "another version"
            except SettingsWrong as error:
                self._membership.tell({"renew": str(error)})
                raise
            roster = self._membership.roster
            before = roster.reload.get("count", 0)
            self._membership.tell({"renew": ""})
            ends, when = self._clock.monotonic() + LONGEST_S, ""
            while roster.reload.get("count", 0) == before:
                over = self._clock.monotonic() > ends
                ended = over or self._membership.draining
                if ended and roster.renewing and not self._membership.orphaned:
                    when = " when the renewal before is over"
                    break
                if over or self._membership.orphaned:
                    raise SettingsWrong("the supervisor did not say how it found the settings: see its log")
                await pause(self._clock, _LOOK_S)
            if not when and (reason := roster.reload.get("reason", "")):
                raise SettingsWrong(str(reason))
        waiting = [change.name for change in differences if change.effect is Effect.RESTART]
        message = f"{renewed}: the processes are renewed in turn{when}"
        return Outcome(message, differences, waiting, self._membership.addresses)


def _renewed(differences: list[Change]) -> list[Change]:
    """When changes count where processes are renewed: each with the process that has it."""
    return [
        replace(change, effect=Effect.RESTART if change.name in _RESTART else Effect.RENEWAL)
        for change in differences
    ]
