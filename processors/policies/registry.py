"""Policies by name: the built-in ones, and those of installed packages.

A package offers a policy as an entry point in the group `popgate.policies.<kind>`, with the kinds
`identity`, `permission`, `rate`, `backoff` and `picking`; it names a callable that takes
the policy's options by keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from popgate.kinds import Authenticator, Authorizer, Backoff, QueuePicker, RateLimit
from processors.policies.backoff import Exponential
from processors.policies.identity import Anyone
from processors.policies.permission import Everything
from processors.policies.queue_selector import GroupsThenTurns
from processors.policies.rate import PerClient, Unlimited

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINTS = "popgate.policies."

_HOUSE: Mapping[str, Mapping[str, Callable[..., object]]] = {
    "identity": {"anyone": Anyone},
    "permission": {"everything": Everything},
    "rate": {"unlimited": Unlimited, "per-client": PerClient},
    "backoff": {"exponential": Exponential},
    "picking": {"groups-then-turns": GroupsThenTurns},
}


class PolicyNotFound(LookupError):
    """No policy of that name; the sentence names the nearest, or all there are."""


@dataclass(slots=True)
class Policies:
    """The policies of one processor; each is the gateway's own default unless given."""

    authenticator: Authenticator = field(default_factory=Anyone)
    authorizer: Authorizer = field(default_factory=Everything)
    rate: RateLimit = field(default_factory=Unlimited)
    backoff: Backoff = field(default_factory=Exponential)
    queues: QueuePicker = field(default_factory=GroupsThenTurns)


def names_of(kind: str) -> list[str]:
    """The policies of a kind that can be named, sorted. Raises PolicyNotFound for an unknown kind."""
    installed = {point.name for point in _installed(kind)}
    return sorted({*_built_in(kind), *installed})


def make_policy(kind: str, name: str, options: Mapping[str, object] | None = None) -> Any:
    """Make a policy by its name. Built-in names come first.

    Raises PolicyNotFound for an unknown kind or name, and ValueError or TypeError for bad options.
    """
    factory = _built_in(kind).get(name)
    if factory is None:
        for point in _installed(kind).select(name=name):
            factory = point.load()
            break
    if factory is None:
        known = names_of(kind)
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise PolicyNotFound(f"no {kind} policy is named {name!r}: {hint}")
    return factory(**(options or {}))


def _installed(kind: str) -> EntryPoints:
    # 9 ms of every start, for the few that name such a policy.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS + kind)


def shown_policy(kind: str, text: str) -> str:
    """A policy with its options as it may be shown: those of a package's own may be secrets."""
    name, _, options = text.partition("?")
    return f"{name}?********" if options and name not in _built_in(kind) else text


def _built_in(kind: str) -> Mapping[str, Callable[..., object]]:
    try:
        return _HOUSE[kind]
    except KeyError:
        raise PolicyNotFound(f"there is no kind of policy {kind!r}: {', '.join(_HOUSE)}") from None
