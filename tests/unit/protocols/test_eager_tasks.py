"""protocols.eager_tasks: what a coroutine may ask of what runs it, as it may ask it of a task."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocols import eager_tasks
from protocols.drain import LongPolls
from protocols.eager_tasks import EagerTask

Outcome = tuple[Any, BaseException | None]
word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="nothing")


class Run:
    """A coroutine that runs, and how it ended."""

    def __init__(self, work: Coroutine[Any, Any, Any], *, start: bool = True) -> None:
        self.ended: list[Outcome] = []
        self._result: Any = None
        self._coroutine = work
        self._over = asyncio.get_running_loop().create_future()
        self.running = EagerTask(self._work(), asyncio.get_running_loop(), self._on_end)
        if start:
            self.start()

    def start(self) -> None:
        """From where transports start calls: the loop, and no task."""
        asyncio.get_running_loop().call_soon(self.running.start)

    async def _work(self) -> None:
        self._result = await self._coroutine

    def _on_end(self, error: BaseException | None) -> None:
        self._coroutine.close()  # one that was cancelled before its first step has not begun
        self.ended.append((self._result, error))
        self._over.set_result(None)

    async def outcome(self) -> Outcome:
        await self._over
        assert self.running.done()
        [ended] = self.ended
        return ended


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_result() -> None:
    async def work() -> int:
        return 7

    assert await Run(work()).outcome() == (7, None)


async def test_the_first_step_is_taken_where_it_is_started() -> None:
    told: list[object] = []

    async def work() -> None:
        told.append(asyncio.current_task())

    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def begin() -> None:
        running = EagerTask(work(), loop, lambda *_: done.set_result(None))
        running.start()
        told.extend((running, running.done()))

    loop.call_soon(begin)
    await done
    assert told[0] is told[1]
    assert told[2] is True
    assert asyncio.current_task() is not None


async def test_within_a_task_it_starts_when_the_loop_comes_round() -> None:
    async def work() -> object:
        return asyncio.current_task()

    run = Run(work(), start=False)
    mine = asyncio.current_task()
    run.running.start()
    assert not run.running.done()
    assert await run.outcome() == (run.running, None)
    assert asyncio.current_task() is mine


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError(), GeneratorExit()])
async def test_what_is_raised(error: BaseException) -> None:
    async def at_once() -> None:
        raise error

    async def later() -> None:
        await turns()
        raise error

    for work in (at_once, later):
        assert await Run(work()).outcome() == (None, error)


async def test_it_waits_for_futures_tasks_and_turns() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    async def five() -> int:
        await turns()
        return 5

    async def work() -> tuple[Any, ...]:
        return (await future, await five(), await asyncio.create_task(five()), asyncio.current_task())

    run = Run(work())
    await turns()
    assert not run.running.done()
    future.set_result("there")
    assert await run.outcome() == (("there", 5, 5, run.running), None)


async def test_the_error_of_what_it_waits_for_is_raised_in_it() -> None:
    future = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await future
        except KeyError:
            return "caught"
        return "missed"

    run = Run(work())
    await turns()
    future.set_exception(KeyError())
    assert await run.outcome() == ("caught", None)


async def test_gather_and_wait_for_and_task_groups() -> None:
    async def double(number: int) -> int:
        await turns(number)
        return 2 * number

    async def work() -> tuple[Any, ...]:
        gathered = await asyncio.gather(double(1), double(2))
        async with asyncio.TaskGroup() as group:
            grouped = [group.create_task(double(number)) for number in (3, 4)]
        return gathered, [task.result() for task in grouped], await asyncio.wait_for(double(5), 60)

    assert await Run(work()).outcome() == (([2, 4], [6, 8], 10), None)


async def test_a_task_group_that_fails_cancels_and_forgets_it() -> None:
    async def fail() -> None:
        raise ValueError("one of them")

    async def work() -> int:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        except* ValueError:
            await turns()
        found = asyncio.current_task()
        assert found is not None
        return found.cancelling()

    assert await Run(work()).outcome() == (0, None)


async def test_a_timeout_inside() -> None:
    async def work() -> list[str]:
        told = []
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            told.append("late")
        async with asyncio.timeout(60):
            await turns()
            told.append("in time")
        found = asyncio.current_task()
        assert found is not None
        return [*told, str(found.cancelling())]

    assert await Run(work()).outcome() == (["late", "in time", "0"], None)


# -- to cancel ------------------------------------------------------------------------------------


async def forever(told: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        told.append("cancelled")
        raise
    finally:
        told.append("over")


async def test_one_that_waits_is_cancelled() -> None:
    told: list[str] = []
    run = Run(forever(told))
    await turns()
    assert run.running.cancel()
    result, error = await run.outcome()
    assert (result, type(error), told) == (None, asyncio.CancelledError, ["cancelled", "over"])
    assert not run.running.cancel()
    assert run.ended == [(None, error)]


async def test_one_that_has_not_started_never_does() -> None:
    told: list[str] = []
    run = Run(forever(told), start=False)
    run.running.start()
    run.running.cancel()
    assert isinstance((await run.outcome())[1], asyncio.CancelledError)
    assert told == []


async def test_one_that_cancels_itself() -> None:
    async def work() -> None:
        found = asyncio.current_task()
        assert found is not None
        found.cancel()
        await asyncio.get_running_loop().create_future()

    assert isinstance((await Run(work()).outcome())[1], asyncio.CancelledError)


async def test_one_that_cancels_itself_and_takes_a_turn() -> None:
    async def work() -> None:
        found = asyncio.current_task()
        assert found is not None
        found.cancel()
        await asyncio.sleep(0)

    assert isinstance((await Run(work()).outcome())[1], asyncio.CancelledError)


async def test_a_cancel_between_the_outcome_and_the_step() -> None:
    """What it waits for is there, but it has not gone on."""
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await future
        await asyncio.Event().wait()

    run = Run(work())
    await turns()
    future.set_result(None)
    run.running.cancel()
    assert isinstance((await run.outcome())[1], asyncio.CancelledError)


async def test_a_cancel_reaches_what_it_waits_for() -> None:
    told: list[str] = []

    async def work() -> None:
        await asyncio.create_task(forever(told))

    run = Run(work())
    await turns()
    run.running.cancel()
    assert isinstance((await run.outcome())[1], asyncio.CancelledError)
    assert told == ["cancelled", "over"]


async def test_one_that_will_not_be_cancelled_goes_on() -> None:
    async def work() -> tuple[str, int, int]:
        found = asyncio.current_task()
        assert found is not None
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asked = found.cancelling()
            found.uncancel()
        await turns()
        return "went on", asked, found.cancelling()

    run = Run(work())
    await turns()
    run.running.cancel()
    assert await run.outcome() == (("went on", 1, 0), None)


async def test_what_is_called_back_while_draining_returns_nothing() -> None:
    """`LongPolls` tells its own cancel from the transport's by `cancelling`."""
    waits = LongPolls()

    async def never() -> str:
        await asyncio.Event().wait()
        return "never"

    async def work() -> object:
        return await waits.wait(never())

    called_back, cut = Run(work()), Run(work())
    await turns()
    cut.running.cancel()
    waits.end()
    assert await called_back.outcome() == (None, None)
    assert isinstance((await cut.outcome())[1], asyncio.CancelledError)
    assert len(waits) == 0


# -- circumstances --------------------------------------------------------------------------------


async def test_what_is_set_in_it_stays_in_it() -> None:
    """As in a task: a context of its own, the same in all of its steps."""

    async def work(mine: str) -> tuple[str, str, str]:
        before = word.get()
        token = word.set(mine)
        await turns()
        during = word.get()
        word.reset(token)
        await asyncio.get_running_loop().run_in_executor(None, str)
        return before, during, word.get()

    runs = [Run(work(mine)) for mine in "ab"]
    for run, mine in zip(runs, "ab", strict=True):
        assert await run.outcome() == (("nothing", mine, "nothing"), None)
    assert word.get() == "nothing"


async def test_what_is_left_set_does_not_leak_to_who_started_it() -> None:
    loop = asyncio.get_running_loop()
    seen = loop.create_future()

    async def work() -> None:
        word.set("mine")

    def begin() -> None:
        EagerTask(work(), loop, lambda *_: None).start()
        seen.set_result(word.get())

    loop.call_soon(begin)
    assert await seen == "nothing"


class NoContext:
    """For a context that cannot be entered, as when there is no memory left."""

    def run(self, *_: object) -> None:
        raise MemoryError


async def test_one_that_cannot_start_keeps_no_other_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it was the loop's current task, no other could run ever again."""
    loop = asyncio.get_running_loop()
    current = loop.create_future()
    with monkeypatch.context() as patched:
        patched.setattr(eager_tasks, "copy_context", NoContext)
        coroutine = turns()
        running = EagerTask(coroutine, loop, lambda *_: None)
    coroutine.close()

    def begin() -> None:
        with pytest.raises(MemoryError):
            running.start()
        task = asyncio.current_task()
        if task is not None:
            asyncio.tasks._leave_task(loop, task)  # so that this test fails, and does not hang
        current.set_result(task)

    loop.call_soon(begin)
    assert await current is None


class Odd:
    def __await__(self) -> Any:
        yield "odd"


async def test_waiting_for_what_is_no_future_is_an_error_in_it() -> None:
    async def work() -> None:
        await Odd()

    result, error = await Run(work()).outcome()
    assert result is None
    assert isinstance(error, RuntimeError)
    assert "odd" in str(error)


async def test_its_name_tells_what_runs() -> None:
    async def work() -> None:
        await turns()

    run = Run(work())
    assert "work" in run.running.get_name()
    assert run.running.get_loop() is asyncio.get_running_loop()
    await run.outcome()
    assert "over" in repr(run.running)


async def test_many_at_once() -> None:
    async def work(number: int) -> int:
        await turns(number % 7)
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        return number

    runs = [Run(work(number)) for number in range(500)]
    assert [await run.outcome() for run in runs] == [(number, None) for number in range(500)]


class Thing:
    """Something that a call has."""


async def failing(thing: Thing) -> None:
    await turns(1)
    raise ValueError(repr(thing))


async def waiting_for_nonsense(thing: Thing) -> None:
    await Odd()
    raise AssertionError(repr(thing))


async def waiting_long(thing: Thing) -> None:
    await asyncio.get_running_loop().create_future()
    raise AssertionError(repr(thing))


@pytest.mark.parametrize("work", [failing, waiting_for_nonsense, waiting_long])
async def test_one_that_fails_leaves_nothing_to_the_collector(
    work: Callable[[Thing], Coroutine[Any, Any, None]],
) -> None:
    gc.disable()
    try:
        thing = Thing()
        known = weakref.ref(thing)
        over = asyncio.get_running_loop().create_future()
        running = EagerTask(work(thing), asyncio.get_running_loop(), lambda *_outcome: over.set_result(None))
        del thing
        asyncio.get_running_loop().call_soon(running.start)
        await turns()
        running.cancel()
        await over
        del running
        await turns()
        assert known() is None
    finally:
        gc.enable()
