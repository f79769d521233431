"""One request in progress, and what its connection needs of the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from popgate.wire.frames.remoting import Command
from processors.budgets import Allowance
from protocols.eager_tasks import EagerTask
from protocols.remoting.door import Door
from protocols.remoting.requests import Request

if TYPE_CHECKING:
    from protocols.remoting.connections.connection import RemotingConnection


class Host(Protocol):
    """What a connection asks of its server."""

    max_requests: int
    """Requests of one connection that are under way, above which it is not read. Long polls do not count."""
    max_waiting: int
    """Long polls of one connection; more are answered SYSTEM_BUSY."""
    door: Door

    def on_open(self, connection: RemotingConnection) -> bool:
        """False: there are too many."""
        ...

    def on_told(self, connection: RemotingConnection, peer: tuple[str, int] | None) -> bool:
        """Apply the address of a PROXY header; None: the balancer itself. False: too many from there."""
        ...

    def on_closed(self, connection: RemotingConnection) -> None: ...

    def on_violation(self, connection: RemotingConnection, kind: str) -> None:
        """It is closed for something."""
        ...

    def on_refused(self, connection: RemotingConnection) -> None:
        """It has too many long polls for one more."""
        ...

    def turns_away(self, command: Command) -> bool:
        """Whether a request is served elsewhere from now on."""
        ...

    def holds_back(self, call: RemotingCall, answer: Command) -> bool:
        """Whether an answer waits for `go_on`: who gets it would ask the same again at once."""
        ...

    def on_unfinished(self, connection: RemotingConnection, more: int) -> None:
        """It holds so many bytes more, or fewer, of a request that has not come as a whole."""
        ...

    def allowance(self, connection: RemotingConnection) -> Allowance: ...
    def on_begin(self, call: RemotingCall) -> None: ...
    def on_end(self, call: RemotingCall) -> None: ...


class RemotingCall:
    """One request under way."""

    __slots__ = ("_answer", "_running", "connection", "late", "request", "waits")

    def __init__(self, connection: RemotingConnection, request: Request, *, waits: bool) -> None:
        self.connection = connection
        self.request = request
        self.waits = waits
        self.late = False
        """Whether it came when the drain had begun."""
        self._running: EagerTask | None = None
        self._answer: Command | None = None

    def run(self, door: Door, loop: asyncio.AbstractEventLoop) -> None:
        self._running = EagerTask(self._serve(door), loop, self._ended)
        self._running.start()

    async def _serve(self, door: Door) -> None:
        self._answer = await door.serve(self.request)

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _ended(self, error: BaseException | None) -> None:
        # Each would keep the other until the collector comes.
        self._running = None
        self.connection.ended(self, self._answer, error)
