"""brokers.shared.codec.contexts: who asks, as far as it matters elsewhere."""

from __future__ import annotations

import pytest

from brokers.shared.codec.calls import decode, encode
from brokers.shared.codec.contexts import CONTEXT
from brokers.shared.codec.kinds import Sink, Source
from popgate.context import ANONYMOUS, Context, Principal
from popgate.errors import PeerWireError


def full(**changes: object) -> Context:
    values = {
        "client_id": "c",
        "language": "GO",
        "client_version": "1",
        "namespace": "n",
        "door": "grpc",
        "peer": "a:1",
        "local": "b:2",
        "principal": Principal("p"),
        "certificate": ("CN:p", "DNS:p.example"),
        "traceparent": "00-1",
        **changes,
    }
    return Context(**values)  # type: ignore[arg-type]


def test_everything_but_what_belongs_to_the_process_arrives() -> None:
    context = full(connection=object(), allowance=None)
    assert decode(CONTEXT, encode(CONTEXT, context)) == full()


def test_the_deadline_travels_as_the_time_that_is_left() -> None:
    sink = Sink(now=50.0)
    CONTEXT.write(sink, full(deadline=53.0))
    assert CONTEXT.read(Source(sink.data(), now=10.0)).deadline == 13.0


def test_who_has_no_name_is_the_anonymous_one() -> None:
    assert decode(CONTEXT, encode(CONTEXT, Context())).principal is ANONYMOUS


def test_two_requests_of_one_caller_have_contexts_of_their_own() -> None:
    data = encode(CONTEXT, full())
    first, second = decode(CONTEXT, data), decode(CONTEXT, data)
    assert first is not second
    first.deadline = 5.0
    assert second.deadline is None


def test_facts_of_any_length_travel() -> None:
    context = full(client_id="x" * 100_000, peer="\udcff")
    assert decode(CONTEXT, encode(CONTEXT, context)) == context


def test_nonsense_is_refused() -> None:
    data = encode(CONTEXT, full())
    for end in range(len(data)):
        with pytest.raises(PeerWireError):
            decode(CONTEXT, data[:end])
