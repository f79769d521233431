"""What the long form of the fuzz tests works on: a house without sockets, and an eye on the process.

Time passes there only while requests wait.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.storage.store import Durability
from popgate.testing import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor

BATCH: Final = 4
"""Requests of each kind at the same time."""
LONGEST_INPUT_S: Final = 30.0
"""Of this process's CPU: a busy machine makes nothing wrong, and who waits turns round and round."""
_HOUSES: Final = ((20_000,), (2_000, 2_000, 2_000, 8_000))
"""After so many inputs of each kind the house is made anew: what they store must not be what grows. The first
number once, the others again and again: what asks for all that is stored takes longer the more there is.
"""
_MOST_GROWTH_MB = 64.0
_MEMORY = Path("/dev/shm")

AnySite = TypeVar("AnySite", bound="Site")


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


class Wrong(Exception):
    """An input that does what none may do."""


SUCCEEDED: Final = "SUCCEEDED"
"""Stands behind a target's name: how many of its inputs were changed, and did what they asked for."""
CHANGED: Final = "CHANGED"
"""Likewise: how many of its inputs were changed, of which some are sent as they are."""
ENOUGH: Final = 1_000
"""Inputs of a target of which one at least has to succeed; of fewer none may, by chance."""


def hopeless(told: Mapping[str, int], targets: Iterable[str]) -> list[str]:
    """Targets whose inputs are all refused, so that nothing behind their door was fuzzed."""
    return [one for one in targets if told.get(one, 0) >= ENOUGH and not told.get(f"{one} {SUCCEEDED}")]


class Growth:
    """Whether the process grows: how much it holds now, next to what it held when it had warmed up."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    def sample(self) -> None:
        """Raises Wrong."""
        self.samples.append(resident_mb())
        grown = self.samples[-1] - self.samples[min(2, len(self.samples) - 1)]
        if grown > _MOST_GROWTH_MB:
            raise Wrong(f"the process grew by {grown:.0f} MB")


class Work(Protocol):
    """What is waited for: a task, or something like one."""

    def done(self) -> bool: ...
    def get_name(self) -> str: ...


class Site:
    """A broker with its processor. Who derives from it opens a door."""

    def __init__(self, folder: Path) -> None:
        self.clock = MovableClock()
        self.broker = EmbeddedBroker(folder, clock=self.clock, durability=Durability.NONE)
        limits = Limits(max_body_bytes=65_536, max_auto_topics=500, max_auto_groups=500)
        self.processor = MessagingProcessor(self.broker, clock=self.clock, limits=limits)

    async def start(self) -> None:
        await self.broker.start()
        await self.processor.start()

    async def stop(self) -> None:
        await self.processor.stop()
        await self.broker.stop()

    async def all_done(self, work: Iterable[Work]) -> None:
        """Let time pass until all of it is done. Raises Wrong when it never is."""
        waiting = list(work)
        begin = time.process_time()
        while waiting:
            for _ in range(20):
                await asyncio.sleep(0)
            self.clock.advance(0.25)
            waiting = [one for one in waiting if not one.done()]
            if waiting and time.process_time() - begin > LONGEST_INPUT_S:
                raise Wrong(f"these were not answered: {[one.get_name() for one in waiting]}")


class Troubles(logging.Handler):
    """What went wrong behind an answer: errors in the log, and what nobody caught."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def uncaught(self, _: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        self.found.append(str(what))


async def each_batch(
    make: Callable[[Path], AnySite],
    batch: Callable[[AnySite, int], Awaitable[None]],
    inputs: int,
    end: float,
    sizes: Sequence[int] = (BATCH,),
) -> None:
    """Batches, in one house after the other, until there were `inputs` of each kind or it is `end`.

    A batch is asked for so many of each kind at the same time: `sizes`, in turn. Raises Wrong, also for an
    error that was logged, and for growth from house to house.
    """
    growth, troubles = Growth(), Troubles()
    houses, turns = chain(_HOUSES[0], cycle(_HOUSES[1])), cycle(sizes)
    asyncio.get_running_loop().set_exception_handler(troubles.uncaught)
    logging.getLogger().addHandler(troubles)
    done = 0
    try:
        while done < inputs and time.monotonic() < end:
            with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
                site = make(Path(folder) / "store")
                await site.start()
                until = min(inputs, done + next(houses))
                while done < until:
                    many = min(next(turns), until - done)
                    await batch(site, many)
                    done += many
                    if troubles.found:
                        raise Wrong(troubles.found[0])
                    if time.monotonic() > end:
                        break
                await site.stop()
            growth.sample()
    finally:
        logging.getLogger().removeHandler(troubles)
