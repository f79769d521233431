"""One guest at its host: who it is, what is under way for it, and what becomes of that when it goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from brokers.capabilities import LiteTopics
from brokers.channel import Channel
from brokers.port import Broker
from brokers.shared.calls import (
    CALLS,
    CANCELLED,
    CHECK,
    DONE,
    FAILED,
    GONE,
    LEFT,
    TAKING,
    WAITING,
    Call,
    decode,
    encode,
)
from brokers.shared.errors import ERROR
from brokers.shared.hello import (
    CLIENTS,
    FACTS,
    STATE,
    HostFacts,
    HostState,
    check_hello,
    check_proof,
    hello_fields,
    make_nonce,
    proof,
)
from brokers.shared.kinds import Sink, Source
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
from popgate.model import Pop, StoredMessage, TransactionCheck
from popgate.wire.codes import PortCode
from popgate.wire.remoting import Command, encode_command

_log = logging.getLogger(__name__)

_CHECK_S = 2.0
_FIRST_FRAME = 16 * 1024
"""Bytes: nobody needs more to say who it is."""
_MOST_ASKED_ABOUT = 2_000


@dataclass(slots=True)
class House:
    """What all guests of a host have in common. `methods`: by code, what the broker can do."""

    broker: Broker
    clock: Clock
    settings: SharedSettings
    loop: asyncio.AbstractEventLoop
    on_over: Callable[[Guest], None]
    work: set[asyncio.Task[None]] = field(default_factory=set)
    """Work that goes on without its guest: messages that are given back."""
    methods: dict[int, Callable[..., Coroutine[Any, Any, Any]]] = field(default_factory=dict)
    given_back: int = 0

    def facts(self) -> HostFacts:
        return HostFacts(self.broker.name, self.broker.traits)


class _Room:
    """The allowance of one pop: a guest that does not read is given no more."""

    __slots__ = ("_guest", "held")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self.held = 0

    def for_group(self, group: str) -> None:
        return

    def room(self) -> int:
        guest = self._guest
        left = guest.house.settings.max_queued_bytes - guest.taking_bytes - guest.channel.queued_bytes
        if left <= 0:
            raise TooManyRequests("the gateway does not read what it was sent already", alone=True)
        return left

    def take(self, size: int) -> None:
        if size > self.room():
            raise TooManyRequests("the gateway does not read what it was sent already", alone=True)
        self.add(size)

    def add(self, size: int) -> None:
        self.held += size
        self._guest.taking_bytes += size


class Guest:
    """A connection of a gateway, from its first byte to its last."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.name = "?"
        self.proved = False
        self.over = False
        self.taking_bytes = 0
        self.channel = Channel(
            "a gateway",
            loop=house.loop,
            clock=house.clock,
            settings=house.settings,
            probe=_probe,
            on_asked=self._asked,
            on_opened=self._opened,
            on_over=self._over,
            first_frame_bytes=_FIRST_FRAME,
        )
        self._running: dict[int, asyncio.Task[None]] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._clients: set[str] = set()
        self._guest_nonce = ""
        self._nonce = ""
        self._stopping = False
        self._gone = house.loop.create_future()

    def __repr__(self) -> str:
        return f"<Guest {self.name} in-flight {len(self._running)} {self.channel!r}>"

    @property
    def in_flight(self) -> int:
        return len(self._running)

    # -- told by the host ----------------------------------------------------------------------

    async def check(self, check: TransactionCheck) -> bool:
        """Whether the guest found a producer to ask."""
        one = self.channel.ask(
            PortCode.CHECK, {}, encode(CHECK, check), self.house.clock.monotonic(), _CHECK_S
        )
        try:
            answer = await one.future
        except GatewayError:
            return False
        except asyncio.CancelledError:
            self.channel.forget(one)
            raise
        return answer.code == DONE and answer.body == b"\1"

    def lite_gone(self, client_id: str, group: str, topic: str, lite_topic: str) -> None:
        self._tell(PortCode.LITE_GONE, encode(GONE, (client_id, group, topic, lite_topic)))

    def leaving(self) -> None:
        """The host is about to stop."""
        self._tell(PortCode.LEAVING, b"")

    async def stop(self) -> None:
        """End what waits, let the rest finish for a moment, and close when that was told."""
        self._stopping = True
        for task in self._waiting:
            task.cancel()
        patience_s = self.house.settings.stop_s
        if self._running:
            await asyncio.wait(self._running.values(), timeout=patience_s)
        for task in self._running.values():
            task.cancel()
        while self._running:
            await asyncio.wait(self._running.values())
        self.channel.finish("the host stopped")
        if not self.over:
            await asyncio.wait((self._gone,), timeout=patience_s)
            self.channel.close("the host stopped")

    # -- heard from the connection --------------------------------------------------------------

    def _opened(self, channel: Channel) -> None:
        self.house.clock.call_later(self.house.settings.hello_s, self._prove_in_time)

    def _prove_in_time(self) -> None:
        if not self.proved and not self.over:
            self.channel.close("it did not say who it is")

    def _asked(self, channel: Channel, command: Command) -> None:
        try:
            self._answer(command)
        except PeerWireError as error:
            _log.warning("the gateway %s spoke nonsense: %s", self.name, error)
            channel.close(f"it spoke nonsense: {error}")
        except Exception:
            _log.exception("what the gateway %s asked went wrong", self.name)
            channel.close("it asked for what went wrong")

    def _answer(self, command: Command) -> None:
        code = command.code
        if not self.proved:
            self._meet(command)
        elif (call := CALLS.get(code)) is not None:
            self._begin(call, command)
        elif code == PortCode.CANCEL:
            task = self._running.get(int.from_bytes(command.body[:4], "big"))
            if task is not None:
                task.cancel()
        elif code == PortCode.STATE:
            self._reply(command, DONE, encode(STATE, self._state(command.body)))
        elif code == PortCode.LITE_LEFT:
            client_id, said_so = decode(LEFT, command.body)
            self._clients.discard(client_id)
            if isinstance(self.house.broker, LiteTopics):
                self.house.broker.leave_lite(client_id, said_so=said_so)
        else:
            self._refuse(command, Unsupported(f"request {code} between gateways"))

    def _meet(self, command: Command) -> None:
        """HELLO, then PROVE; whatever else comes first ends the connection."""
        settings = self.house.settings
        try:
            if command.code == PortCode.HELLO and not self._nonce:
                self._nonce = make_nonce()
                self.name = command.fields.get("gateway", "?")[:80]
                self._guest_nonce = check_hello(command.fields, other="gateway")
                self.channel.answer(command.answer(DONE, fields=hello_fields(self._nonce)))
                return
            if command.code != PortCode.PROVE or not self._guest_nonce:
                raise BadRequest("a gateway says hello first")
            known = proof(settings.secret, "guest", self._guest_nonce, self._nonce)
            check_proof(known, command.fields.get("proof", ""), other="gateway")
        except GatewayError as error:
            _log.warning("a gateway is refused: %s", error.sentence)
            self.channel.answer(command.answer(FAILED, error.sentence, body=encode(ERROR, error)))
            self.channel.finish("it was refused")
            return
        self.proved = True
        self.channel.trust()
        fields = {"proof": proof(settings.secret, "host", self._guest_nonce, self._nonce)}
        facts = encode(FACTS, self.house.facts())
        self.channel.answer(command.answer(DONE, fields=fields, body=facts))

    def _begin(self, call: Call[..., Any], command: Command) -> None:
        """Start a call as a task of its own; what is wrong with it is answered at once."""
        house, opaque = self.house, command.opaque
        if opaque in self._running:
            raise PeerWireError(f"call {opaque} is under way already")
        try:
            if self._stopping:
                raise BrokerUnavailable("the host of the broker is stopping")
            if len(self._running) >= house.settings.max_in_flight:
                raise TooManyRequests(f"{len(self._running)} calls of this gateway are under way already")
            method = house.methods.get(call.code)
            if method is None:
                raise Unsupported(f"{call.name} at this broker")
            try:
                args, named = call.read(Source(command.body, house.clock.monotonic()))
            except PeerWireError as error:
                raise BadRequest(f"the arguments of {call.name} cannot be read: {error}") from error
        except GatewayError as error:
            self._refuse(command, error)
            return
        task = house.loop.create_task(self._serve(call, command, method, args, named))
        self._running[opaque] = task
        if call.code in WAITING:
            self._waiting.add(task)
        task.add_done_callback(partial(self._ended, command))

    async def _serve(
        self,
        call: Call[..., Any],
        command: Command,
        method: Callable[..., Coroutine[Any, Any, Any]],
        args: list[Any],
        named: dict[str, Any],
    ) -> None:
        room = None
        if call.code in WAITING:
            room = args[0].allowance = _Room(self)
        try:
            result = await method(*args, **named)
        except GatewayError as error:
            self._refuse(command, error)
        except Exception:
            _log.exception("%s, asked by the gateway %s, went wrong", call.name, self.name)
            self._refuse(command, Internal(f"the host of the broker could not do {call.name}"))
        else:
            self._done(call, command, args, result)
        finally:
            if room is not None:
                self.taking_bytes -= room.held

    def _ended(self, command: Command, task: asyncio.Task[None]) -> None:
        """Here, because a task that is cancelled early never comes to its own end."""
        del self._running[command.opaque]
        self._waiting.discard(task)
        if task.cancelled():
            self._reply(command, CANCELLED, b"")
        elif (error := task.exception()) is not None:
            _log.error("answering the gateway %s went wrong", self.name, exc_info=error)
            self.channel.close("its call went wrong")

    def _done(self, call: Call[..., Any], command: Command, args: list[Any], result: Any) -> None:
        if command.is_oneway:
            return
        undone = None
        if call.code == PortCode.SUBSCRIBE_LITE and len(self._clients) < self.house.settings.max_lite_clients:
            self._clients.add(args[0].client_id)
        if call.code in TAKING and result:
            undone = _GivingBack(self.house, args[0], args[1], result)
        try:
            sink = Sink(self.house.clock.monotonic())
            call.write_result(sink, result)
            self.channel.answer(command.answer(DONE, body=sink.data()), undone)
        except LocalWireError as error:
            _log.error("what %s found cannot be told: %s", call.name, error)
            if undone is not None:
                undone()
            self._refuse(command, Internal(f"what {call.name} found cannot be told: {error}"))

    def _state(self, body: bytes) -> HostState:
        asked = decode(CLIENTS, body)[:_MOST_ASKED_ABOUT]
        broker = self.house.broker
        counts = (
            tuple(broker.lite_subscriptions(client_id) for client_id in asked)
            if isinstance(broker, LiteTopics)
            else ()
        )
        return HostState(broker.figures(), counts)

    def _refuse(self, command: Command, error: GatewayError) -> None:
        self._reply(command, FAILED, encode(ERROR, error))

    def _reply(self, command: Command, code: int, body: bytes) -> None:
        if not command.is_oneway:
            self.channel.answer(command.answer(code, body=body))

    def _tell(self, code: int, body: bytes) -> None:
        if self.proved and not self.over:
            self.channel.tell(code, {}, body)

    def _over(self, channel: Channel, why: str) -> None:
        self.over = True
        self._gone.set_result(None)
        for task in self._running.values():
            task.cancel()
        broker = self.house.broker
        if isinstance(broker, LiteTopics):
            for client_id in self._clients:
                broker.leave_lite(client_id, said_so=False)
        self._clients.clear()
        self.house.on_over(self)


class _GivingBack:
    """Called when an answer with messages was certainly not written."""

    __slots__ = ("_context", "_house", "_messages", "_request")

    def __init__(self, house: House, context: Context, request: Pop, messages: list[StoredMessage]) -> None:
        self._house = house
        self._context = context
        self._request = request
        self._messages = messages

    def __call__(self) -> None:
        task = self._house.loop.create_task(self._give_back())
        self._house.work.add(task)
        task.add_done_callback(self._house.work.discard)

    async def _give_back(self) -> None:
        receipts = [message.receipt for message in self._messages]
        request = self._request
        try:
            freed = await self._house.broker.give_back(self._context, request.topic, request.group, receipts)
        except GatewayError as error:
            _log.warning("%d messages that no gateway got come back later: %s", len(receipts), error.sentence)
        else:
            self._house.given_back += freed


def _probe(opaque: int) -> bytes:
    return encode_command(Command(PortCode.STATE, opaque))
