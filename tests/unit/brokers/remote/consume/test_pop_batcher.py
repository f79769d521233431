"""Pops that are gathered: what is asked for together, who gets what, and that nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.remote.access.broker_client import BrokerClient
from brokers.remote.consume.pop_batcher import PopBatcher, PopCaller, deal
from brokers.remote.consume.pop_filter import PopAttempt
from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, Forbidden
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.model import FilterKind, GroupConfig, Pop, StoredMessage
from popgate.testing.clock import MovableClock
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.remoting import Command

SIZE = 100.0
"""Of a message, as far as who asks knows."""


@dataclass(eq=False)
class Item:
    """As much of a message as is dealt."""

    number: int
    body: bytes = b""

    def __repr__(self) -> str:
        return f"<{self.number}>"


def items(*numbers: int, size: int = 1) -> list[StoredMessage]:
    return [cast("StoredMessage", Item(number, bytes(size))) for number in numbers]


def numbers(messages: Any) -> list[int]:
    return [message.number for message in messages]


@dataclass(eq=False)
class Asked:
    broker: str
    most: int
    want: PopAttempt
    told: Callable[[Any], None]


@dataclass
class Answer:
    messages: list[StoredMessage]
    rest: int = 0
    error: Exception | None = None


class World:
    """What `PopBatcher` stands on: requests are kept until somebody answers them."""

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.asked: list[Asked] = []
        self.returned: list[int] = []
        self.suspected: list[str] = []
        self.late: list[bool] = []
        self.at_once: Exception | None = None
        self.taking = PopBatcher(cast("BrokerClient", self), clock, self, 10.0)

    def ask(
        self, broker: str, _: int, fields: dict[str, Any], told: Callable[[Any], None], **__: Any
    ) -> None:
        if self.at_once is not None:
            told(self.at_once)
            return
        self.asked.append(Asked(broker, fields["most"], fields["want"], told))

    def pop_fields(self, want: PopAttempt, most: int) -> dict[str, Any]:
        return {"most": most, "want": want}

    def read_pop(
        self, want: PopAttempt, broker: str, answer: Command, asked: float, *, late: bool
    ) -> tuple[list[StoredMessage], int]:
        self.late.append(late)
        told: Any = answer
        if told.error is not None:
            raise told.error
        return told.messages, told.rest

    def return_popped(self, want: PopAttempt, messages: Any) -> None:
        self.returned += numbers(messages)

    def suspect(self, broker: str) -> None:
        self.suspected.append(broker)

    def want(self, at_most: int = 1, **fields: Any) -> PopAttempt:
        given = {"topic": "T", "group": "G", "filter": EVERYTHING, "invisible_ms": 60_000, **fields}
        request = Pop(max_messages=at_most, **given)
        return PopAttempt(Context(), request, GroupConfig("G"), cast("TopicRoute", None), ["a"])

    def take(
        self, at_most: int = 1, broker: str = "a", max_bytes: int = 1 << 20, size: float = SIZE, **fields: Any
    ) -> asyncio.Task[list[StoredMessage]]:
        want = self.want(at_most, **fields)
        return asyncio.ensure_future(self.taking.take(want, broker, min(at_most, 32), max_bytes, size=size))

    def asks(self) -> list[int]:
        return [one.most for one in self.asked]

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def world(clock: MovableClock) -> World:
    return World(clock)


async def test_pops_of_one_turn_are_one_request(world: World) -> None:
    takes = [world.take() for _ in range(3)]
    await world.turn()
    assert world.asks() == [3]
    world.asked[0].told(Answer(items(1, 2, 3)))
    assert [numbers(await take) for take in takes] == [[1], [2], [3]]
    assert world.returned == []


async def test_pops_of_different_turns_are_not(world: World) -> None:
    world.take()
    await world.turn()
    world.take()
    await world.turn()
    assert world.asks() == [1, 1]
    for asked in world.asked:
        asked.told(Answer([]))
    await world.turn()


@pytest.mark.parametrize(
    "other",
    [
        {"broker": "b"},
        {"topic": "U"},
        {"group": "H"},
        {"queue_id": 1},
        {"invisible_ms": 1_000},
        {"filter": compile_filter(FilterKind.TAG, "red")},
        {"filter": compile_filter(FilterKind.SQL92, "a > 1")},
        {"ordered": True},
        {"ordered": True, "attempt_id": "x"},
        {"one_per_message_group": True},
    ],
)
async def test_pops_that_differ_are_not_gathered(world: World, other: dict[str, Any]) -> None:
    takes = [world.take(), world.take(**other), world.take(), world.take(**other)]
    await world.turn()
    alone = "ordered" in other or "one_per_message_group" in other
    assert sorted(world.asks()) == ([1, 1, 2] if alone else [2, 2])
    for asked in world.asked:
        asked.told(Answer([]))
    assert await asyncio.gather(*takes) == [[]] * 4


async def test_tags_and_sql_of_the_same_text_are_not_gathered(world: World) -> None:
    takes = [world.take(filter=compile_filter(kind, "a")) for kind in (FilterKind.TAG, FilterKind.SQL92)]
    await world.turn()
    assert world.asks() == [1, 1]
    for take in takes:
        take.cancel()
    await asyncio.gather(*takes, return_exceptions=True)


async def test_a_request_asks_for_at_most_32(world: World) -> None:
    takes = [world.take() for _ in range(70)]
    await world.turn()
    assert world.asks() == [32, 32, 6]
    for at, asked in enumerate(world.asked):
        asked.told(Answer(items(*range(100 * at, 100 * at + asked.most))))
    got = [numbers(one) for one in await asyncio.gather(*takes)]
    assert [len(one) for one in got] == [1] * 70
    assert (got[0], got[32], got[64]) == ([0], [100], [200])


async def test_who_asks_for_32_and_who_asks_for_one_are_in_few_requests(world: World) -> None:
    takes = [world.take(at_most) for at_most in (1, 32, 1, 32, 1)]
    await world.turn()
    assert world.asks() == [3, 32, 32]
    for take in takes:
        take.cancel()
    await asyncio.gather(*takes, return_exceptions=True)


async def test_large_messages_are_asked_for_in_smaller_requests(world: World) -> None:
    takes = [world.take(size=100_000) for _ in range(5)] + [world.take(size=10e6)]
    await world.turn()
    assert world.asks() == [2, 2, 1, 1]
    for take in takes:
        take.cancel()
    await asyncio.gather(*takes, return_exceptions=True)


async def test_who_asked_for_one_is_not_starved_by_who_asked_for_many(world: World) -> None:
    many, one = world.take(20), world.take(1)
    await world.turn()
    world.asked[0].told(Answer(items(1, 2, 3, 4, 5), rest=7))
    assert (numbers(await many), numbers(await one)) == ([1, 3, 4, 5], [2])


async def test_what_is_left_is_told_to_each(world: World) -> None:
    wants = [world.want() for _ in range(2)]
    takes = [asyncio.ensure_future(world.taking.take(want, "a", 1, 100, size=SIZE)) for want in wants]
    await world.turn()
    world.asked[0].told(Answer(items(1, 2), rest=7))
    await asyncio.gather(*takes)
    assert [want.rest for want in wants] == [7, 7]


async def test_those_who_get_nothing_while_there_is_more_are_asked_for_again_together(world: World) -> None:
    takes = [world.take() for _ in range(4)]
    await world.turn()
    world.asked[0].told(Answer(items(1), rest=9))
    assert numbers(await takes[0]) == [1]
    await world.turn()
    assert world.asks() == [4, 3]
    world.asked[1].told(Answer(items(2), rest=8))
    await world.turn()
    assert world.asks() == [4, 3, 2]
    # It gives nothing though it says that there is more: somebody else holds it.
    world.asked[2].told(Answer([], rest=8))
    assert [numbers(await take) for take in takes] == [[1], [2], [], []]


async def test_who_got_nothing_comes_before_those_who_came_meanwhile(world: World) -> None:
    takes = [world.take() for _ in range(3)]
    await world.turn()
    later = world.take()
    # It comes in the same turn of the loop as the answer, and before it.
    asyncio.get_running_loop().call_soon(world.asked[0].told, Answer(items(1), rest=9))
    await world.turn()
    assert world.asks() == [3, 3]
    world.asked[1].told(Answer(items(2, 3), rest=7))
    assert [numbers(await take) for take in takes] == [[1], [2], [3]]
    await world.turn()
    world.asked[2].told(Answer(items(4)))
    assert numbers(await later) == [4]


async def test_who_gets_nothing_where_there_is_nothing_is_told_so(world: World) -> None:
    takes = [world.take() for _ in range(4)]
    await world.turn()
    world.asked[0].told(Answer(items(1, 2)))
    assert [numbers(await take) for take in takes] == [[1], [2], [], []]
    takes = [world.take() for _ in range(2)]
    await world.turn()
    # It says that there is more, and gives none: somebody else holds it, say.
    world.asked[1].told(Answer([], rest=9))
    assert [await take for take in takes] == [[], []]
    assert len(world.asked) == 2


async def test_what_does_not_fit_one_goes_to_another_who_has_room(world: World) -> None:
    small, large = world.take(4, max_bytes=20), world.take(4, max_bytes=35)
    await world.turn()
    world.asked[0].told(Answer(items(1, 2, 3, 4, 5, 6, size=10)))
    assert (numbers(await small), numbers(await large)) == ([1, 3], [2, 4, 5])
    assert world.returned == [6]


async def test_the_first_message_fits_however_large_it_is(world: World) -> None:
    takes = [world.take(2, max_bytes=5) for _ in range(2)]
    await world.turn()
    world.asked[0].told(Answer(items(1, 2, 3, size=10)))
    assert [numbers(await take) for take in takes] == [[1], [2]]
    assert world.returned == [3]


async def test_the_share_of_who_left_goes_to_the_others_and_what_nobody_has_room_for_back(
    world: World,
) -> None:
    takes = [world.take(2) for _ in range(3)]
    await world.turn()
    takes[1].cancel()
    await world.turn()
    world.asked[0].told(Answer(items(1, 2, 3, 4, 5, 6)))
    assert (numbers(await takes[0]), numbers(await takes[2])) == ([1, 3], [2, 4])
    assert takes[1].cancelled()
    assert world.returned == [5, 6]


async def test_who_left_before_anything_was_asked_is_not_asked_for(world: World) -> None:
    takes = [world.take() for _ in range(2)]
    await asyncio.sleep(0)
    takes[0].cancel()
    await world.turn()
    assert world.asks() == [1]
    world.asked[0].told(Answer(items(1)))
    assert numbers(await takes[1]) == [1]
    alone = world.take()
    await asyncio.sleep(0)
    alone.cancel()
    await world.turn()
    assert len(world.asked) == 1


async def test_who_is_cancelled_in_the_moment_of_the_answer_holds_nothing(world: World) -> None:
    takes = [world.take() for _ in range(2)]
    await world.turn()
    world.asked[0].told(Answer(items(1, 2)))
    takes[0].cancel()
    assert numbers(await takes[1]) == [2]
    with pytest.raises(asyncio.CancelledError):
        await takes[0]
    assert world.returned == [1]


async def test_what_comes_when_all_have_left_is_given_back(world: World) -> None:
    takes = [world.take() for _ in range(2)]
    await world.turn()
    for take in takes:
        take.cancel()
    await asyncio.gather(*takes, return_exceptions=True)
    world.asked[0].told(Answer(items(1, 2)))
    assert world.returned == [1, 2]
    assert world.late == [True]


async def test_a_late_answer_is_given_back_and_all_are_told_that_it_was_late(
    world: World, clock: MovableClock
) -> None:
    clock.advance(0.123456789)
    early = [world.take() for _ in range(2)]
    await world.turn()
    clock.advance(3.1)
    later = world.take()
    await world.turn()
    clock.advance(6.9)
    for take in early:
        with pytest.raises(BrokerTimeout, match="broker a did not answer a pop within 10 s"):
            await take
    assert not later.done()
    clock.advance(3.1)
    with pytest.raises(BrokerTimeout):
        await later
    assert world.suspected == ["a", "a"]
    assert clock.until_next() is None
    world.asked[0].told(Answer(items(1, 2)))
    world.asked[1].told(BrokerUnavailable("gone"))
    assert world.returned == [1, 2]
    assert repr(world.taking) == "<PopBatcher under way 0 late 0>"


async def test_an_answer_in_time_leaves_nothing_behind(world: World, clock: MovableClock) -> None:
    take = world.take()
    await world.turn()
    world.asked[0].told(Answer(items(1)))
    await take
    clock.advance(10.0)
    assert clock.until_next() is None
    assert world.suspected == []


@pytest.mark.parametrize(
    "error", [Forbidden("no"), BrokerUnavailable("gone"), ValueError("a mistake of ours")]
)
@pytest.mark.parametrize("when", ["at once", "instead of an answer", "in the answer"])
async def test_all_are_told_what_went_wrong(world: World, error: Exception, when: str) -> None:
    if when == "at once":
        world.at_once = error
    takes = [world.take() for _ in range(3)]
    await world.turn()
    if when != "at once":
        world.asked[0].told(Answer([], error=error) if when == "in the answer" else error)
        takes[1].cancel()
    outcomes = await asyncio.gather(*takes, return_exceptions=True)
    assert outcomes[0] is error
    assert outcomes[2] is error
    assert world.returned == []


async def test_a_request_that_cannot_be_made_leaves_nobody_waiting(world: World, monkeypatch: Any) -> None:
    def fails(*_: object, **__: object) -> None:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no text")

    monkeypatch.setattr(world, "ask", fails)
    takes = [world.take() for _ in range(2)]
    for take in takes:
        with pytest.raises(UnicodeEncodeError):
            await take


async def test_a_stop_waits_for_what_is_to_be_given_back(world: World, clock: MovableClock) -> None:
    left, late, staying = world.take(), world.take(broker="b"), world.take(broker="c")
    await world.turn()
    left.cancel()
    await world.turn()
    stopping = asyncio.ensure_future(world.taking.stop())
    await world.turn()
    assert not stopping.done()
    world.asked[0].told(Answer(items(1)))
    await stopping
    assert world.returned == [1]
    assert clock.until_next() is None
    for asked in world.asked[1:]:
        asked.told(BrokerUnavailable("the gateway stops"))
    assert [type(one) for one in await asyncio.gather(late, staying, return_exceptions=True)] == [
        BrokerUnavailable,
        BrokerUnavailable,
    ]


ROOMS = st.tuples(st.integers(1, 40), st.integers(1, 300))


@settings(deadline=None)
@given(rooms=st.lists(ROOMS, min_size=1, max_size=8), sizes=st.lists(st.integers(0, 120), max_size=32))
def test_what_is_dealt(rooms: list[tuple[int, int]], sizes: list[int]) -> None:
    async def dealt() -> tuple[list[PopCaller], list[list[StoredMessage]], int, list[StoredMessage]]:
        world = World(MovableClock())
        takers = [
            PopCaller(world.want(most), most, max_bytes, SIZE, asyncio.get_running_loop().create_future())
            for most, max_bytes in rooms
        ]
        messages = [cast("StoredMessage", Item(at, bytes(size))) for at, size in enumerate(sizes)]
        return takers, *deal(messages, takers), messages

    takers, shares, done, messages = asyncio.run(dealt())
    given_out = sorted(number for share in shares for number in numbers(share))
    assert given_out == list(range(done))
    assert len(shares) == len(takers)
    for taker, share in zip(takers, shares, strict=True):
        assert numbers(share) == sorted(numbers(share))
        assert len(share) <= taker.most
        assert len(share) <= 1 or sum(len(one.body) for one in share) <= taker.max_bytes
    assert sum(bool(share) for share in shares) == min(len(messages), len(takers))


STEPS = st.one_of(
    st.tuples(
        st.just("take"),
        st.integers(1, 34),
        st.integers(1, 60),
        st.sampled_from(["a", "b"]),
        st.booleans(),
        st.sampled_from([1.0, 10.0, 20_000.0]),
    ),
    st.tuples(st.just("turn")),
    st.tuples(st.just("answer"), st.integers(0, 40), st.integers(0, 32), st.integers(0, 3)),
    st.tuples(st.just("fail"), st.integers(0, 40), st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 40)),
    st.tuples(st.just("time"), st.sampled_from([0.1, 3.3, 10.0])),
)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(STEPS, max_size=40))
def test_nothing_is_lost_or_doubled_whoever_leaves_when(steps: list[Any]) -> None:
    """Each message is with one caller who is still there, or was given back, once."""
    asyncio.run(_nothing_is_lost(steps))


async def _nothing_is_lost(steps: list[Any]) -> None:
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    clock = MovableClock()
    world = World(clock)
    takes: list[tuple[int, asyncio.Task[list[StoredMessage]]]] = []
    told: set[int] = set()
    given_out = 0

    def open_requests() -> list[int]:
        return [at for at in range(len(world.asked)) if at not in told]

    def answer(at: int, count: int, rest: int) -> None:
        nonlocal given_out
        told.add(at)
        count = min(count, world.asked[at].most)
        messages = items(*range(given_out, given_out + count), size=10)
        given_out += count
        world.asked[at].told(Answer(messages, rest))

    for step in steps:
        match step:
            case ("take", at_most, max_bytes, broker, ordered, size):
                take = world.take(at_most, broker, max_bytes, size, ordered=ordered)
                takes.append((at_most, take))
            case ("turn",):
                await world.turn()
            case ("answer", at, count, rest) if open_requests():
                answer(open_requests()[at % len(open_requests())], count, rest)
            case ("fail", at, in_answer) if open_requests():
                at = open_requests()[at % len(open_requests())]
                told.add(at)
                error = Forbidden("no")
                world.asked[at].told(Answer([], error=error) if in_answer else error)
            case ("cancel", at) if takes:
                takes[at % len(takes)][1].cancel()
            case ("time", seconds):
                clock.advance(seconds)
    await world.turn()
    while open_requests():
        answer(open_requests()[0], 1, 1)
        await world.turn()
    assert all(take.done() for _, take in takes)
    assert all(1 <= one.most <= 32 for one in world.asked)
    ended = await asyncio.gather(*(take for _, take in takes), return_exceptions=True)
    held: Counter[int] = Counter(world.returned)
    for (at_most, _), outcome in zip(takes, ended, strict=True):
        if isinstance(outcome, list):
            assert len(outcome) <= at_most
            held.update(numbers(outcome))
        else:
            assert isinstance(outcome, Forbidden | BrokerTimeout | asyncio.CancelledError)
    assert held == Counter(range(given_out))
    assert repr(world.taking) == "<PopBatcher under way 0 late 0>"
    assert not broken


@pytest.mark.parametrize("why", ["refused", "late", "cancelled"])
async def test_nothing_that_went_wrong_is_left_to_the_collector(
    world: World, clock: MovableClock, why: str
) -> None:
    """An error whose traceback has a frame that has the error keeps all that the request had."""
    gc.collect()
    gc.disable()
    try:
        want = world.want()
        want.context.connection = owner = Item(0)
        gone = weakref.ref(owner)
        take = asyncio.ensure_future(world.taking.take(want, "a", 1, 100, size=SIZE))
        await world.turn()
        if why == "refused":
            world.asked[0].told(Answer([], error=Forbidden("no")))
        elif why == "late":
            clock.advance(10.0)
        else:
            take.cancel()
        await asyncio.wait([take])
        assert take.cancelled() or take.exception() is not None
        if why != "refused":
            world.asked[0].told(Answer([]))
        del take, want, owner
        world.asked.clear()
        await world.turn()
        assert gone() is None
    finally:
        gc.enable()
