"""proxy.reload.changes: what differs, without a secret in it."""

from __future__ import annotations

from typing import Any

from proxy.config.handover import Settled, settle
from proxy.config.loader import load_settings
from proxy.reload.changes import changes, shown_changes
from proxy.reload.effects import Effect


def settled(**flags: Any) -> Settled:
    return settle(load_settings(environment={}, flags=flags))


def test_what_differs_is_told_with_both_values_and_when_it_counts() -> None:
    found = changes(settled(), settled(limits={"max_found": 3}, retention={"age_s": "1d"}))
    assert [(one.name, one.before, one.after, one.effect) for one in found] == [
        ("limits.max_found", 1024, 3, Effect.LIVE),
        ("retention.age_s", 259_200.0, 86_400.0, Effect.RESTART),
    ]
    assert changes(settled(), settled()) == []


def test_a_secret_that_changed_is_told_and_not_shown() -> None:
    before, after = settled(shared={"secret": "old-secret"}), settled(shared={"secret": "new-secret"})
    (found,) = changes(before, after)
    assert (found.name, found.before, found.after) == ("shared.secret", "********", "(changed)")
    assert changes(before, settled(shared={"secret": "old-secret"})) == []


def test_settings_that_are_only_shown_are_compared_as_they_show_themselves() -> None:
    before, after = settled(), settled(limits={"max_found": 3})
    found = shown_changes(before.model_dump(mode="json"), after.model_dump(mode="json"))
    assert [one.facts() for one in found] == [
        {"name": "limits.max_found", "running": 1024, "new": 3, "effect": "live"}
    ]


def test_a_setting_that_another_version_has_not_needs_a_restart() -> None:
    before, after = settled(), settled()
    del after.limits.max_found
    del after._told["limits"]["max_found"]
    assert [(one.name, one.before, one.after, one.effect) for one in changes(before, after)] == [
        ("limits.max_found", 1024, None, Effect.RESTART)
    ]
    assert [one.effect for one in changes(after, before)] == [Effect.RESTART]


def test_one_setting_is_taken_from_others_and_shown_so() -> None:
    mine, other = settled(), settled(limits={"max_found": 3, "max_waiting": 4}, namespaces="prefixed")
    mine.take(other, "limits.max_found")
    mine.take(other, "namespaces")
    told = mine.model_dump(mode="json")
    assert (told["limits"]["max_found"], told["namespaces"]) == (3, "prefixed")
    assert [one.name for one in changes(mine, other)] == ["limits.max_waiting"]


def test_defaults_of_another_broker_wait_for_a_restart_as_it_does() -> None:
    """Else a gateway would create topics in a cluster because an embedded broker is to come, or refuse to."""
    embedded, cluster = settled(), settled(broker="rocketmq://127.0.0.1:9876")
    names = ["broker", "topics.auto_create", "groups.auto_create"]
    for before, after in ((embedded, cluster), (cluster, embedded)):
        differences = changes(before, after)
        assert [(change.name, change.effect) for change in differences] == [
            (name, Effect.RESTART) for name in names
        ]
        shown = shown_changes(before.model_dump(mode="json"), after.model_dump(mode="json"))
        assert [(change.name, change.effect) for change in shown] == [
            (name, Effect.RESTART) for name in names
        ]
    (change,) = changes(embedded, settled(topics={"auto_create": False}))
    assert change.effect is Effect.LIVE
