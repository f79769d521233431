"""Places in the logs of two brokers, as clients are told them that name the broker (from 4.9.5 on)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.ids.message_id import decode_offset_message_id, encode_offset_message_id
from popgate.ids.queue_numbers import Numbered
from popgate.model import HalfPlace, StoredMessage, TransactionCheck
from popgate.wire.bodies.consumer_info import SUCCESS, ConsumeResult
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import V4_9_5, V5_1_0, Command
from popgate.wire.messages.batches import BatchItem, encode_batch
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.records import Record, decode_record, decode_records
from protocols.remoting.codec.marks import MOST_BROKERS, OFFSET_BITS
from tests.unit.protocols.remoting.conftest import ADDRESS, Forwarding
from tests.unit.protocols.remoting.virtual.conftest import GROUP, TOPIC, DoorCaller, Several

SEND, PULL, VIEW = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.PULL_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
)
B: list[Numbered] = [("b", 0), ("b", 1)]
A: list[Numbered] = [("a", 0), ("a", 1)]
"""The second broker's name stands before that of the first."""
OF_A = 1 << OFFSET_BITS
"""The mark of the second broker."""
NOBODY = MOST_BROKERS << OFFSET_BITS
FORWARDED = "0A00000100002A9F00000000075BCD15", "0A00000100002A9F00000000000000FF"
"""What a broker calls two messages of a batch."""
HALF = {"i": "TRAN_MSG\x01true\x02PGROUP\x01makers\x02"}


@pytest.fixture(params=[V4_9_5, V5_1_0], ids=["4.9.5", "5.1.0"])
async def new(several: Several, request: pytest.FixtureRequest) -> DoorCaller:
    """A client that saw broker a come to broker b."""
    await several.layout(*B, cluster="b")
    caller = several.caller(request.param)
    await caller.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    await several.layout(*B, *A)
    return caller


def head(broker: str, **more: Any) -> dict[str, Any]:
    told = {"a": "makers", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
    return {**told, "n": broker, **more}


async def send(caller: DoorCaller, broker: str, body: bytes = b"body", **more: Any) -> int:
    """The place that the message's id has."""
    fields = (await caller.ok(SEND, head(broker, **more), body)).fields
    host, place = decode_offset_message_id(fields["msgId"])
    assert host == ADDRESS
    return place


async def send_batch(caller: DoorCaller, broker: str) -> list[int]:
    """The places that the ids have of two messages, which may be forwarded in one piece."""
    body = encode_batch([BatchItem(0, b"body", b"UNIQ_KEY\x01ID%d\x02" % number) for number in range(2)])
    fields = (await caller.ok(RequestCode.SEND_BATCH_MESSAGE, head(broker, m=True), body)).fields
    ids = [decode_offset_message_id(one) for one in fields["msgId"].split(",")]
    assert {host for host, _ in ids} == {ADDRESS}
    return [place for _, place in ids]


def pull(broker: str, **more: Any) -> dict[str, Any]:
    asked = {"queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0}
    told = {"consumerGroup": GROUP, "topic": TOPIC, **asked, "subscription": "*", "subVersion": 0}
    return {**told, "bname": broker, **more}


def read(answer: Command) -> list[Record]:
    """All of them must lie here."""
    records = list(decode_records(answer.body, verify=True))
    assert {host_text(one.store_host) for one in records} <= {ADDRESS}
    return records


async def retried(several: Several, caller: DoorCaller) -> list[bytes]:
    """What was sent back, as soon as there is some."""

    async def came() -> list[bytes]:
        await several.pass_s(15)
        answer = await caller.ask(PULL, pull("a", topic=f"%RETRY%{GROUP}"))
        return [one.body for one in read(answer)]

    bodies: list[bytes] = await several.until(came)
    return bodies


class TestWhatIsTold:
    async def test_ids_of_what_is_sent(self, new: DoorCaller) -> None:
        assert [await send(new, broker) for broker in "bab"] == [0, OF_A, 100]

    async def test_ids_of_a_batch(self, new: DoorCaller) -> None:
        assert await send_batch(new, "a") == [OF_A, OF_A | 100]

    async def test_ids_of_a_batch_in_one_piece(self, several: Several, new: DoorCaller) -> None:
        forwarding = Forwarding(*FORWARDED)
        several.processor.batches = forwarding  # type: ignore[assignment]
        for broker, mark in (("a", 1), ("b", 0), ("c", MOST_BROKERS)):
            forwarding.broker = broker  # it may be another than the batch names: of a static topic
            assert await send_batch(new, "b") == [mark << OFFSET_BITS | 0x75BCD15, mark << OFFSET_BITS | 0xFF]
        forwarding.offset_message_ids = FORWARDED[:1]
        assert await send_batch(new, "b") == [(1 << 63) - 1] * 2
        assert len(forwarding.batches) == 4

    async def test_records_of_pulls(self, new: DoorCaller) -> None:
        for broker in "ba":
            place = await send(new, broker)
            [record] = read(await new.ok(PULL, pull(broker)))
            assert (record.queue_id, record.offset, record.commit_offset) == (0, 0, place)

    async def test_records_of_pops(self, new: DoorCaller) -> None:
        place = await send(new, "a")
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "maxMsgNums": 1}
        asked = {**fields, "invisibleTime": 60_000, "pollTime": 0, "bornTime": 0, "initMode": 0, "bname": "a"}
        [record] = read(await new.ok(RequestCode.POP_MESSAGE, asked))
        assert record.commit_offset == place

    async def test_records_of_what_is_found_by_key(self, new: DoorCaller) -> None:
        place = await send(new, "a", i="KEYS\x01red\x02")
        fields = {"topic": TOPIC, "key": "red", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        [record] = read(await new.ok(RequestCode.QUERY_MESSAGE, fields))
        assert (record.queue_id, record.commit_offset) == (0, place)

    async def test_nothing_is_marked_before_one_broker(self, several: Several) -> None:
        await several.layout(*A, cluster="a")
        caller = several.caller(V5_1_0)
        assert await send(caller, "a") == 0
        [record] = read(await caller.ok(PULL, pull("a")))
        assert record.commit_offset == 0

    async def test_questions_about_half_messages(self, several: Several, new: DoorCaller) -> None:
        beat = HeartbeatData("client@1", producer_groups=("makers",)).encode()
        await new.ok(RequestCode.HEART_BEAT, body=beat)
        [handle] = several.processor.clients.producers_in("makers")
        message = StoredMessage(TOPIC, "a", 0, 0, 500, 0, 0, 0, "", 0, "10.2.2.2:10911", b"half", b"")
        place = HalfPlace("a", "makers", 500, 3)
        assert handle.check_transaction(TransactionCheck(TOPIC, "makers", "T1", message, 1, place))
        [(_, fields, body)] = new.peer.told
        assert (fields["bname"], fields["commitLogOffset"]) == ("a", str(OF_A | 500))
        assert decode_offset_message_id(fields["offsetMsgId"]) == (ADDRESS, OF_A | 500)
        record = decode_record(body)
        assert (host_text(record.store_host), record.commit_offset) == (ADDRESS, OF_A | 500)

    async def test_a_message_that_a_tool_hands_on(self, several: Several, new: DoorCaller) -> None:
        """It names the message by an id of this door."""
        place = await send(new, "a", b"of a")
        consumer = ConsumerData(GROUP, (SubscriptionData(TOPIC),))
        beat = HeartbeatData("client@1", (), (consumer,)).encode()
        await new.ok(RequestCode.HEART_BEAT, body=beat)
        new.peer.answers = lambda *_: Command(0, body=ConsumeResult(SUCCESS, "", 1).encode())
        offset_id = encode_offset_message_id(ADDRESS, place)
        asked = {"consumerGroup": GROUP, "clientId": "client@1", "msgId": offset_id, "topic": TOPIC}
        tool = several.caller(V5_1_0, "tool@1")
        await tool.ok(RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)
        [(_, fields, body)] = new.peer.asked
        assert (fields["msgId"], fields["brokerName"]) == (offset_id, "a")
        record = decode_record(body, verify=True)
        assert (record.body, record.commit_offset) == (b"of a", place)
        assert host_text(record.store_host) == ADDRESS


class TestWhatNamesAPlace:
    async def test_a_message_is_looked_up_without_naming_a_broker(
        self, several: Several, new: DoorCaller
    ) -> None:
        places = {broker: await send(new, broker, broker.encode()) for broker in "ba"}
        for caller in (new, several.at_another_gateway(V5_1_0)):
            for broker, place in places.items():
                [record] = read(await caller.ok(VIEW, {"offset": place, "topic": TOPIC}))
                assert (record.body, record.commit_offset) == (broker.encode(), place)

    @pytest.mark.parametrize("mark", [2, MOST_BROKERS])
    async def test_that_is_of_nobody_is_refused(self, new: DoorCaller, mark: int) -> None:
        answer = await new.ask(VIEW, {"offset": mark << OFFSET_BITS})
        assert "no broker" in answer.remark

    async def test_that_is_none_is_not_found_by_tools(self, several: Several, new: DoorCaller) -> None:
        """An id that a client before 5.0 made looks like that of a place, and is of no broker mostly."""
        consumer = ConsumerData(GROUP, (SubscriptionData(TOPIC),))
        await new.ok(RequestCode.HEART_BEAT, body=HeartbeatData("client@1", (), (consumer,)).encode())
        asked = {"consumerGroup": GROUP, "clientId": "client@1", "topic": TOPIC}
        made = encode_offset_message_id(ADDRESS, 2 << OFFSET_BITS)
        answer = await several.caller(V5_1_0, "tool@1").ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, {**asked, "msgId": made}
        )
        assert answer.code == ResponseCode.QUERY_NOT_FOUND

    @pytest.mark.parametrize(
        ("more", "marked"),
        [({"bname": "a"}, True), ({}, True), ({"bname": "a"}, False)],
        ids=["named and marked", "marked", "named, told by an older gateway"],
    )
    async def test_a_message_is_sent_back(
        self, several: Several, new: DoorCaller, more: dict[str, str], marked: bool
    ) -> None:
        await send(new, "b", b"of b")
        place = await send(new, "a", b"of a")
        offset = place if marked else place - OF_A
        fields = {"offset": offset, "group": GROUP, "delayLevel": 0, "originTopic": TOPIC}
        await new.ok(RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, "originMsgId": "AA", **more})
        assert await retried(several, new) == [b"of a"]

    @pytest.mark.parametrize("marked", [True, False], ids=["marked", "told by an older gateway"])
    @pytest.mark.parametrize("broker", ["a", "b"])
    async def test_a_transaction_ends(self, new: DoorCaller, broker: str, marked: bool) -> None:
        half = (await new.ok(SEND, head(broker, **HALF), b"half")).fields
        place = decode_offset_message_id(half["msgId"])[1]
        await new.ok(RequestCode.END_TRANSACTION, ended(half, place if marked else place % OF_A, broker))
        assert [one.body for one in read(await new.ok(PULL, pull(broker)))] == [b"half"]


class TestNumbers:
    async def test_are_given_to_the_broker_that_is_there_first(self, several: Several) -> None:
        """Also where nobody is older than 4.9.5: places that were told of it are its own when others come."""
        await several.layout(*B, cluster="b")
        before = several.caller(V5_1_0)
        place = await send(before, "b", b"of b")
        await several.layout(*B, *A)
        [record] = read(await before.ok(VIEW, {"offset": place}))
        assert record.body == b"of b"

    @pytest.mark.parametrize("known", [True, False], ids=["known", "not known"])
    async def test_of_the_first_broker_are_not_those_of_one_that_nobody_has_told_of_yet(
        self, several: Several, known: bool
    ) -> None:
        """A route may name a broker a moment before the list of all brokers does."""
        several.broker.keeps = known
        await several.layout(*B, cluster="b")
        caller = several.caller(V5_1_0)
        assert await send(caller, "b") == 0
        await several.layout(*B, *A, cluster="b")
        assert await send(caller, "a") == NOBODY
        [record] = read(await caller.ok(PULL, pull("a")))
        assert record.commit_offset == NOBODY
        assert await send(caller, "b") == 100

    async def test_that_cannot_be_had_hinder_nobody_who_names_the_broker(self, several: Several) -> None:
        several.broker.keeps = False
        await several.layout(*B, *A)
        caller = several.caller(V5_1_0)
        await caller.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        half = (await caller.ok(SEND, head("a", **HALF), b"half")).fields
        host, place = decode_offset_message_id(half["msgId"])
        assert (host, place) == (ADDRESS, NOBODY)
        await caller.ok(RequestCode.END_TRANSACTION, ended(half, place, "a"))
        [record] = read(await caller.ok(PULL, pull("a")))
        fields = {"offset": record.commit_offset, "group": GROUP, "delayLevel": 0, "bname": "a"}
        await caller.ok(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert await retried(several, caller) == [b"half"]
        assert "cannot be known now" in (await caller.ask(VIEW, {"offset": OF_A})).remark

    async def test_of_a_broker_that_went_are_not_those_of_the_one_that_is_left(
        self, several: Several, new: DoorCaller
    ) -> None:
        several.broker.keeps = False
        await several.layout(("c", 0), cluster="c")
        assert await send(new, "c") == NOBODY

    async def test_are_asked_for_again(self, several: Several) -> None:
        several.broker.keeps = False
        await several.layout(*B, *A)
        caller = several.caller(V5_1_0)
        assert await send(caller, "a") == NOBODY
        several.broker.keeps = True

        async def told() -> int | None:
            await several.pass_s(1)
            place = await send(caller, "b")
            return place if place < NOBODY else None

        # By their names: a is the first broker that has one.
        assert await several.until(told) >> OFFSET_BITS == 1

    async def test_are_asked_for_no_more_when_the_gateway_stops(self, several: Several) -> None:
        several.broker.hangs = asyncio.Event()
        await several.layout(*B, *A)
        sending = asyncio.ensure_future(send(several.caller(V5_1_0), "a"))
        await several.until(lambda: several.processor.queue_numbering._task)
        await several.processor.stop()
        assert several.processor.queue_numbering._task is None
        assert await sending == NOBODY

    async def test_are_not_given_to_names_that_a_client_made_up(
        self, several: Several, new: DoorCaller
    ) -> None:
        await new.ask(SEND, head("made-up"), b"body")
        await new.ask(PULL, pull("made-up"))
        fields = {"offset": 5, "group": GROUP, "delayLevel": 0, "bname": "made-up"}
        await new.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        await several.pass_s(2)
        await send(new, "a")
        assert [broker for broker, _ in several.broker.numbers[".brokers"].queues] == ["b", "a"]


def ended(half: dict[str, str], place: int, broker: str) -> dict[str, Any]:
    return {
        "topic": TOPIC,
        "producerGroup": "makers",
        "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": place,
        "commitOrRollback": 8,
        "msgId": half["transactionId"],
        "bname": broker,
    }
