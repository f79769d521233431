"""proxy.reload.effects: every setting is said to be live or not, and those that are live are."""

from __future__ import annotations

import pytest

from processors.limits import Limits
from proxy.config.loader import known_settings, load_settings
from proxy.config.mapping import context_values, limits_values, new_group
from proxy.reload.effects import EFFECTS, Effect, effect_of

NAMES = [".".join(path) for path, _ in known_settings()]

OTHER = {
    "limits.refuse_empty_bodies": False,
    "limits.check_message_types": False,
    "limits.max_message_id_bytes": 99,
    "limits.max_receive_bytes": 1 << 20,
    "limits.max_pull_bytes": 1 << 20,
    "limits.min_invisible_s": 11.0,
    "limits.max_invisible_s": 40_000.0,
    "limits.poll_margin_s": 0.5,
    "budgets.process_bytes": 1 << 17,
    "budgets.group_bytes": 1 << 17,
    "budgets.connection_bytes": 1 << 17,
    "topics.auto_create": False,
    "groups.auto_create": False,
    "groups.start_from": "last",
    "groups.retry": "exponential",
    "broadcast.expiry_s": 61.0,
    "namespaces": "prefixed",
    "reflection": False,
    "connections.ping_s": 21.0,
}
"""Values that 7 will not do for."""


def test_every_setting_is_listed_and_no_other() -> None:
    assert set(EFFECTS) == set(NAMES)


def test_a_setting_that_only_a_newer_version_knows_needs_a_restart() -> None:
    assert effect_of("limits.of_tomorrow") is Effect.RESTART


def with_other(name: str) -> dict[str, object]:
    group, _, key = name.rpartition(".")
    value = OTHER.get(name, 7)
    return {group: {key: value}} if group else {key: value}


def limits_with(flags: dict[str, object]) -> Limits:
    settings = load_settings(environment={}, flags=flags)
    return limits_values(settings, new_group(settings))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMES
        if effect_of(name) is Effect.LIVE and name.partition(".")[0] not in ("log", "stopping", "api")
    ],
)
def test_a_live_setting_of_limits_is_among_those_that_a_processor_is_given_anew(name: str) -> None:
    assert limits_with(with_other(name)) != limits_with({})


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMES
        if effect_of(name) is Effect.LISTENERS and name.partition(".")[0] not in ("listen", "tls")
    ],
)
def test_a_setting_of_listeners_is_among_those_that_they_are_opened_with(name: str) -> None:
    usual = context_values(load_settings(environment={}))
    assert context_values(load_settings(environment={}, flags=with_other(name))) != usual
