"""Pulls from a scripted broker: what is looked at again, what is waited for, who is asked."""

from __future__ import annotations

import asyncio

import pytest

from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerUnavailable,
    Forbidden,
    IllegalOffset,
    TooManyRequests,
)
from popgate.filters.compiled import compile_filter
from popgate.model import FilterKind
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.bodies.static_topics import QueueMapping
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import encode_record

PULL = RequestCode.PULL_MESSAGE
HOST = pack_host("127.0.0.1:10911")


def record(offset, tag="", body=b"body", queue_id=1):
    return encode_record(
        b"T",
        queue_id,
        offset,
        100 + offset,
        body,
        encode_properties({"TAGS": tag} if tag else {}),
        sys_flag=0,
        flag=0,
        born_ms=1,
        born_host=HOST,
        store_ms=2,
        store_host=HOST,
    )


class Queue:
    """Queue 1 of T at broker-a, as a broker answers about it."""

    def __init__(self, cluster, facet, clock):
        self.servers, self.masters = cluster
        self.facet = facet
        self.clock = clock
        self.records = {}
        self.minimum = 0
        self.peer = self.masters["broker-a"]
        self.peer.on(PULL, self.answer)
        for code, bound in ((RequestCode.GET_MIN_OFFSET, 0), (RequestCode.GET_MAX_OFFSET, 1)):
            self.peer.on(code, lambda r, bound=bound: r.answer(0, fields={"offset": str(self.bounds[bound])}))
        self.arrived = asyncio.Event()

    @property
    def bounds(self):
        return self.minimum, max(self.records, default=self.minimum - 1) + 1

    async def answer(self, request):
        fields = request.fields
        offset, most = int(fields["queueOffset"]), int(fields["maxMsgNums"])
        minimum, maximum = self.bounds
        told = {"minOffset": str(minimum), "maxOffset": str(maximum), "suggestWhichBrokerId": "0"}
        if not minimum <= offset <= maximum:
            moved = str(min(max(offset, minimum), maximum))
            return request.answer(ResponseCode.PULL_OFFSET_MOVED, fields={**told, "nextBeginOffset": moved})
        if offset == maximum:
            if int(fields["sysFlag"]) & 2:
                await self.arrived.wait()
                return await self.answer(request)
            return request.answer(
                ResponseCode.PULL_NOT_FOUND, fields={**told, "nextBeginOffset": str(offset)}
            )
        some = [one for at, one in sorted(self.records.items()) if at >= offset][:most]
        behind = str(min(offset + most, maximum))
        return request.answer(0, fields={**told, "nextBeginOffset": behind}, body=b"".join(some))

    async def pull(self, offset, *, tags="*", sql="", most=32, max_bytes=1 << 20, wait=None, **more):
        passing = compile_filter(FilterKind.SQL92, sql) if sql else compile_filter(FilterKind.TAG, tags)
        return await self.facet.pull(
            more.get("context") or Context(),
            more.get("topic", "T"),
            more.get("broker", "broker-a"),
            more.get("queue_id", 1),
            offset,
            max_messages=most,
            max_bytes=max_bytes,
            passing=passing,
            wait_until=None if wait is None else self.clock.monotonic() + wait,
        )


@pytest.fixture
async def queue(asking_cluster, make_broker, clock):
    return Queue(asking_cluster, await make_broker(quiet=True), clock)


def offsets(pulled):
    return [one.offset for one in pulled.messages]


async def test_messages_come_with_their_place_and_the_reader_is_a_group_that_every_broker_has(queue):
    queue.records = {n: record(n) for n in range(3)}
    pulled = await queue.pull(0)
    assert offsets(pulled) == [0, 1, 2]
    assert (pulled.next_offset, pulled.bounds.minimum, pulled.bounds.maximum) == (3, 0, 3)
    one = pulled.messages[1]
    assert (one.topic, one.broker, one.queue_id, one.commit_offset, one.attempt, one.receipt) == (
        "T",
        "broker-a",
        1,
        101,
        0,
        "",
    )
    assert one.store_host == "127.0.0.1:10911"
    assert pulled.messages.broker == "broker-a"
    (request,) = queue.peer.of(PULL)
    assert request.fields["consumerGroup"] == "TOOLS_CONSUMER"
    assert request.fields["sysFlag"] == "4"  # neither waits nor sets a position
    assert request.fields["bname"] == "broker-a"


async def test_what_only_has_the_hash_of_a_tag_is_left_out_and_passed(queue):
    queue.records = {0: record(0, "yes"), 1: record(1, "no"), 2: record(2, "yes")}
    pulled = await queue.pull(0, tags="yes")
    assert offsets(pulled) == [0, 2]
    assert queue.peer.of(PULL)[0].fields["subscription"] == "yes"


async def test_properties_are_looked_at_here_and_not_by_the_broker(queue):
    queue.records = {0: record(0, "yes"), 1: record(1, "no")}
    assert offsets(await queue.pull(0, sql="TAGS = 'no'")) == [1]
    fields = queue.peer.of(PULL)[0].fields
    assert (fields["subscription"], fields["expressionType"]) == ("*", "TAG")


async def test_no_more_bytes_than_asked_for_but_always_one_message(queue):
    queue.records = {n: record(n, body=b"x" * 1_000) for n in range(4)}
    pulled = await queue.pull(0, max_bytes=1)
    assert (offsets(pulled), pulled.next_offset) == ([0], 1)
    pulled = await queue.pull(1, max_bytes=2_500)
    assert (offsets(pulled), pulled.next_offset) == ([1, 2], 3)


async def test_a_request_takes_what_it_has_room_for_and_says_so(queue):
    class Allowance:
        added = 0

        def room(self):
            return 1_500

        def add(self, size):
            self.added += size

    queue.records = {n: record(n, body=b"x" * 1_000) for n in range(4)}
    allowance = Allowance()
    assert offsets(await queue.pull(0, context=Context(allowance=allowance))) == [0]
    assert allowance.added == len(queue.records[0])

    class Full(Allowance):
        def room(self):
            raise TooManyRequests("no room")

    with pytest.raises(TooManyRequests):
        await queue.pull(0, context=Context(allowance=Full()))


async def test_pulls_that_ask_at_once_hold_no_more_than_one_after_the_other(queue):
    class Filling:
        """Free when the pull begins, and full when its answer is there."""

        asked = added = 0

        def room(self):
            self.asked += 1
            if self.asked > 1:
                raise TooManyRequests("others were first")
            return 1_500

        def add(self, size):
            self.added += size

    queue.records = {0: record(0)}
    allowance = Filling()
    with pytest.raises(TooManyRequests):
        await queue.pull(0, context=Context(allowance=allowance))
    assert allowance.added == 0


@pytest.mark.parametrize(("offset", "nearest"), [(-1, 5), (3, 5), (9, 7), (1 << 62, 7), (1 << 80, 7)])
async def test_an_offset_outside_is_refused_with_the_nearest_one(queue, offset, nearest):
    queue.records, queue.minimum = {n: record(n) for n in (5, 6)}, 5
    with pytest.raises(IllegalOffset) as refused:
        await queue.pull(offset)
    assert refused.value.nearest == nearest


async def test_a_reset_of_the_readers_group_is_not_of_interest(queue):
    queue.records = {0: record(0)}
    moved = {"minOffset": "0", "maxOffset": "1", "nextBeginOffset": "1"}
    queue.peer.on(PULL, lambda request: request.answer(ResponseCode.PULL_OFFSET_MOVED, fields=moved))
    pulled = await queue.pull(0)
    assert (pulled.messages, pulled.next_offset) == ([], 0)


async def test_a_pull_waits_at_the_broker_until_something_comes(queue, loop_turns):
    waiting = asyncio.ensure_future(queue.pull(0, wait=20))
    await queue.peer.until(lambda: len(queue.peer.of(PULL)) == 2)
    assert queue.peer.of(PULL)[1].fields["sysFlag"] == "6"
    assert 0 < int(queue.peer.of(PULL)[1].fields["suspendTimeoutMillis"]) <= 5_000
    queue.records = {0: record(0)}
    queue.arrived.set()
    assert offsets(await waiting) == [0]


async def test_pulls_that_wait_leave_room_for_other_requests(asking_cluster, make_broker, clock, loop_turns):
    """More of them than requests may be under way look again and again instead."""
    queue = Queue(asking_cluster, await make_broker(quiet=True, max_in_flight=8), clock)
    waiting = []
    for _ in range(12):
        waiting.append(asyncio.ensure_future(queue.pull(0, wait=20)))
        await loop_turns()
    assert [one for one in waiting if one.done()] == []
    assert queue.facet.access.connections.figures()["requests_in_flight"] == 6
    assert (await queue.pull(0)).messages == []
    queue.records = {0: record(0)}
    queue.arrived.set()
    async with asyncio.timeout(60):
        while not all(one.done() for one in waiting):
            clock.advance(0.25)
            await loop_turns()
    assert [offsets(one.result()) for one in waiting] == [[0]] * 12


async def test_a_pull_that_waits_ends_at_its_time_whatever_the_broker_does(queue, clock, loop_turns):
    waiting = asyncio.ensure_future(queue.pull(0, wait=12))
    for asked in (2, 3, 4):
        await queue.peer.until(lambda asked=asked: len(queue.peer.of(PULL)) == asked)
        await loop_turns()
        assert not waiting.done()
        clock.advance(5)
    pulled = await waiting
    assert (pulled.messages, pulled.next_offset) == ([], 0)
    assert (pulled.bounds.minimum, pulled.bounds.maximum) == (0, 0)
    assert queue.facet.routes.clusters._suspects == {}


async def test_a_cancelled_pull_is_cancelled(queue, loop_turns):
    waiting = asyncio.ensure_future(queue.pull(0, wait=12))
    await queue.peer.until(lambda: len(queue.peer.of(PULL)) == 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_answer_that_leads_nowhere_is_not_asked_for_in_a_circle(queue, clock, loop_turns):
    told = {"minOffset": "0", "maxOffset": "9", "nextBeginOffset": "0"}
    queue.peer.on(PULL, lambda request: request.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, fields=told))
    waiting = asyncio.ensure_future(queue.pull(0, wait=1))
    await queue.peer.until(lambda: bool(queue.peer.of(PULL)))
    await loop_turns()
    assert len(queue.peer.of(PULL)) == 1
    clock.advance(0.2)
    await queue.peer.until(lambda: len(queue.peer.of(PULL)) == 2)
    clock.advance(1)
    assert (await waiting).messages == []


async def test_queues_topics_and_numbers_that_are_not_there_are_told(queue):
    with pytest.raises(BadRequest):
        await queue.pull(0, queue_id=9)
    with pytest.raises(BadRequest):
        await queue.pull(0, broker="nope")
    with pytest.raises(BadRequest):
        await queue.pull(0, most=0)
    queue.servers.add_topic("deaf", perm=2)
    with pytest.raises(Forbidden):
        await queue.pull(0, topic="deaf")


async def test_a_queue_that_is_new_is_found_at_the_name_server(queue):
    queue.records = {0: record(0)}
    await queue.pull(0)
    queue.servers.add_topic("T", queues=8)
    assert offsets(await queue.pull(0, queue_id=7)) == [0]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"minOffset": "0", "maxOffset": "x", "nextBeginOffset": "0"},
        {"minOffset": "0", "maxOffset": "1"},
    ],
)
async def test_an_answer_that_makes_no_sense_is_an_error(queue, answer):
    queue.peer.on(PULL, lambda request: request.answer(0, fields=answer))
    with pytest.raises(BrokerUnavailable):
        await queue.pull(0)


async def test_damaged_messages_are_an_error(queue):
    told = {"minOffset": "0", "maxOffset": "9", "nextBeginOffset": "1"}
    queue.peer.on(PULL, lambda request: request.answer(0, fields=told, body=b"\0" * 200))
    with pytest.raises(BrokerUnavailable, match="no sense"):
        await queue.pull(0)


# -- slaves ---------------------------------------------------------------------------------------


async def test_a_slave_is_read_from_when_the_master_is_gone(queue, asking_cluster):
    servers, masters = asking_cluster
    slave = masters["broker-b"]
    servers.add_broker("broker-a", queue.peer.address, slave.address)
    servers.add_topic("T", "broker-a")
    queue.facet.routes.forget("T")
    await queue.facet.routes.clusters.refresh()
    queue.records = {0: record(0)}
    slave.on(PULL, queue.answer)
    assert offsets(await queue.pull(0)) == [0]
    assert slave.of(PULL) == []
    await queue.peer.stop()
    assert offsets(await queue.pull(0)) == [0]
    assert len(slave.of(PULL)) == 1


async def test_a_slave_that_does_not_serve_readers_says_so(queue, asking_cluster):
    servers, masters = asking_cluster
    slave = masters["broker-b"]
    servers.add_broker("broker-a", queue.peer.address, slave.address)
    servers.add_topic("T", "broker-a")
    queue.facet.routes.forget("T")
    await queue.facet.routes.clusters.refresh()
    slave.on(PULL, lambda request: request.answer(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy"))
    await queue.peer.stop()
    with pytest.raises(BrokerUnavailable, match="slaveReadEnable"):
        await queue.pull(0)


async def test_a_master_that_is_busy_says_so(queue):
    busy = "[REJECTREQUEST]system busy"
    queue.peer.on(PULL, lambda request: request.answer(ResponseCode.SYSTEM_BUSY, busy))
    with pytest.raises(BrokerBusy):
        await queue.pull(0)


# -- static topics --------------------------------------------------------------------------------


def static(leader, epoch):
    names = ("broker-a", "broker-b")
    return {
        name: QueueMapping("S", "__global__", 2, name, epoch, current={0: 0, 1: 5} if name == leader else {})
        for name in names
    }


async def test_a_remap_is_followed_and_offsets_are_the_logic_ones(queue):
    servers, masters = queue.servers, queue.masters

    def route(leader, epoch):
        brokers = tuple(BrokerData("c", name, {0: peer.address}) for name, peer in masters.items())
        queues = tuple(QueueData(name, 8, 8) for name in masters)
        return TopicRoute(queues, brokers, mappings=static(leader, epoch))

    told = {"minOffset": "0", "maxOffset": "10002", "nextBeginOffset": "10002", "offsetDelta": "10000"}
    servers.topics["S"] = route("broker-b", 1)
    masters["broker-b"].on(PULL, lambda r: r.answer(ResponseCode.PULL_NOT_FOUND, fields=told))
    assert (await queue.pull(10_002, topic="S", broker="broker-b")).messages == []
    # Another one leads it now, and the route that is known does not say so yet.
    servers.topics["S"] = route("broker-a", 2)
    masters["broker-b"].on(PULL, lambda r: r.answer(ResponseCode.NOT_LEADER_FOR_QUEUE, "no leader"))
    queue.peer.on(
        PULL, lambda r: r.answer(0, fields=told, body=record(0, queue_id=5) + record(1, queue_id=5))
    )
    pulled = await queue.pull(10_000, topic="S", broker="broker-b")
    assert [(one.queue_id, one.offset) for one in pulled.messages] == [(1, 10_000), (1, 10_001)]
    asked = queue.peer.of(PULL)[-1].fields
    assert (asked["bname"], asked["queueId"], asked["queueOffset"]) == ("broker-a", "1", "10000")
    assert "lo" not in asked


async def test_a_broker_that_is_never_the_leader_is_not_asked_in_a_circle(queue):
    queue.peer.on(PULL, lambda request: request.answer(ResponseCode.NOT_LEADER_FOR_QUEUE, "not me"))
    with pytest.raises(BrokerUnavailable, match="not me"):
        await queue.pull(0)
    assert len(queue.peer.of(PULL)) == 2


@pytest.mark.parametrize("shift", ["x", "1" * 30, "-1" * 20])
async def test_a_shift_that_makes_no_sense_is_an_error(queue, shift):
    told = {"minOffset": "0", "maxOffset": "2", "nextBeginOffset": "1", "offsetDelta": shift}
    queue.peer.on(PULL, lambda request: request.answer(0, fields=told, body=record(0)))
    with pytest.raises(BrokerUnavailable):
        await queue.pull(0)


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND])
async def test_a_broker_that_does_not_wait_is_not_asked_in_a_circle(queue, clock, loop_turns, code):
    told = {"minOffset": "0", "maxOffset": "9", "nextBeginOffset": "0"}
    queue.peer.on(PULL, lambda request: request.answer(code, fields=told))
    waiting = asyncio.ensure_future(queue.pull(0, wait=1))
    await queue.peer.until(lambda: len(queue.peer.of(PULL)) == 2)
    for _ in range(10):
        await loop_turns()
    assert len(queue.peer.of(PULL)) == 2
    clock.advance(0.3)
    await queue.peer.until(lambda: len(queue.peer.of(PULL)) == 3)
    await loop_turns()
    clock.advance(1)
    assert (await waiting).messages == []
