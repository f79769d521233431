"""Seeded mutations of what host and guest of a shared broker tell each other.

What is read is a value of its type, whatever was changed; all else is refused as nonsense, or as a
filter that is none. `TEST_FUZZ_ROUNDS` asks for more.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from brokers.relay import BrokerAnswer, Relayed
from brokers.shared.codec import calls
from brokers.shared.codec.calls import CHECK, GONE, LEFT, Call, decode, encode
from brokers.shared.codec.contexts import CONTEXT
from brokers.shared.codec.errors import ERROR
from brokers.shared.codec.kinds import Kind, Sink, Source
from brokers.shared.session.clients import ANSWER, COMMAND
from brokers.shared.session.hello import CLIENTS, FACTS, STATE, HostFacts, HostState
from brokers.traits import OrderScope, Traits
from popgate.context import Context, Principal
from popgate.errors import IllegalFilter, IllegalOffset, PeerWireError, ReceiptExpired
from popgate.filters.compiled import compile_filter
from popgate.lite import LiteAction, LiteSync
from popgate.model import (
    FilterKind,
    GroupConfig,
    GroupStatus,
    Message,
    Pop,
    Sent,
    StoredMessage,
    TopicConfig,
    TransactionCheck,
)
from tests.fuzz.test_wire_fuzz import mutated

ROUNDS = int(os.environ.get("TEST_FUZZ_ROUNDS", "400"))
CONTEXT_ONE = Context("client", "GO", "1", "n", "grpc", "a:1", "b:2", 5.0, Principal("p"), traceparent="00")
TAGGED = compile_filter(FilterKind.TAG, "a || b")
STORED = StoredMessage(
    *("t", "b", 1, 2, 3, 0, 0, 1 << 70, "1.2.3.4:5", 5, "1.2.3.4:6", b"body" * 9, b"P\x01v\x02"),
    *(1, "handle", 7),
)
ANSWERED = BrokerAnswer(1 << 70, "why", {"a": "b"}, b"body")
SQL = compile_filter(FilterKind.SQL92, "n > 5 AND s = 'x'")


def arguments(call: Call[..., Any], *args: Any, **named: Any) -> tuple[str, bytes, Callable[[bytes], Any]]:
    sink = Sink()
    call.write(sink, *args, **named)
    return call.name, sink.data(), lambda data: call.read(Source(data))


def result(call: Call[..., Any], value: Any) -> tuple[str, bytes, Callable[[bytes], Any]]:
    sink = Sink()
    call.write_result(sink, value)
    return f"{call.name}-result", sink.data(), lambda data: call.read_result(Source(data))


def plain(name: str, kind: Kind[Any], value: Any) -> tuple[str, bytes, Callable[[bytes], Any]]:
    return name, encode(kind, value), lambda data: decode(kind, data)


TARGETS = [
    arguments(
        calls.SEND, CONTEXT_ONE, [Message("t", b"x" * 50, "id", user_properties={"a": "b"}, priority=1)]
    ),
    arguments(calls.POP, CONTEXT_ONE, Pop("t", "g", SQL, 1_000, wait_until=5.0)),
    arguments(calls.ACK, CONTEXT_ONE, "t", "g", ["one", "two"]),
    arguments(calls.CHANGE_INVISIBLE, CONTEXT_ONE, "t", "g", "r", 1 << 70, suspend=True),
    arguments(
        *(calls.PULL, CONTEXT_ONE, "t", "b", 1, 2),
        max_messages=3,
        max_bytes=4,
        passing=TAGGED,
        wait_until=None,
    ),
    arguments(calls.CREATE_TOPIC, TopicConfig("t", attributes={"a": "b"})),
    arguments(calls.CREATE_GROUP, GroupConfig("g")),
    arguments(calls.SUBSCRIBE_LITE, CONTEXT_ONE, LiteSync("t", "g", LiteAction.ADD, ("a", "b"))),
    arguments(calls.LOCK, CONTEXT_ONE, "g", "c", [("t", "b", 1)]),
    result(calls.POP, [STORED, STORED]),
    result(calls.SEND, [Sent("id", "b", 1, 2), ReceiptExpired("h"), IllegalOffset(1, 2, 3)]),
    result(calls.STANDINGS, ([GroupStatus("g", "t", 1, 2, 3, 4, 5, 6, 7, True, 8, 9)], None)),
    plain("context", CONTEXT, CONTEXT_ONE),
    plain("error", ERROR, IllegalOffset(1, 2, 3)),
    plain("check", CHECK, TransactionCheck("t", "pg", "tx", STORED, 3)),
    plain("gone", GONE, ("c", "g", "t", "l")),
    plain("left", LEFT, ("c", True)),
    plain("command", COMMAND, (307, {"consumerGroup": "g", "clientId": "c"})),
    plain("answer", ANSWER, ANSWERED),
    result(calls.ASK_GATEWAYS, Relayed({"gateway-0": ANSWERED}, {"gateway-1": ReceiptExpired("h")})),
    plain("clients", CLIENTS, ("one", "two")),
    plain("state", STATE, HostState({"topics": 1.0}, (1, 2))),
    plain(
        "facts",
        FACTS,
        HostFacts("b", Traits(OrderScope.QUEUE, 1, 2, True, False, True, False, True, 3)),
    ),
]


@pytest.mark.parametrize(("data", "read"), [t[1:] for t in TARGETS], ids=[t[0] for t in TARGETS])
def test_mutated_words_between_gateways_are_read_or_refused(
    data: bytes, read: Callable[[bytes], Any]
) -> None:
    read(data)
    dice = random.Random(20260101)
    refused = 0
    for _ in range(ROUNDS):
        case = mutated(dice, data)
        try:
            read(case)
        except (PeerWireError, IllegalFilter):
            refused += 1
        except Exception as error:
            error.add_note(f"input: {case.hex()}")
            raise
    assert refused
