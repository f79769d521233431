"""The differences between the settings of a running gateway and those that were just read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from proxy.config.handover import Settled
from proxy.reload.effects import Effect, effect_of

_HIDDEN = "(changed)"
_OF_BROKER = frozenset({"topics.auto_create", "groups.auto_create"})
"""Their defaults depend on `broker`."""


@dataclass(slots=True, frozen=True)
class Change:
    """One setting. `before` and `after` are as the settings show themselves, a secret as `********`."""

    name: str
    before: Any
    after: Any
    effect: Effect

    def facts(self) -> dict[str, Any]:
        """The JSON form of the admin port."""
        return {
            "name": self.name,
            "running": self.before,
            "new": self.after,
            "effect": self.effect.value,
        }


def changes(running: Settled, read: Settled) -> list[Change]:
    """In the order of the settings."""
    before, after = dict(running.leaves()), dict(read.leaves())
    shown_before, shown_after = _shown(running), _shown(read)
    differences = []
    for name in [*before, *(name for name in after if name not in before)]:
        if name in before and name in after and before[name] == after[name]:
            continue
        old, new = shown_before.get(name), shown_after.get(name)
        if old == new:  # a secret: only its masks are shown
            new = _HIDDEN
        # Of a version that has no such setting nothing can be taken.
        effect = effect_of(name) if name in before and name in after else Effect.RESTART
        differences.append(Change(name, old, new, effect))
    return _with_broker(differences)


def shown_changes(running: Mapping[str, Any], read: Mapping[str, Any]) -> list[Change]:
    """The same for settings that are only known as they show themselves: secrets that are set are alike."""
    before, after = dict(_flat(running)), dict(_flat(read))
    return _with_broker(
        Change(name, before.get(name), after.get(name), effect_of(name))
        for name in [*before, *(name for name in after if name not in before)]
        if before.get(name) != after.get(name)
    )


def _with_broker(differences: Iterable[Change]) -> list[Change]:
    """With another broker its defaults wait, as it does: those of a cluster are not for an embedded one."""
    differences = list(differences)
    if all(change.name != "broker" for change in differences):
        return differences
    return [
        replace(change, effect=Effect.RESTART) if change.name in _OF_BROKER else change
        for change in differences
    ]


def _shown(settings: Settled) -> dict[str, Any]:
    return dict(_flat(settings.model_dump(mode="json")))


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
