"""brokers.shared.broker: a broker that another process has."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from popgate.errors import (
    BadRequest,
    BrokerTimeout,
    BrokerUnavailable,
    GroupNotFound,
    Internal,
    Unsupported,
)
from popgate.model import Message, StoredMessage, TransactionCheck
from popgate.testing.clock import MovableClock


async def test_name_and_traits_are_the_hosts_but_it_stands_apart(place) -> None:
    """Its process may end and the host goes on, though that says of its own broker that it does not."""
    await place.open()
    guest = await place.visit()
    assert not place.broker.traits.stands_apart
    assert (guest.name, guest.traits) == ("stub", replace(place.broker.traits, stands_apart=True))


async def test_a_guest_takes_no_packed_messages(place) -> None:
    """They travel to its host one by one."""
    place.broker.traits = replace(place.broker.traits, stores_packed=True)
    await place.open()
    guest = await place.visit()
    assert not guest.traits.stores_packed


async def test_a_call_is_done_by_the_host_and_its_failures_come_back(place) -> None:
    await place.open()
    guest = await place.visit()
    assert await guest.topics_of("g") == ["g"]
    place.broker.failure = GroupNotFound("g")
    with pytest.raises(GroupNotFound) as caught:
        await guest.topics_of("g")
    assert caught.value.group == "g"


async def test_a_bug_of_the_host_is_told_as_one_and_ends_nothing(place) -> None:
    await place.open()
    guest = await place.visit()
    place.broker.failure = KeyError("secret detail")
    with pytest.raises(Internal) as caught:
        await guest.topics_of("g")
    assert "secret" not in caught.value.sentence
    place.broker.failure = None
    assert await guest.topics_of("g") == ["g"]


async def test_what_the_hosts_broker_cannot_do_is_unsupported(place) -> None:
    await place.open()
    guest = await place.visit()
    with pytest.raises(Unsupported, match="redriven"):
        await guest.redriven("g", "b", 0, 0, 1)


async def test_what_cannot_travel_is_told_as_a_bad_request(place) -> None:
    await place.open()
    guest = await place.visit()
    with pytest.raises(BadRequest, match="cannot travel"):
        await guest.bounds(place.context, "t", "b", 1 << 600)
    assert await guest.topics_of("g") == ["g"]


async def test_a_large_send_goes_in_parts_and_in_order(place) -> None:
    await place.open()
    guest = await place.visit(max_answer_bytes=11_000)
    messages = [Message("t", b"x" * 4_000, str(number)) for number in range(5)]
    results = await guest.send(place.context, messages)
    assert [result.message_id for result in results] == list("01234")
    assert [len(sent) for _, (_, sent) in place.broker.done] == [2, 2, 1]


async def test_after_a_part_that_failed_nothing_more_is_sent(place, soon) -> None:
    await place.open()
    guest = await place.visit(max_answer_bytes=11_000)
    place.broker.gate = asyncio.get_running_loop().create_future()
    messages = [Message("t", b"x" * 4_000, str(number)) for number in range(6)]
    sending = asyncio.create_task(guest.send(place.context, messages))
    await soon(lambda: place.broker.done)
    gate, place.broker.gate = place.broker.gate, asyncio.get_running_loop().create_future()
    gate.set_result(None)
    await soon(lambda: len(place.broker.done) == 2)
    place.broker.failure = BrokerTimeout("who knows")
    place.broker.gate.set_result(None)
    results = await sending
    assert [type(result).__name__ for result in results] == [
        *("Sent", "Sent", "BrokerTimeout", "BrokerTimeout", "BrokerUnavailable", "BrokerUnavailable")
    ]
    assert len(place.broker.done) == 2


async def test_deadlines_are_given_to_the_host_and_end_the_wait_for_it(place, soon) -> None:
    clock = MovableClock()
    await place.open()
    guest = await place.visit(clock=clock)
    place.broker.gate = asyncio.get_running_loop().create_future()
    context = replace(place.context, deadline=clock.monotonic() + 5.0)
    before = time.monotonic()
    sending = asyncio.create_task(guest.send(context, [Message("t", b"", "id")]))
    await soon(lambda: place.broker.done)
    ((_, (seen, _)),) = place.broker.done
    # As far away by the host's clock as it was by the guest's.
    assert before + 5.0 <= seen.deadline <= time.monotonic() + 5.0
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not sending.done()
    clock.advance(0.1)
    with pytest.raises(BrokerTimeout):
        await sending


async def test_a_guest_that_finds_no_host_says_so(place) -> None:
    guest = place.make_guest()
    with pytest.raises(BrokerUnavailable, match=r"no broker is shared at unix:.*No such file"):
        await guest.start()
    assert guest.figures()["store_failing"] == 1


async def test_calls_fail_at_once_when_the_host_is_gone_and_go_on_when_it_is_back(place, soon) -> None:
    await place.open()
    guest = await place.visit(reconnect_wait_s=0.0)
    await place.host.stop()
    await soon(lambda: not guest.figures()["host_connected"])
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        await guest.topics_of("g")
    assert guest.figures()["store_failing"] == 1
    await place.open()
    await soon(lambda: guest.figures()["host_connected"])
    assert await guest.topics_of("g") == ["g"]
    await soon(lambda: not guest.figures()["store_failing"])
    assert guest.figures()["host_reconnects_total"] == 1


async def test_a_call_waits_a_moment_for_a_host_that_comes_back(place, soon) -> None:
    await place.open()
    guest = await place.visit(reconnect_wait_s=60.0)
    await place.host.stop()
    await soon(lambda: not guest.figures()["host_connected"])
    asking = asyncio.create_task(guest.topics_of("g"))
    await asyncio.sleep(0)
    await place.open()
    assert await asking == ["g"]


async def test_a_call_that_waits_for_a_host_fails_when_its_gateway_stops(place, soon) -> None:
    """Who called it was not cancelled, and is not to look so."""
    host = await place.open()
    guest = await place.visit(reconnect_wait_s=60.0)
    await host.stop()
    await soon(lambda: not guest.figures()["host_connected"])
    waiting = asyncio.ensure_future(guest.topics_of("g"))
    await soon(lambda: guest._link._reached is not None)
    await guest.stop()
    with pytest.raises(BrokerUnavailable, match="stopping"):
        await waiting


async def test_how_the_host_is_follows(place, soon) -> None:
    await place.open()
    guest = await place.visit()
    assert guest.figures()["store_failing"] == 0
    place.broker.failing = 1.0
    await soon(lambda: guest.figures()["store_failing"])
    place.broker.failing = 0.0
    await soon(lambda: not guest.figures()["store_failing"])
    place.host.drain()
    await soon(lambda: guest.figures()["store_failing"])
    assert guest.figures()["host_connected"] == 1
    assert await guest.topics_of("g") == ["g"], "what is asked while it drains is done"


def check(number: int = 1) -> TransactionCheck:
    message = StoredMessage("t", "b", 0, 1, 2, 0, 0, 3, "1.2.3.4:5", 4, "1.2.3.4:6", b"half", b"p")
    return TransactionCheck("t", "pg", "tx", message, number)


async def test_any_guest_that_finds_a_producer_is_enough(place) -> None:
    await place.open()
    asked: list[tuple[str, TransactionCheck]] = []

    def handler(name: str, answer: Any) -> Any:
        def ask(one: TransactionCheck) -> Any:
            asked.append((name, one))
            return answer

        return ask

    nobody, somebody = await place.visit(), await place.visit()
    nobody.on_check(handler("nobody", False))
    somebody.on_check(handler("somebody", True))
    for number in range(4):
        assert await place.broker.check(check(number))
    assert [one for name, one in asked if name == "somebody"] == [check(number) for number in range(4)]
    assert "nobody" in {name for name, _ in asked}


async def test_the_hosts_own_producers_are_asked_first(place) -> None:
    host = place.make_host()
    place.host = host
    await host.start(lambda one: one.checks == 1)
    guest = await place.visit()
    seen: list[int] = []
    guest.on_check(lambda one: seen.append(one.checks) or True)
    assert place.broker.check(check(1)) is True
    assert await place.broker.check(check(2)) is True
    assert seen == [2]


async def test_a_check_that_nobody_can_answer_was_not_asked(place) -> None:
    await place.open()
    assert place.broker.check(check()) is False, "there is no guest"
    guest = await place.visit()
    assert await place.broker.check(check()) is False, "it has no handler"

    def fail(one: TransactionCheck) -> bool:
        raise KeyError

    guest.on_check(fail)
    assert await place.broker.check(check()) is False

    async def later(one: TransactionCheck) -> bool:
        return one.checks == 5

    guest.on_check(later)
    assert await place.broker.check(check(4)) is False
    assert await place.broker.check(check(5)) is True
