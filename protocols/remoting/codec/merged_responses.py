"""Merges the responses of several brokers into one, for tools that take this door for each of them.

A tool sends its request to "each broker", which is this door as often as there are brokers, without saying
which one it means, and adds up the responses. So figures that can be added are returned as the mean of all:
then the tool's sums are right.
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


def figures_of(by_broker: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Figures of brokers, by the brokers' names; of a single broker unchanged.

    Of several: the mean where all values are numbers, or texts of several numbers; values that are the same
    for all; and all figures of each with its name as a prefix.
    """
    bounded = {
        broker: {name: _short(value) for name, value in list(figures.items())[:MOST_FIGURES]}
        for broker, figures in by_broker.items()
    }
    if len(bounded) == 1:
        return next(iter(bounded.values()))
    merged: dict[str, str] = {}
    for name in sorted({name for figures in bounded.values() for name in figures}):
        values = [figures[name] for figures in bounded.values() if name in figures]
        if len(values) < len(bounded):
            continue
        value_of_all = values[0] if len(set(values)) == 1 else _mean(name, values)
        if value_of_all is not None:
            merged[name] = value_of_all
    for broker, figures in bounded.items():
        merged |= {f"{broker}.{name}": value for name, value in figures.items()}
    return merged


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
    """A broker's settings, without those that may be secret or contain addresses between brokers."""
    settings: dict[str, str] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.isascii() and name not in _BEHIND and not _is_secret(name):
            settings[_short(name)] = _short(value)
            if len(settings) >= MOST_FIGURES:
                break
    return settings


def alike(tables: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The settings that all brokers have, and have alike."""
    first, *others = tables
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def mean_rates(rates_of_brokers: Sequence[Rates]) -> Rates:
    """Of at least one broker."""

    def mean(of: Callable[[Rates], Rate]) -> Rate:
        rates = [of(rate) for rate in rates_of_brokers]
        return Rate(
            sum(rate.total for rate in rates) // len(rates),
            math.fsum(rate.per_second for rate in rates) / len(rates),
            math.fsum(rate.per_call for rate in rates) / len(rates),
        )

    return Rates(mean(lambda rate: rate.minute), mean(lambda rate: rate.hour), mean(lambda rate: rate.day))


def producers_of(
    reports: Iterable[Producers], *, newest: bool = False
) -> dict[str, list[tuple[Connection, int]]]:
    """All groups; for a client in several responses the first entry, and the latest sign of life.

    `newest`: the entry of the broker that heard of it last.
    """
    merged: dict[str, dict[str, tuple[Connection, int]]] = {}
    for producers in reports:
        for group, clients in producers.items():
            known = merged.setdefault(group, {})
            for client, seen_ms in clients:
                first, last_ms = known.get(client.client_id, (client, seen_ms))
                if newest and seen_ms > last_ms:
                    first = client
                known[client.client_id] = first, max(last_ms, seen_ms)
    return {group: list(known.values()) for group, known in merged.items()}


def clients_of(reports: Iterable[Iterable[Connection]]) -> list[Connection]:
    """Each client once, from the first response that has its address."""
    merged: dict[str, Connection] = {}
    for connections in reports:
        for connection in connections:
            before = merged.get(connection.client_id)
            if before is None or (connection.address and not before.address):
                merged[connection.client_id] = connection
    return list(merged.values())


def _short(text: str) -> str:
    """As it is where it is ordinary."""
    return text if text.isprintable() and len(text) <= _LONGEST_VALUE else shown(text, _LONGEST_VALUE)
