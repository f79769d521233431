"""Who takes part in a reset of a group."""

from __future__ import annotations

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


async def test_of_a_reset_that_fails_nothing_is_reported() -> None:
    books, listeners = Books(), ResetListeners()
    listeners.add(books.listener("a"))
    with pytest.raises(OSError, match="away"):
        async with listeners.during(Reset(Context(), "readers", "orders")):
            raise OSError("away")
    assert books.lines == ["a before"]
