import asyncio
from dataclasses import replace

import pytest

from brokers.embedded.groups.wait_queue import WaitQueue
from brokers.embedded.settings import EmbeddedSettings
from popgate.errors import TooManyRequests
from popgate.testing import MovableClock

TOPIC, KEY = 1, 2


class Bench:
    """A line and those who stand in it, as tasks."""

    def __init__(self, **settings: int) -> None:
        self.clock = MovableClock()
        self.waiting = WaitQueue(self.clock, replace(EmbeddedSettings(), **settings))
        self.tasks: list[asyncio.Task[int]] = []

    async def stand(self, *, seconds: float = 60, queue_id: int = -1, room: int = 1) -> asyncio.Task[int]:
        until = self.clock.monotonic() + seconds
        task = asyncio.create_task(self.waiting.wait(TOPIC, KEY, until, queue_id=queue_id, room=room))
        self.tasks.append(task)
        await turns()
        return task

    async def done(self) -> list[bool]:
        await turns()
        return [task.done() for task in self.tasks]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def bench():
    made = Bench()
    yield made
    made.waiting.wake_all()
    await asyncio.gather(*made.tasks, return_exceptions=True)
    made.waiting.close()


async def test_one_message_wakes_one_the_first_who_came(bench: Bench) -> None:
    for _ in range(3):
        await bench.stand()
    bench.waiting.wake(TOPIC, KEY, 0, 1)
    assert await bench.done() == [True, False, False]
    bench.waiting.wake(TOPIC, KEY, 0, 1)
    assert await bench.done() == [True, True, False]


async def test_many_messages_wake_as_many_as_can_take_them(bench: Bench) -> None:
    for _ in range(4):
        await bench.stand(room=32)
    bench.waiting.wake(TOPIC, KEY, 0, 65)
    assert await bench.done() == [True, True, True, False]


async def test_a_queue_wakes_those_who_want_it_or_any(bench: Bench) -> None:
    for queue_id in (5, 3, -1):
        await bench.stand(queue_id=queue_id)
    bench.waiting.wake(TOPIC, KEY, 3, 1)
    assert await bench.done() == [False, True, False]
    bench.waiting.wake(TOPIC, KEY, 3, 1)
    assert await bench.done() == [False, True, True]


async def test_a_wake_is_passed_on_to_those_who_have_not_looked_since(bench: Bench) -> None:
    await bench.stand()
    await bench.stand()
    bench.waiting.wake(TOPIC, KEY, 0, 1)
    first = await bench.tasks[0]
    late = await bench.stand()  # has looked after the wake, and found nothing
    bench.waiting.pass_on(TOPIC, KEY, first)
    assert await bench.done() == [True, True, False]
    bench.waiting.pass_on(TOPIC, KEY, await bench.tasks[1])
    assert await bench.done() == [True, True, False]
    assert not late.done()


async def test_who_is_cancelled_after_it_was_woken_passes_the_wake_on(bench: Bench) -> None:
    await bench.stand()
    await bench.stand()
    bench.waiting.wake(TOPIC, KEY, 0, 1)
    bench.tasks[0].cancel()
    assert await bench.done() == [True, True]
    assert bench.tasks[0].cancelled()
    assert await bench.tasks[1] > 0


async def test_who_is_cancelled_in_the_turn_of_the_wake_does_not_swallow_it(bench: Bench) -> None:
    await bench.stand()
    await bench.stand()
    bench.tasks[0].cancel()
    bench.waiting.wake(TOPIC, KEY, 0, 1)
    assert await bench.done() == [True, True]
    assert await bench.tasks[1] > 0


async def test_waiting_ends_at_its_time_for_each_with_one_timer(bench: Bench) -> None:
    for seconds in (30, 10, 20):
        await bench.stand(seconds=seconds)
    bench.clock.advance(10)
    assert await bench.done() == [False, True, False]
    bench.clock.advance(10)
    assert await bench.done() == [False, True, True]
    bench.clock.advance(10)
    assert await asyncio.gather(*bench.tasks) == [0, 0, 0]
    assert len(bench.waiting) == 0
    assert bench.clock.until_next() is None


async def test_a_time_that_a_float_cannot_tell_exactly_ends_all_the_same(bench: Bench) -> None:
    for step in range(1, 60):
        task = await bench.stand(seconds=step / 7)
        await bench.clock.run(step / 7 + 0.001, turns)
        assert await task == 0


async def test_everybody_can_be_woken(bench: Bench) -> None:
    for _ in range(3):
        await bench.stand()
    bench.waiting.wake_all(TOPIC, 99)
    assert await bench.done() == [False] * 3
    bench.waiting.wake_all(TOPIC)
    assert await bench.done() == [True] * 3


async def test_there_is_a_bound_for_a_line_and_for_all() -> None:
    small = Bench(max_waiting_pops=3, max_waiting_pops_per_group=2)
    until = small.clock.monotonic() + 60
    await small.stand()
    await small.stand()
    with pytest.raises(TooManyRequests):
        await small.waiting.wait(TOPIC, KEY, until)
    small.tasks.append(asyncio.create_task(small.waiting.wait(TOPIC, 7, until)))
    await turns()
    with pytest.raises(TooManyRequests):
        await small.waiting.wait(TOPIC, 8, until)
    small.waiting.wake_all()
    await asyncio.gather(*small.tasks)
    assert list(small.waiting.keys(TOPIC)) == []
    assert small.waiting._topics == {}
    small.waiting.close()


async def test_ends_of_those_who_left_do_not_pile_up(bench: Bench) -> None:
    for _ in range(5_000):
        task = asyncio.create_task(bench.waiting.wait(TOPIC, KEY, bench.clock.monotonic() + 60))
        await asyncio.sleep(0)
        bench.waiting.wake(TOPIC, KEY, 0, 1)
        await task
    assert len(bench.waiting._ends) <= 1_025
