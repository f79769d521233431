"""What several brokers told, as one answer: a tool takes each of them to be at the address of this door.

A tool asks "each broker", which is this door as often as there are brokers, without saying which one it
means, and adds up what it is told. So what can be added is told as the mean of all: then its sums are right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from popgate.errors import shown
from popgate.wire.bodies.broker_stats import Rate, Rates
from popgate.wire.bodies.heartbeats import Connection

MOST_FIGURES: Final = 1_024
"""Of one broker; what is beyond is left out."""
_LONGEST_VALUE: Final = 1_000
_FIRST: Final = frozenset({"bootTimestamp", "earliestMessageTimeStamp", "startAcceptSendRequestTimeStamp"})
"""Times, of which the earliest is told."""
_is_secret = re.compile("secret|passw|credential|access_?key|signature|token|user", re.IGNORECASE).search
_BEHIND: Final = frozenset({"controllerAddr", "fastListenPort", "haListenPort", "haMasterAddress"})
"""Where brokers reach each other, which is no business of who stands before the gateway."""
_number = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?(E-?[0-9]{1,2})?").fullmatch

Producers = Mapping[str, Iterable[tuple[Connection, int]]]


def figures_of(told: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Figures of brokers, by the brokers' names: of one as it told them.

    Of several the mean where all told numbers, or several numbers in one text; what is the same for all; and
    all figures of each with its name before them.
    """
    bounded = {
        broker: {name: _short(value) for name, value in list(figures.items())[:MOST_FIGURES]}
        for broker, figures in told.items()
    }
    if len(bounded) == 1:
        return next(iter(bounded.values()))
    found: dict[str, str] = {}
    for name in sorted({name for figures in bounded.values() for name in figures}):
        values = [figures[name] for figures in bounded.values() if name in figures]
        if len(values) < len(bounded):
            continue
        one = values[0] if len(set(values)) == 1 else _mean(name, values)
        if one is not None:
            found[name] = one
    for broker, figures in bounded.items():
        found |= {f"{broker}.{name}": value for name, value in figures.items()}
    return found


def _mean(name: str, values: Sequence[str]) -> str | None:
    """Of numbers, or of texts with several numbers each; None when there is none."""
    rows = [value.split() for value in values]
    if len({len(row) for row in rows}) != 1 or not all(_number(word) for row in rows for word in row):
        return None
    if name in _FIRST:
        return min(values, key=float)
    means = [_mean_of(column) for column in zip(*rows, strict=True)]
    return " ".join(means) if means else None


def _mean_of(words: Sequence[str]) -> str:
    if all("." not in word and "E" not in word for word in words):
        return str(sum(map(int, words)) // len(words))
    return str(math.fsum(map(float, words)) / len(words))


def settings_in(body: bytes) -> dict[str, str]:
    """A broker's settings, without those that may be secret or tell where brokers reach each other."""
    found: dict[str, str] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.isascii() and name not in _BEHIND and not _is_secret(name):
            found[_short(name)] = _short(value)
            if len(found) >= MOST_FIGURES:
                break
    return found


def alike(told: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The settings that all brokers have, and have alike."""
    first, *others = told
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}


def mean_rates(told: Sequence[Rates]) -> Rates:
    """Of at least one broker."""

    def mean(of: Callable[[Rates], Rate]) -> Rate:
        rates = [of(one) for one in told]
        return Rate(
            sum(one.total for one in rates) // len(rates),
            math.fsum(one.per_second for one in rates) / len(rates),
            math.fsum(one.per_call for one in rates) / len(rates),
        )

    return Rates(mean(lambda one: one.minute), mean(lambda one: one.hour), mean(lambda one: one.day))


def producers_of(
    told: Iterable[Producers], *, newest: bool = False
) -> dict[str, list[tuple[Connection, int]]]:
    """All groups; of a client that several told of what the first said, and when it was last heard of.

    `newest`: what that one said who heard of it last.
    """
    found: dict[str, dict[str, tuple[Connection, int]]] = {}
    for producers in told:
        for group, clients in producers.items():
            known = found.setdefault(group, {})
            for client, seen_ms in clients:
                first, last_ms = known.get(client.client_id, (client, seen_ms))
                if newest and seen_ms > last_ms:
                    first = client
                known[client.client_id] = first, max(last_ms, seen_ms)
    return {group: list(known.values()) for group, known in found.items()}


def clients_of(told: Iterable[Iterable[Connection]]) -> list[Connection]:
    """Each once, as the first told of it who knows its address."""
    found: dict[str, Connection] = {}
    for connections in told:
        for one in connections:
            before = found.get(one.client_id)
            if before is None or (one.address and not before.address):
                found[one.client_id] = one
    return list(found.values())


def _short(text: str) -> str:
    """As it is where it is ordinary."""
    return text if text.isprintable() and len(text) <= _LONGEST_VALUE else shown(text, _LONGEST_VALUE)
