"""Long polling: one message wakes one waiter, and no wake is lost (scenarios 2, 25, 26)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from popgate.errors import Forbidden, GatewayError
from popgate.model import GroupConfig, TopicConfig


def still(*tasks):
    """None of the waiting pops has ended."""
    return not any(t.done() for t in tasks)


@pytest.mark.every_durability
@pytest.mark.also_in_real_time
async def test_a_waiting_pop_gets_the_message_that_arrives(user, texts):
    topic, group = await user.topic(), await user.group()
    waiting = user.waiting(topic, group)
    await user.settle()
    assert still(waiting)
    await user.send(topic, "a")
    assert texts(await user.done(waiting)) == ["a"]


@pytest.mark.also_in_real_time
async def test_scenario_25_an_empty_poll_ends_at_its_time_with_nothing(user):
    topic, group = await user.topic(), await user.group()
    began = user.site.monotonic()

    async def timed() -> tuple[list[object], float]:
        return await user.pop(topic, group, wait_ms=400), user.site.monotonic() - began

    waiting = user.task(timed())
    await user.pass_ms(100)
    assert still(waiting) or not user.site.movable  # there the machine may have stood still
    await user.pass_ms(300 + 100)
    got, after_s = await user.done(waiting)
    assert got == []
    assert after_s > 0.3


async def test_a_time_that_is_over_is_no_wait(user):
    topic, group = await user.topic(), await user.group()
    assert await user.done(user.waiting(topic, group, wait_ms=-5_000)) == []
    assert await user.done(user.waiting(topic, group, wait_ms=0)) == []
    await user.send(topic, "a")
    assert len(await user.done(user.waiting(topic, group, wait_ms=-5_000))) == 1


async def test_what_is_there_is_given_without_waiting(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    assert texts(await user.done(user.waiting(topic, group))) == ["a"]


async def test_scenario_26_one_message_ends_one_waiting_pop(user, texts):
    topic, group = await user.topic(), await user.group()
    waiters = [user.waiting(topic, group) for _ in range(5)]
    await user.settle()
    for n in range(5):
        await user.send(topic, str(n))
        await user.eventually(lambda n=n: sum(w.done() for w in waiters) == n + 1)
        await user.settle()
        assert sum(w.done() for w in waiters) == n + 1
    assert sorted(t for w in waiters for t in texts(w.result())) == list("01234")


async def test_many_messages_at_once_find_every_waiter_they_need(user):
    topic, group = await user.topic(), await user.group()
    waiters = [user.waiting(topic, group, 2) for _ in range(5)]
    await user.settle()
    await user.send(topic, *(str(n) for n in range(10)))
    results = [await user.done(w) for w in waiters]
    assert all(results)
    rest = await user.collect(topic, group, 10 - sum(map(len, results)))
    assert len({m.body for r in [*results, rest] for m in r}) == 10


async def test_every_group_is_woken(user, texts):
    topic = await user.topic()
    waiters = [user.waiting(topic, await user.group()) for _ in range(3)]
    await user.settle()
    await user.send(topic, "a")
    for waiter in waiters:
        assert texts(await user.done(waiter)) == ["a"]


async def test_another_topic_wakes_nobody(user):
    topic, other, group = await user.topic(), await user.topic(), await user.group()
    waiting = user.waiting(topic, group)
    await user.settle()
    await user.send(other, "a")
    await user.settle()
    assert still(waiting)


async def test_a_woken_pop_that_takes_nothing_passes_the_wake_on(user, texts):
    """The first waits for another queue: the message must reach the one who can have it."""
    topic, group = await user.topic(queues=3), await user.group()
    queues = await user.queues(topic)
    elsewhere = [user.waiting(topic, group, queue=queues[0]) for _ in range(3)]
    await user.settle()
    here = user.waiting(topic, group, queue=queues[1])
    await user.settle()
    await user.put(user.message(topic, "a", queue=queues[1]))
    assert texts(await user.done(here)) == ["a"]
    await user.settle()
    assert still(*elsewhere)
    await user.put(user.message(topic, "b", queue=queues[0]))
    await user.eventually(lambda: sum(w.done() for w in elsewhere) == 1)


async def test_a_pop_whose_filter_does_not_match_goes_on_waiting(user, texts):
    topic, group = await user.topic(), await user.group()
    waiting = user.waiting(topic, group, tags="red")
    await user.settle()
    await user.send(topic, "no", tag="blue")
    await user.settle()
    assert still(waiting)
    await user.send(topic, "yes", tag="red")
    assert texts(await user.done(waiting)) == ["yes"]


async def test_a_cancelled_waiter_swallows_no_message(user, texts):
    topic, group = await user.topic(), await user.group(max_attempts=1)
    gone = [user.waiting(topic, group) for _ in range(3)]
    await user.settle()
    stays = user.waiting(topic, group)
    await user.settle()
    for waiter in gone:
        waiter.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    await user.send(topic, "a")
    assert texts(await user.done(stays)) == ["a"]


@pytest.mark.every_durability
@pytest.mark.parametrize("turns", range(8))
async def test_a_woken_waiter_that_vanishes_leaves_the_message_to_the_next(user, texts, traits, turns):
    """Cancelled just when the message comes: it must not be lost, hidden, or counted."""
    topic = await user.topic()
    group = await user.group(max_attempts=1 if traits.returns_are_free else 16)
    vanishing = user.waiting(topic, group)
    await user.settle()
    stays = user.waiting(topic, group)
    await user.settle()
    sending = user.task(user.send(topic, "a"))
    for _ in range(turns):
        await asyncio.sleep(0)
    vanishing.cancel()
    await user.done(sending)
    (outcome,) = await asyncio.gather(vanishing, return_exceptions=True)
    if isinstance(outcome, list) and outcome:
        assert still(stays)
        return
    await user.lag()
    (message,) = await user.done(stays)
    assert message.body == b"a"
    if traits.returns_are_free:
        assert message.attempt == 1


@pytest.mark.parametrize("turns", range(8))
async def test_what_a_cancelled_pop_had_taken_wakes_a_waiter(user, texts, turns):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    taking = user.task(user.pop(topic, group))
    stays = user.waiting(topic, group)
    for _ in range(turns):
        await asyncio.sleep(0)
    taking.cancel()
    (outcome,) = await asyncio.gather(taking, return_exceptions=True)
    await user.lag()
    if isinstance(outcome, list) and outcome:
        assert texts(outcome) == ["a"]
        assert still(stays)
    else:
        assert texts(await user.done(stays)) == ["a"]


@pytest.mark.also_in_real_time
async def test_a_message_whose_time_is_over_wakes_a_waiter(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    held = await user.one(topic, group, invisible_ms=300)
    waiting = user.waiting(topic, group)
    await user.pass_ms(50)
    assert still(waiting) or user.now_ms() >= held.invisible_until_ms  # we stood still
    await user.lag(250)
    (message,) = await user.done(waiting)
    assert message.attempt == 2


async def test_a_freed_message_wakes_a_waiter(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    held = await user.one(topic, group)
    waiting = user.waiting(topic, group)
    await user.settle()
    await user.hide(topic, group, held.receipt, 0)
    await user.lag()
    assert [m.attempt for m in await user.done(waiting)] == [2]


async def test_a_shortened_time_wakes_a_waiter_when_it_is_over(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    held = await user.one(topic, group, invisible_ms=600_000)
    waiting = user.waiting(topic, group)
    await user.settle()
    await user.hide(topic, group, held.receipt, 1_000)
    await user.lag(1_000)
    assert [m.attempt for m in await user.done(waiting)] == [2]


async def test_a_returned_message_wakes_a_waiter(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    held = await user.one(topic, group)
    waiting = user.waiting(topic, group)
    await user.settle()
    await user.give_back(topic, group, held)
    await user.lag()
    assert len(await user.done(waiting)) == 1


@pytest.mark.also_in_real_time
async def test_a_delayed_message_wakes_a_waiter(user, texts, traits):
    delay = max(300, 3 * traits.timer_precision_ms)
    topic, group = await user.topic(), await user.group()
    waiting = user.waiting(topic, group)
    due = user.now_ms() + delay
    await user.send(topic, "a", delay_ms=delay)
    await user.settle()
    assert still(waiting) or user.now_ms() >= due - traits.timer_precision_ms  # we stood still
    await user.precision(delay)
    assert texts(await user.done(waiting)) == ["a"]


async def test_a_committed_message_wakes_a_waiter(user, texts):
    topic, group = await user.topic(), await user.group()
    waiting = user.waiting(topic, group)
    (half,) = await user.send(topic, "a", transaction=True)
    await user.settle()
    assert still(waiting)
    await user.commit(topic, half)
    assert texts(await user.done(waiting)) == ["a"]


async def test_what_one_waiter_has_no_room_for_wakes_the_next(user):
    topic, group = await user.topic(queues=1), await user.group()
    waiters = [user.waiting(topic, group, max_bytes=1) for _ in range(4)]
    await user.settle()
    await user.send(topic, "a", "b", "c")
    await user.eventually(lambda: sum(w.done() for w in waiters) == 3)
    await user.settle()
    assert sum(w.done() for w in waiters) == 3


async def test_what_a_pop_leaves_behind_wakes_a_waiter(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a", "b")
    held = await user.collect(topic, group, 2)
    waiting = user.waiting(topic, group)
    await user.settle()
    freeing = [user.task(user.give_back(topic, group, m)) for m in held]
    taking = user.task(user.pop(topic, group, 1))
    for task in freeing:
        await user.done(task)
    first = await user.done(taking)
    await user.lag()
    if len(first) < 2:
        woken = await user.done(waiting)
        assert woken
        # What is free at once is given at once; a RocketMQ may free one after the other.
        rest = await user.collect(topic, group, 2 - len(first) - len(woken))
        assert rest == [] or not user.site.movable
        assert sorted(texts(first + woken + rest)) == ["a", "b"]


async def test_a_reset_wakes_as_many_as_there_are_messages_for(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abc")
    await user.ack(topic, group, *await user.collect(topic, group, 3))
    await user.is_written_down(topic, group, 3)
    waiters = [user.waiting(topic, group, 1) for _ in range(4)]
    await user.settle()
    await user.broker.reset(group, topic, 0)
    await user.eventually(lambda: sum(w.done() for w in waiters) == 3)
    assert sorted(t for w in waiters if w.done() for t in texts(w.result())) == list("abc")


async def test_a_group_that_is_enabled_again_and_a_topic_made_readable_are_waited_for(user, texts):
    """A waiter that finds its group not enabled is told so; one that comes later gets the message."""
    topic, group = await user.topic(), await user.group()
    waiting = user.waiting(topic, group)
    await user.settle()
    await user.broker.update_group(GroupConfig(group, consume_enabled=False))
    await user.send(topic, "a")
    await user.settle()
    if waiting.done():
        assert isinstance(waiting.exception(), Forbidden)
    else:
        waiting.cancel()
    await user.broker.update_group(GroupConfig(group))
    assert texts(await user.done(user.waiting(topic, group))) == ["a"]


async def test_a_reset_wakes_a_waiter(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    await user.ack(topic, group, await user.one(topic, group))
    await user.is_written_down(topic, group, 1)
    waiting = user.waiting(topic, group)
    await user.settle()
    await user.broker.reset(group, topic, 0)
    assert texts(await user.done(waiting)) == ["a"]


async def test_a_dead_letter_wakes_its_reader(user, texts):
    topic, group, reader = await user.topic(), await user.group(), await user.group()
    await user.send(topic, "a", "b")
    a, b = await user.collect(topic, group, 2)
    await user.dead_letter(topic, group, a.receipt)
    await user.one(f"%DLQ%{group}", reader)
    waiting = user.waiting(f"%DLQ%{group}", reader)
    await user.settle()
    await user.dead_letter(topic, group, b.receipt)
    assert texts(await user.done(waiting)) == texts([b])


async def test_an_ordered_waiter_is_woken_when_its_message_group_goes_on(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    held = await user.one(topic, group)
    waiting = user.waiting(topic, group)
    await user.settle()
    assert still(waiting)
    await user.ack(topic, group, held)
    assert texts(await user.done(waiting)) == ["A2"]


async def test_scenario_26_a_blocked_message_group_is_no_backlog(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1")
    held = await user.one(topic, group)
    waiting = user.waiting(topic, group)
    await user.settle()
    await user.send_in_order(topic, "A2", "A3")
    await user.settle()
    assert still(waiting)
    await user.ack(topic, group, held)
    assert texts(await user.done(waiting)) == ["A2", "A3"]


async def test_a_waiter_behind_a_blocked_one_gets_another_message_group(user, texts, traits):
    if traits.order_scope.name != "MESSAGE_GROUP":
        user.differs("a held message blocks its whole queue", "test_a_held_message_blocks_its_queue")
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1")
    await user.one(topic, group)
    waiters = [user.waiting(topic, group) for _ in range(2)]
    await user.settle()
    await user.send_in_order(topic, "A2", "B1")
    await user.eventually(lambda: any(w.done() for w in waiters))
    await user.settle()
    assert sorted(t for w in waiters if w.done() for t in texts(w.result())) == ["B1"]


@pytest.mark.parametrize("what", ["topic", "group", "broker"])
async def test_a_waiting_pop_ends_with_what_it_waits_for(user, what):
    topic, group = await user.topic(), await user.group()
    waiters = [user.waiting(topic, group, wait_ms=20_000) for _ in range(2)]
    await user.settle()
    if what == "topic":
        await user.broker.delete_topic(topic)
    elif what == "group":
        await user.broker.delete_group(group)
    else:
        await user.restart()
    for waiter in waiters:
        with contextlib.suppress(GatewayError):
            assert await user.done(waiter) == []


async def test_new_queues_are_waited_for_as_well(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    waiting = user.waiting(topic, group)
    await user.settle()
    await user.broker.update_topic(TopicConfig(topic, read_queues=3, write_queues=3))
    await user.put(user.message(topic, "a", queue=(await user.queues(topic))[2]))
    assert texts(await user.done(waiting)) == ["a"]


async def test_waiters_and_senders_in_a_crowd_lose_nothing(user, texts):
    topic, group = await user.topic(), await user.group()
    taken: list[str] = []

    async def consume() -> None:
        while len(taken) < 300:
            got = await user.pop(topic, group, 3, wait_ms=20_000)
            taken.extend(texts(got))
            await user.ack(topic, group, *got)

    consumers = [user.task(consume()) for _ in range(8)]
    for n in range(0, 300, 3):
        await user.send(topic, *(str(n + k) for k in range(3)))
        if n % 30 == 0:
            await user.settle()
    await user.eventually(lambda: len(taken) >= 300)
    assert sorted(taken, key=int) == [str(n) for n in range(300)]
    for consumer in consumers:
        consumer.cancel()


async def test_scenario_27_the_first_request_after_an_idle_hour_is_served(user, texts):
    idle = user.either(3_600_000, 35_000)
    topic, group = await user.topic(), await user.group()
    await user.nothing(topic, group)
    await user.pass_ms(idle)
    await user.send(topic, "a")
    waiting = user.waiting(topic, group, wait_ms=10 * 3_600_000)
    (first,) = await user.done(waiting)
    assert first.body == b"a"
    await user.ack(topic, group, first)
    waiting = user.waiting(topic, group, wait_ms=10 * 3_600_000)
    await user.pass_ms(idle)
    await user.send(topic, "b")
    assert texts(await user.done(waiting)) == ["b"]


async def test_scenario_24_waiters_that_come_and_go_leave_nothing_behind(user):
    """What a broker keeps for waiting pops is as it was when they are gone."""
    topic, group = await user.topic(), await user.group()
    await user.done(user.waiting(topic, group, wait_ms=0))
    before = user.broker.figures()
    for _ in range(3):
        waiters = [user.waiting(topic, group) for _ in range(100)]
        await user.settle()
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    await user.pass_ms(60_000 if user.site.movable else 10)
    after = user.broker.figures()
    for name, value in before.items():
        if "wait" in name:
            assert after[name] == value
