"""What a gateway answers to others that share the broker: bounded, and nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest

from brokers.relay import BrokerAnswer
from popgate.context import Context
from popgate.errors import NotFound
from popgate.ids.message_id import encode_offset_message_id, make_message_id
from popgate.model import Message
from popgate.wire.bodies.broker_stats import decode_producers
from popgate.wire.bodies.heartbeats import (
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    decode_producer_connections,
)
from popgate.wire.frames.codes import RequestCode as Code
from popgate.wire.frames.codes import ResponseCode
from processors.clients.client_queries import ANSWER_S
from processors.clients.client_registry import ClientKind
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.members import neighbours
from protocols.remoting.members.neighbours import Neighbours
from tests.unit.processors.conftest import FakeClient
from tests.unit.protocols.remoting.conftest import Caller, FakePeer, Stage

CONSUMERS, PRODUCERS = Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_PRODUCER_CONNECTION_LIST
INFO, CONSUME = Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY
POSITIONS = Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS


def join(stage: Stage, name: str, **how: Any) -> FakeClient:
    """A client of gRPC."""
    handle = FakeClient(name, **how)
    stage.processor.clients.register(handle)
    return handle


async def test_a_message_is_looked_up_while_somebody_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a guest: its host may never answer."""
    await stage.topic("orders", queues=1)
    message_id = make_message_id()
    await stage.processor.send(Context(), [Message("orders", b"body", message_id)])
    (found,) = await stage.processor.lookup.find_by_id(Context(), "orders", message_id)
    place_id = encode_offset_message_id(found.store_host, found.commit_offset)
    join(stage, "grpc", group="readers")
    until: list[float | None] = []

    async def never_there(context: Context, _broker: str, _offset: int) -> Any:
        until.append(context.deadline)
        raise NotFound("nothing is there")

    monkeypatch.setattr(stage.broker, "at_place", never_there)
    fields = {"consumerGroup": "readers", "clientId": "grpc", "msgId": place_id, "brokerName": "b"}
    answer = await Neighbours(stage.processor, stage.clock).answer(CONSUME, fields)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert until == [stage.clock.monotonic() + ANSWER_S]


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (CONSUMERS, {}, ResponseCode.SYSTEM_ERROR),
        (PRODUCERS, {}, ResponseCode.SYSTEM_ERROR),
        (INFO, {"consumerGroup": "no good", "clientId": "c"}, ResponseCode.MESSAGE_ILLEGAL),
        (CONSUME, {"consumerGroup": "readers", "clientId": "c", "msgId": "x"}, ResponseCode.SYSTEM_ERROR),
        (
            CONSUME,
            {"consumerGroup": "readers", "clientId": "c", "msgId": "0" * 32, "brokerName": "another"},
            ResponseCode.SYSTEM_ERROR,
        ),
        (POSITIONS, {"topic": "orders"}, ResponseCode.SYSTEM_ERROR),
        (Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    ],
)
async def test_nonsense_of_another_gateway_is_refused(
    stage: Stage, code: int, fields: dict[str, str], expected: int
) -> None:
    join(stage, "c", group="readers")
    answer = await Neighbours(stage.processor, stage.clock).answer(code, fields)
    assert (answer.code, answer.body) == (expected, b"")
    assert answer.remark


@pytest.mark.parametrize(("offset", "why"), [("F" * 16, "out of range"), ("0" * 15 + "7", "")])
async def test_a_place_without_a_message_is_refused(stage: Stage, offset: str, why: str) -> None:
    handle = join(stage, "c", group="readers")
    who = {"consumerGroup": "readers", "clientId": "c", "brokerName": stage.broker.name}
    fields = {**who, "msgId": f"7F00000100001F90{offset}"}
    answer = await Neighbours(stage.processor, stage.clock).answer(CONSUME, fields)
    assert answer.code != ResponseCode.SUCCESS
    assert why in answer.remark
    assert not handle.questions


async def test_another_gateway_is_told_of_a_bounded_number_of_clients(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "MOST_CLIENTS", 2)
    for name in ("a", "bb", "ccc"):
        readers = (ConsumerData("readers", (SubscriptionData("orders"),)),)
        body = HeartbeatData(name, ("makers",), readers).encode()
        await Caller(Heartbeats(stage.door_context), peer=FakePeer()).ok(Code.HEART_BEAT, body=body)
    join(stage, "many", kind=ClientKind.PRODUCER, topics=frozenset(f"t{number}" for number in range(9)))
    answering = Neighbours(stage.processor, stage.clock)

    async def answer(code: int, **fields: str) -> bytes:
        told: BrokerAnswer = await answering.answer(code, fields)
        assert told.code == ResponseCode.SUCCESS
        return told.body

    consumers = ConsumerConnection.decode(await answer(CONSUMERS, consumerGroup="readers"))
    assert len(consumers.connections) == 2
    assert len(decode_producer_connections(await answer(PRODUCERS, producerGroup="makers"))) == 2
    every = decode_producers(await answer(Code.GET_ALL_PRODUCER_INFO))
    assert sum(map(len, every.values())) == 2, "one counts in each of its groups"
