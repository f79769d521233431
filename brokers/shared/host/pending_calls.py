"""The pending calls of a guest at its host, and the return of messages that the guest did not get."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from brokers.channel import Channel
from brokers.port import Broker
from brokers.shared.codec.calls import CANCELLED, DONE, FAILED, TAKING, WAITING, Call, encode
from brokers.shared.codec.errors import ERROR
from brokers.shared.codec.kinds import Sink, Source
from brokers.shared.settings import SharedSettings
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerUnavailable,
    GatewayError,
    Internal,
    LocalWireError,
    PeerWireError,
    TooManyRequests,
    Unsupported,
)
from popgate.model import Pop, StoredMessage
from popgate.wire.frames.codes import PortCode
from popgate.wire.frames.remoting import Command

_log = logging.getLogger(__name__)

Method = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(slots=True)
class HostContext:
    """What all guests of a host have in common. `methods`: by code, what the broker can do."""

    broker: Broker
    clock: Clock
    settings: SharedSettings
    loop: asyncio.AbstractEventLoop
    methods: dict[int, Method]
    work: set[asyncio.Task[None]] = field(default_factory=set)
    """Messages that are being given back, whether their guest is still there or not."""
    given_back: int = 0


class PendingCalls:
    """The calls of one guest, answered on its channel."""

    def __init__(self, host_context: HostContext, channel: Channel) -> None:
        self.host_context = host_context
        self.channel = channel
        self.name = "?"
        self.taking_bytes = 0
        """Taken and not in the channel's queue yet."""
        self.lite_clients: set[str] = set()
        """The keys of clients that subscribed to lite topics through this guest."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, call: Call[..., Any], request: Command) -> None:
        """Start a call; what is wrong with it is answered at once. Raises PeerWireError."""
        host_context, opaque = self.host_context, request.opaque
        if opaque in self._running:
            raise PeerWireError(f"call {opaque} is under way already")
        try:
            if self._stopping:
                raise BrokerUnavailable("the host of the broker is stopping")
            if len(self._running) >= host_context.settings.max_in_flight:
                raise TooManyRequests(f"{len(self._running)} calls of this gateway are under way already")
            method = host_context.methods.get(call.code)
            if method is None:
                raise Unsupported(f"{call.name} at this broker")
            try:
                args, named = call.read(Source(request.body, host_context.clock.monotonic()))
            except PeerWireError as error:
                raise BadRequest(f"the arguments of {call.name} cannot be read: {error}") from error
        except GatewayError as error:
            self.refuse(request, error)
            return
        task = host_context.loop.create_task(self._serve(call, request, method, args, named))
        self._running[opaque] = task
        if call.code in WAITING:
            self._waiting.add(task)
        task.add_done_callback(partial(self._ended, request))

    def cancel(self, opaque: int) -> None:
        """The guest gave a call up; one that is answered already is its own to undo."""
        task = self._running.get(opaque)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        for task in self._running.values():
            task.cancel()

    async def stop(self) -> None:
        """End what waits, let the rest finish for a moment, then end it too."""
        self._stopping = True
        for task in self._waiting:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=self.host_context.settings.stop_s)
        self.cancel_all()
        while self._running:
            await asyncio.wait(self._running.values())

    def refuse(self, request: Command, error: GatewayError) -> None:
        self.reply(request, FAILED, encode(ERROR, error))

    def reply(self, request: Command, code: int, body: bytes) -> None:
        if not request.is_oneway:
            self._say(request.answer(code, body=body))

    # -- inside -------------------------------------------------------------------------------

    def _say(self, answer: Command, undone: _GivingBack | None = None) -> None:
        """Send a response. If it has to be dropped, close the connection: the guest would wait for it."""
        if not self.channel.answer(answer, undone) and not self.channel.over:
            self.channel.close("it does not read its answers")

    async def _serve(
        self,
        call: Call[..., Any],
        request: Command,
        method: Method,
        args: list[Any],
        named: dict[str, Any],
    ) -> None:
        room = None
        if call.code in WAITING:
            room = args[0].allowance = _Room(self)
        try:
            result = await method(*args, **named)
        except GatewayError as error:
            self.refuse(request, error)
        except Exception:
            _log.exception("%s, asked by the gateway %s, went wrong", call.name, self.name)
            self.refuse(request, Internal(f"the host of the broker could not do {call.name}"))
        else:
            self._done(call, request, args, result)
        finally:
            if room is not None:
                self.taking_bytes -= room.held

    def _ended(self, request: Command, task: asyncio.Task[None]) -> None:
        """Here, because a task that is cancelled early never comes to its own end."""
        del self._running[request.opaque]
        self._waiting.discard(task)
        if task.cancelled():
            self.reply(request, CANCELLED, b"")
        elif (error := task.exception()) is not None:
            _log.error("answering the gateway %s went wrong", self.name, exc_info=error)
            self.channel.close("its call went wrong")

    def _done(self, call: Call[..., Any], request: Command, args: list[Any], result: Any) -> None:
        if request.is_oneway:
            return
        undone = None
        if call.code in TAKING and result:
            undone = _GivingBack(self.host_context, args[0], args[1], result)
        elif (
            call.code == PortCode.SUBSCRIBE_LITE
            and len(self.lite_clients) < self.host_context.settings.max_lite_clients
        ):
            self.lite_clients.add(args[0].client_key)
        try:
            sink = Sink(self.host_context.clock.monotonic())
            call.write_result(sink, result)
            self._say(request.answer(DONE, body=sink.data()), undone)
        except LocalWireError as error:
            _log.error("what %s found cannot be told: %s", call.name, error)
            if undone is not None:
                undone()
            self.refuse(request, Internal(f"what {call.name} found cannot be told: {error}"))


class _Room:
    """The allowance of one pop or pull: a guest that does not read is given no more."""

    __slots__ = ("_serving", "held")

    def __init__(self, serving: PendingCalls) -> None:
        self._serving = serving
        self.held = 0

    def for_group(self, group: str) -> None:
        """Rooms of groups are the guest's own matter."""

    def room(self) -> int:
        serving = self._serving
        held = serving.taking_bytes + serving.channel.queued_bytes
        # Half of the queue is for messages, so that what is said beside them never has to be dropped.
        left = serving.host_context.settings.max_queued_bytes // 2 - held
        if left <= 0:
            raise TooManyRequests(f"the gateway has {held} bytes of messages to read first", alone=True)
        return left

    def take(self, size: int) -> None:
        if size > self.room():
            raise TooManyRequests(f"there is no room for {size} bytes on the way to the gateway", alone=True)
        self.add(size)

    def add(self, size: int) -> None:
        self.held += size
        self._serving.taking_bytes += size


class _GivingBack:
    """Called when an answer with messages was certainly not written."""

    __slots__ = ("_context", "_host_context", "_messages", "_request")

    def __init__(
        self, host_context: HostContext, context: Context, request: Pop, messages: list[StoredMessage]
    ) -> None:
        self._host_context = host_context
        self._context = context
        self._request = request
        self._messages = messages

    def __call__(self) -> None:
        task = self._host_context.loop.create_task(self._give_back())
        self._host_context.work.add(task)
        task.add_done_callback(self._host_context.work.discard)

    async def _give_back(self) -> None:
        receipts = [message.receipt for message in self._messages]
        request = self._request
        try:
            freed = await self._host_context.broker.give_back(
                self._context, request.topic, request.group, receipts
            )
        except GatewayError as error:
            _log.warning("%d messages that no gateway got come back later: %s", len(receipts), error.sentence)
        else:
            self._host_context.given_back += freed
