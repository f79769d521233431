"""Each request of a client that names no broker, before two brokers: what it means, what is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.errors import BrokerUnavailable
from popgate.ids.message_id import decode_offset_message_id
from popgate.ids.queue_numbers import Numbered
from popgate.model import HalfPlace, StoredMessage, TransactionCheck
from popgate.wire.bodies.consumer_info import decode_positions, encode_offsets
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.bodies.routes import QueueData, TopicRoute
from popgate.wire.bodies.small_bodies import MessageQueue, QueueLocks, decode_locked
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import V4_9_5, V5_0_0, V5_1_0, Command
from popgate.wire.messages.batches import BatchItem, encode_batch
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.records import Record, decode_record, decode_records
from protocols.remoting.codec.marks import OFFSET_BITS
from protocols.remoting.mapped.offsets import VIRTUAL
from protocols.remoting.virtual.views import VIRTUAL_BROKER
from tests.unit.protocols.remoting.conftest import ADDRESS
from tests.unit.protocols.remoting.virtual.conftest import GROUP, TOPIC, DoorCaller, Several

ROUTE, SEND, PULL = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.PULL_MESSAGE,
)
SUSPEND, SUBSCRIPTION = 2, 4
B: list[Numbered] = [("b", 0), ("b", 1)]
A: list[Numbered] = [("a", 0), ("a", 1)]
"""The second broker's name stands before that of the first."""


@pytest.fixture
async def old(several: Several) -> DoorCaller:
    """A client of 4.9.4 that saw broker a come to broker b: b has the numbers 0 and 1, a has 2 and 3."""
    await several.layout(*B, cluster="b")
    caller = several.caller()
    assert (await route(caller)).queues == (QueueData("b", 2, 2, 6),)
    await several.layout(*B, *A)
    return caller


async def route(caller: DoorCaller, topic: str = TOPIC) -> TopicRoute:
    return TopicRoute.decode((await caller.ok(ROUTE, {"topic": topic})).body)


def head(number: int, topic: str = TOPIC) -> dict[str, Any]:
    return {"a": "makers", "b": topic, "c": "TBW102", "d": 4, "e": number, "f": 0, "g": 1, "h": 0, "i": ""}


def queue(number: int, **more: Any) -> dict[str, Any]:
    return {"consumerGroup": GROUP, "topic": TOPIC, "queueId": number, **more}


def pull(number: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    asked = {"queueOffset": offset, "maxMsgNums": 32, "sysFlag": SUBSCRIPTION, "commitOffset": 0}
    return queue(number, **asked, subscription="*", subVersion=0, **more)


async def send(caller: DoorCaller, number: int, body: bytes = b"body") -> tuple[int, int, int]:
    """The queue and the offset that the answer tells, and the place that the message's id has."""
    fields = (await caller.ok(SEND, head(number), body)).fields
    host, place = decode_offset_message_id(fields["msgId"])
    assert host == ADDRESS
    return int(fields["queueId"]), int(fields["queueOffset"]), place


async def read(caller: DoorCaller, number: int, offset: int = 0) -> list[Record]:
    return list(decode_records((await caller.ok(PULL, pull(number, offset))).body, verify=True))


async def gone(several: Several, away: str) -> None:
    await several.layout(*B, *A, away=away)


class TestRoutes:
    async def test_name_one_broker_with_all_queues(self, old: DoorCaller) -> None:
        told = await route(old)
        assert told.queues == (QueueData(VIRTUAL_BROKER, 4, 4, 6),)
        [broker] = told.brokers
        assert (broker.name, dict(broker.addresses), broker.cluster) == (VIRTUAL_BROKER, {0: ADDRESS}, "one")

    @pytest.mark.parametrize("version", [V4_9_5, V5_0_0 - 1, V5_1_0])
    async def test_are_as_ever_for_clients_that_name_brokers(
        self, several: Several, old: DoorCaller, version: int
    ) -> None:
        told = await route(several.caller(version))
        assert told.queues == (QueueData("a", 2, 2, 6), QueueData("b", 2, 2, 6))

    @pytest.mark.parametrize("version", [V5_0_0 + 1, V5_1_0 - 1])
    async def test_are_those_of_old_clients_for_5_0_which_names_brokers_in_pulls_alone(
        self, several: Several, old: DoorCaller, version: int
    ) -> None:
        caller = several.caller(version)
        assert (await route(caller)).queues == (QueueData(VIRTUAL_BROKER, 4, 4, 6),)
        assert (await send(caller, 3, b"to a"))[0] == 3
        answer = await caller.ok(PULL, {**pull(3), "bname": VIRTUAL_BROKER})
        assert [record.body for record in decode_records(answer.body)] == [b"to a"]

    async def test_nothing_changes_before_one_broker(self, several: Several) -> None:
        await several.layout(*A, cluster="a")
        caller = several.caller()
        assert (await route(caller)).queues == (QueueData("a", 2, 2, 6),)
        answer = await caller.ok(SEND, head(1), b"body")
        assert (answer.fields["queueId"], decode_offset_message_id(answer.fields["msgId"])[1]) == ("1", 0)
        assert (await caller.ok(PULL, pull(1))).fields["nextBeginOffset"] == "1"
        none = await caller.ask(PULL, pull(5))
        assert none.code != ResponseCode.PULL_NOT_FOUND  # what the broker says of such a queue

    async def test_never_name_two_brokers(self, several: Several) -> None:
        """Not even in the moment when the second one comes."""
        await several.layout(*B, cluster="b")
        caller = several.caller()
        before = await route(caller)
        several.broker.layout = [*B, *A]
        assert await route(caller) == before
        await several.pass_s(2)
        assert (await route(caller)).queues == (QueueData(VIRTUAL_BROKER, 4, 4, 6),)

    async def test_keep_numbers_of_queues_that_are_gone(self, several: Several, old: DoorCaller) -> None:
        await gone(several, "b")
        assert (await route(old)).queues == (QueueData(VIRTUAL_BROKER, 4, 4, 6),)
        await gone(several, "a")
        assert (await route(old)).queues == (QueueData(VIRTUAL_BROKER, 2, 2, 6),)

    @pytest.mark.parametrize(("topic", "queues"), [("%RETRY%others", 2), ("TBW102", 16)])
    async def test_of_what_is_not_there_yet(self, old: DoorCaller, topic: str, queues: int) -> None:
        [told] = (await route(old, topic)).queues
        assert (told.broker, told.read_queues) == (VIRTUAL_BROKER, queues)

    async def test_another_gateway_tells_the_same(self, several: Several, old: DoorCaller) -> None:
        await gone(several, "b")
        assert await route(several.caller()) == await route(old)


class TestSends:
    async def test_go_to_the_queue_that_the_number_means(self, several: Several, old: DoorCaller) -> None:
        told = [await send(old, number, b"%d" % number) for number in range(4)]
        assert [one[0] for one in told] == [0, 1, 2, 3]
        new = several.caller(V4_9_5)
        for number, (broker, queue_id) in enumerate([*B, *A]):
            answer = await new.ok(PULL, {**pull(queue_id), "bname": broker})
            [record] = decode_records(answer.body)
            assert record.body == b"%d" % number

    async def test_ask_for_no_numbers_of_brokers_that_can_have_none(
        self, several: Several, old: DoorCaller
    ) -> None:
        several.broker.cluster = ["a", "b", "[[["]
        await several.pass_s(2)
        await send(old, 3)
        several.broker.asked.clear()
        await send(old, 3)
        assert several.broker.asked == []

    async def test_of_all_forms_do(self, old: DoorCaller) -> None:
        fields = {"producerGroup": "makers", "topic": TOPIC, "defaultTopic": "TBW102", "queueId": 2}
        long = await old.ok(RequestCode.SEND_MESSAGE, {**fields, "sysFlag": 0, "bornTimestamp": 1}, b"one")
        assert long.fields["queueId"] == "2"
        body = encode_batch([BatchItem(0, b"two", b""), BatchItem(0, b"three", b"")])
        batch = await old.ok(RequestCode.SEND_BATCH_MESSAGE, {**head(2), "m": True}, body)
        assert batch.fields["queueId"] == "2"
        assert len(batch.fields["msgId"].split(",")) == 2
        assert [one.body for one in await read(old, 2)] == [b"one", b"two", b"three"]

    async def test_ids_say_whose_log_it_is(self, old: DoorCaller) -> None:
        places = [(await send(old, number))[2] for number in (0, 2)]
        assert places == [0, 1 << OFFSET_BITS]  # both are the first in their logs

    async def test_to_a_queue_that_is_gone_go_to_another_and_always_the_same(
        self, several: Several, old: DoorCaller
    ) -> None:
        await gone(several, "b")
        told = [[(await send(old, number))[0] for number in range(4)] for _ in range(2)]
        assert told == [[2, 3, 2, 3]] * 2

    async def test_make_a_topic(self, several: Several, old: DoorCaller) -> None:
        answer = await old.ok(SEND, head(3, "fresh"), b"body")
        queues = (await route(old, "fresh")).queues[0].write_queues
        assert int(answer.fields["queueId"]) < queues

    async def test_to_no_queue_in_particular_are_stored(self, old: DoorCaller) -> None:
        number, offset, _ = await send(old, -1)
        assert [one.body for one in await read(old, number, offset)] == [b"body"]


class TestPulls:
    async def test_tell_numbers_and_places(self, old: DoorCaller) -> None:
        for number in (1, 3):
            sent = await send(old, number)
            [record] = await read(old, number)
            assert (record.queue_id, record.offset, record.commit_offset) == sent
            assert host_text(record.store_host) == ADDRESS

    async def test_of_a_queue_that_is_gone_find_nothing_and_begin_there_again(
        self, several: Several, old: DoorCaller
    ) -> None:
        await send(old, 0)
        await gone(several, "b")
        answer = await old.ask(PULL, pull(0, 1))
        assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")
        await gone(several, "")
        assert [one.body for one in await read(old, 0)] == [b"body"]

    async def test_that_may_wait_do_while_it_is_gone(self, several: Several, old: DoorCaller) -> None:
        await gone(several, "b")
        asked = pull(0, 0, suspendTimeoutMillis=15_000) | {"sysFlag": SUBSCRIPTION | SUSPEND}
        waiting = asyncio.ensure_future(old.ask(PULL, asked))
        await several.pass_s(0.5)
        assert not waiting.done()
        await several.until(lambda: several.clock.advance(0.5) or waiting.done())
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND

    async def test_with_a_number_that_was_never_given_find_nothing(self, old: DoorCaller) -> None:
        assert (await old.ask(PULL, pull(77))).code == ResponseCode.PULL_NOT_FOUND

    async def test_the_stand_in_counts_also_where_named(self, several: Several, old: DoorCaller) -> None:
        """A newer client that kept what an older one was told."""
        sent = await send(old, 2)
        answer = await several.caller(V4_9_5).ok(PULL, {**pull(2), "bname": VIRTUAL_BROKER})
        [record] = decode_records(answer.body)
        assert (record.queue_id, record.offset, record.commit_offset) == sent


class TestPositions:
    async def test_are_those_of_the_queue(self, several: Several, old: DoorCaller) -> None:
        for _ in range(3):
            await send(old, 2)
        await old.ok(RequestCode.UPDATE_CONSUMER_OFFSET, queue(2, commitOffset=2))
        assert (await old.ok(RequestCode.QUERY_CONSUMER_OFFSET, queue(2))).fields["offset"] == "2"
        assert await several.broker.committed(old.context, GROUP, TOPIC, "a", 0) == 2
        assert (await old.ok(RequestCode.GET_MAX_OFFSET, queue(2))).fields["offset"] == "3"
        assert (await old.ok(RequestCode.GET_MIN_OFFSET, queue(2))).fields["offset"] == "0"
        search = queue(2, timestamp=0)
        assert (await old.ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)).fields["offset"] == "0"
        earliest = await old.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, queue(2))
        assert int(earliest.fields["timestamp"]) > 0

    async def test_are_not_told_and_not_set_while_it_is_gone(self, several: Several, old: DoorCaller) -> None:
        await send(old, 0)
        await old.ok(RequestCode.UPDATE_CONSUMER_OFFSET, queue(0, commitOffset=1))
        await gone(several, "b")
        assert int((await old.ok(RequestCode.QUERY_CONSUMER_OFFSET, queue(0))).fields["offset"]) == -2
        await old.ok(RequestCode.UPDATE_CONSUMER_OFFSET, queue(0, commitOffset=0))
        refused = await old.ask(RequestCode.GET_MAX_OFFSET, queue(0))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        await gone(several, "")
        assert (await old.ok(RequestCode.QUERY_CONSUMER_OFFSET, queue(0))).fields["offset"] == "1"

    async def test_a_reset_is_told_by_numbers(self, several: Several, old: DoorCaller) -> None:
        assert (await route(old)).queues
        translator = old.door._translator
        assert translator is not None
        told = await translator.positions(
            old.context, TOPIC, {MessageQueue(TOPIC, "a", 1): 7, MessageQueue(TOPIC, "z", 0): 8}
        )
        assert told == {MessageQueue(TOPIC, VIRTUAL_BROKER, 3): 7}

    async def test_a_client_is_asked_by_numbers(self, several: Several, old: DoorCaller) -> None:
        """Nothing is told of a number that was never given."""
        consumer = ConsumerData(GROUP, (SubscriptionData(TOPIC),))
        await old.ok(RequestCode.HEART_BEAT, body=HeartbeatData("client@1", (), (consumer,)).encode())
        numbers = {
            MessageQueue(TOPIC, VIRTUAL_BROKER, 3): 7,
            MessageQueue(TOPIC, VIRTUAL_BROKER, 2): VIRTUAL + 5,
            MessageQueue(TOPIC, VIRTUAL_BROKER, 9): 8,
            MessageQueue(TOPIC, "b", 1): 6,
        }
        await several.processor.offsets.commit(old.context, GROUP, TOPIC, "a", 0, 0)
        told = Command(0, body=encode_offsets(numbers, "messageQueueTable"))
        old.peer.answers = lambda *_: told
        asked = {"topic": TOPIC, "group": GROUP, "clientAddr": ""}
        answer = await old.ok(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
        assert decode_positions(answer.body) == {
            "client@1": {
                MessageQueue(TOPIC, "a", 1): 7,
                MessageQueue(TOPIC, "a", 0): 0,
                MessageQueue(TOPIC, "b", 1): 6,
            }
        }


class TestLocks:
    def locks(self, *numbers: int) -> bytes:
        queues = tuple(MessageQueue(TOPIC, VIRTUAL_BROKER, number) for number in numbers)
        return QueueLocks(GROUP, "client@1", queues).encode()

    async def test_are_of_the_queues_that_are_there(self, several: Several, old: DoorCaller) -> None:
        answer = await old.ok(RequestCode.LOCK_BATCH_MQ, body=self.locks(0, 3))
        assert {one.queue_id for one in decode_locked(answer.body)} == {0, 3}
        assert {one.broker for one in decode_locked(answer.body)} == {VIRTUAL_BROKER}
        assert await several.broker.lock(old.context, GROUP, "other", [(TOPIC, "a", 1)]) == []
        await old.ok(RequestCode.UNLOCK_BATCH_MQ, body=self.locks(3))
        held = [(TOPIC, "a", 1)]
        assert await several.broker.lock(old.context, GROUP, "other", held) == held
        await gone(several, "b")
        answer = await old.ok(RequestCode.LOCK_BATCH_MQ, body=self.locks(0, 2))
        assert [one.queue_id for one in decode_locked(answer.body)] == [2]
        answer = await old.ok(RequestCode.LOCK_BATCH_MQ, body=self.locks(0, 1, 77))
        assert decode_locked(answer.body) == ()


class TestPlaces:
    async def test_are_looked_up_in_the_log_that_they_are_of(self, several: Several, old: DoorCaller) -> None:
        sent = {number: await send(old, number, b"%d" % number) for number in (1, 3)}
        for caller in (old, several.at_another_gateway()):
            for number, told in sent.items():
                answer = await caller.ok(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": told[2]})
                [record] = decode_records(answer.body, verify=True)
                assert (record.queue_id, record.offset, record.commit_offset) == told
                assert record.body == b"%d" % number

    async def test_of_nobody_are_refused(self, old: DoorCaller) -> None:
        answer = await old.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 300 << OFFSET_BITS})
        assert "no broker" in answer.remark

    async def test_are_told_of_what_is_found_by_key(self, old: DoorCaller) -> None:
        await old.ok(SEND, {**head(3), "i": "KEYS\x01red\x02"}, b"body")
        fields = {"topic": TOPIC, "key": "red", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        [record] = decode_records((await old.ok(RequestCode.QUERY_MESSAGE, fields)).body)
        assert (record.queue_id, record.commit_offset >> OFFSET_BITS) == (3, 1)

    async def test_say_what_is_sent_back(self, several: Several, old: DoorCaller) -> None:
        await send(old, 0, b"of b")
        place = (await send(old, 2, b"of a"))[2]
        fields = {"offset": place, "group": GROUP, "delayLevel": 0, "originTopic": TOPIC, "originMsgId": "AA"}
        await old.ok(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

        async def came() -> list[StoredMessage]:
            retry = f"%RETRY%{GROUP}"
            await several.pass_s(15)
            answer = await old.ask(PULL, pull(0) | {"topic": retry})
            return list(decode_records(answer.body)) if answer.body else []  # type: ignore[arg-type]

        [again] = await several.until(came)
        assert again.body == b"of a"

    @pytest.mark.parametrize("number", [0, 2])
    async def test_say_which_half_message_ends(self, old: DoorCaller, number: int) -> None:
        half = await old.ok(SEND, {**head(number), "i": "TRAN_MSG\x01true\x02PGROUP\x01makers\x02"}, b"half")
        place = decode_offset_message_id(half.fields["msgId"])[1]
        end = {
            "topic": TOPIC,
            "producerGroup": "makers",
            "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": place,
            "commitOrRollback": 8,
            "msgId": half.fields["transactionId"],
        }
        await old.ok(RequestCode.END_TRANSACTION, end)
        assert [one.body for one in await read(old, number)] == [b"half"]


class TestChecks:
    """Questions about half messages tell places as well."""

    def check(self) -> TransactionCheck:
        message = StoredMessage(TOPIC, "a", 0, 0, 500, 0, 0, 0, "", 0, "10.2.2.2:10911", b"half", b"")
        return TransactionCheck(TOPIC, "makers", "T1", message, 1, HalfPlace("a", "makers", 500, 3))

    async def test_by_the_number_of_the_broker(self, several: Several, old: DoorCaller) -> None:
        beat = HeartbeatData("client@1", producer_groups=("makers",)).encode()
        await old.ok(RequestCode.HEART_BEAT, body=beat)
        [handle] = several.processor.clients.producers_in("makers")
        assert handle.check_transaction(self.check())
        [(code, fields, body)] = old.peer.told
        assert code == RequestCode.CHECK_TRANSACTION_STATE
        assert int(fields["commitLogOffset"]) == 1 << OFFSET_BITS | 500
        assert decode_record(body).commit_offset == 1 << OFFSET_BITS | 500
        assert decode_offset_message_id(fields["offsetMsgId"]) == (ADDRESS, 1 << OFFSET_BITS | 500)

    @pytest.mark.parametrize("cluster", ["ab", "b"], ids=["of two brokers", "of the other broker alone"])
    async def test_and_not_at_all_while_that_is_not_known(self, several: Several, cluster: str) -> None:
        several.broker.keeps = False
        await several.layout(*B, *A, cluster=cluster)
        fresh = several.caller(client_id="client@2")
        beat = HeartbeatData("client@2", producer_groups=("others",)).encode()
        await fresh.ok(RequestCode.HEART_BEAT, body=beat)
        [handle] = several.processor.clients.producers_in("others")
        assert not handle.check_transaction(self.check())
        assert fresh.peer.told == []


class TestWhereNumbersCannotBeAskedFor:
    async def test_who_was_told_them_goes_on(self, several: Several, old: DoorCaller) -> None:
        await send(old, 3)
        several.broker.keeps = False
        await several.pass_s(1000)
        assert (await send(old, 3))[:2] == (3, 1)
        assert len(await read(old, 3)) == 2

    async def test_a_new_queue_waits_for_its_number(self, several: Several, old: DoorCaller) -> None:
        await send(old, 3)
        several.broker.keeps = False
        await several.layout(*B, *A, ("b", 2))
        assert (await route(old)).queues == (QueueData(VIRTUAL_BROKER, 4, 4, 6),)
        several.broker.keeps = True
        await several.pass_s(2)
        assert (await route(old)).queues == (QueueData(VIRTUAL_BROKER, 5, 5, 6),)

    async def test_a_gateway_that_never_knew_them_refuses(self, several: Several, old: DoorCaller) -> None:
        several.broker.keeps = False
        fresh = several.caller()
        assert "name server" in (await fresh.ask(PULL, pull(0))).remark
        with pytest.raises(BrokerUnavailable):
            await several.broker.numbered(old.context, TOPIC, [])
