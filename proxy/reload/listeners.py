"""The listeners of a process: opened, closed and replaced without affecting the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from popgate.clock import Clock
from protocols.adapter import Adapter, AdapterContext, Listen, parse_listen
from protocols.schemes import listens_by_itself, load_for, make_adapter
from protocols.secured import HandedOver
from proxy.lifetime.deadline import DOORS_PART, closing_s, lame_duck_s
from proxy.logs import logger

_log = logger("popgate.reload")


@dataclass(slots=True)
class Door:
    """An open listener, by the URL that the settings have for it."""

    url: str
    adapter: Adapter
    adapter_context: AdapterContext
    """That it was opened for."""
    outdated: bool = False
    """Whether it should have been opened anew, and could not be."""


@dataclass(slots=True)
class Turnover:
    """A planned change of the listeners. It has no effect before it is committed.

    `opened` are started already. `fixed` are URLs that cannot be changed before a restart: their
    listeners stay as they were.
    """

    adapter_context: AdapterContext
    kept: list[Door] = field(default_factory=list)
    opened: list[Door] = field(default_factory=list)
    replaced: list[Door] = field(default_factory=list)
    removed: list[Door] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    outdated: list[Door] = field(default_factory=list)
    """Of those that are kept, the ones that have settings from before."""
    doors: list[Door] = field(default_factory=list)
    """All that serve afterwards, in the order of the settings."""


@dataclass(slots=True)
class _Wanted:
    url: str
    listen: Listen
    before: Door | None = None
    """The listener that it takes the place of."""
    kept: Door | None = None


@dataclass(slots=True)
class _ClosingListener:
    door: Door
    at_once: asyncio.Event
    """Set when it is to serve on no longer, and to drain."""
    task: asyncio.Task[None]
    undone: bool = False
    """Whether it was opened by a reload that failed: it has left its address to the one before."""


class Listeners:
    """Of one process. Raises ValueError for an address that is none."""

    def __init__(self, urls: Iterable[str], adapter_context: AdapterContext, clock: Clock) -> None:
        self.adapter_context = adapter_context
        self._clock = clock
        self._doors = [
            Door(url, make_adapter(parse_listen(url), adapter_context), adapter_context) for url in urls
        ]
        self._leaving: dict[Adapter, _ClosingListener] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Listeners {[door.url for door in self._doors]} leaving {len(self._leaving)}>"

    @property
    def adapters(self) -> list[Adapter]:
        """Those that serve."""
        return [door.adapter for door in self._doors]

    async def prepare(
        self, urls: Sequence[str], adapter_context: AdapterContext, *, anew: bool, drain_s: float
    ) -> Turnover:
        """Open new listeners. `anew`: all listeners are reopened at their ports, for another adapter context.

        Raises OSError and ValueError with a sentence: nothing has changed, except that connections which new
        listeners have accepted are served there for `drain_s` at most.
        """
        wanted = self._match(urls, anew=anew)
        turnover = Turnover(adapter_context)
        adapters: dict[int, Adapter] = {}
        handed: list[HandedOver] = []
        starting: Adapter | None = None
        try:
            # Those that may fail first: a listener that takes over a port accepts from its start on.
            for number, wish in sorted(enumerate(wanted), key=lambda pair: pair[1].before is not None):
                if wish.kept is not None:
                    continue
                await asyncio.to_thread(load_for, wish.listen)
                copies = wish.before.adapter.copies() if wish.before is not None else []
                if wish.before is not None and (not copies or listens_by_itself(wish.listen)):
                    _close(copies)
                    # One that was leaving may have ended since it was matched.
                    if wish.before.adapter in self.adapters:
                        wish.kept = wish.before
                        continue
                    wish.before, copies = None, []  # as if nothing were there: the system says what is
                starting = self._make(wish.listen, adapter_context, copies, handed)
                await starting.start()
                adapters[number], starting = starting, None
        except BaseException:
            for number, adapter in adapters.items():
                self._retire(Door(wanted[number].url, adapter, adapter_context), 0.0, drain_s, undone=True)
            await self._close_now(starting, handed)
            raise
        for number, wish in enumerate(wanted):
            if wish.kept is not None:
                turnover.kept.append(wish.kept)
                turnover.doors.append(wish.kept)
                # Not any more where the settings are again those that it was opened for.
                outdated = wish.kept.adapter_context != adapter_context if anew else wish.kept.outdated
                if outdated:
                    turnover.outdated.append(wish.kept)
                if outdated or wish.kept.url != wish.url:
                    turnover.fixed.append(wish.url)
                continue
            opened = Door(wish.url, adapters[number], adapter_context)
            turnover.opened.append(opened)
            turnover.doors.append(opened)
            if wish.before is not None:
                turnover.replaced.append(wish.before)
        gone = [*turnover.kept, *turnover.replaced]
        turnover.removed = [door for door in self._doors if not any(door is other for other in gone)]
        return turnover

    def undo(self, turnover: Turnover, *, drain_s: float) -> None:
        """Close new listeners: they drain, because they may have accepted clients."""
        for door in turnover.opened:
            self._retire(door, 0.0, drain_s, undone=True)

    def commit(self, turnover: Turnover, *, lame_s: float, drain_s: float) -> None:
        """From now on those serve. Those whose place was taken drain at once, those that were removed as a
        gateway does that ends: for `lame_s` they first serve on."""
        self._doors = turnover.doors
        self.adapter_context = turnover.adapter_context
        for door in turnover.kept:
            door.outdated = any(door is other for other in turnover.outdated)
        for door in turnover.replaced:
            self._retire(door, 0.0, drain_s)
        for door in turnover.removed:
            self._retire(door, lame_duck_s(lame_s, drain_s), drain_s)

    async def drained(self, deadline: float, ends: float) -> None:
        """The gateway drains until `deadline` and is gone at `ends` (loop seconds); so are leaving listeners.

        They restart their drain: while the gateway served, they left streams open whose clients may have no
        other gateway now.
        """
        loop = asyncio.get_running_loop()
        for adapter, departure in list(self._leaving.items()):
            departure.task = loop.create_task(self._drain_anew(departure.task, adapter, deadline, ends))
            departure.task.add_done_callback(partial(self._gone, adapter))
        while (left := deadline - self._clock.monotonic()) > 0 and self._leaving:
            await asyncio.wait([departure.task for departure in self._leaving.values()], timeout=left)

    def leaving(self) -> list[Adapter]:
        """The draining listeners, which the caller that stops the gateway has to close."""
        for departure in self._leaving.values():
            departure.task.cancel()
        return list(self._leaving)

    # -- inside -----------------------------------------------------------------------------------

    def _match(self, urls: Sequence[str], *, anew: bool) -> list[_Wanted]:
        """Pairs each URL with its current listener, else with one at the same address.

        That may be a removed one that still serves: so an address can be restored.
        """
        left = list(self._doors)
        wanted = [_Wanted(url, parse_listen(url)) for url in urls]
        for wish in wanted:
            if (same_door := next((door for door in left if door.url == wish.url), None)) is not None:
                left.remove(same_door)
                wish.before, wish.kept = (same_door, None) if anew else (None, same_door)
        for wish in wanted:
            if wish.kept is None and wish.before is None:
                wish.before = next((door for door in left if _same_place(door, wish.listen)), None)
                if wish.before is not None:
                    left.remove(wish.before)
                elif wish.listen.port:
                    # The last one: it still accepts where those before it do so no more.
                    gone = [
                        leaving.door for leaving in reversed(self._leaving.values()) if not leaving.undone
                    ]
                    wish.before = next((door for door in gone if _same_place(door, wish.listen)), None)
        return wanted

    def _make(
        self,
        listen: Listen,
        adapter_context: AdapterContext,
        copies: list[socket.socket],
        handed: list[HandedOver],
    ) -> Adapter:
        if copies:
            listener = HandedOver(copies)
            handed.append(listener)
            adapter_context = replace(adapter_context, accepting=lambda _: listener)
        return make_adapter(listen, adapter_context)

    async def _close_now(self, adapter: Adapter | None, handed: Iterable[HandedOver]) -> None:
        """Close at once, even if the caller is cancelled. `adapter`: one that did not start."""
        task = asyncio.get_running_loop().create_task(self._stop(adapter, handed))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.shield(task)

    async def _stop(self, adapter: Adapter | None, handed: Iterable[HandedOver]) -> None:
        if adapter is not None:
            try:
                await adapter.stop()
            except Exception:
                _log.exception("a listener could not be stopped", what=repr(adapter))
        for listener in handed:
            listener.stop()

    def _retire(self, door: Door, lame_s: float, drain_s: float, *, undone: bool = False) -> None:
        adapter = door.adapter
        if adapter in self._leaving:
            self._leaving[adapter].at_once.set()
            return
        at_once = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._drain(adapter, at_once, lame_s, drain_s))
        self._leaving[adapter] = _ClosingListener(door, at_once, task, undone)
        task.add_done_callback(partial(self._gone, adapter))

    def _gone(self, adapter: Adapter, task: asyncio.Task[None]) -> None:
        if adapter in self._leaving and self._leaving[adapter].task is task:
            del self._leaving[adapter]

    async def _drain(self, adapter: Adapter, at_once: asyncio.Event, lame_s: float, drain_s: float) -> None:
        ends, closing = self._clock.monotonic() + drain_s, closing_s(drain_s)
        if lame_s:
            adapter.leave()
            timer = self._clock.call_later(lame_s, at_once.set)
            try:
                await at_once.wait()
            finally:
                timer.cancel()
        await self._end(adapter, ends - closing, ends - closing * (1 - DOORS_PART))

    async def _drain_anew(
        self, before: asyncio.Task[None], adapter: Adapter, deadline: float, ends: float
    ) -> None:
        before.cancel()
        await asyncio.wait((before,))
        await self._end(adapter, deadline, ends)

    async def _end(self, adapter: Adapter, deadline: float, ends: float) -> None:
        try:
            await adapter.drain(deadline, ends)
            _log.info("a listener has closed", what=repr(adapter))
        except Exception:
            _log.exception("a listener could not be closed", what=repr(adapter))
            await self._stop(adapter, ())


def _same_place(door: Door, listen: Listen) -> bool:
    """Whether a listener is where another URL wants one; a port that the system chose stays."""
    before = parse_listen(door.url)
    return (before.host, before.port, before.path) == (listen.host, listen.port, listen.path)


def _close(links: Iterable[socket.socket]) -> None:
    for link in links:
        link.close()
