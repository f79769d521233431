"""Acknowledging, hiding, freeing and burying at scripted brokers, whose SUCCESS means little."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random

import pytest

from brokers.remote.broker import RemoteBroker
from brokers.remote.settle.ack_batcher import real_topic
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    GroupNotFound,
    IllegalReceipt,
    ReceiptExpired,
    TopicNotFound,
)
from popgate.ids.receipt import Receipt, parse_receipt
from popgate.model import GroupConfig
from popgate.wire.bodies.small_bodies import decode_batch_acks
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.records import encode_record
from tests.support.waiting import until
from tests.unit.brokers.remote.conftest import moving

NAMES = ("broker-a", "broker-b")
CONTEXT = Context(client_id="c")
HOUR_MS = 3_600_000


class Peers:
    """Two brokers that answer SUCCESS to everything, as real ones do."""

    def __init__(self, peers, clock) -> None:
        self.peers = peers
        self.clock = clock
        config = json.dumps({"groupName": "G"}).encode()
        for peer in peers.values():
            for code in (
                RequestCode.ACK_MESSAGE,
                RequestCode.BATCH_ACK_MESSAGE,
                RequestCode.CONSUMER_SEND_MSG_BACK,
            ):
                peer.on(code, lambda request: request.answer(0))
            peer.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self.change)
            peer.on(
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
                lambda request: (
                    request.answer(0, body=config)
                    if request.fields["group"] == "G"
                    else request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
                ),
            )

    def change(self, request):
        told = {"popTime": str(self.clock.now_ms()), "invisibleTime": request.fields["invisibleTime"]}
        return request.answer(0, fields={**told, "reviveQid": "5"})

    def on(self, code, script) -> None:
        for peer in self.peers.values():
            peer.on(code, script)

    def asked(self, *codes):
        return [request for peer in self.peers.values() for code in codes for request in peer.of(code)]

    until = staticmethod(functools.partial(until, pause_s=0.0))


@pytest.fixture
async def peers(asking_cluster, clock) -> Peers:
    return Peers(asking_cluster[1], clock)


@pytest.fixture
async def broker(make_broker, peers) -> RemoteBroker:
    return await make_broker()


@pytest.fixture
def handle(clock):
    def make(offset: int = 0, **fields) -> str:
        given = {
            "start_offset": 0,
            "pop_ms": clock.now_ms(),
            "invisible_ms": 60_000,
            "revive_queue": 3,
            "topic_type": 0,
            "broker": "broker-a",
            "queue_id": 0,
            "offset": offset,
            "commit_offset": 4_096,
        }
        return Receipt(**{**given, **fields}).encode()

    return make


def told_time(broker, clock, name: str = "broker-a") -> None:
    """The broker's clock is known, and ours."""
    broker.clocks.told(name, clock.now_ms(), clock.monotonic(), clock.monotonic())


# -- acknowledging ---------------------------------------------------------------------------------


async def test_one_acknowledgement_is_asked_alone(broker, peers, handle):
    mine = handle(7, queue_id=2)
    assert await broker.ack(CONTEXT, "T", "G", [mine]) == [None]
    (request,) = peers.asked(RequestCode.ACK_MESSAGE)
    assert request.fields == {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "2",
        "extraInfo": mine,
        "offset": "7",
        "bname": "broker-a",
    }


async def test_those_of_one_turn_go_to_each_broker_in_one_request(broker, peers, handle):
    handles = [handle(n, broker=NAMES[n % 2]) for n in range(8)]
    some, more = await asyncio.gather(
        broker.ack(CONTEXT, "T", "G", handles[:5]), broker.ack(CONTEXT, "T", "G", handles[5:])
    )
    assert some + more == [None] * 8
    assert peers.asked(RequestCode.ACK_MESSAGE) == []
    told = dict(decode_batch_acks(request.body) for request in peers.asked(RequestCode.BATCH_ACK_MESSAGE))
    assert {name: [ack.offsets for ack in acks] for name, acks in told.items()} == {
        "broker-a": [(0, 2, 4, 6)],
        "broker-b": [(1, 3, 5, 7)],
    }


async def test_different_pops_and_kinds_are_kept_apart(broker, peers, handle, clock):
    handles = [
        handle(1),
        handle(2),
        handle(1, topic_type=1),
        handle(1, topic_type=2),
        handle(1, pop_ms=clock.now_ms() - 5),
        handle(1, revive_queue=999),
    ]
    assert await broker.ack(CONTEXT, "T", "G", handles) == [None] * 6
    (request,) = peers.asked(RequestCode.BATCH_ACK_MESSAGE)
    acks = decode_batch_acks(request.body)[1]
    assert sorted((ack.retry, ack.revive_queue, ack.offsets) for ack in acks) == [
        *((0, 3, (1,)), (0, 3, (1, 2)), (0, 999, (1,)), (1, 3, (1,)), (2, 3, (1,)))
    ]
    assert {(ack.topic, ack.group) for ack in acks} == {("T", "G")}


async def test_what_is_far_from_its_start_is_asked_alone(broker, peers, handle):
    handles = [handle(1), handle(2), handle(1 << 40)]
    assert await broker.ack(CONTEXT, "T", "G", handles) == [None] * 3
    assert len(peers.asked(RequestCode.BATCH_ACK_MESSAGE)) == 1
    assert peers.asked(RequestCode.ACK_MESSAGE)[0].fields["offset"] == str(1 << 40)


async def test_very_many_that_are_asked_alone_leave_room_for_others(make_broker, peers, handle):
    broker = await make_broker(max_in_flight=300)
    handles = [handle(n << 20) for n in range(1, 1_001)]
    done = asyncio.Event()

    async def answered(request):
        await done.wait()
        return request.answer(0)

    peers.on(RequestCode.ACK_MESSAGE, answered)
    acking = asyncio.ensure_future(broker.ack(CONTEXT, "T", "G", handles))
    await peers.until(lambda: len(peers.asked(RequestCode.ACK_MESSAGE)) >= 256)
    try:
        assert await broker.change_invisible(CONTEXT, "T", "G", handle(1), 9_000)
    finally:
        done.set()
    assert await acking == [None] * 1_000


async def test_requests_that_come_apart_leave_room_for_others_together(make_broker, peers, handle):
    broker = await make_broker(max_in_flight=1_300)
    done = asyncio.Event()

    async def answered(request):
        await done.wait()
        return request.answer(0)

    peers.on(RequestCode.ACK_MESSAGE, answered)
    ackings = []
    try:
        for at in range(6):
            handles = [handle(n << 20) for n in range(at * 300 + 1, at * 300 + 301)]
            ackings.append(asyncio.ensure_future(broker.ack(CONTEXT, "T", "G", handles)))
            # The first one is asked while the acknowledgements are on their way.
            for other in (2 * at, 2 * at + 1):
                assert await broker.change_invisible(CONTEXT, "T", "G", handle(other), 9_000)
    finally:
        done.set()
    assert len(peers.asked(RequestCode.ACK_MESSAGE)) == 1_024
    assert await asyncio.gather(*ackings) == [[None] * 300] * 6


async def test_no_batch_names_queues_that_a_broker_would_make(broker, peers, handle):
    """Which queues the retries of a topic have its broker alone knows: that is asked by a single one."""
    handles = [handle(1), handle(2, topic_type=1), handle(3, topic_type=1, queue_id=900_000)]
    assert await broker.ack(CONTEXT, "T", "G", handles) == [None] * 3
    (batch,) = peers.asked(RequestCode.BATCH_ACK_MESSAGE)
    assert [ack.queue_id for ack in decode_batch_acks(batch.body)[1]] == [0, 0]
    (alone,) = peers.asked(RequestCode.ACK_MESSAGE)
    assert (alone.fields["topic"], alone.fields["queueId"]) == ("%RETRY%G_T", "900000")


@pytest.mark.parametrize(("kind", "topic"), [(0, "T"), (1, "%RETRY%G_T"), (2, "%RETRY%G+T")])
async def test_a_redelivery_is_acknowledged_in_its_retry_topic(broker, peers, handle, kind, topic):
    await broker.ack(CONTEXT, "T", "G", [handle(topic_type=kind)])
    assert peers.asked(RequestCode.ACK_MESSAGE)[0].fields["topic"] == topic


@pytest.fixture
def retries_of(asking_cluster):
    """A retry topic that name servers know."""

    def make(topic: str) -> str:
        asking_cluster[0].add_topic(topic, *NAMES)
        return topic

    return make


@pytest.mark.parametrize("topic", ["%RETRY%G", "%RETRY%G_", "%RETRY%other_T", "%RETRY%"])
async def test_no_handle_has_a_broker_give_back_what_it_cannot(broker, peers, handle, retries_of, topic):
    """A client may write a handle by itself; the broker would give back nothing any more, of nobody."""
    retries_of(topic)
    (result,) = await broker.ack(CONTEXT, topic, "G", [handle()])
    assert isinstance(result, IllegalReceipt)
    with pytest.raises(IllegalReceipt, match="nothing is popped from"):
        await broker.change_invisible(CONTEXT, topic, "G", handle(), 9_000)
    with pytest.raises(IllegalReceipt):
        await broker.dead_letter(CONTEXT, topic, "G", handle())
    assert await broker.give_back(CONTEXT, topic, "G", [handle()]) == 0
    assert not peers.asked(
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    )


async def test_no_handle_has_a_broker_make_revive_queues(broker, peers, handle):
    """Of those that a broker has the numbers are below that which marks an ordered pop."""
    made_up = handle(revive_queue=1_000)
    results = await broker.ack(CONTEXT, "T", "G", [handle(1, revive_queue=998), made_up])
    assert [type(one) for one in results] == [type(None), IllegalReceipt]
    with pytest.raises(IllegalReceipt, match="revive queue 1000"):
        await broker.change_invisible(CONTEXT, "T", "G", made_up, 9_000)
    assert len(peers.asked(RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 1


@pytest.mark.parametrize("topic", ["%RETRY%G_T", "%RETRY%G+T"])
async def test_retries_of_the_groups_own_pops_are_settled(broker, peers, handle, retries_of, topic):
    retries_of(topic)
    assert await broker.ack(CONTEXT, topic, "G", [handle(1)]) == [None]
    await broker.change_invisible(CONTEXT, topic, "G", handle(2), 9_000)
    (changed,) = peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert changed.fields["topic"] == topic


async def test_a_broker_that_knows_no_batches_is_asked_singly_from_then_on(broker, peers, handle):
    peers.on(
        RequestCode.BATCH_ACK_MESSAGE,
        lambda request: request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    )
    for _ in range(2):
        assert await broker.ack(CONTEXT, "T", "G", [handle(1), handle(2)]) == [None, None]
    assert len(peers.asked(RequestCode.BATCH_ACK_MESSAGE)) == 1
    assert len(peers.asked(RequestCode.ACK_MESSAGE)) == 4


async def test_each_handle_has_its_own_answer(broker, peers, handle):
    results = await broker.ack(
        CONTEXT,
        "T",
        "G",
        [handle(1), "nonsense", handle(1, broker="unknown"), handle(1, queue_id=4), handle(2)],
    )
    assert [type(one) for one in results] == [type(None), *[IllegalReceipt] * 3, type(None)]


@pytest.fixture
async def widened(broker, handle, clock, asking_cluster):
    """T has twice as many queues as its route says that this gateway knows. Requests for routes."""
    assert await broker.ack(CONTEXT, "T", "G", [handle(1)]) == [None]
    servers = asking_cluster[0]
    servers.add_topic("T", *NAMES, queues=8)
    clock.advance(2.0)
    servers.requests.clear()
    return lambda: len(servers.of(RequestCode.GET_ROUTEINFO_BY_TOPIC))


@pytest.mark.parametrize("count", [1, 3])
async def test_messages_of_queues_newer_than_the_route_are_acknowledged(broker, handle, widened, count):
    """A broker pops from all of its queues; refused, its messages would come again."""
    handles = [handle(offset, queue_id=5 + offset) for offset in range(count)]
    assert await broker.ack(CONTEXT, "T", "G", handles) == [None] * count
    assert widened() == 1
    for offset in range(20):
        (result,) = await broker.ack(CONTEXT, "T", "G", [handle(offset, queue_id=9)])
        assert isinstance(result, IllegalReceipt)
    assert widened() == 1


async def test_messages_of_queues_newer_than_the_route_are_settled(broker, peers, handle, widened):
    await broker.change_invisible(CONTEXT, "T", "G", handle(1, queue_id=5), 9_000)
    assert await broker.give_back(CONTEXT, "T", "G", [handle(1, queue_id=6), handle(1)]) == 2
    await broker.dead_letter(CONTEXT, "T", "G", handle(1, queue_id=7))
    assert len(peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 3
    assert widened() == 1


async def test_no_newer_route_is_looked_for_after_a_time_that_is_over(broker, handle, clock, widened):
    for handles in ([handle(pop_ms=1)], [handle(pop_ms=1), handle(1, pop_ms=1)]):
        results = await broker.ack(CONTEXT, "T", "G", handles)
        assert {type(result) for result in results} == {ReceiptExpired}
    assert widened() == 0


@pytest.mark.parametrize("work", ["give_back", "dead_letter"])
async def test_a_queue_newer_than_the_route_is_looked_up_once(broker, handle, widened, work):
    mine = handle(1, queue_id=6)
    if work == "give_back":
        assert await broker.give_back(CONTEXT, "T", "G", [mine]) == 1
    else:
        await broker.dead_letter(CONTEXT, "T", "G", mine)
    assert widened() == 1


async def test_name_servers_that_know_nothing_are_asked_for_a_newer_route_once(
    broker, handle, clock, widened, asking_cluster
):
    asking_cluster[0].on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda request: request.answer(1, "not ready"))
    for asked in (1, 2):
        for offset in range(20):
            for handles in ([handle(offset, queue_id=5)], [handle(offset), handle(offset, queue_id=5)]):
                results = await broker.ack(CONTEXT, "T", "G", handles)
                assert isinstance(results[-1], IllegalReceipt)
        assert widened() == asked
        clock.advance(1.5)


async def test_a_return_waits_for_a_newer_route_once_and_judges_then(
    broker, peers, handle, clock, widened, asking_cluster
):
    """While it waits the time of others may be over: their messages would come twice."""
    told_time(broker, clock)
    answered = asyncio.Event()

    async def late(request):
        await answered.wait()
        return request.answer(1, "not ready")

    asking_cluster[0].on(RequestCode.GET_ROUTEINFO_BY_TOPIC, late)
    short, newer = handle(1, invisible_ms=1_000), [handle(offset, queue_id=5) for offset in range(20)]
    returning = asyncio.ensure_future(broker.give_back(CONTEXT, "T", "G", [short, *newer, handle(2)]))
    await peers.until(lambda: widened() == 1)
    clock.advance(1.5)
    answered.set()
    assert await returning == 1
    (changed,) = peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert changed.fields["offset"] == "2"
    assert widened() == 1


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE])
async def test_nonsense_is_told_where_the_broker_tells_it(broker, peers, handle, code):
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(code, "offset is illegal"))
    (result,) = await broker.ack(CONTEXT, "T", "G", [handle()])
    assert isinstance(result, IllegalReceipt)


async def test_unknown_topics_and_groups_are_told(broker, peers, handle):
    with pytest.raises(TopicNotFound):
        await broker.ack(CONTEXT, "unknown", "G", [handle()])
    with pytest.raises(GroupNotFound):
        await broker.ack(CONTEXT, "T", "unknown", [handle()])
    assert await broker.ack(CONTEXT, "T", "G", []) == []


async def test_settings_that_the_context_has_are_not_asked_for(broker, peers, handle):
    known = Context(client_id="c", group=GroupConfig("G"))
    assert await broker.ack(known, "T", "G", [handle()]) == [None]
    assert peers.asked(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == []
    with pytest.raises(GroupNotFound):
        await broker.ack(known, "T", "unknown", [handle()])


async def test_scenario_04_a_handle_whose_time_is_over_is_refused_and_not_sent(broker, peers, handle, clock):
    """Its broker would take it for a moment more: the client is told no, and nothing comes again."""
    told_time(broker, clock)
    old, fresh = handle(1, pop_ms=clock.now_ms() - 60_001), handle(2, pop_ms=clock.now_ms() - 59_000)
    results = await broker.ack(CONTEXT, "T", "G", [old, fresh])
    assert isinstance(results[0], ReceiptExpired)
    assert results[1] is None
    (request,) = peers.asked(RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)
    assert request.fields["extraInfo"] == fresh


@pytest.mark.parametrize("revive", [3, 999])
async def test_scenario_04_an_acknowledgement_sent_in_time_is_answered_as_its_broker_answers(
    broker, peers, handle, clock, revive
):
    """Also when its time is over by then: refused, it would have taken effect all the same."""
    told_time(broker, clock)

    def late(request):
        clock.advance(2.0)
        return request.answer(0)

    peers.on(RequestCode.ACK_MESSAGE, late)
    close = handle(1, pop_ms=clock.now_ms() - 59_000, revive_queue=revive)
    assert await broker.ack(CONTEXT, "T", "G", [close]) == [None]
    # Told again it is the same, and it must not be touched in another way: it is finished.
    assert await broker.ack(CONTEXT, "T", "G", [close]) == [None]
    with pytest.raises(ReceiptExpired):
        await broker.change_invisible(CONTEXT, "T", "G", close, 10_000)


async def test_scenario_04_what_nobody_knows_of_is_not_taken_for_done_when_its_time_is_over(
    broker, peers, handle, clock
):
    told_time(broker, clock)
    unknown = handle(1)
    peers.on(RequestCode.ACK_MESSAGE, lambda request: None)
    failed = await asyncio.gather(
        moving(clock, broker.ack(CONTEXT, "T", "G", [unknown])), return_exceptions=True
    )
    assert isinstance(failed[0], BrokerTimeout)
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(0))
    clock.advance(61.0)
    sent = len(peers.asked(RequestCode.ACK_MESSAGE))
    (result,) = await broker.ack(CONTEXT, "T", "G", [unknown])
    assert isinstance(result, ReceiptExpired)
    assert len(peers.asked(RequestCode.ACK_MESSAGE)) == sent


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
async def test_expiry_is_judged_by_the_brokers_clock(broker, peers, handle, clock, ahead_ms):
    now = clock.monotonic()
    broker.clocks.told("broker-a", clock.now_ms() + ahead_ms, now, now)
    good = handle(1, pop_ms=clock.now_ms() + ahead_ms - 50_000)
    over = handle(2, pop_ms=clock.now_ms() + ahead_ms - 70_000)
    results = await broker.ack(CONTEXT, "T", "G", [good, over])
    assert results[0] is None
    assert isinstance(results[1], ReceiptExpired)


async def test_of_a_broker_whose_time_is_not_known_a_minute_is_believed(broker, peers, handle, clock):
    believed = handle(1, pop_ms=clock.now_ms() - 110_000)
    over = handle(2, pop_ms=clock.now_ms() - 130_000)
    results = await broker.ack(CONTEXT, "T", "G", [believed, over])
    assert results[0] is None
    assert isinstance(results[1], ReceiptExpired)


async def test_what_was_acknowledged_here_is_no_error_later(broker, peers, handle, clock):
    told_time(broker, clock)
    mine = handle(1)
    assert await broker.ack(CONTEXT, "T", "G", [mine]) == [None]
    clock.advance(61.0)
    assert await broker.ack(CONTEXT, "T", "G", [mine]) == [None]


async def test_a_broker_that_is_down_is_told_for_its_messages_only(broker, peers, handle):
    await peers.peers["broker-b"].stop()
    results = await broker.ack(CONTEXT, "T", "G", [handle(1), handle(2, broker="broker-b")])
    assert results[0] is None
    assert isinstance(results[1], BrokerUnavailable)
    with pytest.raises(BrokerUnavailable):
        await broker.ack(CONTEXT, "T", "G", [handle(3, broker="broker-b")])


async def test_a_busy_broker_is_asked_again_for_a_while(broker, peers, handle, clock):
    answers = iter([ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY, 0])
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(next(answers)))
    assert await moving(clock, broker.ack(CONTEXT, "T", "G", [handle()])) == [None]
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(ResponseCode.SYSTEM_BUSY))
    with pytest.raises(BrokerBusy):
        await moving(clock, broker.ack(CONTEXT, "T", "G", [handle(9)]))


async def test_a_fault_of_the_program_is_told_to_everybody_who_waits(broker, peers, handle, monkeypatch):
    """Not as a cancellation, which nobody would answer."""

    def wrong(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("brokers.remote.settle.ack_batcher.encode_batch_acks", wrong)
    asked = (broker.ack(CONTEXT, "T", "G", [handle(offset), handle(offset + 1)]) for offset in (0, 2))
    assert [type(told) for told in await asyncio.gather(*asked, return_exceptions=True)] == [
        ZeroDivisionError,
        ZeroDivisionError,
    ]


async def test_who_goes_away_keeps_nobody_from_being_answered(broker, peers, handle):
    first = asyncio.ensure_future(broker.ack(CONTEXT, "T", "G", [handle(1)]))
    second = asyncio.ensure_future(broker.ack(CONTEXT, "T", "G", [handle(2)]))
    await peers.until(lambda: broker.acking._parts or peers.asked(RequestCode.BATCH_ACK_MESSAGE))
    first.cancel()
    assert await second == [None]


KINDS = {
    "good": {},
    "of its next message": {"offset": 9},
    "far from its start": {"offset": 1 << 40},
    "of the other broker": {"broker": "broker-b"},
    "of no broker": {"broker": "broker-z"},
    "of a queue that its topic had before": {"queue_id": 4},
    "redelivered, older name": {"topic_type": 1, "queue_id": 4},
    "redelivered, newer name": {"topic_type": 2},
    "of no revive queue": {"revive_queue": 1_000},
    "almost over": {"invisible_ms": 1},
    "over": {"invisible_ms": 0},
    "over, of a broker without a clock": {"invisible_ms": 0, "broker": "broker-b"},
    "long over": {"pop_ms": 1},
    "of before the broker was born again": {"pop_ms": 1, "broker": "broker-b"},
    "ordered": {"revive_queue": 999},
    "ordered and over": {"revive_queue": 999, "invisible_ms": 0},
    "ordered, over and renewed": {"revive_queue": 999, "invisible_ms": 0, "offset": 5},
    "ordered, of a queue of before": {"revive_queue": 999, "queue_id": 4},
    "replaced": {"offset": 20},
    "replaced and over": {"offset": 21, "invisible_ms": 0},
    "replaced, nobody knows": {"offset": 22},
    "replaced, nobody knows, and over": {"offset": 23, "invisible_ms": 0},
    "replaced and of no broker": {"offset": 24, "broker": "broker-z"},
    "acknowledged": {"offset": 30},
    "acknowledged and over": {"offset": 31, "invisible_ms": 0},
    "acknowledged and of no queue": {"offset": 32, "queue_id": 4},
}
NO_RECEIPTS = (
    "",
    "nonsense",
    "1 2 3",
    "x" * 600,
    "0 1 60000 3 7 broker-a 0 1 2",
    "0 1 60000 3 0 broker-a 0 -1",
)


@pytest.mark.parametrize("topic", ["T", "%RETRY%G_T", "%RETRY%other_T"])
@pytest.mark.parametrize("seed", range(4))
async def test_of_several_each_is_judged_as_it_is_alone(
    make_broker, peers, handle, clock, retries_of, topic, seed
):
    """In any order and any company, also twice in a call."""
    retries_of(topic)
    named = {kind: handle(**fields) for kind, fields in KINDS.items()} | {
        "with a mark": handle() + " 1f",
        "of eight fields": handle().rsplit(" ", 1)[0],
        **{f"none: {text[:20]}": text for text in NO_RECEIPTS},
    }

    async def prepared():
        broker = await make_broker()
        told_time(broker, clock)
        for kind, receipt in named.items():
            if "replaced" in kind:
                broker.replaced.add(receipt)
            if "nobody knows" in kind:
                broker.unsure.add(receipt)
            if "acknowledged" in kind:
                broker.acknowledged.add(receipt)
            if "renewed" in kind:
                renewed = parse_receipt(receipt)._replace(invisible_ms=60_000)
                broker.ordered.renewed(topic, "G", renewed)
        return broker

    def sent():
        alone = {
            (request.fields["bname"], request.fields["topic"], int(request.fields["offset"]))
            for request in peers.asked(RequestCode.ACK_MESSAGE)
        }
        return alone | {
            (broker, real_topic(ack.topic, "G", parse_receipt(handle(topic_type=int(ack.retry)))), offset)
            for request in peers.asked(RequestCode.BATCH_ACK_MESSAGE)
            for broker, acks in [decode_batch_acks(request.body)]
            for ack in acks
            for offset in ack.offsets
        }

    broker = await prepared()
    alone = {receipt: (await broker.ack(CONTEXT, topic, "G", [receipt]))[0] for receipt in named.values()}
    sent_alone = sent()
    for peer in peers.peers.values():
        peer.requests.clear()
    several = 2 * [*named.values()]
    random.Random(seed).shuffle(several)
    results = await (await prepared()).ack(CONTEXT, topic, "G", several)
    assert [(type(result), str(result)) for result in results] == [
        (type(alone[receipt]), str(alone[receipt])) for receipt in several
    ]
    assert sent() == sent_alone
    refused = {kind for kind, receipt in named.items() if alone[receipt] is not None}
    if topic == "%RETRY%other_T":
        assert refused == set(named)
    else:
        assert {type(alone[named[kind]]) for kind in refused} == {IllegalReceipt, ReceiptExpired}
        assert {"good", "ordered", "replaced, nobody knows", "acknowledged and over"} & refused == set()
        assert {"over", "ordered and over", "replaced", "of no broker", "none: nonsense"} <= refused


# -- changing the invisible time -------------------------------------------------------------------


async def test_a_change_makes_a_new_handle(broker, peers, handle, clock):
    mine = handle(7, start_offset=3, queue_id=1)
    new = await broker.change_invisible(CONTEXT, "T", "G", mine, 9_000)
    assert new == f"7 {clock.now_ms()} 9000 5 0 broker-a 1 7 4096"
    (request,) = peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert (request.fields["extraInfo"], request.fields["invisibleTime"]) == (mine, "9000")
    assert (request.fields["suspend"], request.fields["offset"]) == ("false", "7")
    assert await broker.ack(CONTEXT, "T", "G", [new]) == [None]


async def test_the_older_handle_is_worth_nothing_where_that_is_known(broker, peers, handle):
    mine = handle()
    await broker.change_invisible(CONTEXT, "T", "G", mine, 9_000)
    (result,) = await broker.ack(CONTEXT, "T", "G", [mine])
    assert isinstance(result, ReceiptExpired)
    for work in (
        broker.change_invisible(CONTEXT, "T", "G", mine, 9_000),
        broker.dead_letter(CONTEXT, "T", "G", mine),
    ):
        with pytest.raises(ReceiptExpired):
            await work
    assert await broker.give_back(CONTEXT, "T", "G", [mine]) == 0
    assert len(peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 1
    assert peers.asked(RequestCode.ACK_MESSAGE) == []


async def test_an_ordered_delivery_keeps_its_pop_time_and_all_its_handles(broker, peers, handle, clock):
    popped = clock.now_ms() - 1_000
    peers.on(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        lambda request: request.answer(
            0, fields={"popTime": str(popped), "invisibleTime": "31000", "reviveQid": "999"}
        ),
    )
    mine = handle(4, start_offset=2, revive_queue=999, pop_ms=popped)
    new = await broker.change_invisible(CONTEXT, "T", "G", mine, 30_000)
    assert new == f"2 {popped} 31000 999 0 broker-a 0 4 4096"
    assert await broker.ack(CONTEXT, "T", "G", [mine]) == [None]


async def test_a_renewal_of_an_ordered_delivery_counts_for_its_older_handles(broker, peers, handle, clock):
    told_time(broker, clock)
    popped = clock.now_ms()
    peers.on(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        lambda request: request.answer(
            0, fields={"popTime": str(popped), "invisibleTime": "600000", "reviveQid": "999"}
        ),
    )
    mine = handle(revive_queue=999, pop_ms=popped)
    await broker.change_invisible(CONTEXT, "T", "G", mine, 600_000)
    clock.advance(120.0)
    assert await broker.ack(CONTEXT, "T", "G", [mine]) == [None]
    (strange,) = await broker.ack(CONTEXT, "T", "G", [handle(1, revive_queue=999, pop_ms=popped)])
    assert isinstance(strange, ReceiptExpired)


async def test_an_ordered_delivery_below_the_position_is_finished(broker, peers, handle):
    peers.on(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        lambda request: request.answer(0, fields={"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}),
    )
    with pytest.raises(ReceiptExpired):
        await broker.change_invisible(CONTEXT, "T", "G", handle(revive_queue=999), 30_000)


async def test_what_is_finished_or_over_is_never_hidden_again(broker, peers, handle, clock):
    """A broker would bring it back."""
    told_time(broker, clock)
    done, over = handle(1), handle(2, pop_ms=clock.now_ms() - 61_000)
    await broker.ack(CONTEXT, "T", "G", [done])
    for mine in (done, over):
        with pytest.raises(ReceiptExpired):
            await broker.change_invisible(CONTEXT, "T", "G", mine, 0)
        with pytest.raises(ReceiptExpired):
            await broker.dead_letter(CONTEXT, "T", "G", mine)
        assert await broker.give_back(CONTEXT, "T", "G", [mine]) == 0
    assert peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.CONSUMER_SEND_MSG_BACK) == []


async def test_an_acknowledgement_under_way_keeps_a_change_away(broker, peers, handle):
    mine = handle()
    acking = asyncio.ensure_future(broker.ack(CONTEXT, "T", "G", [mine]))
    changing = asyncio.ensure_future(broker.change_invisible(CONTEXT, "T", "G", mine, 0))
    done, refused = await asyncio.gather(acking, changing, return_exceptions=True)
    assert done == [None]
    assert isinstance(refused, ReceiptExpired)


async def test_an_acknowledged_message_stays_so_when_a_repetition_fails(broker, peers, handle, clock):
    """The first one was on its way for long; a change would bring the message back."""
    mine, answered = handle(), asyncio.Event()

    async def late(request):
        await answered.wait()
        return request.answer(0)

    peers.on(RequestCode.ACK_MESSAGE, late)
    first = asyncio.ensure_future(broker.ack(CONTEXT, "T", "G", [mine]))
    await peers.until(lambda: peers.asked(RequestCode.ACK_MESSAGE))
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(ResponseCode.SYSTEM_BUSY))
    with pytest.raises(BrokerBusy):
        await moving(clock, broker.ack(CONTEXT, "T", "G", [mine]))
    answered.set()
    assert await first == [None]
    with pytest.raises(ReceiptExpired):
        await broker.change_invisible(CONTEXT, "T", "G", mine, 0)
    assert await broker.give_back(CONTEXT, "T", "G", [mine]) == 0
    assert peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME) == []


@pytest.mark.parametrize("several", [False, True])
async def test_what_may_be_acknowledged_is_not_hidden_after_a_failed_repetition(
    broker, peers, handle, clock, several
):
    """The first one had no response: its broker may have done it, or still do it."""
    codes = RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE
    mine = [handle(1), handle(2)] if several else [handle(1)]
    for answer, error in ((None, BrokerTimeout), (ResponseCode.SYSTEM_BUSY, BrokerBusy)):
        for code in codes:
            peers.on(code, lambda request, answer=answer: None if answer is None else request.answer(answer))
        with pytest.raises(error):
            await moving(clock, broker.ack(CONTEXT, "T", "G", mine))
    for receipt in mine:
        with pytest.raises(ReceiptExpired):
            await broker.change_invisible(CONTEXT, "T", "G", receipt, 0)
    assert peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME) == []


async def test_an_acknowledgement_under_way_outlives_the_failure_of_another(broker, peers, handle, clock):
    mine, answered = handle(), asyncio.Event()
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(ResponseCode.SYSTEM_BUSY))
    first = asyncio.ensure_future(moving(clock, broker.ack(CONTEXT, "T", "G", [mine])))
    await peers.until(lambda: len(peers.asked(RequestCode.ACK_MESSAGE)) == 2)

    async def late(request):
        await answered.wait()
        return request.answer(0)

    peers.on(RequestCode.ACK_MESSAGE, late)
    second = asyncio.ensure_future(broker.ack(CONTEXT, "T", "G", [mine]))
    await peers.until(lambda: len(peers.asked(RequestCode.ACK_MESSAGE)) >= 3)
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(ResponseCode.SYSTEM_BUSY))
    (failure,) = await asyncio.gather(first, return_exceptions=True)
    changed = await asyncio.gather(
        broker.change_invisible(CONTEXT, "T", "G", mine, 0), return_exceptions=True
    )
    answered.set()
    assert await second == [None]
    assert isinstance(failure, BrokerBusy)
    assert isinstance(changed[0], ReceiptExpired)


async def test_what_surely_was_not_acknowledged_may_be_hidden(broker, peers, handle, clock):
    mine = handle()
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(ResponseCode.SYSTEM_BUSY))
    for _ in range(2):
        with pytest.raises(BrokerBusy):
            await moving(clock, broker.ack(CONTEXT, "T", "G", [mine]))
    assert await broker.change_invisible(CONTEXT, "T", "G", mine, 9_000)


async def test_a_change_that_surely_was_not_done_may_be_tried_again(broker, peers, handle):
    mine = handle()
    peer = peers.peers["broker-a"]
    await peer.stop()
    with pytest.raises(BrokerUnavailable):
        await broker.change_invisible(CONTEXT, "T", "G", mine, 9_000)
    assert mine not in broker.replaced


async def test_a_change_that_nobody_knows_of_is_not_tried_again(broker, peers, handle, clock):
    peers.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, lambda request: None)
    mine = handle()
    with pytest.raises(BrokerTimeout):
        await moving(clock, broker.change_invisible(CONTEXT, "T", "G", mine, 9_000))
    with pytest.raises(ReceiptExpired):
        await broker.change_invisible(CONTEXT, "T", "G", mine, 9_000)
    # But whether the older handle still acknowledges is left to the broker, and its answer counts.
    assert await broker.ack(CONTEXT, "T", "G", [mine]) == [None]
    assert len(peers.asked(RequestCode.ACK_MESSAGE)) == 1


@pytest.mark.parametrize(
    "code",
    [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION, ResponseCode.NOT_LEADER_FOR_QUEUE],
)
async def test_a_change_that_was_refused_leaves_the_handle_as_it_is(broker, peers, handle, code):
    """Also where to ask is looked up anew: the master may be another one."""
    peers.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, lambda request: request.answer(code, "not here"))
    mine = handle()
    for _ in range(2):
        with pytest.raises(GatewayError, match="not here"):
            await broker.change_invisible(CONTEXT, "T", "G", mine, 9_000)
    assert await broker.ack(CONTEXT, "T", "G", [mine]) == [None]


@pytest.mark.parametrize("revive", [3, 999])
async def test_what_an_answer_to_a_change_leaves_out_is_as_it_was_asked(broker, peers, handle, clock, revive):
    told = {"popTime": str(clock.now_ms())}
    peers.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, lambda request: request.answer(0, fields=told))
    mine = handle(revive_queue=revive)
    changed = parse_receipt(await broker.change_invisible(CONTEXT, "T", "G", mine, 9_000))
    assert (changed.invisible_ms, changed.revive_queue) == (9_000, revive)
    assert await broker.ack(CONTEXT, "T", "G", [changed.encode()]) == [None]


@pytest.mark.parametrize("code", [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NOT_LEADER_FOR_QUEUE])
async def test_who_says_that_it_is_not_the_master_is_asked_for_anew(broker, peers, handle, code):
    """An acknowledgement that goes on to the old place would be dropped in silence there."""
    peers.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(code, "not here"))
    with pytest.raises(BrokerUnavailable):
        await broker.ack(CONTEXT, "T", "G", [handle()])
    assert "broker-a" in broker.routes.clusters._suspects


@pytest.mark.parametrize("invisible_ms", [-1, 4 * 24 * HOUR_MS])
async def test_times_that_a_broker_cannot_keep_are_refused(broker, peers, handle, invisible_ms):
    with pytest.raises(BadRequest):
        await broker.change_invisible(CONTEXT, "T", "G", handle(), invisible_ms)
    assert peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME) == []


async def test_given_up_without_an_attempt_both_handles_are_worth_nothing(broker, peers, handle):
    mine = handle()
    new = await broker.change_invisible(CONTEXT, "T", "G", mine, 0, suspend=True)
    assert peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)[0].fields["suspend"] == "true"
    for one in (mine, new):
        (result,) = await broker.ack(CONTEXT, "T", "G", [one])
        assert isinstance(result, ReceiptExpired)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, IllegalReceipt),
        (ResponseCode.NO_MESSAGE, IllegalReceipt),
        (ResponseCode.TOPIC_NOT_EXIST, TopicNotFound),
        (ResponseCode.SYSTEM_ERROR, GatewayError),
    ],
)
async def test_a_refused_change_is_told(broker, peers, handle, code, error):
    peers.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, lambda request: request.answer(code, "no"))
    with pytest.raises(error):
        await broker.change_invisible(CONTEXT, "T", "G", handle(), 9_000)


async def test_answers_to_changes_tell_the_brokers_time(broker, peers, handle, clock):
    await broker.change_invisible(CONTEXT, "T", "G", handle(), 9_000)
    assert abs(broker.clocks.surely_past_ms("broker-a") - clock.now_ms()) <= 2


# -- giving back and burying -----------------------------------------------------------------------


async def test_each_delivery_is_given_back_once(broker, peers, handle):
    mine = [handle(n) for n in range(3)]
    assert await broker.give_back(CONTEXT, "T", "G", [*mine, mine[0], "nonsense"]) == 3
    assert await broker.give_back(CONTEXT, "T", "G", mine) == 0
    assert len(peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 3


async def test_an_acknowledgement_at_the_same_time_keeps_a_return_away(broker, peers, handle):
    """A client may have an answer that could not be written to its end."""
    assert await broker.give_back(CONTEXT, "T", "G", [handle(1)]) == 1  # what is asked for is known then
    mine = handle(2)
    returning = asyncio.ensure_future(broker.give_back(CONTEXT, "T", "G", [mine]))
    acking = asyncio.ensure_future(broker.ack(CONTEXT, "T", "G", [mine]))
    assert await asyncio.gather(returning, acking) == [0, [None]]
    assert len(peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 1


async def test_a_change_at_the_same_time_keeps_a_return_away(broker, peers, handle):
    assert await broker.give_back(CONTEXT, "T", "G", [handle(1)]) == 1
    mine = handle(2)
    returning = asyncio.ensure_future(broker.give_back(CONTEXT, "T", "G", [mine]))
    changing = asyncio.ensure_future(broker.change_invisible(CONTEXT, "T", "G", mine, 9_000))
    returned, _ = await asyncio.gather(returning, changing)
    assert returned == 0
    assert len(peers.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 2


async def test_nothing_is_given_back_of_what_is_not_there(broker, peers, handle):
    assert await broker.give_back(CONTEXT, "unknown", "G", [handle()]) == 0
    assert await broker.give_back(CONTEXT, "T", "unknown", [handle()]) == 0


async def test_what_fails_is_not_counted(broker, peers, handle):
    peers.on(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, lambda request: request.answer(ResponseCode.SYSTEM_ERROR)
    )
    assert await broker.give_back(CONTEXT, "T", "G", [handle()]) == 0


async def test_a_dead_letter_is_copied_and_then_finished(broker, peers, handle):
    mine = handle(7, topic_type=1, commit_offset=123)
    await broker.dead_letter(CONTEXT, "T", "G", mine)
    (back,) = peers.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert {name: back.fields[name] for name in ("offset", "group", "delayLevel", "originTopic")} == {
        "offset": "123",
        "group": "G",
        "delayLevel": "-1",
        "originTopic": "%RETRY%G_T",
    }
    (ack,) = peers.asked(RequestCode.ACK_MESSAGE)
    assert (ack.fields["extraInfo"], ack.fields["topic"]) == (mine, "%RETRY%G_T")
    with pytest.raises(ReceiptExpired):
        await broker.dead_letter(CONTEXT, "T", "G", mine)
    assert await broker.ack(CONTEXT, "T", "G", [mine]) == [None]


@pytest.mark.parametrize(
    ("stored", "kind"), [("T", 0), ("%RETRY%G_T", 1), ("%RETRY%G+T", 2), ("secret", 0), ("T", 1)]
)
async def test_no_message_of_another_topic_is_copied_to_the_dead_letters(broker, peers, handle, stored, kind):
    """A client may write any offset of a broker's log into a handle."""
    host = pack_host("127.0.0.1:10911")
    found = encode_record(stored.encode(), 0, 7, 4_096, b"body", b"", 0, 0, 1, host, 2, host)
    peers.on(RequestCode.VIEW_MESSAGE_BY_ID, lambda request: request.answer(0, body=found))
    own = (stored, kind) not in (("secret", 0), ("T", 1))
    refused = contextlib.nullcontext() if own else pytest.raises(IllegalReceipt, match="of another topic")
    with refused:
        await broker.dead_letter(CONTEXT, "T", "G", handle(7, topic_type=kind))
    assert len(peers.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == own
    assert peers.asked(RequestCode.VIEW_MESSAGE_BY_ID)[0].fields["offset"] == "4096"


@pytest.mark.parametrize("body", [None, b"nonsense"])
async def test_what_a_broker_does_not_show_it_is_asked_to_copy(broker, peers, handle, body):
    peers.on(
        RequestCode.VIEW_MESSAGE_BY_ID,
        lambda request: request.answer(ResponseCode.NO_PERMISSION if body is None else 0, body=body or b""),
    )
    await broker.dead_letter(CONTEXT, "T", "G", handle(7))
    assert len(peers.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


async def test_what_a_busy_broker_does_not_show_now_is_not_copied_unseen(broker, peers, handle, clock):
    """A client that keeps it busy would else have any message copied."""
    peers.on(RequestCode.VIEW_MESSAGE_BY_ID, lambda request: request.answer(ResponseCode.SYSTEM_BUSY, "busy"))
    mine = handle(7)
    burying = asyncio.ensure_future(broker.dead_letter(CONTEXT, "T", "G", mine))
    await until(burying.done, turn=lambda: clock.advance(0.05), pause_s=0.001)
    with pytest.raises(BrokerBusy):
        await burying
    assert not peers.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
    peers.on(RequestCode.VIEW_MESSAGE_BY_ID, lambda request: request.answer(ResponseCode.NO_PERMISSION))
    await broker.dead_letter(CONTEXT, "T", "G", mine)


async def test_two_burials_at_once_are_one(broker, peers, handle):
    mine = handle()
    outcomes = await asyncio.gather(
        *(broker.dead_letter(CONTEXT, "T", "G", mine) for _ in range(3)), return_exceptions=True
    )
    assert outcomes.count(None) == 1
    assert len(peers.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


async def test_who_goes_away_leaves_no_half_of_a_burial(broker, peers, handle):
    """Copied and not finished it would be in two places."""
    held = asyncio.Event()

    async def back(request):
        await held.wait()
        return request.answer(0)

    peers.on(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    burying = asyncio.ensure_future(broker.dead_letter(CONTEXT, "T", "G", handle()))
    await peers.until(lambda: peers.asked(RequestCode.CONSUMER_SEND_MSG_BACK))
    burying.cancel()
    await asyncio.gather(burying, return_exceptions=True)
    held.set()
    await peers.until(lambda: peers.asked(RequestCode.ACK_MESSAGE))


async def test_a_handle_without_a_place_cannot_be_buried(broker, peers, handle):
    with pytest.raises(IllegalReceipt):
        await broker.dead_letter(CONTEXT, "T", "G", handle(commit_offset=-1))


async def test_a_message_that_is_not_there_is_told(broker, peers, handle):
    peers.on(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "look message by offset failed, 5"),
    )
    with pytest.raises(IllegalReceipt):
        await broker.dead_letter(CONTEXT, "T", "G", handle())
    assert peers.asked(RequestCode.ACK_MESSAGE) == []


async def test_what_was_not_buried_can_be_tried_again(broker, peers, handle):
    mine = handle()
    peers.on(RequestCode.CONSUMER_SEND_MSG_BACK, lambda request: request.answer(ResponseCode.NO_PERMISSION))
    with pytest.raises(GatewayError):
        await broker.dead_letter(CONTEXT, "T", "G", mine)
    peers.on(RequestCode.CONSUMER_SEND_MSG_BACK, lambda request: request.answer(0))
    await broker.dead_letter(CONTEXT, "T", "G", mine)


async def test_a_burial_that_nobody_knows_of_is_not_repeated(broker, peers, handle, clock):
    mine = handle()
    peers.on(RequestCode.CONSUMER_SEND_MSG_BACK, lambda request: None)
    with pytest.raises(BrokerTimeout):
        await moving(clock, broker.dead_letter(CONTEXT, "T", "G", mine))
    with pytest.raises(ReceiptExpired):
        await broker.dead_letter(CONTEXT, "T", "G", mine)


async def test_a_dead_letter_whose_delivery_cannot_be_finished_is_one_all_the_same(
    broker, peers, handle, clock
):
    peers.on(RequestCode.ACK_MESSAGE, lambda request: None)
    await moving(clock, broker.dead_letter(CONTEXT, "T", "G", handle()), step=0.2)
    assert len(peers.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
    assert len(peers.asked(RequestCode.ACK_MESSAGE)) == 3


async def test_handles_have_nine_fields(broker, peers, handle):
    new = await broker.change_invisible(CONTEXT, "T", "G", handle(), 9_000)
    assert parse_receipt(new).commit_offset == 4_096
