"""A request as handlers see it, and what they know of its connection.

A room of this door (`SendHandler`, `PullHandler`, …) is a class whose `handlers` returns the request codes
that it serves. A handler returns a command, or None for a one-way request; it raises a GatewayError for
what it cannot do, and `protocols.remoting.codec.errors` has the code for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from popgate.clock import Clock
from popgate.context import Context
from popgate.model import StoredMessage
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command
from processors.messaging import MessagingProcessor


class Peer(Protocol):
    """The other side of a connection: a client, or several of one process."""

    client_id: str
    """What its last heartbeat named; "" before. Whoever serves heartbeats sets it."""

    @property
    def version(self) -> int:
        """Of its library, from its last request: the ordinal of RocketMQ's MQVersion."""
        ...

    @property
    def language(self) -> str: ...

    @property
    def address(self) -> str:
        """Its end of the connection, "host:port"."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the connection is open."""
        ...

    def tell(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        """Send a one-way request; False when the queue is full."""
        ...

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> asyncio.Future[Command] | None:
        """Send a request; its answer. None when it cannot be taken.

        The future fails with BrokerUnavailable when the connection ends. Whoever cancels it is not answered.
        """
        ...

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call this once, when the connection is over; at once when it is over already."""
        ...


@dataclass(slots=True, init=False)
class Request:
    """A command that came. `context.client_id` is what the connection's last heartbeat named."""

    command: Command
    context: Context
    peer: Peer
    unwritten: Callable[[], None] | None
    """Called when the answer never went out: the connection ended first, or it fits into no frame."""
    told: Callable[[Sequence[StoredMessage]], Sequence[StoredMessage]] | None
    """How its client is told messages, where that is not as the broker has them."""

    # Written out, because mypyc does not compile what a dataclass makes: there is one for every frame.
    def __init__(self, command: Command, context: Context, peer: Peer) -> None:
        self.command = command
        self.context = context
        self.peer = peer
        self.unwritten = None
        self.told = None

    def as_told(self, messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """Messages as its client is to see their queues and places."""
        return self.told(messages) if self.told is not None else messages

    @property
    def fields(self) -> Mapping[str, str]:
        return self.command.fields

    def answer(
        self, fields: Mapping[str, str] | None = None, body: bytes = b"", *, code: int = ResponseCode.SUCCESS
    ) -> Command:
        return self.command.answer(code, fields=fields, body=body)

    def refusal(self, code: int, remark: str) -> Command:
        return self.command.answer(code, remark)


Handler = Callable[[Request], Coroutine[Any, Any, Command | None]]


@dataclass(slots=True, frozen=True)
class DoorContext:
    """What every room of the door is given.

    `address`: the address for a client, "host:port": the one that it used, or the advertised one.
    `ends`: callbacks for the door's end, by which rooms unregister from the processor.
    """

    processor: MessagingProcessor
    clock: Clock
    address: Callable[[Context], str]
    ends: ExitStack = field(default_factory=ExitStack)


class Room(Protocol):
    """Serves some request codes."""

    def handlers(self) -> Mapping[int, Handler]: ...

    def drain(self) -> None:
        """End what waits for something that may not come; nothing waits from now on."""
        ...
