"""Pop: what is taken, with which handle, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from popgate.context import Context
from popgate.errors import BrokerUnavailable, GatewayError, ReceiptExpired
from popgate.ids.message_id import make_message_id
from popgate.ids.receipt import OF_RETRY_V1, OF_RETRY_V2, OF_TOPIC, Receipt, parse_receipt
from popgate.model import Message, StoredMessage
from popgate.wire.bodies.pop_info import parse_pop_info
from popgate.wire.bodies.small_bodies import BatchAck, encode_batch_acks
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import LARGEST_FRAME, Command, encode_command
from popgate.wire.messages.properties import find_property
from popgate.wire.messages.records import Record, decode_records
from processors.limits import Limits
from protocols.remoting.codec.marks import Origin
from protocols.remoting.consume import pop as popping
from protocols.remoting.consume.pop import PopHandler, popped, topic_popped
from tests.support.waiting import until
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, Stage

POP, ACK, BATCH = RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
NOTICE, WAITERS = RequestCode.NOTIFICATION, RequestCode.POLLING_INFO


@pytest.fixture
def room(stage: Stage) -> PopHandler:
    return PopHandler(stage.door_context)


async def filled(stage: Stage, count: int, *, queues: int = 1, tags: str = "", **group: object) -> None:
    await stage.topic("orders", queues=queues)
    await stage.group("readers", **group)
    for number in range(count):
        message = Message(
            "orders",
            b"body %d" % number,
            make_message_id(),
            tag=tags[number] if tags else "",
            message_group="lane" if group.get("ordered") else "",
        )
        await stage.processor.send(Context(), [message])


def asked(**more: object) -> dict[str, object]:
    """The fields of a pop, as Java's client sends them."""
    return {
        "consumerGroup": "readers",
        "topic": "orders",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": False,
        **more,
    }


class Got(NamedTuple):
    record: Record
    handle: str


def taken(answer: Command, broker: str) -> list[Got]:
    """The messages of an answer with their handles, as Java's client makes them."""
    info = parse_pop_info(answer.fields)
    records = list(decode_records(answer.body, verify=True))
    found = []
    places: dict[tuple[int, int], int] = {}
    for record in records:
        brought = find_property(record.properties, b"POP_CK")
        kind = parse_receipt(brought.decode()).topic_type if brought else OF_TOPIC
        place = kind, record.queue_id
        index = places[place] = places.get(place, -1) + 1
        if brought is not None:
            found.append(Got(record, brought.decode()))
            continue
        told = info.offsets[place][index]
        assert told == record.offset
        found.append(
            Got(
                record,
                f"{info.starts[place]} {info.pop_ms} {info.invisible_ms} {info.revive_queue} {kind}"
                f" {broker} {record.queue_id} {told}",
            )
        )
    return found


def settled(got: Got, **more: object) -> dict[str, object]:
    receipt = parse_receipt(got.handle)
    return {
        "consumerGroup": "readers",
        "topic": "orders",
        "queueId": receipt.queue_id,
        "offset": receipt.offset,
        "extraInfo": got.handle,
        "bname": receipt.broker,
        **more,
    }


async def left(stage: Stage, caller: Caller) -> list[Got]:
    answer = await caller.ask(POP, asked())
    return taken(answer, stage.broker.name) if answer.code == ResponseCode.SUCCESS else []


@pytest.mark.parametrize("count", [1, 5])
async def test_what_is_popped_and_acknowledged_does_not_come_again(
    stage: Stage, room: PopHandler, count: int
) -> None:
    await filled(stage, count, queues=2)
    caller = Caller(room)
    answer = await caller.ok(POP, asked(bname=stage.broker.name))
    found = taken(answer, stage.broker.name)
    assert sorted(got.record.body for got in found) == [b"body %d" % n for n in range(count)]
    assert {got.record.reconsume_times for got in found} == {0}
    assert answer.fields["invisibleTime"] == "60000"
    assert answer.fields["restNum"] == "0"
    for got in found:
        await caller.ok(ACK, settled(got))
    await stage.pass_s(61)
    assert await left(stage, caller) == []


async def test_messages_name_this_door_as_their_place(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 1)
    (got,) = await left(stage, Caller(room))
    host, port = ADDRESS.split(":")
    assert got.record.store_host == bytes(map(int, host.split("."))) + int(port).to_bytes(4, "big")


async def test_what_is_not_acknowledged_comes_again_and_counts(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 1)
    caller = Caller(room)
    (first,) = await left(stage, caller)
    assert await left(stage, caller) == []
    await stage.pass_s(61)
    (again,) = await left(stage, caller)
    assert (again.record.body, again.record.reconsume_times) == (b"body 0", 1)
    late = await caller.ask(ACK, settled(first))
    assert late.code == ResponseCode.NO_MESSAGE
    await caller.ok(ACK, settled(again))


async def test_a_batch_acknowledges_what_it_can(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 4)
    caller = Caller(room)
    found = await left(stage, caller)
    acks = []
    for got in found[:3]:
        one = parse_receipt(got.handle)
        acks.append(
            BatchAck(
                "readers",
                "orders",
                one.topic_type,
                one.start_offset,
                one.queue_id,
                one.revive_queue,
                one.pop_ms,
                one.invisible_ms,
                (one.offset, one.offset + 1000),
            )
        )
    await caller.ok(BATCH, body=encode_batch_acks(stage.broker.name, acks))
    await stage.pass_s(61)
    (got,) = await left(stage, caller)
    assert got.record.body == found[3].record.body


async def test_a_batch_says_that_the_broker_was_away_for_some(
    stage: Stage, room: PopHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a handle beside them is worth nothing: its client would never acknowledge the others again."""
    await filled(stage, 3)
    caller = Caller(room)
    found = await left(stage, caller)
    first = parse_receipt(found[0].handle)
    offsets = tuple(parse_receipt(got.handle).offset for got in found)
    ack = BatchAck(
        "readers",
        "orders",
        first.topic_type,
        first.start_offset,
        first.queue_id,
        first.revive_queue,
        first.pop_ms,
        first.invisible_ms,
        offsets,
    )
    body = encode_batch_acks(stage.broker.name, [ack])

    async def trouble(
        _context: Context, _topic: str, _group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        # What it could not do it is asked for again, for a while.
        return [ReceiptExpired(receipts[0]), None, BrokerUnavailable("the broker is away")][-len(receipts) :]

    with monkeypatch.context() as patched:
        patched.setattr(stage.broker, "ack", trouble)
        asking = asyncio.ensure_future(caller.ask(BATCH, body=body))
        await until(asking.done, turn=lambda: stage.clock.advance(0.1), pause_s=0.0)
        answer = await asking
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the broker is away" in answer.remark
    await caller.ok(BATCH, body=body)


async def test_a_batch_has_a_bound(room: PopHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller(room)
    ack = BatchAck("readers", "orders", 0, 0, 0, 0, 1, 1, tuple(range(20)))
    body = encode_batch_acks("b", [ack])
    monkeypatch.setattr(popping, "MOST_ACKS", 19)
    assert "at most 19" in (await caller.ask(BATCH, body=body)).remark
    monkeypatch.setattr(popping, "LARGEST_BATCH", len(body) - 1)
    assert "bytes" in (await caller.ask(BATCH, body=body)).remark


async def test_a_changed_message_has_the_handle_that_the_client_makes(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 1)
    caller = Caller(room)
    (got,) = await left(stage, caller)
    answer = await caller.ok(CHANGE, settled(got, invisibleTime=120_000))
    told = answer.fields
    offset = got.record.offset
    made = (
        f"{offset} {told['popTime']} {told['invisibleTime']} {told['reviveQid']} 0 {stage.broker.name}"
        f" {got.record.queue_id} {offset}"
    )
    await stage.pass_s(90)
    assert await left(stage, caller) == []
    await caller.ok(ACK, settled(got, extraInfo=made))
    await stage.pass_s(60)
    assert await left(stage, caller) == []


async def test_a_message_given_up_comes_again_soon(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 1)
    caller = Caller(room)
    (got,) = await left(stage, caller)
    await caller.ok(CHANGE, settled(got, invisibleTime=5_000))
    await stage.pass_s(6)
    (again,) = await left(stage, caller)
    assert again.record.reconsume_times == 1
    refused = await caller.ask(CHANGE, settled(got, invisibleTime=5_000))
    assert refused.code == ResponseCode.NO_MESSAGE


async def test_an_ordered_group_gets_order_and_counts(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 2, ordered=True)
    caller = Caller(room)
    answer = await caller.ok(POP, asked(order=True, attemptId="a1"))
    assert answer.fields["reviveQid"] == "999"
    found = taken(answer, stage.broker.name)
    assert [got.record.body for got in found] == [b"body 0", b"body 1"]
    # The same attempt again is answered with the same, another one with nothing.
    again = taken(await caller.ok(POP, asked(attemptId="a1")), stage.broker.name)
    assert [got.record.body for got in again] == [b"body 0", b"body 1"]
    assert (await caller.ask(POP, asked(attemptId="a2"))).code == ResponseCode.POLLING_TIMEOUT
    await stage.pass_s(61)
    answer = await caller.ok(POP, asked(attemptId="a3"))
    info = parse_pop_info(answer.fields)
    for got in taken(answer, stage.broker.name):
        assert got.record.reconsume_times == 1
        assert info.consumed(OF_TOPIC, got.record.queue_id, got.record.offset) == 1


async def test_filters_count(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 4, tags="abab")
    caller = Caller(room)
    answer = await caller.ok(POP, asked(exp="b"))
    assert [got.record.body for got in taken(answer, "")] == [b"body 1", b"body 3"]
    assert (await caller.ask(POP, asked(exp="b" * 10_000))).code == ResponseCode.POLLING_TIMEOUT
    refused = await caller.ask(POP, asked(expType="SQL92", exp="a >"))
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_waiting_pop_is_woken(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 0)
    caller = Caller(room)
    waiting = asyncio.ensure_future(caller.call(POP, asked(pollTime=15_000)))
    await stage.until(lambda: repr(room).startswith("<PopHandler polls <LongPolls 1"))
    await stage.processor.send(Context(), [Message("orders", b"late", make_message_id())])
    answer = await stage.until(lambda: waiting.done() and waiting.result())
    assert isinstance(answer, Command)
    assert [got.record.body for got in taken(answer, stage.broker.name)] == [b"late"]


async def test_a_pop_that_waits_in_vain(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 0)
    born = stage.clock.now_ms() - 4_000
    waiting = asyncio.ensure_future(Caller(room).call(POP, asked(pollTime=10_000, bornTime=born)))
    await stage.until(lambda: repr(room).startswith("<PopHandler polls <LongPolls 1"))
    await stage.pass_s(5)
    assert not waiting.done()
    # The time that it was on its way counts.
    await stage.pass_s(1.5)
    answer = await stage.until(lambda: waiting.done() and waiting.result())
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.POLLING_TIMEOUT


async def test_a_drain_answers_who_waits(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 0)
    waiting = asyncio.ensure_future(Caller(room).call(POP, asked(pollTime=15_000)))
    await stage.until(lambda: repr(room).startswith("<PopHandler polls <LongPolls 1"))
    room.drain()
    answer = await stage.until(lambda: waiting.done() and waiting.result())
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert (await Caller(room).ask(POP, asked(pollTime=15_000))).code == ResponseCode.POLLING_TIMEOUT


async def test_messages_of_an_answer_that_never_went_out_are_there_again(
    stage: Stage, room: PopHandler
) -> None:
    await filled(stage, 2)
    caller = Caller(room)
    request = caller.request(POP, asked())
    answer = await room.pop(request)
    assert answer.code == ResponseCode.SUCCESS
    assert await left(stage, caller) == []
    assert request.unwritten is not None
    request.unwritten()
    found: list[Got] = []

    async def look() -> bool:
        found.extend(await left(stage, caller))
        return bool(found)

    await stage.until(look)
    # It reached nobody, so it does not count.
    assert {got.record.reconsume_times for got in found} == {0}


async def test_a_notice_tells_whether_there_is_something(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 1)
    caller = Caller(room)
    answer = await caller.ok(NOTICE, asked())
    assert answer.fields == {"hasMsg": "true", "pollingFull": "false"}
    (got,) = await left(stage, caller)
    answer = await caller.ok(NOTICE, asked())
    assert answer.fields["hasMsg"] == "false"
    # A message that is there again counts.
    await caller.ok(CHANGE, settled(got, invisibleTime=5_000))
    waiting = asyncio.ensure_future(caller.ok(NOTICE, asked(pollTime=15_000)))
    await stage.until(lambda: repr(room).startswith("<PopHandler polls <LongPolls 1"))
    await stage.pass_s(6)
    await stage.until(waiting.done)
    assert waiting.result().fields["hasMsg"] == "true"


async def test_a_notice_that_waits_in_vain(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 0)
    caller = Caller(room)
    refused = await caller.ask(NOTICE, asked(topic="nowhere else"))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    waiting = asyncio.ensure_future(caller.ok(NOTICE, asked(pollTime=1_000)))
    await stage.until(lambda: repr(room).startswith("<PopHandler polls <LongPolls 1"))

    def look() -> bool:
        stage.clock.advance(0.5)
        return waiting.done()

    await stage.until(look)
    assert waiting.result().fields["hasMsg"] == "false"
    waiting = asyncio.ensure_future(caller.ok(NOTICE, asked(pollTime=15_000)))
    await stage.until(lambda: repr(room).startswith("<PopHandler polls <LongPolls 1"))
    room.drain()
    assert (await waiting).fields["hasMsg"] == "false"


async def test_who_waits_is_counted(stage: Stage, room: PopHandler) -> None:
    await filled(stage, 0)
    caller = Caller(room)
    assert (await caller.ok(WAITERS, asked())).fields == {"pollingNum": "0"}
    waiting = asyncio.ensure_future(caller.call(POP, asked(pollTime=15_000)))

    async def look() -> bool:
        return (await caller.ok(WAITERS, asked())).fields == {"pollingNum": "1"}

    await stage.until(look)
    room.drain()
    await waiting


class TestFewWaits:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(max_waiting=0)

    async def test_where_too_many_wait_the_client_is_told_to_come_later(
        self, stage: Stage, room: PopHandler
    ) -> None:
        await filled(stage, 0)
        caller = Caller(room)
        refused = await caller.ask(POP, asked(pollTime=15_000))
        assert refused.code == ResponseCode.POLLING_FULL
        told = await caller.ok(NOTICE, asked(pollTime=15_000))
        assert told.fields == {"hasMsg": "false", "pollingFull": "true"}
        assert "the limit of 0 waiting receives" in refused.remark


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"topic": None}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "or ders"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"consumerGroup": "no good"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"maxMsgNums": "many"}, ResponseCode.SYSTEM_ERROR),
        ({"invisibleTime": 1}, ResponseCode.SYSTEM_ERROR),
        ({"invisibleTime": None}, ResponseCode.SYSTEM_ERROR),
        ({"pollTime": -1}, ResponseCode.SYSTEM_ERROR),
        ({"order": True}, ResponseCode.SYSTEM_ERROR),
        ({"pollTime": 1 << 63}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 99, "bname": "%B"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_pop_that_cannot_be(
    stage: Stage, room: PopHandler, wrong: Mapping[str, object], code: ResponseCode
) -> None:
    await filled(stage, 1)
    wrong = {name: stage.broker.name if value == "%B" else value for name, value in wrong.items()}
    refused = await Caller(room).ask(POP, {**asked(), **wrong})
    assert refused.code == code, refused.remark


@pytest.mark.parametrize(
    "handle",
    ["", "x", "1 2 3", "0 1 60000 0 0 other 0 0", "0 1 60000 0 9 b 0 0", "9" * 600, "0 1 60000 0 0 %B 0 7"],
)
async def test_handles_that_are_none(stage: Stage, room: PopHandler, handle: str) -> None:
    await filled(stage, 1)
    handle = handle.replace("%B", stage.broker.name)
    fields = {"consumerGroup": "readers", "topic": "orders", "extraInfo": handle, "invisibleTime": 60_000}
    caller = Caller(room)
    for code in (ACK, CHANGE):
        refused = await caller.ask(code, fields)
        assert refused.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"acks":[{}]}', b'{"acks":[{"b":"!"}]}', b'{"acks":7}'])
async def test_batches_that_are_none(room: PopHandler, body: bytes) -> None:
    refused = await Caller(room).ask(BATCH, body=body)
    assert refused.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)


def stored(receipt: Receipt, properties: bytes = b"") -> StoredMessage:
    return StoredMessage(
        "orders",
        "b",
        receipt.queue_id,
        receipt.offset,
        77,
        0,
        0,
        1,
        "",
        2,
        "1.2.3.4:5",
        b"x",
        properties,
        1,
        receipt.encode(),
    )


HERE = Origin(ADDRESS)


def test_handles_that_the_client_can_make_are_not_sent() -> None:
    """As of a RocketMQ: one check point for each queue."""
    places = ((0, 5), (0, 7), (1, 5))
    receipts = [Receipt(5, 1000, 60_000, 3, OF_TOPIC, "b", queue, at, 9) for queue, at in places]
    fields, body = popped([stored(one) for one in receipts], "b", HERE)
    found = taken(Command(0, fields=fields, body=body), "b")
    assert [find_property(got.record.properties, b"POP_CK") for got in found] == [None] * 3
    assert [parse_receipt(got.handle)[:8] for got in found] == [one[:8] for one in receipts]


@pytest.mark.parametrize(
    "other",
    [
        Receipt(5, 1000, 60_000, 3, OF_RETRY_V1, "b", 0, 9),
        Receipt(5, 1000, 60_000, 3, OF_RETRY_V2, "b", 0, 9),
        Receipt(6, 1000, 60_000, 3, OF_TOPIC, "b", 0, 9),
        Receipt(5, 1001, 60_000, 3, OF_TOPIC, "b", 0, 9),
        Receipt(5, 1000, 60_001, 3, OF_TOPIC, "b", 0, 9),
        Receipt(5, 1000, 60_000, 4, OF_TOPIC, "b", 0, 9),
        Receipt(5, 1000, 60_000, 3, OF_TOPIC, "c", 0, 9),
    ],
)
def test_handles_that_it_cannot_make_come_along(other: Receipt) -> None:
    receipts = [
        Receipt(5, 1000, 60_000, 3, OF_TOPIC, "b", 0, 5),
        other,
        Receipt(5, 1000, 60_000, 3, OF_TOPIC, "b", 0, 11),
    ]
    fields, body = popped([stored(one) for one in receipts], "b", HERE)
    found = taken(Command(0, fields=fields, body=body), "b")
    assert [parse_receipt(got.handle)[:8] for got in found] == [one[:8] for one in receipts]


def test_a_handle_that_a_producer_made_up_does_not_count() -> None:
    receipt = Receipt(5, 1000, 60_000, 3, OF_TOPIC, "b", 0, 5)
    forged = b"POP_CK\x010 1 1 0 0 b 0 0\x02"
    fields, body = popped([stored(receipt, forged)], "b", HERE)
    (got,) = taken(Command(0, fields=fields, body=body), "b")
    assert got.handle == receipt.encode()


@pytest.mark.parametrize(
    ("named", "kind", "meant"),
    [
        ("orders", OF_TOPIC, "orders"),
        ("orders", OF_RETRY_V1, "orders"),
        ("%RETRY%readers_orders", OF_RETRY_V1, "orders"),
        ("%RETRY%readers+orders", OF_RETRY_V2, "orders"),
        ("%RETRY%readers_orders", OF_TOPIC, "%RETRY%readers_orders"),
    ],
)
def test_the_topic_that_a_retried_message_is_of(named: str, kind: int, meant: str) -> None:
    assert topic_popped(named, "readers", Receipt(0, 1, 1, 0, kind, "b", 0, 0)) == meant


async def test_large_messages_come_as_many_as_fit_into_a_frame(stage: Stage, room: PopHandler) -> None:
    """More would be given back, and popped again, for ever."""
    await stage.topic("orders", queues=1)
    await stage.group("readers")
    for _ in range(6):
        await stage.processor.send(Context(), [Message("orders", bytes(3 << 20), make_message_id())])
    caller = Caller(room)
    count = 0
    while count < 6:
        answer = await caller.ok(POP, asked(bname=stage.broker.name))
        assert len(encode_command(answer)) <= LARGEST_FRAME
        got = taken(answer, stage.broker.name)
        count += len(got)


async def test_a_message_with_no_room_for_its_handle_is_popped(stage: Stage, room: PopHandler) -> None:
    """Properties of the system have no limit but that of the block: nothing behind it would come."""
    await filled(stage, 1)
    block = b"UNIQ_KEY\x01%b\x02INSTANCE_ID\x01%b\x02" % (make_message_id().encode(), b"x" * 32_700)
    await stage.processor.send(Context(), [Message("orders", b"full", "", properties=block)])
    caller = Caller(room)
    assert len(await left(stage, caller)) == 2
    await stage.pass_s(61)
    found = await left(stage, caller)
    assert len(found) == 2
    for got in found:
        await caller.ok(ACK, settled(got))
