"""Who takes part in a reset of a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from popgate.context import Context
from processors.consume.resets import Reset, ResetListener, ResetListeners


class Books:
    """What listeners went through."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def listener(self, name: str) -> ResetListener:
        @asynccontextmanager
        async def listen(reset: Reset) -> AsyncIterator[None]:
            self.lines.append(f"{name} before")
            yield
            self.lines.append(f"{name} after {reset.offsets}")

        return listen


async def test_all_that_are_here_take_part() -> None:
    books, listeners = Books(), ResetListeners()
    gone = [listeners.add(books.listener(name)) for name in "abc"]
    gone[1]()
    reset = Reset(Context(), "readers", "orders")
    async with listeners.during(reset):
        books.lines.append("reset")
        reset.offsets["popgate", 0] = 7
    after = "after {('popgate', 0): 7}"
    assert books.lines == ["a before", "c before", "reset", f"c {after}", f"a {after}"]


async def test_who_goes_meanwhile_ends_what_it_began() -> None:
    books, listeners = Books(), ResetListeners()
    gone = listeners.add(books.listener("a"))
    async with listeners.during(Reset(Context(), "readers", "orders")):
        gone()
    assert books.lines == ["a before", "a after {}"]


async def test_who_comes_meanwhile_takes_part() -> None:
    """As a door does that a reload opens; also while those before it enter."""
    books, listeners = Books(), ResetListeners()

    @asynccontextmanager
    async def slow(reset: Reset) -> AsyncIterator[None]:
        listeners.add(books.listener("b"))
        yield

    gone = listeners.add(slow)
    reset = Reset(Context(), "readers", "orders")
    async with listeners.during(reset):
        listeners.add(books.listener("c"))
        reset.offsets["popgate", 0] = 7
    after = "after {('popgate', 0): 7}"
    assert books.lines == ["b before", "c before", f"c {after}", f"b {after}"]
    gone()
    books.lines.clear()
    async with listeners.during(Reset(Context(), "readers", "orders")):
        assert books.lines == ["b before", "c before"]
    assert len(books.lines) == 4


async def test_who_comes_meanwhile_is_left_also_when_the_reset_fails() -> None:
    books, listeners = Books(), ResetListeners()

    async def fail() -> None:
        async with listeners.during(Reset(Context(), "readers", "orders")):
            listeners.add(books.listener("a"))
            raise OSError("away")

    with pytest.raises(OSError, match="away"):
        await fail()
    assert books.lines == ["a before"]
    async with listeners.during(Reset(Context(), "readers", "orders")):
        pass
    assert books.lines == ["a before", "a before", "a after {}"]


async def test_who_comes_meanwhile_is_left_also_when_another_cannot_be_entered() -> None:
    listeners, left = ResetListeners(), asyncio.Event()
    failed = asyncio.Event()

    @asynccontextmanager
    async def broken(reset: Reset) -> AsyncIterator[None]:
        failed.set()
        raise OSError("away")
        yield

    @asynccontextmanager
    async def slow(reset: Reset) -> AsyncIterator[None]:
        await failed.wait()
        try:
            yield
        finally:
            left.set()

    async def reset_while_they_come() -> None:
        async with listeners.during(Reset(Context(), "readers", "orders")):
            listeners.add(slow)
            listeners.add(broken)

    with pytest.raises(OSError, match="away"):
        await reset_while_they_come()
    assert left.is_set()


async def test_of_a_reset_that_fails_nothing_is_reported() -> None:
    books, listeners = Books(), ResetListeners()
    listeners.add(books.listener("a"))
    with pytest.raises(OSError, match="away"):
        async with listeners.during(Reset(Context(), "readers", "orders")):
            raise OSError("away")
    assert books.lines == ["a before"]
