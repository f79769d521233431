"""The encoding of a `Context`, without the parts that belong to one process only.

`connection`, `allowance` and `group` are not sent. The facts of a caller are the same in call after call, so
both sides cache the last ones that they encoded and decoded.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Any

from brokers.shared.codec.kinds import MOMENT, TEXT, Kind, Listed, Sink, Source
from brokers.shared.codec.layouts import Layout, as_tuple
from popgate.context import ANONYMOUS, Context, Principal

_NAMES = (
    *("client_id", "language", "client_version", "namespace", "door", "peer", "local"),
    *("principal", "traceparent"),
)
"""Those that are text; the names in the client's certificate follow."""
_KEPT = 4096
_LONGEST_KEPT = 1024
"""Bytes: longer facts are read anew each time, so that what is kept stays small."""

_take = attrgetter(*_NAMES[:7], "principal.name", "traceparent", "certificate")


_FACTS = Layout(
    "", [*((name, TEXT) for name in _NAMES), ("certificate", Listed(TEXT, tuple))], take=tuple, make=as_tuple
)


@lru_cache(_KEPT)
def _encoded(facts: tuple[Any, ...]) -> bytes:
    sink = Sink()
    _FACTS.write(sink, facts)
    data = sink.data()
    return len(data).to_bytes(4, "big") + data


@lru_cache(_KEPT)
def _decoded(data: bytes) -> tuple[Any, ...]:
    source = Source(data)
    facts = _FACTS.read(source)
    source.end()
    return (*facts[:7], Principal(facts[7]) if facts[7] else ANONYMOUS, *facts[8:])


class _Context(Kind[Context]):
    told = f"context{_FACTS.told}"

    def write(self, sink: Sink, value: Context) -> None:
        facts = _take(value)
        short = sum(map(len, facts)) + sum(map(len, value.certificate)) <= _LONGEST_KEPT
        sink.parts.append(_encoded(facts) if short else _encoded.__wrapped__(facts))
        MOMENT.write(sink, value.deadline)

    def read(self, source: Source) -> Context:
        data = source.take(source.length())
        facts = _decoded(data) if len(data) <= _LONGEST_KEPT else _decoded.__wrapped__(data)
        client_id, language, version, namespace, door, peer, local, principal, traceparent, names = facts
        deadline = MOMENT.read(source)
        return Context(
            client_id,
            language,
            version,
            namespace,
            door,
            peer,
            local,
            deadline,
            principal,
            names,
            traceparent=traceparent,
        )


CONTEXT: Kind[Context] = _Context()
