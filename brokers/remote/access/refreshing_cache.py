"""A cache of what brokers returned, so that a message costs no extra request.

A fresh value is served; an older one is served once more and refreshed in the
background, so that nobody waits; one that was not used for long is removed. Concurrent requests for a value
are shared. A missing value is remembered only for a moment, and brokers are not asked for what can be no
name. Source of the times: protocol facts 6.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from brokers.remote.cluster.single_flight import shared
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock
from popgate.errors import NotFound, shown
from popgate.naming import could_be_a_name

Value = TypeVar("Value")


class _Entry(Generic[Value]):
    __slots__ = ("asked_at", "missing", "used_at", "value")

    def __init__(self, value: Value | None, missing: NotFound | None, now: float) -> None:
        self.value = value
        self.missing = missing
        self.asked_at = now
        """When it was asked for, or a newer one, whatever came of it."""
        self.used_at = now


class RefreshingCache(Generic[Value]):
    """At most `most` values by name, fetched with `ask`. Times in seconds.

    `ask` raises NotFound for a missing value; `missing` makes that error for what can be no name. Other
    failures are raised to waiting callers, and leave the cached value: an old value is better than none.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[Value]],
        clock: Clock,
        *,
        missing: Callable[[str], NotFound],
        refresh_s: float,
        expiry_s: float,
        missing_s: float,
        most: int,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._not_found = missing
        self._refresh_s = refresh_s
        self._expiry_s = expiry_s
        self._missing_s = missing_s
        self._most = most
        self._entries: dict[str, _Entry[Value]] = {}
        """The one that was used last stands last."""
        self._asking: dict[str, asyncio.Task[Value]] = {}

    @classmethod
    def of_settings(
        cls,
        ask: Callable[[str], Awaitable[Value]],
        clock: Clock,
        settings: RemoteSettings,
        *,
        missing: Callable[[str], NotFound],
    ) -> RefreshingCache[Value]:
        """A cache with the times of routes."""
        return cls(
            ask,
            clock,
            missing=missing,
            refresh_s=settings.route_refresh_s,
            expiry_s=settings.route_expiry_s,
            missing_s=settings.missing_route_s,
            most=settings.max_routes,
        )

    def __repr__(self) -> str:
        return f"<RefreshingCache {len(self._entries)} asking {len(self._asking)}>"

    def __len__(self) -> int:
        return len(self._entries)

    async def of(self, name: str) -> Value:
        """The value, of now or of a while ago. Raises what `ask` raised."""
        value = self.kept(name)
        if value is not None:
            return value
        entry = self._entries.get(name)
        if (
            entry is not None
            and entry.missing is not None
            and self._clock.monotonic() - entry.asked_at < self._missing_s
        ):
            raise entry.missing.with_traceback(None)
        return await self.now(name)

    def kept(self, name: str) -> Value | None:
        """What `of` returns, if there is such a value and nobody has to wait for it."""
        entry = self._entries.get(name)
        if entry is None or entry.missing is not None:
            return None
        now = self._clock.monotonic()
        if now - entry.used_at >= self._expiry_s:
            return None
        if now - entry.asked_at >= self._refresh_s:
            entry.asked_at = now
            self._begin(name)
        entry.used_at = now
        self._entries[name] = self._entries.pop(name)
        return entry.value

    async def now(self, name: str) -> Value:
        """Fetch the value, or join a fetch in progress. Raises what `ask` raises."""
        if not could_be_a_name(name):
            raise self._not_found(shown(name))
        return await shared(self._asking.get(name) or self._begin(name))

    def forget(self, name: str) -> None:
        """Drop the cached value, and ignore a fetch in progress."""
        self._entries.pop(name, None)
        self._asking.pop(name, None)

    async def close(self) -> None:
        """Cancel fetches in progress."""
        tasks = list(self._asking.values())
        self._asking.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, name: str) -> asyncio.Task[Value]:
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.get_running_loop().create_task(self._fetch(name))
            task.add_done_callback(lambda done: self._ended(name, done))
        return task

    async def _fetch(self, name: str) -> Value:
        return await self._ask(name)

    def _ended(self, name: str, task: asyncio.Task[Value]) -> None:
        if self._asking.get(name) is not task:
            # It was forgotten meanwhile: its answer may be from before a change.
            if not task.cancelled():
                task.exception()
            return
        del self._asking[name]
        if task.cancelled():
            return
        now = self._clock.monotonic()
        failure = task.exception()
        if failure is None:
            self._keep(name, _Entry(task.result(), None, now))
        elif isinstance(failure, NotFound):
            self._keep(name, _Entry(None, failure, now))

    def _keep(self, name: str, entry: _Entry[Value]) -> None:
        self._entries.pop(name, None)
        while len(self._entries) >= self._most:
            del self._entries[next(iter(self._entries))]
        self._entries[name] = entry
