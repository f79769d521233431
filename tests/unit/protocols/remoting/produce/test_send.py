"""Sends as classic producers make them, on an embedded broker."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.batches import MOST_MESSAGES, Batch, Single
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerUnavailable,
    Fault,
    GatewayError,
    TooManyRequests,
)
from popgate.ids.message_id import decode_offset_message_id, encode_offset_message_id
from popgate.model import (
    CLEANUP_POLICY,
    COMPACTION,
    FilterKind,
    Message,
    MessageType,
    Permission,
    Sent,
    StoredMessage,
    TopicConfig,
)
from popgate.naming import RETRY_PREFIX
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import FIRST_ID, RequestCode, ResponseCode
from popgate.wire.frames.remoting import LARGEST_FRAME, Command, encode_command
from popgate.wire.messages.batches import BatchItem, encode_batch
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import decode_properties, encode_properties
from processors.limits import Limits
from processors.requests import Pull
from protocols.remoting.codec.marks import Origin
from protocols.remoting.codec.messages import Head
from protocols.remoting.produce.send import SendHandler, _ids_at
from protocols.remoting.routing import RouteHandler
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, Forwarding, Stage

SEND, SHORT, BATCH = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
BORN_MS = 1_699_999_999_000


def text_of(properties: Mapping[str, str]) -> str:
    return encode_properties(properties).decode()


def long_fields(topic: str = "orders", queue: int = 1, **more: Any) -> dict[str, object]:
    """The header of SEND_MESSAGE as Java 4.x writes it."""
    properties = more.pop("properties", {"UNIQ_KEY": "ID1", "TAGS": "paid", "WAIT": "true"})
    return {
        "producerGroup": "makers",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": queue,
        "sysFlag": 0,
        "bornTimestamp": BORN_MS,
        "flag": 7,
        "properties": properties if isinstance(properties, str) else text_of(properties),
        "reconsumeTimes": 0,
        "unitMode": False,
        "batch": False,
        "bname": "popgate",
        **more,
    }


def short_fields(topic: str = "orders", queue: int = 1, **more: Any) -> dict[str, object]:
    """That of SEND_MESSAGE_V2, as every client since 3.2 writes it."""
    properties = more.pop("i", {"UNIQ_KEY": "ID1", "TAGS": "paid", "WAIT": "true"})
    return {
        "a": "makers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue,
        "f": 0,
        "g": BORN_MS,
        "h": 7,
        "i": properties if isinstance(properties, str) else text_of(properties),
        "j": 0,
        "k": False,
        "m": False,
        "n": "popgate",
        **more,
    }


async def stored(stage: Stage, topic: str = "orders", queue: int = 1) -> list[StoredMessage]:
    pull = Pull(topic, "popgate", queue, 0, filter_kind=FilterKind.TAG, max_messages=100)
    return (await stage.processor.pull(Context(), pull)).messages


@pytest.fixture
async def caller(stage: Stage) -> Caller:
    await stage.topic()
    return Caller(SendHandler(stage.door_context))


@pytest.mark.parametrize(("code", "fields"), [(SEND, long_fields()), (SHORT, short_fields())])
async def test_a_message_is_stored_as_it_came(
    stage: Stage, caller: Caller, code: int, fields: dict[str, object]
) -> None:
    answer = await caller.ok(code, fields, b"body")
    [message] = await stored(stage)
    assert (message.queue_id, message.offset, message.body, message.flag) == (1, 0, b"body", 7)
    assert (message.born_ms, message.born_host) == (BORN_MS, caller.peer.address)
    assert decode_properties(message.properties) == {"UNIQ_KEY": "ID1", "TAGS": "paid", "WAIT": "true"}
    assert answer.fields["queueId"] == "1"
    assert answer.fields["queueOffset"] == "0"
    assert answer.fields["transactionId"] == "ID1"
    assert "recallHandle" not in answer.fields
    # The id of the place leads here, where clients go to ask for it.
    assert decode_offset_message_id(answer.fields["msgId"]) == (ADDRESS, message.commit_offset)


async def test_who_names_no_broker_means_the_only_one(stage: Stage, caller: Caller) -> None:
    await caller.ok(SHORT, short_fields(n=None), b"body")
    assert len(await stored(stage)) == 1


async def test_an_unknown_broker_is_refused(caller: Caller) -> None:
    answer = await caller.ask(SHORT, short_fields(n="elsewhere"), b"body")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "elsewhere" in answer.remark


async def test_a_negative_queue_is_any(stage: Stage, caller: Caller) -> None:
    answer = await caller.ok(SHORT, short_fields(queue=-1), b"body")
    assert 0 <= int(answer.fields["queueId"]) < 4
    assert len(await stored(stage, queue=int(answer.fields["queueId"]))) == 1


async def test_a_queue_that_is_not_there_is_refused(caller: Caller) -> None:
    answer = await caller.ask(SHORT, short_fields(queue=4), b"body")
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_a_queue_that_its_client_was_told_of_is_there(stage: Stage) -> None:
    """Also when the topic has got it by another gateway, and this one sent to the topic a moment ago."""
    await stage.topic()
    caller = Caller(SendHandler(stage.door_context), RouteHandler(stage.door_context))
    await caller.ok(SHORT, short_fields(queue=3), b"before")
    await stage.broker.update_topic(TopicConfig("orders", read_queues=8, write_queues=8))
    answer = await caller.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert TopicRoute.decode(answer.body).queues[0].write_queues == 8
    await caller.ok(SHORT, short_fields(queue=7), b"behind")


async def test_the_same_object_sent_twice_is_two_messages(stage: Stage, caller: Caller) -> None:
    first = await caller.ok(SHORT, short_fields(), b"body")
    again = await caller.ok(SHORT, short_fields(), b"body")
    assert (first.fields["queueOffset"], again.fields["queueOffset"]) == ("0", "1")
    assert len(await stored(stage)) == 2


async def test_who_says_so_sends_a_message_once(stage: Stage, caller: Caller) -> None:
    first = await caller.ok(SHORT, short_fields(once=True), b"body")
    again = await caller.ok(SHORT, short_fields(once=True), b"body")
    assert again.fields == first.fields
    assert len(await stored(stage)) == 1


async def test_of_a_batch_that_comes_again_what_is_new_is_stored(stage: Stage, caller: Caller) -> None:
    def batch(*numbers: int) -> bytes:
        return encode_batch(
            (0, b"%d" % number, encode_properties({"UNIQ_KEY": f"ID{number}"})) for number in numbers
        )

    fields = short_fields(once=True, i="")
    first = await caller.ok(BATCH, fields, batch(0, 1))
    again = await caller.ok(BATCH, fields, batch(0, 1, 2))
    assert [message.body for message in await stored(stage)] == [b"0", b"1", b"2"]
    assert again.fields["msgId"].split(",")[:2] == first.fields["msgId"].split(",")
    assert again.fields["queueOffset"] == "0"


async def test_a_message_without_an_id_gets_one(stage: Stage, caller: Caller) -> None:
    answer = await caller.ok(SHORT, short_fields(i=""), b"body")
    [message] = await stored(stage)
    assert decode_properties(message.properties) == {"UNIQ_KEY": answer.fields["transactionId"]}


async def test_compressed_bodies_stay_closed(stage: Stage, caller: Caller) -> None:
    # Bit 0: compressed, 0x300: by zlib; the transaction bits are not the sender's to set.
    await caller.ok(SHORT, short_fields(f=0x1 | 0x300 | 0x8 | 0x80), b"no zlib at all")
    [message] = await stored(stage)
    assert message.body == b"no zlib at all"
    assert message.sys_flag == 0x301


async def test_an_unknown_topic_is_made(stage: Stage, caller: Caller) -> None:
    await caller.ok(SHORT, short_fields("fresh", 3), b"body")
    assert len(await stored(stage, "fresh", 3)) == 1
    await caller.ok(SHORT, short_fields("fresher", 3, n=None), b"body")
    assert len(await stored(stage, "fresher", 3)) == 1


class TestWhereTopicsAreNotMade:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(auto_create_topics=False)

    async def test_an_unknown_topic_is_refused(self, caller: Caller) -> None:
        answer = await caller.ask(SHORT, short_fields("fresh"), b"body")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("or ders", ResponseCode.INVALID_PARAMETER),
        ("x" * 128, ResponseCode.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("TRANS_CHECK_MAX_TIME_TOPIC", ResponseCode.NO_PERMISSION),
        ("SELF_TEST_TOPIC", ResponseCode.NO_PERMISSION),
        ("OFFSET_MOVED_EVENT", ResponseCode.NO_PERMISSION),
        ("rmq_sys_wheel_timer", ResponseCode.NO_PERMISSION),
    ],
)
async def test_topics_that_cannot_be_sent_to(caller: Caller, topic: str, code: int) -> None:
    assert (await caller.ask(SHORT, short_fields(topic), b"body")).code == code


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_here", "BenchmarkTest"])
@pytest.mark.parametrize("broker", ["popgate", None])
async def test_traces_are_stored_where_they_are_sent(
    stage: Stage, caller: Caller, topic: str, broker: str | None
) -> None:
    await caller.ok(SHORT, short_fields(topic, n=broker), b"trace")
    assert [message.body for message in await stored(stage, topic)] == [b"trace"]


async def test_a_topic_that_is_not_writable_is_refused(stage: Stage, caller: Caller) -> None:
    await stage.topic("closed", permission=Permission.READ)
    assert (await caller.ask(SHORT, short_fields("closed"), b"x")).code == ResponseCode.NO_PERMISSION
    for properties in ({}, {"__SHARDINGKEY": "g"}):
        batch = batch_of(b"one", b"two", **properties)
        answer = await caller.ask(BATCH, short_fields("closed", m=True, i=""), batch)
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "fields",
    [
        {"e": None},
        {"e": "one"},
        {"e": str(1 << 31)},
        {"b": None},
        {"b": ""},
        {"f": "0x1"},
        {"g": str(1 << 63)},
        {"h": "1.5"},
        {"l": "many"},
        {"j": "-"},
    ],
)
async def test_fields_that_make_no_sense_are_refused(caller: Caller, fields: dict[str, Any]) -> None:
    answer = await caller.ask(SHORT, {**short_fields(), **fields}, b"body")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the field" in answer.remark or "no field" in answer.remark


@pytest.mark.parametrize(
    ("properties", "body"),
    [
        ({"UNIQ_KEY": "ID1"}, b""),
        ({"UNIQ_KEY": "ID1"}, b"x" * (4 * 1024 * 1024 + 1)),
        ({"UNIQ_KEY": "ID1", "note": "x" * 33_000}, b"body"),
        ({"UNIQ_KEY": "ID1", "note": "x" * 16_400}, b"body"),
        ({"UNIQ_KEY": "ID1", **{f"key{number}": "x" for number in range(129)}}, b"body"),
        ({"UNIQ_KEY": "ID1", "DELAY": "soon"}, b"body"),
        ({"UNIQ_KEY": "ID1", "TIMER_DELAY_SEC": "9" * 18}, b"body"),
        ({"UNIQ_KEY": "ID1", "TIMER_DELIVER_MS": "9" * 25}, b"body"),
        ({"UNIQ_KEY": "ID1", "_SYS_MSG_PRIORITY_": "high"}, b"body"),
    ],
)
async def test_messages_that_cannot_be_are_refused(
    stage: Stage, caller: Caller, properties: dict[str, str], body: bytes
) -> None:
    answer = await caller.ask(SHORT, short_fields(i=properties), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert not await stored(stage)


async def test_a_delayed_message_comes_at_its_level(stage: Stage, caller: Caller) -> None:
    answer = await caller.ok(SHORT, short_fields(i={"UNIQ_KEY": "ID1", "DELAY": "2"}), b"body")
    assert answer.fields["recallHandle"]
    await stage.pass_s(4.9)
    assert not await stored(stage)
    await stage.pass_s(0.2)
    assert await stage.until(lambda: stored(stage))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMER_DELAY_SEC", "5"),
        ("TIMER_DELAY_MS", "5000"),
        ("TIMER_DELIVER_MS", str(1_700_000_000_000 + 5_000)),
        ("DELAY", "2"),
    ],
)
async def test_a_delayed_message_can_be_recalled(stage: Stage, caller: Caller, name: str, value: str) -> None:
    sent = await caller.ok(SHORT, short_fields(i={"UNIQ_KEY": "ID1", name: value}), b"body")
    handle = {"topic": "orders", "recallHandle": sent.fields["recallHandle"], "producerGroup": "makers"}
    answer = await caller.ok(RequestCode.RECALL_MESSAGE, handle)
    assert answer.fields["msgId"] == "ID1"
    assert (await caller.ask(RequestCode.RECALL_MESSAGE, handle)).code == ResponseCode.ILLEGAL_OPERATION
    await stage.pass_s(10)
    assert not await stored(stage)


@pytest.mark.parametrize(
    ("topic", "handle", "code"),
    [
        ("orders", "nonsense", ResponseCode.ILLEGAL_OPERATION),
        ("orders", "", ResponseCode.ILLEGAL_OPERATION),
        (RETRY_PREFIX + "readers", "djE=", ResponseCode.ILLEGAL_OPERATION),
        ("or ders", "djE=", ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_what_cannot_be_recalled(caller: Caller, topic: str, handle: str, code: int) -> None:
    answer = await caller.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})
    assert answer.code == code


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, MessageType.PRIORITY),
        ({"DELAY": "3"}, MessageType.DELAY),
        ({"__SHARDINGKEY": "g"}, MessageType.FIFO),
        ({"TRAN_MSG": "true"}, MessageType.TRANSACTION),
    ],
)
async def test_a_priority_is_the_least_of_what_makes_a_type(
    stage: Stage, caller: Caller, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], kind: MessageType
) -> None:
    """As brokers have it. A consumer in order sends what it gave up to its retry topic, with a delay."""
    send, kinds = stage.broker.send, []

    async def seen(context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        kinds.append(messages[0].type)
        return await send(context, messages)

    monkeypatch.setattr(stage.broker, "send", seen)
    await caller.ok(SHORT, short_fields(i={"UNIQ_KEY": "ID1", "_SYS_MSG_PRIORITY_": "2", **more}), b"body")
    assert kinds == [kind]


async def test_a_time_that_is_over_means_at_once(stage: Stage, caller: Caller) -> None:
    answer = await caller.ok(SHORT, short_fields(i={"UNIQ_KEY": "ID1", "TIMER_DELIVER_MS": "1000"}), b"body")
    assert "recallHandle" not in answer.fields
    assert len(await stored(stage)) == 1


async def test_the_type_of_a_message_is_checked_where_its_topic_has_one(stage: Stage, caller: Caller) -> None:
    await stage.topic("lines", message_types=(MessageType.FIFO,))
    plain = await caller.ask(SHORT, short_fields("lines"), b"body")
    assert plain.code == ResponseCode.MESSAGE_ILLEGAL
    await caller.ok(SHORT, short_fields("lines", i={"UNIQ_KEY": "ID1", "__SHARDINGKEY": "a"}), b"body")
    half = await caller.ask(
        SHORT, short_fields("lines", i={"UNIQ_KEY": "ID2", "__SHARDINGKEY": "a", "TRAN_MSG": "true"}), b"body"
    )
    assert half.code == ResponseCode.MESSAGE_ILLEGAL


async def test_topics_without_a_type_take_all(stage: Stage, caller: Caller) -> None:
    for at, more in enumerate(({}, {"DELAY": "1"}, {"__SHARDINGKEY": "a"}, {"TRAN_MSG": "true"})):
        properties = {"UNIQ_KEY": f"ID{at}", "PGROUP": "makers", **more}
        await caller.ok(SHORT, short_fields(i=properties), b"body")
    # Neither the delayed one nor the half one is there yet.
    assert len(await stored(stage)) == 2


async def test_a_half_message_is_answered_with_its_place(stage: Stage, caller: Caller) -> None:
    properties = {"UNIQ_KEY": "ID1", "PGROUP": "makers", "TRAN_MSG": "true"}
    answer = await caller.ok(SHORT, short_fields(i=properties, f=0x4), b"body")
    assert answer.fields["transactionId"] == "ID1"
    host, place = decode_offset_message_id(answer.fields["msgId"])
    assert host == ADDRESS
    assert place >= 0
    assert not await stored(stage)


async def test_a_request_message_tells_the_cluster_that_its_answer_goes_to(
    stage: Stage, caller: Caller
) -> None:
    properties = {"UNIQ_KEY": "ID1", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "client@1", "TTL": "3000"}
    await caller.ok(SHORT, short_fields(i=properties), b"question")
    [message] = await stored(stage)
    assert decode_properties(message.properties) == {**properties, "CLUSTER": "DefaultCluster"}


async def test_a_one_way_send_is_stored(stage: Stage, caller: Caller) -> None:
    await caller.call(SHORT, short_fields(), b"body", oneway=True)
    assert len(await stored(stage)) == 1


def batch_of(*bodies: bytes, **properties: str) -> bytes:
    return encode_batch(
        [
            BatchItem(at, body, encode_properties({"UNIQ_KEY": f"ID{at}", **properties}))
            for at, body in enumerate(bodies)
        ]
    )


class TestBatches:
    async def send(self, caller: Caller, body: bytes, **more: Any) -> Command:
        return await caller.ask(BATCH, short_fields(m=True, **{"i": "", **more}), body)

    async def test_all_lie_in_one_queue_in_order(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(SHORT, short_fields(), b"before")
        answer = await self.send(caller, batch_of(b"one", b"two", b"three", TAGS="paid"))
        assert answer.code == ResponseCode.SUCCESS
        messages = await stored(stage)
        assert [message.body for message in messages] == [b"before", b"one", b"two", b"three"]
        assert [message.flag for message in messages[1:]] == [0, 1, 2]
        assert answer.fields["queueOffset"] == "1"
        places = [decode_offset_message_id(name) for name in answer.fields["msgId"].split(",")]
        assert places == [(ADDRESS, message.commit_offset) for message in messages[1:]]

    async def test_the_first_id_is_enough_for_who_says_so(self, stage: Stage, caller: Caller) -> None:
        answer = await self.send(caller, batch_of(b"one", b"two"), **{FIRST_ID: "true"})
        first, _ = await stored(stage)
        assert decode_offset_message_id(answer.fields["msgId"]) == (ADDRESS, first.commit_offset)
        assert (answer.fields["queueOffset"], answer.fields["transactionId"]) == ("0", "ID0")

    @pytest.mark.parametrize(
        ("properties", "packed"), [({"KEYS": "k"}, True), ({"__SHARDINGKEY": "g"}, False)]
    )
    async def test_plain_messages_are_stored_packed(
        self,
        stage: Stage,
        caller: Caller,
        monkeypatch: pytest.MonkeyPatch,
        properties: dict[str, str],
        packed: bool,
    ) -> None:
        sends = Mock(wraps=stage.processor.send_packed)
        monkeypatch.setattr(stage.processor, "send_packed", sends)
        answer = await self.send(caller, batch_of(b"one", b"two", **properties))
        assert answer.fields["transactionId"] == "ID0"
        assert sends.call_count == packed
        blocks = [decode_properties(message.properties) for message in await stored(stage)]
        assert blocks == [{"UNIQ_KEY": f"ID{at}", **properties} for at in range(2)]

    async def test_a_queue_that_is_not_there_is_refused(self, stage: Stage, caller: Caller) -> None:
        answer = await self.send(caller, batch_of(b"one", b"two"), queue=9)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "no writable queue 9 at broker 'popgate'" in answer.remark

    async def test_what_its_header_says_is_for_all_but_its_own_id(self, stage: Stage, caller: Caller) -> None:
        shared = {"UNIQ_KEY": "BATCH", "WAIT": "true", "TAGS": "all", "color": "red"}
        await self.send(caller, batch_of(b"one", b"two", TAGS="own"), i=text_of(shared))
        assert [decode_properties(message.properties) for message in await stored(stage)] == [
            {"UNIQ_KEY": f"ID{at}", "TAGS": "own", "color": "red"} for at in range(2)
        ]
        assert [message.properties.count(b"UNIQ_KEY") for message in await stored(stage)] == [1, 1]

    async def test_a_batch_that_names_no_queue_stays_together(self, stage: Stage, caller: Caller) -> None:
        body = encode_batch(
            [
                BatchItem(0, b"x", encode_properties({"UNIQ_KEY": f"ID{at}", "__SHARDINGKEY": f"group{at}"}))
                for at in range(8)
            ]
        )
        answer = await self.send(caller, body, queue=-1, n=None)
        assert answer.code == ResponseCode.SUCCESS
        assert len(await stored(stage, queue=int(answer.fields["queueId"]))) == 8

    async def test_a_batch_of_too_many_messages_is_refused_before_they_are_read(
        self, stage: Stage, caller: Caller
    ) -> None:
        """A gateway would be busy with all that fit into a frame for seconds, and serve nobody meanwhile."""
        answer = await self.send(caller, encode_batch([BatchItem(0, b"", b"")]) * (MOST_MESSAGES + 1))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"more than {MOST_MESSAGES} messages" in answer.remark
        assert await stored(stage) == []

    async def test_a_large_batch_is_stored_in_order(self, stage: Stage, caller: Caller) -> None:
        bodies = [str(number).encode() for number in range(1_500)]
        answer = await self.send(caller, batch_of(*bodies))
        assert answer.code == ResponseCode.SUCCESS
        assert answer.fields["msgId"].count(",") == 1_499
        pull = Pull("orders", "popgate", 1, 1_400, max_messages=1_000)
        found = await stage.processor.pull(Context(), pull)
        assert [message.body for message in found.messages] == bodies[1_400:]

    @pytest.mark.parametrize(
        ("body", "properties", "types"),
        [(b"", {}, ()), (b"x", {"__SHARDINGKEY": "g" * 64}, ()), (b"x", {"__SHARDINGKEY": "g"}, ("NORMAL",))],
    )
    async def test_of_a_large_batch_with_a_bad_message_no_part_is_stored(
        self, stage: Stage, caller: Caller, body: bytes, properties: dict[str, str], types: tuple[str, ...]
    ) -> None:
        """Its producer is told that it was refused, and may send the others again."""
        await stage.topic("typed", message_types=tuple(map(MessageType, types)))
        most = stage.processor.limits.max_messages_per_send
        bad = encode_batch([BatchItem(0, body, encode_properties({"UNIQ_KEY": "BAD", **properties}))])
        answer = await self.send(caller, batch_of(*[b"x"] * most) + bad, topic="typed")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert await stored(stage, "typed") == []

    @pytest.mark.parametrize("more", [1, 1_024])
    @pytest.mark.parametrize("group", ["", "g"])
    async def test_of_a_compacted_batch_with_a_message_without_a_key_none_is(
        self, stage: Stage, caller: Caller, more: int, group: str
    ) -> None:
        """Packed, decoded, or in parts: stored with the others."""
        await stage.topic("state", attributes={CLEANUP_POLICY: COMPACTION})
        bad = {"__SHARDINGKEY": group}
        body = batch_of(*[b"x"] * more, KEYS="k") + batch_of(b"x", **bad)
        answer = await self.send(caller, body, topic="state")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "has no key" in answer.remark
        assert await stored(stage, "state") == []

    async def test_the_answer_to_the_largest_batch_fits_into_a_frame(
        self, stage: Stage, caller: Caller
    ) -> None:
        """Or its client, told of an error, would send all of it again."""
        items = [BatchItem(0, b"x", b"UNIQ_KEY\x01ID%d\x02" % at) for at in range(MOST_MESSAGES)]
        answer = await self.send(caller, encode_batch(items))
        assert len(encode_command(answer)) < LARGEST_FRAME
        assert (answer.code, answer.fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
        first = (await stored(stage))[0]
        assert decode_offset_message_id(answer.fields["msgId"]) == (ADDRESS, first.commit_offset)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\x00\x00\x00\x10",
            b"\xff" * 64,
            batch_of(b"one")[:-1],
            batch_of(b"one", DELAY="3"),
            batch_of(b"one", TIMER_DELAY_SEC="3"),
            batch_of(b"one", TRAN_MSG="true"),
            batch_of(b"one", b""),
        ],
    )
    async def test_what_is_no_batch_is_refused(self, stage: Stage, caller: Caller, body: bytes) -> None:
        assert (await self.send(caller, body)).code == ResponseCode.MESSAGE_ILLEGAL
        assert not await stored(stage)

    async def test_none_goes_to_a_retry_topic(self, caller: Caller) -> None:
        answer = await self.send(caller, batch_of(b"one"), topic=RETRY_PREFIX + "readers")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    async def test_a_batch_in_a_plain_send_is_told_by_its_flag(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(SHORT, short_fields(m=True, i=""), batch_of(b"one", b"two"))
        assert [message.body for message in await stored(stage)] == [b"one", b"two"]


class TestBatchesInOnePiece:
    NAMES = ("0A00000100002A9F00000000075BCD15", "0A00000100002A9F00000000075BCDFF")

    @pytest.fixture
    def forwarding(self, stage: Stage) -> Forwarding:
        stage.processor.batches = forwarding = Forwarding(*self.NAMES)  # type: ignore[assignment]
        return forwarding

    async def test_the_answer_names_this_door(self, forwarding: Forwarding, caller: Caller) -> None:
        answer = await caller.ok(BATCH, short_fields(m=True, i="WAIT\x01true\x02"), batch_of(b"one", b"two"))
        (batch,) = forwarding.batches
        assert (batch.topic, batch.broker, batch.queue_id, batch.count) == ("orders", "popgate", 1, 2)
        assert {name: answer.fields[name] for name in ("queueId", "queueOffset", "transactionId")} == {
            "queueId": "1",
            "queueOffset": "40",
            "transactionId": "ID0",
        }
        places = [decode_offset_message_id(name) for name in answer.fields["msgId"].split(",")]
        assert places == [(ADDRESS, 0x075BCD15), (ADDRESS, 0x075BCDFF)]

    async def test_the_broker_may_be_at_an_address_of_ipv6(
        self, forwarding: Forwarding, caller: Caller
    ) -> None:
        forwarding.offset_message_ids = (f"{'20010DB8' * 4}{10911:08X}{7:016X}",)
        answer = await caller.ok(BATCH, short_fields(m=True, i=""), batch_of(b"one"))
        assert decode_offset_message_id(answer.fields["msgId"]) == (ADDRESS, 7)

    async def test_what_is_wrong_with_a_batch_is_not_sent_again(
        self, forwarding: Forwarding, caller: Caller
    ) -> None:
        forwarding.failure = BadRequest("topic orders has no writable queue 9")
        refused = await caller.ask(BATCH, short_fields(m=True, i=""), batch_of(b"one"))
        assert refused.code == ResponseCode.INVALID_PARAMETER
        forwarding.failure = BrokerUnavailable("away")
        refused = await caller.ask(BATCH, short_fields(m=True, i=""), batch_of(b"one"))
        assert refused.code != ResponseCode.INVALID_PARAMETER

    async def test_what_is_too_large_for_its_broker_together_is_sent_in_parts(
        self, forwarding: Forwarding, stage: Stage, caller: Caller
    ) -> None:
        forwarding.failure = BadRequest("message body size exceeded", Fault.BODY_TOO_LARGE)
        await caller.ok(BATCH, short_fields(m=True, i=""), batch_of(b"one", b"two"))
        assert [message.body for message in await stored(stage)] == [b"one", b"two"]

    @pytest.mark.parametrize("failure", [BrokerBusy, TooManyRequests])
    async def test_no_code_says_that_nothing_of_a_batch_is_stored_where_some_is(
        self,
        forwarding: Forwarding,
        stage: Stage,
        caller: Caller,
        failure: type[GatewayError],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A Spark sink that writes each row once sends all again after SYSTEM_BUSY, without a look."""
        forwarding.failure = BadRequest("message body size exceeded", Fault.BODY_TOO_LARGE)
        store, done = stage.processor.send, 1

        async def busy(
            context: Context, messages: Sequence[Message], *, system: bool
        ) -> list[Sent | GatewayError]:
            """After `done` messages."""
            results = await store(context, messages[:done], system=system) if done else []
            return [*results, *(failure("a pause") for _ in messages[done:])]

        monkeypatch.setattr(stage.processor, "send", busy)
        answer = await caller.ask(BATCH, short_fields(m=True, i=""), batch_of(b"one", b"two"))
        assert (answer.code, len(await stored(stage))) == (ResponseCode.SYSTEM_ERROR, 1)
        assert "a pause" in answer.remark
        done = 0
        answer = await caller.ask(BATCH, short_fields(m=True, i=""), batch_of(b"one", b"two"))
        assert (answer.code, len(await stored(stage))) == (ResponseCode.SYSTEM_BUSY, 1)

    async def test_no_code_says_so_where_the_first_part_of_a_large_batch_is_stored(
        self, forwarding: Forwarding, stage: Stage, caller: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forwarding.failure = BadRequest("message body size exceeded", Fault.BODY_TOO_LARGE)
        store, most = stage.processor.send, stage.processor.limits.max_messages_per_send
        calls: list[int] = []

        async def busy(
            context: Context, messages: Sequence[Message], *, system: bool
        ) -> list[Sent | GatewayError]:
            calls.append(len(messages))
            if len(calls) > 1:
                raise TooManyRequests("enough")
            return await store(context, messages, system=system)

        monkeypatch.setattr(stage.processor, "send", busy)
        bodies = [b"%d" % number for number in range(most + 1)]
        answer = await caller.ask(BATCH, short_fields(m=True, i=""), batch_of(*bodies))
        assert calls == [most, 1]
        assert answer.code == ResponseCode.SYSTEM_ERROR

    @pytest.mark.parametrize(
        "names", [(), NAMES[:1], (NAMES[0], "x" * 32), (NAMES[0], "\u0661" * 32), (NAMES[0], NAMES[1] + "0")]
    )
    async def test_messages_whose_places_are_not_known_are_nowhere(
        self, forwarding: Forwarding, caller: Caller, names: tuple[str, ...]
    ) -> None:
        forwarding.offset_message_ids = names
        answer = await caller.ok(BATCH, short_fields(m=True, i=""), batch_of(b"one", b"two"))
        places = [decode_offset_message_id(name) for name in answer.fields["msgId"].split(",")]
        assert places == [(ADDRESS, (1 << 63) - 1)] * 2

    async def test_a_queue_is_chosen_for_a_batch_that_names_none(
        self, forwarding: Forwarding, caller: Caller
    ) -> None:
        await caller.ok(BATCH, short_fields(m=True, i="", queue=-1, n=None), batch_of(b"one"))
        (batch,) = forwarding.batches
        assert batch.broker == "popgate"
        assert batch.queue_id >= 0

    async def test_what_needs_a_look_is_looked_at(
        self, forwarding: Forwarding, stage: Stage, caller: Caller
    ) -> None:
        await caller.ok(BATCH, short_fields(m=True, i=""), batch_of(b"one", __SHARDINGKEY="a"))
        refused = await caller.ask(BATCH, short_fields(m=True, i=""), batch_of(b"one", DELAY="3"))
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert forwarding.batches == []
        assert [message.body for message in await stored(stage)] == [b"one"]


class TestMessagesAsTheyCame:
    """Messages of the usual kind are forwarded to a broker that takes them, and all others are looked at."""

    NAME = "0A00000100002A9F00000000075BCD15"

    @pytest.fixture
    def forwarding(self, stage: Stage) -> Forwarding:
        stage.processor.batches = forwarding = Forwarding(self.NAME)  # type: ignore[assignment]
        return forwarding

    @pytest.mark.parametrize(("code", "fields"), [(SEND, long_fields()), (SHORT, short_fields())])
    async def test_the_answer_names_this_door(
        self, forwarding: Forwarding, caller: Caller, code: int, fields: dict[str, object]
    ) -> None:
        answer = await caller.ok(code, fields, b"body")
        (single,) = forwarding.singles
        assert (single.topic, single.broker, single.queue_id) == ("orders", "popgate", 1)
        assert (single.body, single.flag, single.born_ms) == (b"body", 7, BORN_MS)
        assert answer.fields == {
            "msgId": encode_offset_message_id(ADDRESS, 0x075BCD15),
            "queueId": "1",
            "queueOffset": "40",
            "transactionId": "ID1",
        }

    async def test_a_place_that_is_not_known_is_nowhere(self, forwarding: Forwarding, caller: Caller) -> None:
        forwarding.offset_message_ids = ()
        answer = await caller.ok(SHORT, short_fields(), b"body")
        assert decode_offset_message_id(answer.fields["msgId"]) == (ADDRESS, (1 << 63) - 1)

    async def test_what_is_wrong_with_it_is_not_sent_again(
        self, forwarding: Forwarding, stage: Stage, caller: Caller
    ) -> None:
        for failure, is_final in (
            (BadRequest("topic orders has no writable queue 9"), True),
            (BadRequest("message body size exceeded", Fault.BODY_TOO_LARGE), False),
            (BrokerUnavailable("away"), False),
        ):
            forwarding.failure = failure
            refused = await caller.ask(SHORT, short_fields(), b"body")
            assert (refused.code == ResponseCode.INVALID_PARAMETER) is is_final
            assert refused.code != ResponseCode.SUCCESS
        assert await stored(stage) == []

    @pytest.mark.parametrize(
        ("fields", "body"),
        [
            (short_fields(i=text_of({"TAGS": "a"})), b"body"),
            (short_fields(i=text_of({"UNIQ_KEY": "ID", "__SHARDINGKEY": "a"})), b"body"),
            (short_fields(i=text_of({"UNIQ_KEY": "ID", "DELAY": "3"})), b"body"),
            (short_fields(queue=-1), b"body"),
            (short_fields("RMQ_SYS_TRACE_TOPIC"), b"body"),
            (short_fields(f"{RETRY_PREFIX}readers", 0, j=1), b"body"),
        ],
    )
    async def test_what_needs_a_look_is_looked_at(
        self, forwarding: Forwarding, caller: Caller, fields: dict[str, object], body: bytes
    ) -> None:
        await caller.ok(SHORT, fields, body)
        assert forwarding.singles == []


class TestRefusedRequests:
    """What was refused is let go of at once: bodies are in no budget any more when the answer is written."""

    @pytest.mark.parametrize("code", [SHORT, BATCH])
    @pytest.mark.parametrize("passed_on", [False, True])
    async def test_nothing_of_them_is_left_to_the_collector(
        self, stage: Stage, caller: Caller, monkeypatch: pytest.MonkeyPatch, code: int, passed_on: bool
    ) -> None:
        class Refusing(Forwarding):
            async def forward(self, context: Context, batch: Batch) -> NoReturn:
                raise BadRequest("the topic is of another type", Fault.MESSAGE_TYPE_MISMATCH)

            async def forward_message(self, context: Context, message: Single) -> NoReturn:
                raise BadRequest("the topic is of another type", Fault.MESSAGE_TYPE_MISMATCH)

        async def refused(*_: object, **__: object) -> NoReturn:
            raise BadRequest("the topic is of another type", Fault.MESSAGE_TYPE_MISMATCH)

        if passed_on:
            monkeypatch.setattr(stage.processor, "batches", Refusing())
        else:
            monkeypatch.setattr(stage.processor, "send", refused)
            monkeypatch.setattr(stage.processor, "send_packed", refused)
        body = encode_batch([BatchItem(0, b"one", b"UNIQ_KEY\x01ID")] * 2) if code == BATCH else b"body"
        fields = short_fields(m="true", i="") if code == BATCH else short_fields()
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                answer = await caller.ask(code, fields, body)
                assert answer.code != ResponseCode.SUCCESS
            left = [each for each in gc.get_objects() if isinstance(each, Head)]
        finally:
            gc.enable()
        assert left == []


class TestIdsOfABatch:
    """They are moved to this door's address all at once where they are plain, else one by one."""

    def one_by_one(self, ids: str, count: int) -> str:
        names, ours = ids.split(","), pack_host(ADDRESS).hex().upper()
        if len(names) == count and all(
            re.fullmatch("[0-9a-fA-F]{32}([0-9a-fA-F]{24})?", name) for name in names
        ):
            return ",".join(ours + name[-16:] for name in names)
        return ",".join([ours + "7" + "F" * 15] * count)

    @given(
        st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=4),
        st.sampled_from(["0A00000100002A9F", "0a00000100002a9f", "0" * 16, "20010DB8" * 4 + "00002A9F"]),
        st.integers(0, 140),
        st.sampled_from(["", " ", ",", "x", "F", "\u0661", "+", "_", "00,00"]),
        st.integers(0, 1),
    )
    def test_in_both_ways_the_same(
        self, places: list[int], host: str, at: int, damage: str, more: int
    ) -> None:
        text = ",".join(f"{host}{place:016X}" for place in places)
        replaced, inserted = text[:at] + damage + text[at + len(damage) :], text[:at] + damage + text[at:]
        for ids in (text, replaced, inserted):
            for count in (len(places), len(places) + more):
                moved = _ids_at(Origin(ADDRESS), "popgate", ids, count)
                assert moved == self.one_by_one(ids, count)


class TestRetries:
    """A consumer whose message could not be sent back sends it to its retry topic itself."""

    TOPIC = RETRY_PREFIX + "readers"
    PROPERTIES: ClassVar = {
        "UNIQ_KEY": "ID1",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "AB",
        "DELAY": "3",
    }

    def fields(self, reconsumed: int, **more: Any) -> dict[str, object]:
        return short_fields(self.TOPIC, 0, i=self.PROPERTIES, j=reconsumed, **more)

    async def test_it_comes_again_after_its_level(self, stage: Stage, caller: Caller) -> None:
        await stage.group()
        # Twice: it failed again, under the same id.
        for reconsumed in (1, 2):
            await caller.ok(SHORT, self.fields(reconsumed, l=16), b"body")
        await stage.pass_s(11)
        messages = await stage.until(lambda: stored(stage, self.TOPIC, 0))
        assert sorted(message.reconsume_times for message in messages) == [1, 2]

    async def test_the_group_is_made_with_its_topic(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(SHORT, self.fields(1, n=None), b"body")
        assert (await stage.processor.metadata.group(Context(), "readers")).name == "readers"

    @pytest.mark.parametrize(("reconsumed", "most"), [(4, 3), (17, None)])
    async def test_too_often_makes_a_dead_letter(
        self, stage: Stage, caller: Caller, reconsumed: int, most: int | None
    ) -> None:
        await caller.ok(SHORT, self.fields(reconsumed, l=most), b"body")
        [message] = await stored(stage, "%DLQ%readers", 0)
        properties = decode_properties(message.properties)
        assert properties["DLQ_ORIGIN_TOPIC"] == "orders"
        assert properties["DLQ_ORIGIN_MESSAGE_ID"] == "ID1"
        assert "DELAY" not in properties
        assert message.reconsume_times == reconsumed

    @pytest.mark.parametrize("broadcast", [False, True])
    async def test_one_of_an_orderly_group_is_dead_at_once(
        self, stage: Stage, caller: Caller, broadcast: bool
    ) -> None:
        await stage.group(broadcast=broadcast)
        await stage.processor.classic.lock(Context(), "readers", "client", [("orders", "popgate", 0)])
        await caller.ok(SHORT, self.fields(3, l=3), b"body")
        assert len(await stored(stage, "%DLQ%readers", 0)) == 1

    async def test_one_of_a_broadcast_group_comes_again_to_its_client(
        self, stage: Stage, caller: Caller
    ) -> None:
        """As what is sent back, which is of one client."""
        await stage.group(broadcast=True)
        await caller.ok(SHORT, self.fields(1), b"body")
        await stage.pass_s(11)
        await stage.until(lambda: stored(stage, self.TOPIC, 0))
        pull = Pull(self.TOPIC, "popgate", 0, 0, "readers")
        assert len((await stage.processor.pull(caller.context, pull)).messages) == 1
        assert len((await stage.processor.pull(Context(client_id="another@1"), pull)).messages) == 0

    async def test_it_is_not_too_large_now_if_it_was_not_before(self, stage: Stage, caller: Caller) -> None:
        """Over gRPC a message group and a trace context are no properties of the user."""
        users = {f"p{number}": "x" for number in range(stage.processor.limits.max_properties)}
        properties = {**self.PROPERTIES, **users, "__SHARDINGKEY": "g"}
        await caller.ok(SHORT, short_fields(self.TOPIC, 0, i=properties, j=1), b"body")

    async def test_its_message_group_may_be_of_any_length(self, stage: Stage, caller: Caller) -> None:
        """A producer that is connected to a cluster itself has no limit."""
        properties = {**self.PROPERTIES, "__SHARDINGKEY": "g" * 100}
        await caller.ok(SHORT, short_fields(self.TOPIC, 0, i=properties, j=1), b"body")
        await stage.pass_s(11)
        (message,) = await stage.until(lambda: stored(stage, self.TOPIC, 0))
        assert decode_properties(message.properties)["__SHARDINGKEY"] == "g" * 100

    @pytest.mark.parametrize(("body", "more"), [(b"", {}), (b"body", {"__LITE_TOPIC": "room"})])
    async def test_it_may_be_a_tombstone_or_of_a_lite_topic(
        self, stage: Stage, caller: Caller, body: bytes, more: dict[str, str]
    ) -> None:
        """A consumer of a compacted topic is given the first, one of a topic of lite topics the second."""
        properties = {**self.PROPERTIES, **more}
        await caller.ok(SHORT, short_fields(self.TOPIC, 0, i=properties, j=1), body)
        await stage.pass_s(11)
        (message,) = await stage.until(lambda: stored(stage, self.TOPIC, 0))
        assert message.body == body

    async def test_a_group_that_cannot_be_is_refused(self, caller: Caller) -> None:
        answer = await caller.ask(SHORT, short_fields(RETRY_PREFIX + "CID_RMQ_SYS_x", 0), b"body")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    async def test_a_half_message_that_comes_again_is_whole(self, stage: Stage, caller: Caller) -> None:
        properties = {**self.PROPERTIES, "TRAN_MSG": "true", "PGROUP": "makers"}
        await caller.ok(SHORT, short_fields(self.TOPIC, 0, i=properties, j=1), b"body")
        await stage.pass_s(11)
        assert await stage.until(lambda: stored(stage, self.TOPIC, 0))


class TestWhereDelaysAreShort:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(max_delay_ms=60_000)

    async def test_what_is_tried_again_waits_for_as_long_as_may_be(
        self, stage: Stage, caller: Caller
    ) -> None:
        """Refused, it would stand in the way of all behind it, where its consumer reads in order."""
        topic = RETRY_PREFIX + "readers"
        delayed = {"UNIQ_KEY": "ID1", "DELAY": "18"}
        refused = await caller.ask(SHORT, short_fields(i=delayed), b"body")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        await caller.ok(SHORT, short_fields(topic, 0, i=delayed, j=1), b"body")
        await stage.pass_s(61)
        assert await stage.until(lambda: stored(stage, topic, 0))


class TestWhereGroupsAreNotMade:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(auto_create_groups=False)

    async def test_their_retries_are_refused(self, caller: Caller) -> None:
        answer = await caller.ask(SHORT, short_fields(RETRY_PREFIX + "readers", 0, j=1), b"body")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
