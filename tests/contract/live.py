"""The contract's tests against a real RocketMQ, side by side: most of them wait most of the time.

Time cannot be moved there, and one after the other they would take an hour. So the selected ones are
started together, in a loop of a thread of their own, as soon as the first of them is asked for; each item
then waits for its own outcome. Their names keep them apart at the broker, as different users are.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from popgate.testing.rocketmq import Missing, SharedRocketMQ, shared_rocketmq
from tests.isolation import process_kept

AT_ONCE = 48
"""Tests under way; nearly all of them wait."""
LONGEST_S = 1_200.0
"""For one test, once it has begun: the longest wait for a minute and more, and machines are busy."""
ALL_OF_THEM_S = 3_600.0
SLOWNESS = (1, 3, 9)
"""By how much all times of a test are longer, each time that it is played."""
NO_ROCKETMQ = "no RocketMQ"
IN_CI = os.environ.get("CI") == "true"


class StoodStill(Exception):
    """What had to be done within a time of the broker's was not: nothing can be said of what came then.

    The test is played once more, with longer times, as often as `SLOWNESS` says.
    """


class LiveItem(pytest.Item):
    """Stands in for a test function with its parameters, and runs it with those of its kind."""

    stands_for: pytest.Function
    stage: Stage

    def runtest(self) -> None:
        self.stage.outcome(self)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """From the test on: what lies above is the waiting for its outcome."""
        excinfo.traceback = excinfo.traceback.cut(path=self.path)
        return super().repr_failure(excinfo, style or "long")

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.stands_for.reportinfo()


def in_place_of(function: pytest.Function, stage: Stage) -> LiveItem:
    """The item to collect instead of a test function."""
    assert function.parent is not None
    item: LiveItem = LiveItem.from_parent(function.parent, name=function.name)
    item.own_markers = list(function.own_markers)
    item.keywords.update(function.keywords)
    item.add_marker(
        pytest.mark.timeout(ALL_OF_THEM_S)
    )  # the first waits for the start, others for their turn
    item.stands_for, item.stage = function, stage
    return item


class Stage:
    """Where the items run, from the first outcome that is asked for to the last one, or to `close`."""

    def __init__(self, fixtures: Callable[[SharedRocketMQ], Makers]) -> None:
        """`fixtures` replace those of the same name: functions of other fixtures, as pytest's are."""
        self._fixtures = fixtures
        self._outcomes: dict[str, Future[None]] = {}
        self._asked_for: set[str] = set()
        self._closing = contextlib.ExitStack()
        self._missing: Missing | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def outcome(self, item: LiveItem) -> None:
        """Wait for the end of an item. Raises what it raised; skips, or fails, where RocketMQ is missing."""
        if self._loop is None and self._missing is None:
            try:
                self._begin([i for i in item.session.items if isinstance(i, LiveItem)])
            except Missing as missing:
                self._missing = missing
        if self._missing is not None:
            if IN_CI:
                pytest.fail(str(self._missing))
            pytest.skip(f"{NO_ROCKETMQ}: {self._missing}")
        try:
            self._outcomes[item.nodeid].result()
        finally:
            self._asked_for.add(item.nodeid)
            if self._asked_for == self._outcomes.keys():
                # A thread that goes on would disturb other tests: what they measure, and their chance.
                self.close()

    def _begin(self, items: Sequence[LiveItem]) -> None:
        """Raises Missing."""
        # Once for all: what one of those that run side by side restores another one may just have set.
        self._closing.enter_context(process_kept())
        shared = self._closing.enter_context(shared_rocketmq())
        overriding: Makers = {**self._fixtures(shared), "process_as_before": lambda: None}
        self._loop = loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="live-contract", daemon=True)
        thread.start()

        def end() -> None:
            async def all_ended() -> None:
                rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
                for task in rest:
                    task.cancel()
                await asyncio.gather(*rest, return_exceptions=True)
                done = self._asked_for == self._outcomes.keys()
                assert not (done and rest), f"left behind by tests: {rest[:5]}"

            try:
                asyncio.run_coroutine_threadsafe(all_ended(), loop).result()
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()

        self._closing.callback(end)
        room = asyncio.Semaphore(AT_ONCE)
        self._outcomes = {
            item.nodeid: asyncio.run_coroutine_threadsafe(_perform(item.stands_for, makers, room), loop)
            for item, makers in [(item, _makers(item.stands_for, overriding)) for item in items]
        }

    def close(self) -> None:
        self._closing.close()


Makers = dict[str, Callable[..., Any]]
"""Fixtures by name, as functions of other fixtures."""


def _makers(function: pytest.Function, overriding: Makers) -> Makers:
    """The fixtures of a test that are its module's or its folder's own, and not of a plugin.

    Asked before anything runs: plugins put functions of their own in place while they set fixtures up.
    """
    makers = {
        name: overriding.get(name) or inspect.unwrap(definitions[-1].func)
        for name, definitions in function._fixtureinfo.name2fixturedefs.items()
        if definitions[-1].baseid
    }
    return {name: makers[name] for name in function.fixturenames if name in makers}


async def _perform(function: pytest.Function, makers: Makers, room: asyncio.Semaphore) -> None:
    async with room:
        for slowness in SLOWNESS:
            try:
                await _play(function, makers, slowness)
            except StoodStill:
                if slowness == SLOWNESS[-1]:
                    raise
            else:
                return


async def _play(function: pytest.Function, makers: Makers, slowness: int) -> None:
    async with asyncio.timeout(LONGEST_S), contextlib.AsyncExitStack() as stack:
        made = {name: value for name, value in _parameters(function).items() if name != "site"}
        made["slowness"] = slowness
        for name in makers:
            await _fixture(name, makers, made, stack)
        arguments = {name: made[name] for name in inspect.signature(function.obj).parameters}
        result = function.obj(**arguments)
        if inspect.isawaitable(result):
            await result


async def _fixture(name: str, makers: Makers, made: dict[str, Any], stack: contextlib.AsyncExitStack) -> Any:
    """The value of a fixture, made with what it asks for, and taken down with the stack."""
    if name in made:
        return made[name]
    make = makers[name]
    arguments = {
        wanted: await _fixture(wanted, makers, made, stack) for wanted in inspect.signature(make).parameters
    }
    value = make(**arguments)
    if inspect.isasyncgen(value):
        stack.push_async_callback(anext, value, None)
        value = await anext(value)
    elif inspect.isgenerator(value):
        stack.callback(next, value, None)
        value = next(value)
    elif inspect.isawaitable(value):
        value = await value
    made[name] = value
    return value


def _parameters(function: pytest.Function) -> dict[str, Any]:
    return dict(getattr(getattr(function, "callspec", None), "params", {}))
