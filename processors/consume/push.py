"""Push is a pop loop with a window: for doors that hand messages to clients unasked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Self

from popgate.clock import Clock
from popgate.errors import GatewayError
from popgate.kinds import Backoff
from popgate.model import StoredMessage
from processors.requests import Receive, Taken

ReceiveCall = Callable[[Receive], Awaitable[Taken]]
_SHORTEST_TURN_S = 0.05
GiveBackCall = Callable[[Sequence[StoredMessage]], Awaitable[None]]


class PushSession:
    """Messages as they come: `async for message in session`. For one reader; made by the processor.

    At most `window` messages are out or buffered; the reader says with `settled` that one is
    done. Failures that may pass are waited out; others end the iteration. Whoever made the
    session calls `stop`, which gives back what was not handed out.
    """

    def __init__(
        self,
        request: Receive,
        *,
        window: int,
        receive: ReceiveCall,
        give_back: GiveBackCall,
        backoff: Backoff,
        clock: Clock,
    ) -> None:
        if window < 1:
            raise ValueError("a window needs room for at least one message")
        self._request = request
        self._window = window
        self._receive = receive
        self._give_back = give_back
        self._backoff = backoff
        self._clock = clock
        self._buffer: deque[tuple[float, StoredMessage]] = deque()
        """With the loop time until which each is surely held."""
        self._out = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._stopped = False
        self._loop_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "running"
        where = f"{self._request.topic} {self._request.group}"
        return f"<PushSession {where} {state} buffered {len(self._buffer)} out {self._out}/{self._window}>"

    @property
    def out(self) -> int:
        """Messages handed out and not settled."""
        return self._out

    def settled(self, count: int = 1) -> None:
        """`count` of the messages handed out are done: acknowledged, or given up. Makes room for others."""
        self._out = max(self._out - count, 0)
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        if self._loop_task is None and not self._stopped:
            self._loop_task = asyncio.get_running_loop().create_task(self._run())
        while True:
            if self._stopped:
                raise StopAsyncIteration
            now = self._clock.monotonic()
            while self._buffer:
                until, message = self._buffer.popleft()
                if now < until:
                    self._out += 1
                    return message
                # It waited here until its time was over: it comes again, maybe to somebody else.
                self._changed.set()
            if self._failure is not None:
                raise self._failure
            await self._wait()

    async def stop(self) -> None:
        """Take no more, end the iteration, and give back what was not handed out. May be repeated."""
        self._stopped = True
        self._changed.set()
        task = self._loop_task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        rest = [message for _, message in self._buffer]
        self._buffer.clear()
        if rest:
            await self._give_back(rest)

    async def _run(self) -> None:
        failures = 0
        try:
            while not self._stopped:
                room = self._window - self._out - len(self._buffer)
                if room <= 0:
                    await self._wait()
                    continue
                size = min(room, max(self._request.max_messages, 1))
                began = self._clock.monotonic()
                received = None
                try:
                    received = await self._receive(replace(self._request, max_messages=size))
                except GatewayError as error:
                    if not error.retryable:
                        raise
                if received is None:
                    failures += 1
                    await self._pause(self._backoff.delay(failures, self._clock.monotonic()))
                    continue
                messages, until = received
                failures = 0
                if messages:
                    self._buffer.extend((until, message) for message in messages)
                    self._changed.set()
                elif self._clock.monotonic() - began < _SHORTEST_TURN_S:
                    # Asked not to wait for messages, the loop must not spin either.
                    await self._pause(_SHORTEST_TURN_S)
        except Exception as error:
            self._failure = error
            self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _pause(self, seconds: float) -> None:
        over = asyncio.Event()
        timer = self._clock.call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()
