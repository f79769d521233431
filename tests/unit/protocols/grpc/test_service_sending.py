"""SendMessage, and the answers of 2.2 of the protocol facts, over a real gRPC server."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest

from popgate.model import Message, MessageType, Permission, Queue, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.pb.timestamp_pb2 import Timestamp
from processors.limits import Limits

Code = pb.Code


def at(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 10**6)


@pytest.fixture(params=["by the house", "packed", "several packed"], autouse=True)
def way(request: pytest.FixtureRequest, reading: None, gateway: Any) -> None:
    """All ways have the same answers: a broker that chooses queues gets plain messages packed, and so does
    one that stores several of them like that.
    """
    gateway.broker.traits = replace(
        gateway.broker.traits,
        chooses_queues=request.param == "packed",
        stores_packed=request.param == "several packed",
    )


async def test_only_plain_messages_go_packed_and_only_to_who_takes_them_so(
    client: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = AsyncMock(wraps=gateway.broker.send_packed)
    monkeypatch.setattr(gateway.broker, "send_packed", packed)
    await client.send(client.message(message_group="g"))
    assert not packed.await_count
    traits = gateway.broker.traits
    await client.send(client.message(), client.message())
    assert packed.await_count == (traits.chooses_queues or traits.stores_packed)
    await client.send(client.message())
    assert packed.await_count == traits.chooses_queues * 2 + traits.stores_packed


async def test_a_policy_of_others_sees_what_a_message_says_of_itself(
    client: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Policy:
        def pick(self, message: Message, queues: Sequence[Queue], now: float) -> Queue:
            seen.append((message.tag, message.keys, message.user_properties))
            return queues[0]

    monkeypatch.setattr(gateway.processor._policies, "queues", Policy())
    for count in (1, 2):
        messages = [client.message(tag="A", keys=["k"], properties={"a": "b"}) for _ in range(count)]
        assert (await client.send(*messages)).status.code == Code.OK
        assert seen.pop() == ("A", ("k",), {"a": "b"})


async def test_a_message_is_answered_with_the_id_that_its_sender_gave_it(client: Any) -> None:
    message = client.message(message_id="01AB")
    answer = await client.send(message)
    assert (answer.status.code, answer.status.message) == (Code.OK, "OK")
    (entry,) = answer.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (Code.OK, "01AB", 0)
    assert (entry.transaction_id, entry.recall_handle) == ("", "")


async def test_a_send_that_comes_again_is_answered_as_before_and_delivered_once(client: Any) -> None:
    """Official clients repeat a send whose answer was lost with the same message id."""
    first, second = client.message(body=b"1"), client.message(body=b"2", message_group="g")
    answers = [await client.send(message) for message in (first, second, first, second)]
    assert answers[2:] == answers[:2]
    assert sorted(m.body for m in await client.receive()) == [b"1", b"2"]
    half = client.message(message_type=pb.TRANSACTION)
    one, two = await client.send(half), await client.send(half)
    assert one == two
    assert one.entries[0].transaction_id


async def test_scenario_15_a_batch_is_answered_with_one_entry_per_message(client: Any) -> None:
    messages = [client.message(body=b"%d" % n) for n in range(10)]
    answer = await client.send(*messages)
    assert answer.status.code == Code.OK
    assert [entry.message_id for entry in answer.entries] == [
        message.system_properties.message_id for message in messages
    ]
    assert all(entry.status.code == Code.OK for entry in answer.entries)
    received = await client.receive()
    assert sorted(m.body for m in received) == sorted(m.body for m in messages)


async def test_a_delayed_message_has_a_recall_handle(client: Any, gateway: Any) -> None:
    entry = await client.send_one(delivery_timestamp=at(gateway.clock.now_ms() + 60_000))
    assert entry.recall_handle
    request = rpc.RecallMessageRequest(topic=pb.Resource(name="t"), recall_handle=entry.recall_handle)
    answer = await client.call("RecallMessage", request)
    assert (answer.status.code, answer.message_id) == (Code.OK, entry.message_id)
    await gateway.pass_s(61)
    assert await client.receive() == []
    again = await client.call("RecallMessage", request)
    assert again.status.code == Code.NOT_FOUND


async def test_a_delivery_time_in_the_past_is_now(client: Any, gateway: Any) -> None:
    await client.send_one(delivery_timestamp=at(gateway.clock.now_ms() - 60_000))
    await client.send_one(delivery_timestamp=Timestamp())
    assert len(await client.receive()) == 2


async def test_a_delayed_message_comes_when_its_time_has_come(client: Any, gateway: Any) -> None:
    await client.send_one(delivery_timestamp=at(gateway.clock.now_ms() + 5_000))
    await gateway.pass_s(4.9)
    assert await client.receive() == []
    await gateway.pass_s(0.1)
    (message,) = await gateway_until(client)
    assert message.system_properties.message_type == pb.MessageType.DELAY
    assert message.system_properties.HasField("delivery_timestamp")


async def gateway_until(client: Any) -> Any:
    for _ in range(1000):
        if found := await client.receive():
            return found
    raise AssertionError("nothing came")


def with_property(key: str, value: str) -> dict[str, Any]:
    return {"properties": {key: value}}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "a b"}, Code.ILLEGAL_TOPIC),
        ({"topic": ""}, Code.ILLEGAL_TOPIC),
        ({"topic": "t" * 128}, Code.ILLEGAL_TOPIC),
        ({"topic": "TBW102"}, Code.ILLEGAL_TOPIC),
        ({"topic": "rmq_sys_x"}, Code.ILLEGAL_TOPIC),
        ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"body": bytes(20 * 1024 * 1024)}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"properties": {f"k{n}": "v" for n in range(129)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"properties": {"k": "v" * 16_384}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_property("KEYS", "v"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_property("UNIQ_KEY", "v"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_property("a\x01b", "v"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_property("k", "a\x02b"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_property("k", "a\x85b"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"tag": "  "}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\nb"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": [" "]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"keys": ["good", "a\x00b"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"message_id": ""}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "  "}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_group": " "}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "g" * 64}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "a\tb"}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"delivery_timestamp": Timestamp(seconds=4_000_000_000)}, Code.ILLEGAL_DELIVERY_TIME),
        ({"delivery_timestamp": Timestamp(seconds=2**62)}, Code.ILLEGAL_DELIVERY_TIME),
        (
            {
                "message_type": pb.MessageType.TRANSACTION,
                "orphaned_transaction_recovery_duration": Duration(seconds=3601),
            },
            Code.BAD_REQUEST,
        ),
        ({"body_digest": pb.Digest(type=pb.DigestType.MD5, checksum="00")}, Code.MESSAGE_CORRUPTED),
        ({"lite_topic": "room 1"}, Code.ILLEGAL_LITE_TOPIC),
        ({"lite_topic": "  "}, Code.ILLEGAL_LITE_TOPIC),
        ({"lite_topic": "r" * 65}, Code.ILLEGAL_LITE_TOPIC),
        ({"lite_topic": "r", "message_group": "g"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"lite_topic": "r", "priority": 1}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"priority": -1}, Code.BAD_REQUEST),
        ({"priority": 1, "message_group": "g"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (
            {"priority": 1, "delivery_timestamp": Timestamp(seconds=1)},
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (
            {"priority": 1, "message_type": pb.MessageType.TRANSACTION},
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
    ],
)
async def test_a_message_that_breaks_a_rule_is_told_which(
    client: Any, fields: dict[str, Any], code: int
) -> None:
    answer = await client.send(client.message(**fields))
    assert answer.status.code == code, answer.status
    assert answer.status.message
    assert not answer.entries


async def test_the_sentence_names_the_limit(client: Any) -> None:
    answer = await client.send(client.message(body=bytes(4 * 1024 * 1024 + 1)))
    assert "4194305" in answer.status.message
    assert "4194304" in answer.status.message
    answer = await client.send(client.message(delivery_timestamp=Timestamp(seconds=4_000_000_000)))
    assert "86400 s" in answer.status.message


@pytest.mark.parametrize(
    "fields",
    [
        {"body": bytes(4 * 1024 * 1024)},
        {"properties": {f"k{n}": "v" for n in range(128)}},
        {"message_group": "g" * 63},
        {"tag": ""},
        {"keys": ["a", "", "b"]},
        {"properties": {"größe": "läuft 中文"}},
        {"message_id": "whatever it is"},
        {"trace_context": "x\x01y"},
        {"born_timestamp": Timestamp(seconds=2**62)},
        {"born_timestamp": Timestamp(seconds=-(2**62))},
        {"born_host": "x" * 10_000},
    ],
)
async def test_a_message_at_the_limit_passes_and_never_breaks_the_delivery(
    client: Any, fields: dict[str, Any]
) -> None:
    await client.send_one(**fields)
    (message,) = await client.receive()
    assert message.body == fields.get("body", b"hello")
    assert dict(message.user_properties) == fields.get("properties", {})


async def test_no_message_at_all_is_corrupted(client: Any) -> None:
    assert (await client.send()).status.code == Code.MESSAGE_CORRUPTED


async def test_two_topics_in_one_send_are_corrupted_and_nothing_is_stored(client: Any) -> None:
    answer = await client.send(client.message("t"), client.message("u"))
    assert answer.status.code == Code.MESSAGE_CORRUPTED
    other = client.message("t")
    other.topic.resource_namespace = "ns"
    assert (await client.send(client.message("t"), other)).status.code == Code.MESSAGE_CORRUPTED
    assert await client.receive("t") == []


async def test_one_bad_message_of_a_batch_stores_none_of_them(client: Any) -> None:
    answer = await client.send(client.message(), client.message(tag="a|b"))
    assert answer.status.code == Code.ILLEGAL_MESSAGE_TAG
    assert await client.receive() == []


async def test_an_unknown_topic_is_told_as_such_when_topics_are_not_made_on_first_use(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(auto_create_topics=False))
    client = town.client(gateway)
    assert (await client.send(client.message("nowhere"))).status.code == Code.TOPIC_NOT_FOUND


@pytest.mark.parametrize(
    ("accepted", "fields"),
    [
        (MessageType.NORMAL, {"message_group": "g"}),
        (MessageType.FIFO, {}),
        (MessageType.DELAY, {}),
        (MessageType.TRANSACTION, {}),
        (MessageType.NORMAL, {"message_type": pb.MessageType.TRANSACTION}),
    ],
)
async def test_a_message_of_a_type_that_its_topic_does_not_take(
    client: Any, gateway: Any, accepted: MessageType, fields: dict[str, Any]
) -> None:
    await gateway.broker.create_topic(TopicConfig("typed", (accepted,)))
    answer = await client.send(client.message("typed", **fields))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert accepted.value in answer.status.message


async def test_a_topic_that_cannot_be_written_is_forbidden(client: Any, gateway: Any) -> None:
    await gateway.broker.create_topic(TopicConfig("closed", permission=Permission.READ))
    assert (await client.send(client.message("closed"))).status.code == Code.FORBIDDEN


async def test_a_packed_body_passes_with_its_mark(client: Any) -> None:
    body = gzip.compress(b"hello" * 1000)
    await client.send_one(body=body, body_encoding=pb.Encoding.GZIP)
    (message,) = await client.receive()
    assert (message.body, message.system_properties.body_encoding) == (body, pb.Encoding.GZIP)


async def test_the_born_host_is_the_end_of_the_connection_whatever_the_headers_claim(
    town: Any, gateway: Any
) -> None:
    client = town.client(gateway)
    client.headers["rpc-remote-address"] = "203.0.113.9:1"
    await client.send_one()
    (message,) = await client.receive()
    assert message.system_properties.born_host.startswith("127.0.0.1:")


@pytest.mark.parametrize("handle", ["", "garbage", "djEg", "x" * 5000, "djEgdCBwb3BnYXRlIDEgMDE="])
async def test_a_recall_handle_that_is_none_is_a_bad_request(client: Any, handle: str) -> None:
    await client.send_one()
    request = rpc.RecallMessageRequest(topic=pb.Resource(name="t"), recall_handle=handle)
    code = (await client.call("RecallMessage", request)).status.code
    assert code in (Code.BAD_REQUEST, Code.NOT_FOUND)
    assert code == Code.BAD_REQUEST or handle.startswith("djEgd")


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff", rpc.SendMessageRequest(messages=[pb.Message(body=b"x")]).SerializeToString()[:-1]],
)
async def test_bytes_that_are_no_request_are_a_bad_request(client: Any, data: bytes) -> None:
    method = client.channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/SendMessage",
        response_deserializer=rpc.SendMessageResponse.FromString,
    )
    answer = await method(data, metadata=client.metadata, timeout=60)
    assert answer.status.code == Code.BAD_REQUEST
    assert "no SendMessageRequest" in answer.status.message
    await client.send_one()


async def test_a_text_that_is_no_utf_8_is_a_bad_request(client: Any) -> None:
    method = client.channel.unary_stream(
        "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
        response_deserializer=rpc.ReceiveMessageResponse.FromString,
    )
    data = rpc.ReceiveMessageRequest(group=pb.Resource(name="grp")).SerializeToString()
    (answer,) = [one async for one in method(data.replace(b"grp", b"\xff\xfe\xfd"), metadata=client.metadata)]
    assert answer.status.code == Code.BAD_REQUEST
    assert "UTF-8" in answer.status.message


async def test_bytes_that_are_no_command_end_a_telemetry_stream_as_settings_that_cannot_be(
    client: Any,
) -> None:
    method = client.channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")
    call = method(metadata=client.metadata, timeout=60)
    await call.write(b"\xff\xff\xff")
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
