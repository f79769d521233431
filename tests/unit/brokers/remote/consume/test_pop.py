"""Pops of scripted brokers: what is asked of whom, and what becomes of what comes back."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from dataclasses import replace

import pytest

from brokers.remote.broker import RemoteBroker
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Forbidden,
    GroupNotFound,
    TooManyRequests,
    TopicNotFound,
)
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.model import FilterKind, GroupConfig, Pop
from popgate.wire.bodies.small_bodies import decode_batch_acks
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import encode_record
from tests.support.interleaving import cancelled_before
from tests.support.waiting import until

NAMES = ("broker-a", "broker-b")
CONTEXT = Context(client_id="c")
LATEST = 513


def record(offset: int, body: bytes, *, topic="T", reconsumed=0, **properties) -> bytes:
    return encode_record(
        topic.encode(),
        0,
        offset,
        offset,
        body,
        encode_properties({"UNIQ_KEY": f"ID{offset}", **properties}),
        sys_flag=0,
        flag=0,
        born_ms=1,
        born_host=pack_host("10.0.0.1:1"),
        store_ms=1,
        store_host=pack_host("10.0.0.1:1"),
        reconsume_times=reconsumed,
    )


class Shelves:
    """What each broker has: records are popped once; questions are answered when something comes."""

    def __init__(self, peers, clock) -> None:
        self.peers = peers
        self.clock = clock
        self.config = {"groupName": "G", "retryMaxTimes": 16}
        self.has: dict[str, list[bytes]] = {name: [] for name in peers}
        self.news: dict[str, asyncio.Event] = {name: asyncio.Event() for name in peers}
        self.held: dict[str, asyncio.Event] = {}
        self.version = LATEST
        self.positions: dict[tuple[str, str, str], str] = {}
        for name, peer in peers.items():
            self.serve(name, peer)

    def put(self, name: str, *records: bytes) -> None:
        self.has[name] += records
        self.news[name].set()

    def serve(self, name, peer) -> None:
        async def pop(request):
            if name in self.held:
                await self.held[name].wait()
            most = int(request.fields["maxMsgNums"])
            taken, self.has[name] = self.has[name][:most], self.has[name][most:]
            told = {
                "popTime": str(self.clock.now_ms()),
                "invisibleTime": request.fields["invisibleTime"],
                "reviveQid": "999" if request.fields["order"] == "true" else "0",
                "restNum": str(len(self.has[name])),
            }
            code = ResponseCode.SUCCESS if taken else ResponseCode.POLLING_TIMEOUT
            answer = request.answer(code, fields=told, body=b"".join(taken))
            answer.version = self.version
            return answer

        async def notify(request):
            if not self.has[name]:
                self.news[name].clear()
                await self.news[name].wait()
            return request.answer(0, fields={"hasMsg": "true", "pollingFull": "false"})

        def change(request):
            _, pop_ms, _, revive_queue, *_ = request.fields["extraInfo"].split()
            # A delivery of an ordered group keeps its pop time.
            popped = pop_ms if revive_queue == "999" else str(self.clock.now_ms())
            told = {"popTime": popped, "invisibleTime": request.fields["invisibleTime"]}
            return request.answer(0, fields={**told, "reviveQid": "0"})

        def position(request):
            key = name, request.fields["consumerGroup"], request.fields["queueId"]
            if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                self.positions[key] = request.fields["commitOffset"]
                return request.answer(0)
            if key not in self.positions:
                return request.answer(ResponseCode.QUERY_NOT_FOUND)
            return request.answer(0, fields={"offset": self.positions[key]})

        peer.on(RequestCode.POP_MESSAGE, pop)
        peer.on(RequestCode.NOTIFICATION, notify)
        peer.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
        peer.on(RequestCode.QUERY_CONSUMER_OFFSET, position)
        peer.on(RequestCode.UPDATE_CONSUMER_OFFSET, position)
        peer.on(RequestCode.GET_MAX_OFFSET, lambda request: request.answer(0, fields={"offset": "40"}))
        for code in (
            RequestCode.ACK_MESSAGE,
            RequestCode.BATCH_ACK_MESSAGE,
            RequestCode.CONSUMER_SEND_MSG_BACK,
        ):
            peer.on(code, lambda request: request.answer(0))
        peer.on(
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            lambda request: request.answer(0, body=json.dumps(self.config).encode()),
        )

    def asked(self, code, *names: str):
        return [request for name in names or NAMES for request in self.peers[name].of(code)]

    until = staticmethod(functools.partial(until, pause_s=0.0))


@pytest.fixture
def servers(asking_cluster):
    return asking_cluster[0]


@pytest.fixture
async def shelves(asking_cluster, clock) -> Shelves:
    return Shelves(asking_cluster[1], clock)


@pytest.fixture
async def broker(make_broker, shelves) -> RemoteBroker:
    return await make_broker()


@pytest.fixture
def request_of(clock):
    def make(at_most=32, *, wait_s=None, **fields) -> Pop:
        until = None if wait_s is None else clock.monotonic() + wait_s
        given = {"topic": "T", "group": "G", "filter": EVERYTHING, "invisible_ms": 60_000, **fields}
        return Pop(max_messages=at_most, wait_until=until, **given)

    return make


def bodies(messages) -> list[bytes]:
    return [message.body for message in messages]


async def test_brokers_are_asked_in_turn_until_one_has_something(broker, shelves, request_of):
    shelves.put("broker-b", record(0, b"b"))
    assert bodies(await broker.pop(CONTEXT, request_of())) == [b"b"]
    assert await broker.pop(CONTEXT, request_of()) == []
    assert len(shelves.asked(RequestCode.POP_MESSAGE, "broker-a")) >= 1
    fields = shelves.asked(RequestCode.POP_MESSAGE, "broker-b")[0].fields
    assert fields["bname"] == "broker-b"
    assert (fields["pollTime"], fields["bornTime"], fields["queueId"]) == ("0", "0", "-1")
    assert (fields["order"], fields["expType"], fields["exp"], fields["initMode"]) == (
        "false",
        "TAG",
        "*",
        "0",
    )


async def test_settings_that_the_context_has_are_not_asked_for(broker, shelves, request_of):
    shelves.put("broker-a", record(0, b"a"))
    known = Context(client_id="c", group=GroupConfig("G"))
    assert bodies(await broker.pop(known, request_of(broker="broker-a"))) == [b"a"]
    assert shelves.asked(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == []
    known.group = GroupConfig("G", consume_enabled=False)
    with pytest.raises(Forbidden):
        await broker.pop(known, request_of())


async def test_settings_of_another_group_are_not_taken_for_its_own(broker, shelves, request_of):
    shelves.put("broker-a", record(0, b"a"))
    other = Context(client_id="c", group=GroupConfig("other", consume_enabled=False))
    assert bodies(await broker.pop(other, request_of(broker="broker-a"))) == [b"a"]
    assert shelves.asked(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)


async def test_a_pop_that_waited_looks_its_group_up_anew(broker, shelves, request_of):
    known = Context(client_id="c", group=GroupConfig("G"))
    waiting = asyncio.create_task(broker.pop(known, request_of(wait_s=20)))
    await shelves.until(lambda: shelves.asked(RequestCode.NOTIFICATION, "broker-a"))
    assert shelves.asked(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == []
    shelves.config["consumeEnable"] = False
    for peer in shelves.peers.values():
        peer.on(RequestCode.POP_MESSAGE, lambda request: request.answer(ResponseCode.POLLING_TIMEOUT))
    shelves.put("broker-a", record(0, b"a"))
    with pytest.raises(Forbidden):
        await waiting


async def test_waiting_pops_leave_room_for_other_requests(
    make_broker, shelves, request_of, clock, loop_turns
):
    """Lines of which no question may wait at the broker ask again and again instead."""
    broker = await make_broker(max_in_flight=8)
    peer = shelves.peers["broker-a"]
    waits = peer._scripts[RequestCode.NOTIFICATION]

    def notify(request):
        if request.fields["pollTime"] != "0":
            return waits(request)
        return request.answer(0, fields={"hasMsg": "true" if shelves.has["broker-a"] else "false"})

    peer.on(RequestCode.NOTIFICATION, notify)
    waiting = []
    for number in range(12):
        request = request_of(1, wait_s=20, group=f"G{number}", broker="broker-a")
        waiting.append(asyncio.create_task(broker.pop(CONTEXT, request)))
        await loop_turns()
    assert await broker.pop(CONTEXT, request_of(broker="broker-a")) == []
    assert broker.access.connections.figures()["requests_in_flight"] == 6
    shelves.put("broker-a", *(record(number, b"a") for number in range(12)))
    async with asyncio.timeout(60):
        while not all(task.done() for task in waiting):
            clock.advance(0.25)
            await loop_turns()
    assert [bodies(task.result()) for task in waiting] == [[b"a"]] * 12


async def test_a_broker_that_had_something_is_asked_first(broker, shelves, request_of):
    for number in range(10):
        shelves.put("broker-b", record(number, b"b"))
        assert len(await broker.pop(CONTEXT, request_of(1))) == 1
    assert len(shelves.asked(RequestCode.POP_MESSAGE, "broker-a")) <= 1


async def test_a_broker_that_hangs_holds_up_one_receive_while_another_has_something(
    broker, shelves, request_of, clock
):
    shelves.put("broker-b", *(record(number, b"b") for number in range(10)))
    while not await broker.pop(CONTEXT, request_of(1)):
        pass
    shelves.held["broker-a"] = asyncio.Event()
    before = len(shelves.asked(RequestCode.POP_MESSAGE, "broker-a"))
    waiting = asyncio.create_task(broker.pop(CONTEXT, request_of(1)))
    await shelves.until(lambda: len(shelves.asked(RequestCode.POP_MESSAGE, "broker-a")) > before)
    clock.advance(1.5)
    async with asyncio.timeout(60):
        assert bodies(await broker.pop(CONTEXT, request_of(1))) == [b"b"]
    assert len(shelves.asked(RequestCode.POP_MESSAGE, "broker-a")) == before + 1
    shelves.held["broker-a"].set()
    assert bodies(await waiting) == [b"b"]


async def test_no_more_is_asked_for_than_fits(broker, shelves, request_of):
    shelves.put("broker-a", *(record(n, bytes(1_000)) for n in range(3)))
    await broker.pop(CONTEXT, request_of(100))
    await broker.pop(CONTEXT, request_of(5))
    await broker.pop(CONTEXT, request_of(max_bytes=3_000))
    await broker.pop(CONTEXT, request_of(one_per_message_group=True, ordered=True))
    asked = [int(request.fields["maxMsgNums"]) for request in shelves.asked(RequestCode.POP_MESSAGE)]
    assert set(asked) == {32, 5, 3, 1}


async def test_what_is_too_much_is_given_back_but_never_the_first(broker, shelves, request_of):
    shelves.put("broker-a", *(record(n, bytes(700)) for n in range(3)))
    got = await broker.pop(CONTEXT, request_of(max_bytes=1_500, broker="broker-a"))
    assert len(got) == 1
    shelves.put("broker-a", record(9, bytes(9_000)), record(10, b"x"))
    got = await broker.pop(CONTEXT, request_of(max_bytes=10, broker="broker-a"))
    assert len(got) == 1


class Allowance:
    def __init__(self, room: int) -> None:
        self.left, self.taken = room, 0

    def for_group(self, group):
        pass

    def room(self):
        return self.left

    def take(self, size):
        self.add(size)

    def add(self, size):
        self.taken += size


async def test_an_allowance_is_told_what_was_taken(broker, shelves, request_of):
    shelves.put("broker-a", record(0, b"12345"), record(1, b"123"))
    allowance = Allowance(1 << 20)
    await broker.pop(replace(CONTEXT, allowance=allowance), request_of(broker="broker-a"))
    assert allowance.taken == 8


class SharedAllowance:
    """What several receives of one connection may hold together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def room(self) -> int:
        if self.held >= self.limit:
            raise TooManyRequests("it is full")
        return self.limit - self.held

    def add(self, size: int) -> None:
        self.held += size


async def test_receives_that_ask_at_once_hold_no_more_than_one_after_the_other(broker, shelves, request_of):
    shelves.put("broker-a", *[record(offset, b"m" * 1_000) for offset in range(8)])
    shelves.held["broker-a"] = asyncio.Event()
    allowance = SharedAllowance(3_000)
    popping = [
        asyncio.ensure_future(
            broker.pop(
                replace(CONTEXT, allowance=allowance),
                request_of(2, broker="broker-a", invisible_ms=60_000 + at, max_bytes=1 << 20),
            )
        )
        for at in range(4)
    ]
    await shelves.until(lambda: len(shelves.asked(RequestCode.POP_MESSAGE)) == 4)
    shelves.held["broker-a"].set()
    outcomes = await asyncio.gather(*popping, return_exceptions=True)
    counts = [len(outcome) if isinstance(outcome, list) else type(outcome) for outcome in outcomes]
    assert counts == [2, 1, TooManyRequests, TooManyRequests]
    assert allowance.held == 3_000
    await shelves.until(lambda: len(shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 5)


@pytest.fixture
def large(shelves) -> list[bytes]:
    """Has a broker answer with all that is asked for, however large: a real one looks at each queue apart."""
    left = [record(offset, b"m" * (1 << 20)) for offset in range(6)]

    def pop(request):
        taken = left[: int(request.fields["maxMsgNums"])]
        offsets = range(6 - len(left), 6 - len(left) + len(taken))
        del left[: len(taken)]
        told = {
            "popTime": str(shelves.clock.now_ms()),
            "invisibleTime": request.fields["invisibleTime"],
            "reviveQid": "3",
            "restNum": str(len(left)),
        }
        if taken:
            told["startOffsetInfo"] = f"0 0 {offsets.start}"
            told["msgOffsetInfo"] = f"0 0 {','.join(map(str, offsets))}"
        code = ResponseCode.SUCCESS if taken else ResponseCode.POLLING_TIMEOUT
        return request.answer(code, fields=told, body=b"".join(taken))

    shelves.peers["broker-a"].on(RequestCode.POP_MESSAGE, pop)
    return left


async def test_more_than_fits_into_an_answer_costs_no_connection(make_broker, shelves, request_of, large):
    broker = await make_broker(max_frame_bytes=4 << 20)
    pops = functools.partial(shelves.asked, RequestCode.POP_MESSAGE, "broker-a")
    assert await broker.pop(CONTEXT, request_of(broker="broker-a")) == []
    assert [request.fields["maxMsgNums"] for request in pops()] == ["32", "1"]
    await shelves.until(lambda: len(shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 6)
    returned = shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert sorted(request.fields["offset"] for request in returned) == list("012345")
    assert {(request.fields["invisibleTime"], request.fields["suspend"]) for request in returned} == {
        ("0", "true")
    }
    assert {request.fields["extraInfo"].split(" ", 1)[0] for request in returned} == {"0"}
    assert broker.figures()["connections_lost_total"] == 0
    large += [record(offset, b"m" * (1 << 20)) for offset in range(3)]
    assert len(await broker.pop(CONTEXT, request_of(broker="broker-a"))) == 1


async def test_a_few_large_messages_among_small_ones_are_read_in_time(make_broker, shelves, request_of):
    """Each time that they are returned counts as an attempt at a broker before 5.5.0."""
    broker = await make_broker(max_frame_bytes=10 << 20)
    stock = [record(offset, b"m" * (9 << 18)) for offset in range(5)]
    stock += [record(offset, b"m") for offset in range(5, 32)]

    def pop(request):
        taken = stock[: int(request.fields["maxMsgNums"])]
        told = {
            "popTime": str(shelves.clock.now_ms()),
            "invisibleTime": request.fields["invisibleTime"],
            "reviveQid": "3",
            "restNum": "9",
            "startOffsetInfo": "0 0 0",
            "msgOffsetInfo": f"0 0 {','.join(map(str, range(len(taken))))}",
        }
        return request.answer(ResponseCode.SUCCESS, fields=told, body=b"".join(taken))

    shelves.peers["broker-a"].on(RequestCode.POP_MESSAGE, pop)
    assert await broker.pop(CONTEXT, request_of(broker="broker-a", max_bytes=64 << 20))
    assert len(shelves.asked(RequestCode.POP_MESSAGE, "broker-a")) <= 3


async def test_a_message_too_large_for_an_answer_is_not_asked_for_in_a_circle(
    make_broker, shelves, request_of, large
):
    """It comes again when its time is over, and until then others come."""
    broker = await make_broker(max_frame_bytes=1 << 20)
    with pytest.raises(BrokerBusy, match="bytes, and cannot be read"):
        await broker.pop(CONTEXT, request_of(1, broker="broker-a"))
    assert shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME) == []
    assert broker.figures()["connections_lost_total"] == 0


async def test_filters_are_passed_on_and_looked_at_again(broker, shelves, request_of):
    """A broker compares hashes of tags: what collides is finished for the group (protocol facts 4.8)."""
    shelves.put("broker-a", record(0, b"yes", TAGS="red"), record(1, b"no", TAGS="blue"))
    passing = compile_filter(FilterKind.TAG, "red")
    assert bodies(await broker.pop(CONTEXT, request_of(filter=passing, broker="broker-a"))) == [b"yes"]
    assert shelves.asked(RequestCode.POP_MESSAGE)[0].fields["exp"] == "red"
    await shelves.until(lambda: shelves.asked(RequestCode.ACK_MESSAGE))
    assert shelves.asked(RequestCode.ACK_MESSAGE)[0].fields["offset"] == "1"
    sql = compile_filter(FilterKind.SQL92, "a > 1")
    await broker.pop(CONTEXT, request_of(filter=sql, broker="broker-a"))
    fields = shelves.asked(RequestCode.POP_MESSAGE)[-1].fields
    assert (fields["expType"], fields["exp"]) == ("SQL92", "a > 1")


async def test_a_message_without_attempts_left_is_buried_and_not_delivered(broker, shelves, request_of):
    shelves.config["retryMaxTimes"] = 2
    shelves.put("broker-a", record(0, b"used up", reconsumed=3), record(1, b"last", reconsumed=2))
    reported: list[tuple[str, str]] = []
    broker.on_dead_letter(lambda group, topic, _: reported.append((group, topic)))
    got = await broker.pop(CONTEXT, request_of(broker="broker-a"))
    assert bodies(got) == [b"last"]
    await shelves.until(lambda: shelves.asked(RequestCode.ACK_MESSAGE))
    (back,) = shelves.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (back.fields["delayLevel"], back.fields["offset"], back.fields["originTopic"]) == ("-1", "0", "T")
    assert shelves.asked(RequestCode.ACK_MESSAGE)[0].fields["offset"] == "0"
    await shelves.until(lambda: reported == [("G", "T")])


async def test_what_could_not_be_buried_is_not_finished(broker, shelves, request_of, caplog):
    shelves.config["retryMaxTimes"] = 0
    shelves.peers["broker-a"].on(
        RequestCode.CONSUMER_SEND_MSG_BACK, lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "no")
    )
    shelves.put("broker-a", record(0, b"used up", reconsumed=3))
    assert await broker.pop(CONTEXT, request_of(broker="broker-a")) == []
    await shelves.until(lambda: "was not buried" in caplog.text)
    assert shelves.asked(RequestCode.ACK_MESSAGE) == []


@pytest.mark.parametrize(("version", "ordered"), [(479, False), (LATEST, True)])
async def test_with_one_attempt_a_return_makes_no_dead_letter(broker, shelves, request_of, version, ordered):
    """Where the broker counts returns, this process knows better (any-replica, section 1)."""
    shelves.version = version
    shelves.config |= {"retryMaxTimes": 0, "consumeMessageOrderly": ordered}
    shelves.put("broker-a", record(7, b"m"))
    (first,) = await broker.pop(CONTEXT, request_of(broker="broker-a", ordered=ordered))
    assert await broker.give_back(CONTEXT, "T", "G", [first.receipt]) == 1
    shelves.clock.advance(0.001)
    shelves.put("broker-a", record(7, b"m", reconsumed=1))
    (second,) = await broker.pop(CONTEXT, request_of(broker="broker-a", ordered=ordered))
    assert second.attempt == 2
    shelves.put("broker-a", record(7, b"m", reconsumed=2))
    assert await broker.pop(CONTEXT, request_of(broker="broker-a", ordered=ordered)) == []
    await shelves.until(lambda: shelves.asked(RequestCode.CONSUMER_SEND_MSG_BACK))


async def test_a_return_is_told_as_one(broker, shelves, request_of):
    shelves.put("broker-a", record(7, b"m"))
    (message,) = await broker.pop(CONTEXT, request_of(broker="broker-a"))
    await broker.give_back(CONTEXT, "T", "G", [message.receipt])
    (change,) = shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert (change.fields["invisibleTime"], change.fields["suspend"]) == ("0", "true")


async def test_a_waiting_pop_takes_nothing_while_it_waits(broker, shelves, request_of):
    waiting = [asyncio.ensure_future(broker.pop(CONTEXT, request_of(wait_s=20))) for _ in range(5)]
    await shelves.until(lambda: len(shelves.asked(RequestCode.NOTIFICATION)) == 2)
    assert shelves.asked(RequestCode.POP_MESSAGE) == []
    for request in shelves.asked(RequestCode.NOTIFICATION):
        assert 0 < int(request.fields["pollTime"]) <= 5_000
        assert request.fields["bornTime"] == "0"
    shelves.put("broker-b", record(0, b"m"))
    await shelves.until(lambda: any(task.done() for task in waiting))
    (done,) = [task for task in waiting if task.done()]
    assert bodies(done.result()) == [b"m"]
    assert len(shelves.asked(RequestCode.POP_MESSAGE)) == 1
    for task in waiting:
        task.cancel()


async def test_scenario_26_one_message_wakes_one_of_many(broker, shelves, request_of):
    waiting = [asyncio.ensure_future(broker.pop(CONTEXT, request_of(1, wait_s=20))) for _ in range(10)]
    await shelves.until(lambda: len(shelves.asked(RequestCode.NOTIFICATION)) == 2)
    for number in range(5):
        shelves.put("broker-a", record(number, b"m"))
        await shelves.until(lambda n=number: sum(task.done() for task in waiting) == n + 1)
    assert len(shelves.asked(RequestCode.POP_MESSAGE)) == 5
    for task in waiting:
        task.cancel()


async def test_an_empty_poll_ends_at_its_time(broker, shelves, request_of, clock):
    waiting = asyncio.ensure_future(broker.pop(CONTEXT, request_of(wait_s=3)))
    await shelves.until(lambda: len(shelves.asked(RequestCode.NOTIFICATION)) == 2)
    clock.advance(2.9)
    assert not waiting.done()
    clock.advance(0.2)
    assert await waiting == []
    assert await broker.pop(CONTEXT, request_of(wait_s=-1)) == []


async def test_a_repeated_receive_of_an_ordered_group_looks_before_it_waits(broker, shelves, request_of):
    shelves.config["consumeMessageOrderly"] = True
    shelves.put("broker-a", record(0, b"held"))
    got = await broker.pop(CONTEXT, request_of(ordered=True, attempt_id="again", wait_s=20))
    assert bodies(got) == [b"held"]
    assert shelves.asked(RequestCode.NOTIFICATION) == []
    fields = shelves.asked(RequestCode.POP_MESSAGE, "broker-a")[0].fields
    assert (fields["order"], fields["attemptId"]) == ("true", "again")


async def test_what_comes_after_a_cancel_is_given_back(broker, shelves, request_of):
    held = shelves.held["broker-a"] = asyncio.Event()
    shelves.put("broker-a", record(0, b"m"), record(1, b"n"))
    popping = asyncio.ensure_future(broker.pop(CONTEXT, request_of(broker="broker-a")))
    await shelves.until(lambda: shelves.asked(RequestCode.POP_MESSAGE))
    popping.cancel()
    await asyncio.gather(popping, return_exceptions=True)
    assert shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME) == []
    held.set()
    await shelves.until(lambda: len(shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) == 2)
    assert {
        request.fields["offset"] for request in shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    } == {
        "0",
        "1",
    }
    assert broker.figures()["late_pops_given_back"] == 2


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_pop_cancelled_at_any_moment_holds_nothing(broker, shelves, request_of, loop_turns, ordered):
    """It was not taken, or it is given back, once."""
    shelves.config["consumeMessageOrderly"] = ordered
    # From here on it is connected, and knows the route.
    await broker.pop(CONTEXT, request_of(broker="broker-a", ordered=ordered))
    for moment in range(500):
        shelves.has["broker-a"] = [record(moment, b"a")]
        before = len(shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
        request = request_of(broker="broker-a", ordered=ordered)
        taken = await cancelled_before(moment, broker.pop(CONTEXT, request))
        if taken is not None:
            assert [message.offset for message in taken] == [moment]
            break
        await loop_turns()
        returned = shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)[before:]
        offsets = [request.fields["offset"] for request in returned]
        assert offsets == ([] if shelves.has["broker-a"] else [str(moment)]), (
            f"cancelled before callback {moment}"
        )
    assert 0 < moment < 499


async def test_what_comes_after_its_broker_was_given_up_is_given_back(broker, shelves, request_of, clock):
    held = shelves.held["broker-a"] = asyncio.Event()
    shelves.put("broker-a", record(0, b"late"))
    popping = asyncio.ensure_future(broker.pop(CONTEXT, request_of(broker="broker-a")))
    await shelves.until(lambda: shelves.asked(RequestCode.POP_MESSAGE))
    for _ in range(10):
        clock.advance(1.0)
        # The broker is alive: it gives the sign that it is asked for.
        await shelves.until(lambda: broker.connections.figures()["links_silent"] == 0)
    with pytest.raises(BrokerTimeout, match="broker-a did not answer a pop within 10 s"):
        await popping
    held.set()
    await shelves.until(lambda: shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
    assert broker.figures()["late_pops_given_back"] == 1


async def test_a_woken_client_that_vanishes_leaves_the_message_to_the_next(broker, shelves, request_of):
    held = shelves.held["broker-a"] = asyncio.Event()
    vanishing = asyncio.ensure_future(broker.pop(CONTEXT, request_of(wait_s=20)))
    staying = asyncio.ensure_future(broker.pop(CONTEXT, request_of(wait_s=20)))
    await shelves.until(lambda: len(shelves.asked(RequestCode.NOTIFICATION)) == 2)
    shelves.put("broker-a", record(0, b"m"))
    await shelves.until(lambda: shelves.asked(RequestCode.POP_MESSAGE))
    vanishing.cancel()
    held.set()
    await shelves.until(lambda: shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
    shelves.put("broker-a", record(1, b"m", reconsumed=0))  # the broker has it again
    # Who looked before that is woken again after a rest.
    await shelves.until(lambda: shelves.clock.advance(0.001) or staying.done())
    assert bodies(await staying) == [b"m"]


async def test_the_woken_replicas_client_vanishes_and_another_replica_delivers_within_five_seconds(
    make_broker, shelves, request_of, clock
):
    """A broker wakes one asker for an arrival; the others have asked anew 5 s later at most."""
    one, other = await make_broker(), await make_broker()
    askers: list[asyncio.Future[bool]] = []

    async def notify(request):
        if shelves.has["broker-a"]:
            return request.answer(0, fields={"hasMsg": "true"})
        asker = asyncio.get_running_loop().create_future()
        askers.append(asker)
        clock.call_later(
            int(request.fields["pollTime"]) / 1000, lambda: asker.done() or asker.set_result(False)
        )
        return request.answer(0, fields={"hasMsg": "true" if await asker else "false"})

    shelves.peers["broker-a"].on(RequestCode.NOTIFICATION, notify)
    vanishing = asyncio.ensure_future(one.pop(CONTEXT, request_of(wait_s=20, broker="broker-a")))
    await shelves.until(lambda: len(askers) == 1)
    staying = asyncio.ensure_future(other.pop(CONTEXT, request_of(wait_s=20, broker="broker-a")))
    await shelves.until(lambda: len(askers) == 2)
    vanishing.cancel()
    await asyncio.gather(vanishing, return_exceptions=True)
    shelves.put("broker-a", record(0, b"m"))
    askers[0].set_result(True)  # the broker wakes the one whose client is gone
    clock.advance(5.5)  # no more time passes than that
    async with asyncio.timeout(60):
        assert bodies(await staying) == [b"m"]


async def test_a_broker_that_is_down_costs_no_poll(broker, shelves, request_of):
    await shelves.peers["broker-a"].stop()
    shelves.put("broker-b", record(0, b"m"))
    assert bodies(await broker.pop(CONTEXT, request_of())) == [b"m"]
    waiting = asyncio.ensure_future(broker.pop(CONTEXT, request_of(wait_s=20)))
    await shelves.until(lambda: shelves.asked(RequestCode.NOTIFICATION, "broker-b"))
    shelves.put("broker-b", record(1, b"n"))
    assert bodies(await waiting) == [b"n"]


async def test_a_broker_that_dies_with_a_pop_costs_no_poll(broker, shelves, request_of):
    """Also when it was the only one that is asked first: the others may have something."""

    def dies(request):
        shelves.peers["broker-a"].cut()

    for wait_s in (None, 20):
        shelves.put("broker-a", record(0, b"first"))
        assert bodies(await broker.pop(CONTEXT, request_of())) == [b"first"]
        shelves.put("broker-b", record(1, b"m"))
        shelves.peers["broker-a"].on(RequestCode.POP_MESSAGE, dies)
        assert bodies(await broker.pop(CONTEXT, request_of(wait_s=wait_s))) == [b"m"]
        shelves.serve("broker-a", shelves.peers["broker-a"])


@pytest.mark.parametrize(
    "header",
    [{}, {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}],
    ids=["none", "empty"],
)
async def test_a_broker_that_let_a_pop_lie_and_did_not_look_is_asked_again(
    broker, shelves, request_of, header
):
    """As one answers that stood still for 500 ms: without a word of what was popped, or (5.5.0) with nothing
    filled in."""
    peer = shelves.peers["broker-b"]
    answers = itertools.count(1)

    def late(request):
        if next(answers) == 2:
            shelves.serve("broker-b", peer)
        return request.answer(
            ResponseCode.POLLING_TIMEOUT, fields=header, remark="pop message is timeout too much"
        )

    shelves.put("broker-b", record(0, b"m"))
    peer.on(RequestCode.POP_MESSAGE, late)
    assert bodies(await broker.pop(CONTEXT, request_of(broker="broker-b"))) == [b"m"]
    assert len(shelves.asked(RequestCode.POP_MESSAGE, "broker-b")) == 3


async def test_a_broker_that_lets_every_pop_lie_is_busy_and_costs_no_poll_of_others(
    broker, shelves, request_of
):
    peer = shelves.peers["broker-b"]
    peer.on(RequestCode.POP_MESSAGE, lambda request: request.answer(ResponseCode.POLLING_TIMEOUT))
    with pytest.raises(BrokerBusy, match="too old to look"):
        await broker.pop(CONTEXT, request_of(broker="broker-b"))
    assert len(shelves.asked(RequestCode.POP_MESSAGE, "broker-b")) == 3
    shelves.put("broker-a", record(0, b"m"))
    assert bodies(await broker.pop(CONTEXT, request_of())) == [b"m"]


async def test_who_is_patient_with_requests_is_patient_with_pops(make_broker, shelves, request_of, clock):
    """10 s, or as long as any request may take."""
    broker = await make_broker(request_timeout_s=30.0, probe_s=30.0)
    shelves.held["broker-a"] = asyncio.Event()
    popping = asyncio.ensure_future(broker.pop(CONTEXT, request_of(broker="broker-a")))
    await shelves.until(lambda: shelves.asked(RequestCode.POP_MESSAGE, "broker-a"))
    shelves.put("broker-a", record(0, b"m"))
    clock.advance(20.0)
    shelves.held["broker-a"].set()
    assert bodies(await popping) == [b"m"]


async def test_only_when_all_brokers_die_with_a_pop_it_says_that_nobody_knows(broker, shelves, request_of):
    for peer in shelves.peers.values():
        peer.on(RequestCode.POP_MESSAGE, lambda request, peer=peer: peer.cut())
    with pytest.raises(BrokerTimeout):
        await broker.pop(CONTEXT, request_of())


async def test_without_any_broker_a_pop_says_so(broker, shelves, request_of):
    await broker.pop(CONTEXT, request_of())
    for peer in shelves.peers.values():
        await peer.stop()
    with pytest.raises(BrokerUnavailable):
        await broker.pop(CONTEXT, request_of())


async def test_an_answer_that_cannot_be_read_fails_that_broker_only(broker, shelves, request_of):
    shelves.peers["broker-a"].on(
        RequestCode.POP_MESSAGE, lambda request: request.answer(0, fields={"popTime": "?"}, body=b"?")
    )
    shelves.put("broker-b", record(0, b"m"))
    assert bodies(await broker.pop(CONTEXT, request_of())) == [b"m"]
    with pytest.raises(BrokerUnavailable):
        await broker.pop(CONTEXT, request_of(broker="broker-a"))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, TopicNotFound),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, GroupNotFound),
        (ResponseCode.NO_PERMISSION, Forbidden),
    ],
)
async def test_what_a_broker_refuses_is_told(broker, shelves, request_of, code, error):
    for peer in shelves.peers.values():
        for asked in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION):
            peer.on(asked, lambda request: request.answer(code, "no"))
    with pytest.raises(error):
        await broker.pop(CONTEXT, request_of())
    with pytest.raises(error):
        await broker.pop(CONTEXT, request_of(wait_s=20))


@pytest.mark.parametrize(
    "fields",
    [{"queue_id": 4}, {"broker": "no such"}, {"at_most": 0}, {"invisible_ms": 0}, {"invisible_ms": 1 << 40}],
)
async def test_what_cannot_be_is_refused(broker, shelves, request_of, fields):
    with pytest.raises(BadRequest):
        await broker.pop(CONTEXT, request_of(**fields))
    assert shelves.asked(RequestCode.POP_MESSAGE) == []


@pytest.mark.parametrize("fields", [{"at_most": 0}, {"invisible_ms": 0}])
async def test_for_what_cannot_be_nobody_is_asked(broker, shelves, request_of, fields):
    """Else it fails with what they answer, and as something to try again where they do not answer."""
    with pytest.raises(BadRequest):
        await broker.pop(CONTEXT, request_of(topic="unknown", **fields))
    with pytest.raises(BadRequest):
        await broker.pop(CONTEXT, request_of(**fields))
    assert shelves.asked(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == []


async def test_a_group_that_is_switched_off_gets_nothing(broker, shelves, request_of):
    shelves.config["consumeEnable"] = False
    with pytest.raises(Forbidden):
        await broker.pop(CONTEXT, request_of())


async def test_a_topic_that_nobody_may_read_is_forbidden(broker, shelves, request_of, servers):
    servers.add_topic("W", perm=2)
    with pytest.raises(Forbidden):
        await broker.pop(CONTEXT, request_of(topic="W"))


@pytest.mark.parametrize(("from_first", "mode"), [(True, "0"), (False, "1")])
async def test_where_a_new_group_begins_is_left_to_its_broker(broker, shelves, request_of, from_first, mode):
    """A gateway that set a position would skip what is sent until the next gateway does, or set one back."""
    shelves.config["consumeFromMinEnable"] = from_first
    await asyncio.gather(*(broker.pop(CONTEXT, request_of()) for _ in range(5)))
    assert {one.fields["initMode"] for one in shelves.asked(RequestCode.POP_MESSAGE)} == {mode}
    assert not shelves.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert not shelves.asked(RequestCode.QUERY_CONSUMER_OFFSET)
    assert shelves.positions == {}


async def test_those_who_wait_are_let_go_when_the_broker_stops(broker, shelves, request_of):
    waiting = [asyncio.ensure_future(broker.pop(CONTEXT, request_of(wait_s=20))) for _ in range(3)]
    await shelves.until(lambda: len(shelves.asked(RequestCode.NOTIFICATION)) == 2)
    await broker.stop()
    assert await asyncio.gather(*waiting) == [[], [], []]


async def test_acknowledgements_of_what_was_popped_go_together(broker, shelves, request_of):
    shelves.put("broker-a", *(record(n, b"m") for n in range(3)))
    got = await broker.pop(CONTEXT, request_of(broker="broker-a"))
    assert await broker.ack(CONTEXT, "T", "G", [message.receipt for message in got]) == [None] * 3
    (request,) = shelves.asked(RequestCode.BATCH_ACK_MESSAGE)
    name, acks = decode_batch_acks(request.body)
    assert name == "broker-a"
    assert sorted(offset for ack in acks for offset in ack.offsets) == [0, 1, 2]


async def test_finished_messages_of_an_ordered_batch_stay_away_when_it_is_popped_again(
    broker, shelves, request_of
):
    """A broker pops all again that follows an unfinished one; a group that was set back gets all (4.5)."""
    shelves.config["consumeMessageOrderly"] = True
    asked = {"broker": "broker-a", "ordered": True}

    async def popped(count: int) -> list[bytes]:
        shelves.put("broker-a", *(record(n, b"%d" % n, reconsumed=count) for n in range(3)))
        got = await broker.pop(CONTEXT, request_of(**asked))
        handles.update({message.body: message.receipt for message in got})
        return bodies(got)

    handles: dict[bytes, str] = {}
    assert await popped(0) == [b"0", b"1", b"2"]
    await broker.ack(CONTEXT, "T", "G", [handles[b"1"]])
    assert await popped(1) == [b"0", b"2"]
    await shelves.until(lambda: len(shelves.asked(RequestCode.ACK_MESSAGE)) == 2)  # the new one, too
    await broker.ack(CONTEXT, "T", "G", [handles[b"0"]])
    assert await popped(0) == [b"0", b"1", b"2"]


async def test_a_dead_letter_of_an_ordered_batch_stays_away_when_that_is_popped_again(
    broker, shelves, request_of
):
    shelves.config["consumeMessageOrderly"] = True
    asked = {"broker": "broker-a", "ordered": True}
    shelves.put("broker-a", *(record(n, b"%d" % n) for n in range(3)))
    _, dead, _ = await broker.pop(CONTEXT, request_of(**asked))
    await broker.dead_letter(CONTEXT, "T", "G", dead.receipt)
    shelves.put("broker-a", *(record(n, b"%d" % n, reconsumed=1) for n in range(3)))
    assert bodies(await broker.pop(CONTEXT, request_of(**asked))) == [b"0", b"2"]
    await shelves.until(lambda: len(shelves.asked(RequestCode.ACK_MESSAGE)) == 2)  # the new one, too
    assert len(shelves.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


@pytest.mark.parametrize("answered", ["in turn", "the other way round"])
async def test_a_repeated_receive_in_the_millisecond_of_the_first_is_not_given_back_with_it(
    broker, shelves, request_of, clock, answered
):
    """A broker gives both the same handles: what frees the one frees the other."""
    shelves.config["consumeMessageOrderly"] = True
    asked = request_of(broker="broker-a", ordered=True, attempt_id="x")
    turns = [asyncio.Event(), asyncio.Event()]
    numbers, begun = itertools.count(), clock.now_ms()

    async def pop(request):
        number = next(numbers)
        if number < 2:
            await turns[number].wait()
        if number < 2 or shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
            told = {"popTime": str(begun if number < 2 else clock.now_ms()), "invisibleTime": "30000"}
            body = record(0, b"m")
            return request.answer(0, fields={**told, "reviveQid": "999", "restNum": "0"}, body=body)
        return request.answer(ResponseCode.POLLING_TIMEOUT)

    shelves.peers["broker-a"].on(RequestCode.POP_MESSAGE, pop)
    first = asyncio.ensure_future(broker.pop(CONTEXT, asked))
    await shelves.until(lambda: len(shelves.asked(RequestCode.POP_MESSAGE)) == 1)
    first.cancel()
    second = asyncio.ensure_future(broker.pop(CONTEXT, asked))
    await shelves.until(lambda: len(shelves.asked(RequestCode.POP_MESSAGE)) == 2)
    if answered == "in turn":
        turns[0].set()
        await shelves.until(lambda: shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
        turns[1].set()
        # It is free now, whoever is first.
        assert await second == []
        clock.advance(0.001)
        got = await broker.pop(CONTEXT, asked)
    else:
        turns[1].set()
        got = await second
        turns[0].set()
        for _ in range(200):
            await asyncio.sleep(0)
        assert shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME) == []
    assert bodies(got) == [b"m"]
    assert await broker.ack(CONTEXT, "T", "G", [got[0].receipt]) == [None]


async def test_a_very_long_attempt_id_is_told_as_a_short_one(broker, shelves, request_of):
    """A broker keeps it for each queue, and writes it to its disk every few seconds."""
    shelves.config["consumeMessageOrderly"] = True
    names = ["a" * 255, "b" * 100_000, "b" * 100_000, "b" * 99_999 + "c"]
    for name in names:
        await broker.pop(CONTEXT, request_of(broker="broker-a", ordered=True, attempt_id=name))
    told = [request.fields["attemptId"] for request in shelves.asked(RequestCode.POP_MESSAGE)]
    assert told[0] == names[0]
    assert all(len(one) == 64 for one in told[1:])
    assert told[1] == told[2] != told[3]


async def test_attempt_ids_of_any_text_are_told(broker, shelves, request_of):
    shelves.config["consumeMessageOrderly"] = True
    for attempt_id in ("\udcff", "\x00", "x" * 10_000):
        await broker.pop(CONTEXT, request_of(broker="broker-a", ordered=True, attempt_id=attempt_id))
    assert len({request.fields["attemptId"] for request in shelves.asked(RequestCode.POP_MESSAGE)}) == 3


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SYSTEM_ERROR,
    ],
)
async def test_what_one_broker_refuses_costs_no_poll(broker, shelves, request_of, clock, code):
    """One that was away when the group was made does not know it; one that is drained lets nobody read."""
    for asked in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION):
        shelves.peers["broker-a"].on(asked, lambda request: request.answer(code, "no"))
    for number in range(4):
        shelves.put("broker-b", record(number, b"m"))
        assert bodies(await broker.pop(CONTEXT, request_of(1))) == [b"m"]
        assert await broker.pop(CONTEXT, request_of(1)) == []
    waiting = asyncio.ensure_future(broker.pop(CONTEXT, request_of(1, wait_s=20)))
    await shelves.until(lambda: shelves.asked(RequestCode.NOTIFICATION, "broker-b"))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(shelves.asked(RequestCode.NOTIFICATION, "broker-a")) <= 2
    shelves.put("broker-b", record(9, b"n"))
    assert bodies(await waiting) == [b"n"]


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.NO_PERMISSION])
@pytest.mark.parametrize("wait_s", [0, 20])
async def test_a_broker_that_gives_a_group_nothing_is_told_of(
    broker, shelves, request_of, clock, code, wait_s
):
    """What it has for the group waits, and no client sees a failure."""
    for asked in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION):
        shelves.peers["broker-a"].on(asked, lambda request: request.answer(code, "no"))
    popping = asyncio.ensure_future(broker.pop(CONTEXT, request_of(1, wait_s=wait_s)))
    await shelves.until(lambda: broker.figures()["groups_unserved"] == 1)
    assert list(broker.unserved.now()) == [("G", "broker-a")]
    shelves.put("broker-b", record(0, b"m"))
    await popping
    shelves.peers["broker-a"].on(RequestCode.POP_MESSAGE, lambda request: request.answer(0, ""))
    shelves.serve("broker-a", shelves.peers["broker-a"])
    shelves.put("broker-a", record(0, b"m"))
    await broker.pop(CONTEXT, request_of(1, broker="broker-a"))
    assert broker.figures()["groups_unserved"] == 0


async def test_a_broker_without_the_group_is_not_told_of_when_no_other_has_it(broker, shelves, request_of):
    for peer in shelves.peers.values():
        peer.on(RequestCode.POP_MESSAGE, lambda r: r.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no"))
    with pytest.raises(GroupNotFound):
        await broker.pop(CONTEXT, request_of(1))
    assert broker.figures()["groups_unserved"] == 0


async def test_a_pop_that_comes_while_the_broker_stops_waits_for_nobody(broker, shelves, request_of):
    broker.waiters.end_all()
    assert await broker.pop(CONTEXT, request_of(wait_s=20)) == []


async def test_a_group_that_has_begun_goes_on_without_a_broker_that_is_down(broker, shelves, request_of):
    """Also when this process does not know yet that it has begun."""
    shelves.config["consumeFromMinEnable"] = False
    shelves.positions["broker-b", "G", "2"] = "7"
    await shelves.peers["broker-a"].stop()
    shelves.put("broker-b", record(7, b"m"))
    assert bodies(await broker.pop(CONTEXT, request_of())) == [b"m"]
    assert shelves.positions == {("broker-b", "G", "2"): "7"}


@pytest.mark.parametrize(
    "fields", [{"popTime": "-5"}, {"popTime": "0"}, {"popTime": "9" * 19}, {"reviveQid": "-1"}]
)
async def test_numbers_that_make_no_handle_fail_that_broker_only(broker, shelves, request_of, clock, fields):
    told = {"popTime": str(clock.now_ms()), "invisibleTime": "60000", "reviveQid": "0", **fields}
    shelves.peers["broker-a"].on(
        RequestCode.POP_MESSAGE,
        lambda request: request.answer(0, fields=told, body=record(0, b"?", TAGS="x")),
    )
    shelves.put("broker-b", record(0, b"m", TAGS="red"))
    passing = compile_filter(FilterKind.TAG, "red")
    assert bodies(await broker.pop(CONTEXT, request_of(filter=passing))) == [b"m"]
    with pytest.raises(BrokerUnavailable):
        await broker.pop(CONTEXT, request_of(filter=passing, broker="broker-a"))


async def test_an_ordered_group_that_was_set_back_gets_all_also_behind_what_another_replica_finished(
    broker, shelves, request_of
):
    """This process finished 1 and another one 0: the broker gives both again after a reset, as new."""
    shelves.config["consumeMessageOrderly"] = True
    asked = {"broker": "broker-a", "ordered": True}
    shelves.put("broker-a", record(0, b"0"), record(1, b"1"))
    handles = {one.body: one.receipt for one in await broker.pop(CONTEXT, request_of(**asked))}
    await broker.ack(CONTEXT, "T", "G", [handles[b"1"]])
    for _ in range(2):
        shelves.clock.advance(61)
        shelves.put("broker-a", record(0, b"0"), record(1, b"1"))
        assert bodies(await broker.pop(CONTEXT, request_of(**asked))) == [b"0", b"1"]


async def test_a_broker_that_comes_is_asked_for_all_who_wait_from_then_on(
    broker, shelves, request_of, servers, clock, loop_turns
):
    """Also when one of them who came before it is woken for nothing, and waits on."""
    servers.add_topic("T", "broker-a")
    answers = {name: asyncio.Queue() for name in NAMES}

    async def notify(request):
        return request.answer(0, fields={"hasMsg": await answers[request.fields["bname"]].get()})

    for peer in shelves.peers.values():
        peer.on(RequestCode.NOTIFICATION, notify)
    first = asyncio.ensure_future(broker.pop(CONTEXT, request_of(1, wait_s=20)))
    await shelves.until(lambda: len(shelves.asked(RequestCode.NOTIFICATION, "broker-a")) == 1)
    servers.add_topic("T")
    broker.routes.forget("T")
    second = asyncio.ensure_future(broker.pop(CONTEXT, request_of(1, wait_s=20)))
    await shelves.until(lambda: len(shelves.asked(RequestCode.NOTIFICATION, "broker-b")) == 1)
    answers["broker-a"].put_nowait("true")  # its message is gone by then
    await shelves.until(lambda: shelves.asked(RequestCode.POP_MESSAGE, "broker-a"))
    answers["broker-b"].put_nowait("false")
    async with asyncio.timeout(60):
        while len(shelves.asked(RequestCode.NOTIFICATION, "broker-b")) < 2:
            await loop_turns()
            clock.advance(0.2)
            assert not any(task.done() for task in (first, second))
    for task in (first, second):
        task.cancel()


async def test_pops_of_one_turn_go_together_and_each_gets_its_own(broker, shelves, request_of):
    await broker.pop(CONTEXT, request_of(broker="broker-a"))  # the route and the group are known then
    shelves.put("broker-a", *(record(n, b"%d" % n) for n in range(40)))
    allowances = [Allowance(1 << 20) for _ in range(40)]
    pops = [
        broker.pop(replace(CONTEXT, allowance=one), request_of(1, broker="broker-a")) for one in allowances
    ]
    got = await asyncio.gather(*pops)
    assert sorted(int(body) for messages in got for body in bodies(messages)) == list(range(40))
    assert [allowance.taken for allowance in allowances] == [len(messages[0].body) for messages in got]
    asked = [int(request.fields["maxMsgNums"]) for request in shelves.asked(RequestCode.POP_MESSAGE)]
    assert asked == [32, 32, 8]
    assert broker.figures()["late_pops_given_back"] == 0


async def test_pops_with_different_filters_do_not_go_together(broker, shelves, request_of):
    await broker.pop(CONTEXT, request_of(broker="broker-a"))
    filters = [EVERYTHING, compile_filter(FilterKind.TAG, "red"), compile_filter(FilterKind.SQL92, "red = 1")]
    pops = [broker.pop(CONTEXT, request_of(1, broker="broker-a", filter=one)) for one in filters * 2]
    await asyncio.gather(*pops)
    asked = [request.fields for request in shelves.asked(RequestCode.POP_MESSAGE)[1:]]
    assert [(one["exp"], one["expType"], one["maxMsgNums"]) for one in asked] == [
        ("*", "TAG", "2"),
        ("red", "TAG", "2"),
        ("red = 1", "SQL92", "2"),
    ]


async def test_one_of_many_who_leaves_holds_nothing_and_the_others_get_theirs(broker, shelves, request_of):
    await broker.pop(CONTEXT, request_of(broker="broker-a"))
    held = shelves.held["broker-a"] = asyncio.Event()
    shelves.put("broker-a", *(record(n, b"%d" % n) for n in range(3)))
    pops = [asyncio.ensure_future(broker.pop(CONTEXT, request_of(1, broker="broker-a"))) for _ in range(3)]
    await shelves.until(lambda: len(shelves.asked(RequestCode.POP_MESSAGE)) == 2)
    pops[0].cancel()
    held.set()
    assert [bodies(await pop) for pop in pops[1:]] == [[b"0"], [b"1"]]
    await shelves.until(lambda: shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
    (back,) = shelves.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert back.fields["offset"] == "2"


async def test_what_goes_together_is_sifted_message_by_message(broker, shelves, request_of):
    """One is buried, one does not pass the filter, and those who asked get what is left."""
    shelves.config["retryMaxTimes"] = 2
    passing = compile_filter(FilterKind.TAG, "red")
    await broker.pop(CONTEXT, request_of(broker="broker-a", filter=passing))
    shelves.put(
        "broker-a",
        record(0, b"used up", reconsumed=3, TAGS="red"),
        record(1, b"no", TAGS="blue"),
        record(2, b"yes", TAGS="red"),
        record(3, b"more", TAGS="red"),
    )
    pops = [broker.pop(CONTEXT, request_of(1, broker="broker-a", filter=passing)) for _ in range(3)]
    got = [bodies(messages) for messages in await asyncio.gather(*pops)]
    assert got == [[b"yes"], [b"more"], []]
    await shelves.until(lambda: shelves.asked(RequestCode.CONSUMER_SEND_MSG_BACK))
    await shelves.until(lambda: len(shelves.asked(RequestCode.ACK_MESSAGE)) == 2)
    assert {one.fields["offset"] for one in shelves.asked(RequestCode.ACK_MESSAGE)} == {"0", "1"}


async def test_all_who_asked_together_are_told_what_the_broker_fails_with(broker, shelves, request_of):
    await broker.pop(CONTEXT, request_of(broker="broker-a"))
    shelves.peers["broker-a"].on(
        RequestCode.POP_MESSAGE, lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "no")
    )
    pops = [broker.pop(CONTEXT, request_of(1, broker="broker-a")) for _ in range(3)]
    outcomes = await asyncio.gather(*pops, return_exceptions=True)
    assert [type(one).__name__ for one in outcomes] == ["BrokerFailed"] * 3
    assert len(shelves.asked(RequestCode.POP_MESSAGE)) == 2


@pytest.mark.parametrize("wait_s", [0, 20])
async def test_a_broker_that_always_has_something_does_not_keep_others_from_being_asked(
    broker, shelves, request_of, clock, wait_s
):
    shelves.put("broker-a", *(record(number, b"a") for number in range(200)))
    first = await broker.pop(CONTEXT, request_of(1, wait_s=wait_s))
    assert bodies(first) == [b"a"]
    clock.advance(5)
    shelves.put("broker-b", record(0, b"b"))
    got = []
    for _ in range(100):
        got += bodies(await broker.pop(CONTEXT, request_of(1, wait_s=wait_s)))
        clock.advance(0.1)
    assert b"b" in got
