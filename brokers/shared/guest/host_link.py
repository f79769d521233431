"""A guest's connection to its host: opened, authenticated, and reopened after it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from brokers.channel import Channel, PendingRequest
from brokers.shared.codec.calls import CANCELLED, DONE, FAILED, WAITING, Call, decode, takes_context
from brokers.shared.codec.errors import ERROR
from brokers.shared.codec.kinds import Sink, Source
from brokers.shared.guest.handshake import meet
from brokers.shared.session.addresses import Address
from brokers.shared.session.hello import HostFacts
from brokers.shared.settings import SharedSettings
from popgate.clock import Clock, pause
from popgate.errors import (
    BadRequest,
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    LocalWireError,
    PeerWireError,
    Unauthenticated,
    Unsupported,
)
from popgate.wire.frames.codes import PortCode
from popgate.wire.frames.remoting import Command, encode_command

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)
_STOPS = "its process stops"
_LEAST_S = 0.05
"""A call whose caller has no time left is given so much: it is the caller who gives up."""


class HostStopped(BrokerUnavailable):
    """The host ended a call that waited, because it stops: nothing was taken."""


class HostLink:
    """Asks the host at `address`.

    `on_asked` gets the host's own requests, `on_open` is called when the host is reached, `on_late`
    gets the answers to calls that were given up: from the host, or `CANCELLED` from here for a call that was
    never written.
    """

    def __init__(
        self,
        address: Address,
        *,
        clock: Clock,
        settings: SharedSettings,
        on_asked: Callable[[Command], Command | Awaitable[Command | None] | None],
        on_open: Callable[[HostFacts], None],
        on_late: Callable[[Command], None],
    ) -> None:
        self.address = address
        self.reconnects = 0
        self.facts: HostFacts | None = None
        self._clock = clock
        self._settings = settings
        self._on_asked = on_asked
        self._on_open = on_open
        self._on_late = on_late
        self._channel: Channel | None = None
        self._resting: Channel | None = None
        """The one to a host that stops: answers come over it, and nothing more is asked."""
        self._rested = False
        """Whether the host that was dialled last is about to close."""
        self._trouble = "it was not reached yet"
        self._reached: asyncio.Future[None] | None = None
        self._over: asyncio.Future[str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        state = "open" if self.is_open else self._trouble
        return f"<HostLink {self.address} {state} in-flight {self.in_flight}>"

    @property
    def is_open(self) -> bool:
        return self._channel is not None

    @property
    def in_flight(self) -> int:
        return self._channel.in_flight if self._channel is not None else 0

    async def start(self) -> None:
        """Reach the host, trying for a while. Raises BrokerUnavailable with a sentence for the operator."""
        self._closed = False
        until = self._clock.monotonic() + self._settings.startup_timeout_s
        rest_s = self._settings.reconnect_first_s
        while True:
            try:
                over = await self._connect()
                break
            except (Unauthenticated, Unsupported, BadRequest) as error:
                raise BrokerUnavailable(f"the broker at {self.address}: {error.sentence}") from None
            except (GatewayError, OSError) as error:
                reason = error.sentence if isinstance(error, GatewayError) else _reason(error)
                if self._clock.monotonic() >= until:
                    raise BrokerUnavailable(f"no broker is shared at {self.address}: {reason}") from None
            await pause(self._clock, rest_s)
            rest_s = min(rest_s * 2, self._settings.reconnect_longest_s)
        self._task = asyncio.get_running_loop().create_task(self._keep(over))

    async def stop(self) -> None:
        self._closed = True
        self._trouble = "this gateway is stopping"
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        channel = self._channel or self._resting
        if channel is not None:
            over = self._over
            channel.finish("this gateway is stopping")
            if over is not None and not over.done():
                await asyncio.wait((over,), timeout=self._settings.stop_s)
            if not channel.over:
                channel.close("this gateway is stopping")
        for work in list(self._work):
            work.cancel()
        while self._work:
            await asyncio.wait(self._work)
        if self._reached is not None and not self._reached.done():
            # Cancelled it would look as if who waits for it had been.
            self._reached.set_result(None)

    def rest(self) -> None:
        """The host is about to close: what is asked from now on waits for the next one."""
        self._resting, self._channel = self._channel, None
        self._trouble = _STOPS
        self._rested = True

    async def ask(self, call: Call[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Have the host do a call. Raises what its broker raises.

        BrokerUnavailable: it was certainly not done. BrokerTimeout: nobody knows.
        """
        channel = self._channel or await self._wait_for_host()
        now = self._clock.monotonic()
        sink = Sink(now)
        try:
            call.write(sink, *args, **kwargs)
            request = channel.ask(call.code, {}, sink.data(), now, self._patience(args, now))
        except LocalWireError as error:
            raise _untold(call, error) from None
        return self._result(channel, call, await self._answer_to(channel, request), now)

    async def take(
        self,
        call: Call[P, R],
        wait_s: float,
        on_sent: Callable[[int], None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """The same for a call that may wait at the host; the result, and the number of the request.

        `on_sent` is told that number before. Until there is a result, or an error that the host sent,
        the answer may still come: to `on_late`.
        """
        channel = self._channel or await self._wait_for_host()
        now = self._clock.monotonic()
        sink = Sink(now)
        try:
            call.write(sink, *args, **kwargs)
            request = channel.ask(call.code, {}, sink.data(), now, self._settings.request_timeout_s + wait_s)
        except LocalWireError as error:
            raise _untold(call, error) from None
        on_sent(request.opaque)
        return self._result(channel, call, await self._answer_to(channel, request), now)

    def tell(self, code: int, body: bytes) -> bool:
        """Tell the host something that it does not answer; dropped when it is not there.

        False: it is there, and does not read.
        """
        channel = self._channel
        if channel is not None:
            try:
                channel.tell(code, {}, body)
            except GatewayError:
                return False
        return True

    def hand(self, call: Call[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have the host do a call whose result nobody waits for, before it does what is asked afterwards.

        Where it is about to stop, or was lost, the next one does it, if it is there in a moment.
        """
        if self._channel is not None:
            sink = Sink(self._clock.monotonic())
            call.write(sink, *args, **kwargs)
            self.tell(call.code, sink.data())
        elif not self._closed:
            self._start(self._ask_for_nobody(call, *args, **kwargs))

    async def request(self, code: int, body: bytes) -> bytes:
        """Ask the host for something beside the port's calls. Raises BrokerUnavailable, BrokerTimeout."""
        channel = self._channel
        if channel is None:
            raise BrokerUnavailable(f"the broker at {self.address} cannot be reached: {self._trouble}")
        waiting = channel.ask(code, {}, body, self._clock.monotonic(), self._settings.request_timeout_s)
        try:
            answer = await waiting.future
        except asyncio.CancelledError:
            channel.forget(waiting)
            raise
        if answer.code != DONE:
            raise decode(ERROR, answer.body)
        return answer.body

    # -- inside -------------------------------------------------------------------------------

    async def _ask_for_nobody(self, call: Call[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        with contextlib.suppress(GatewayError):
            await self.ask(call, *args, **kwargs)

    def _patience(self, args: tuple[Any, ...], now: float) -> float:
        context = takes_context(args)
        patience_s = self._settings.request_timeout_s
        if context is None or context.deadline is None:
            return patience_s
        return min(patience_s, max(context.deadline - now, _LEAST_S))

    def _result(self, channel: Channel, call: Call[..., R], answer: Command, now: float) -> R:
        try:
            if answer.code == DONE:
                return call.read_result(Source(answer.body, now))
            if answer.code == CANCELLED:
                stopped = f"the broker at {self.address} stopped before {call.name} was done"
                raise HostStopped(stopped) if call.code in WAITING else BrokerTimeout(stopped)
            if answer.code != FAILED:
                raise PeerWireError(f"{call.name} is answered with code {answer.code}")
            error = decode(ERROR, answer.body)
        except PeerWireError as nonsense:
            channel.close(f"it spoke nonsense: {nonsense}")
            raise BrokerTimeout(f"the broker at {self.address} spoke nonsense: {nonsense}") from None
        raise error

    async def _answer_to(self, channel: Channel, request: PendingRequest) -> Command:
        try:
            return await request.future
        except asyncio.CancelledError:
            if (
                request.future.done()
                and not request.future.cancelled()
                and request.future.exception() is None
            ):
                self._on_late(request.future.result())  # it came in the very turn of the cancellation
            else:
                self._give_up(channel, request)
            raise
        except BrokerTimeout:
            self._give_up(channel, request)
            raise

    def _give_up(self, channel: Channel, request: PendingRequest) -> None:
        """Nobody waits for this answer: the host is told, if it knows of the call at all."""
        channel.forget(request)
        if not request.written:
            self._on_late(Command(CANCELLED, request.opaque))
        elif not channel.over:
            with contextlib.suppress(GatewayError):
                channel.tell(PortCode.CANCEL, {}, request.opaque.to_bytes(4, "big"))

    async def _wait_for_host(self) -> Channel:
        """The channel, if it is there again in a moment. Raises BrokerUnavailable."""
        if not self._closed and self._task is not None and self._settings.reconnect_wait_s > 0:
            if self._reached is None or self._reached.done():
                self._reached = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.reconnect_wait_s):
                    await asyncio.shield(self._reached)
            if self._channel is not None:
                return self._channel
        raise BrokerUnavailable(f"the broker at {self.address} cannot be reached: {self._trouble}")

    async def _keep(self, over: asyncio.Future[str]) -> None:
        """Stay connected, until stopped."""
        settings = self._settings
        while True:
            self._trouble = await over
            _log.warning("the broker at %s was lost: %s", self.address, self._trouble)
            rest_s = settings.reconnect_first_s
            while True:
                try:
                    over = await self._connect()
                    break
                except (GatewayError, OSError) as error:
                    self._trouble = error.sentence if isinstance(error, GatewayError) else _reason(error)
                # No two guests come back at the same time.
                await pause(self._clock, rest_s * random.uniform(0.5, 1.0))  # noqa: S311
                rest_s = min(rest_s * 2, settings.reconnect_longest_s)
            self.reconnects += 1
            _log.warning("the broker at %s is reached again", self.address)

    async def _connect(self) -> asyncio.Future[str]:
        """A connection, proved; a future that is done, with why, when it is over. Raises OSError too."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[str] = loop.create_future()

        def on_over(channel: Channel, why: str) -> None:
            if self._channel is channel:
                self._channel = None
            if self._resting is channel:
                self._resting = None
            self._trouble = why
            if not over.done():
                over.set_result(why)

        def made() -> Channel:
            return Channel(
                f"the broker at {self.address}",
                loop=loop,
                clock=self._clock,
                settings=self._settings,
                probe=_probe,
                on_asked=self._host_asks,
                on_opened=lambda channel: None,
                on_over=on_over,
                on_late=lambda channel, answer: self._on_late(answer),
            )

        address, self._rested = self.address, False
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                if address.path:
                    _, channel = await loop.create_unix_connection(made, address.path)
                else:
                    _, channel = await loop.create_connection(made, address.host, address.port)
        except TimeoutError:
            raise OSError(f"no connection within {self._settings.connect_timeout_s:g} s") from None
        try:
            facts = await meet(channel, self._clock, self._settings)
        except BaseException:
            channel.close("the gateways did not come to terms")
            raise
        if self._rested:
            # It said so in the turn of the loop in which it was proved: `rest` knew nothing of it.
            channel.close(_STOPS)
        if channel.over:
            # It ended in the turn of the loop in which its last words came: `on_over` knew nothing of it.
            raise BrokerUnavailable(f"the broker at {self.address} was lost: {over.result()}")
        self.facts, self._channel, self._over = facts, channel, over
        self._on_open(facts)
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(None)
        return over

    def _host_asks(self, channel: Channel, request: Command) -> None:
        try:
            answer = self._on_asked(request)
        except Exception:
            _log.exception("what the broker at %s asked went wrong", self.address)
            channel.close("what it asked went wrong")
            return
        if isinstance(answer, Command):
            channel.answer(answer)
        elif answer is not None:
            self._start(self._answer(channel, answer))

    async def _answer(self, channel: Channel, coming: Awaitable[Command | None]) -> None:
        answer = await coming
        if answer is not None:
            channel.answer(answer)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


def _probe(opaque: int) -> bytes:
    return encode_command(Command(PortCode.STATE, opaque))


def _untold(call: Call[..., Any], error: LocalWireError) -> BadRequest:
    return BadRequest(f"what {call.name} is told cannot travel to the broker: {error}")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
