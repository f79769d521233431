"""brokers.shared.guest.store: what a pop takes reaches its caller, or is given back."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from popgate.errors import BrokerTimeout, TooManyRequests
from popgate.testing.clock import MovableClock


class Room:
    """An allowance whose room the test decides."""

    def __init__(self, *rooms: int | None) -> None:
        self._rooms = list(rooms)
        self.added = 0

    def for_group(self, group: str) -> None:
        pass

    def room(self) -> int:
        room = self._rooms.pop(0)
        if room is None:
            raise TooManyRequests("full")
        return room

    def take(self, size: int) -> None:
        raise AssertionError("a pop asks for room, and adds")

    def add(self, size: int) -> None:
        self.added += size


async def test_a_waiting_pop_is_one_request_that_waits_at_the_host(place, soon, stored) -> None:
    await place.open()
    guest = await place.visit()
    request = place.request(wait_s=60)
    before = time.monotonic()
    waiting = asyncio.create_task(guest.pop(place.context, request))
    await soon(lambda: place.broker.pops)
    ((context, seen, _),) = place.broker.pops
    assert context.client_id == "c"
    assert 0 <= seen.wait_until - request.wait_until <= time.monotonic() - before
    place.broker.feed(stored(b"a"))
    assert await waiting == [stored(b"a")]
    assert place.broker.given_back == []


async def test_a_cancelled_pop_is_cancelled_at_the_host(place, soon) -> None:
    await place.open()
    guest = await place.visit()
    waiting = asyncio.create_task(guest.pop(place.context, place.request()))
    await soon(lambda: place.broker.pops)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await soon(lambda: place.broker.cancelled == ["pop"])
    assert guest.figures()["host_calls"] <= 1  # but for the look at the host


async def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing(place, soon) -> None:
    host = await place.open()
    guest = await place.visit()
    for _ in range(3):
        waiting = asyncio.create_task(guest.pop(place.context, place.request()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await guest.topics_of("g")
    await soon(lambda: host.figures()["shared_calls"] == 0)


async def test_messages_that_come_too_late_are_given_back(place, soon, stored) -> None:
    await place.open()
    guest = await place.visit()
    waiting = asyncio.create_task(guest.pop(place.context, place.request()))
    await soon(lambda: place.broker.pops)
    place.broker.feed(stored(b"a", "one"), stored(b"b", "two"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await soon(lambda: place.broker.given_back == ["one", "two"] or place.broker.cancelled)


async def test_a_pop_that_nobody_waits_for_any_more_gives_back_what_it_took(place, soon, stored) -> None:
    clock = MovableClock()
    await place.open()
    guest = await place.visit(clock=clock, request_timeout_s=5.0)
    popping = asyncio.create_task(guest.pop(place.context, place.request(wait_s=None)))
    await soon(lambda: place.broker.pops)
    clock.advance(5.0)
    with pytest.raises(BrokerTimeout):
        await popping
    await soon(lambda: place.broker.cancelled == ["pop"])


async def test_what_there_is_no_room_for_is_given_back(place, soon, stored) -> None:
    await place.open()
    guest = await place.visit()
    room = Room(1_000, 15)
    context = replace(place.context, allowance=room)
    waiting = asyncio.create_task(guest.pop(context, place.request()))
    await soon(lambda: place.broker.pops)
    assert place.broker.pops[0][1].max_bytes == 1_000
    place.broker.feed(*(stored(b"x" * 10, str(number)) for number in range(3)))
    assert [message.receipt for message in await waiting] == ["0"]
    await soon(lambda: place.broker.given_back == ["1", "2"])
    assert room.added == 10


async def test_the_first_message_is_taken_whatever_its_size(place, soon, stored) -> None:
    await place.open()
    guest = await place.visit()
    room = Room(1_000, 1)
    waiting = asyncio.create_task(guest.pop(replace(place.context, allowance=room), place.request()))
    await soon(lambda: place.broker.pops)
    place.broker.feed(stored(b"x" * 10))
    assert len(await waiting) == 1
    assert room.added == 10


async def test_without_any_room_all_is_given_back_and_the_caller_is_told(place, soon, stored) -> None:
    await place.open()
    guest = await place.visit()
    context = replace(place.context, allowance=Room(1_000, None))
    waiting = asyncio.create_task(guest.pop(context, place.request()))
    await soon(lambda: place.broker.pops)
    place.broker.feed(stored(b"a", "one"))
    with pytest.raises(TooManyRequests):
        await waiting
    await soon(lambda: place.broker.given_back == ["one"])
    with pytest.raises(TooManyRequests):
        await guest.pop(replace(place.context, allowance=Room(None)), place.request())
    assert len(place.broker.pops) == 1, "without room the host is not even asked"


async def test_the_host_is_never_asked_for_more_than_an_answer_holds(place, soon, stored) -> None:
    await place.open()
    guest = await place.visit(max_answer_bytes=5_000)
    waiting = asyncio.create_task(guest.pop(place.context, place.request(max_bytes=1 << 70)))
    await soon(lambda: place.broker.pops)
    assert place.broker.pops[0][1].max_bytes == 5_000
    place.broker.feed()
    assert await waiting == []


async def test_a_guest_that_stops_gives_back_what_still_comes(place, soon, stored) -> None:
    await place.open()
    guest = await place.visit()
    waiting = asyncio.create_task(guest.pop(place.context, place.request()))
    await soon(lambda: place.broker.pops)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    place.broker.feed(stored(b"a", "one"))  # before the host hears of the cancellation
    await guest.stop()
    await soon(lambda: place.broker.given_back == ["one"] or place.broker.cancelled == ["pop"])


async def test_what_comes_from_a_host_that_stops_is_given_back_to_the_next_one(place, soon, stored) -> None:
    """It still answers what it took: what nobody is there for would be hidden for its whole time."""
    await place.open()
    guest = await place.visit()
    context = replace(place.context, allowance=Room(1_000, 15), deadline=time.monotonic())
    waiting = asyncio.create_task(guest.pop(context, place.request()))
    await soon(lambda: place.broker.pops)
    guest._link.rest()  # as the host says
    place.broker.feed(*(stored(b"x" * 10, str(number)) for number in range(3)))
    assert [message.receipt for message in await waiting] == ["0"]
    await place.host.stop()
    assert place.broker.given_back == []
    await place.open()
    await soon(lambda: place.broker.given_back == ["1", "2"])


async def test_what_nobody_waits_for_ends_with_its_guest(place, stored) -> None:
    await place.open()
    guest = await place.visit()
    guest._link.rest()
    guest._return(place.context, place.request(), [stored(b"a", "one")])
    await guest.stop()
    assert not guest._link._work
    guest._return(place.context, place.request(), [stored(b"a", "one")])
    assert not guest._link._work
    assert place.broker.given_back == []
