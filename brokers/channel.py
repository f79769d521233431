"""One remoting connection that carries many requests at once, in both directions.

A request waits in a queue until the transport takes it, so that it is known of each whether it was
written: one that was not written certainly had no effect. A single timer (`_tick`) checks the deadlines of
all requests and whether the peer still responds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, cast

from brokers.channel_settings import ChannelSettings
from brokers.keepalive import keep_alive
from popgate.answers import AnswerTooLarge
from popgate.clock import Clock, Timer
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Fault,
    LocalWireError,
    PeerWireError,
)
from popgate.sockets.wire_driver import WireDriver
from popgate.wire.frames.codes import ResponseCode, request_name
from popgate.wire.frames.remoting import VERSION, Command, RemotingWire, encode_command

_WRITE_BYTES: Final = 256 * 1024
"""About so much is handed to the transport before it is looked whether the other side still reads."""
_NEVER: Final = float("inf")
_LEAST_WAIT_S: Final = 0.02
_OPAQUES: Final = 0x7FFFFFFF
_UNANSWERED: Final = -1
"""In the queue, in the place of an opaque: nobody waits for an answer."""
_ONEWAY: Final = 2

Speaker = tuple[str, int]
"""Whose language and version a request tells, as RocketMQ names them (protocol facts 5.3): those of a
client where the gateway speaks for it."""
GATEWAY: Speaker = ("PYTHON", VERSION)


class PendingRequest:
    """A request that has no answer yet."""

    __slots__ = ("code", "deadline", "future", "opaque", "timeout_s", "written")

    def __init__(
        self, code: int, opaque: int, future: asyncio.Future[Command], deadline: float, timeout_s: float
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.future = future
        self.deadline = deadline
        self.timeout_s = timeout_s
        self.written = False


class Channel(WireDriver[RemotingWire, Command]):
    """From the moment it begins to connect until it is gone for good.

    `probe` is the request that is sent for a sign of life; any bytes are one. `on_asked` gets the other
    side's own requests, `on_late` the answers that nobody waits for any more. `on_over` is called once,
    with why. Until `trust`, frames may have `first_frame_bytes`.
    """

    def __init__(
        self,
        name: str,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: ChannelSettings,
        probe: Callable[[int], bytes],
        on_asked: Callable[[Channel, Command], None],
        on_opened: Callable[[Channel], None],
        on_over: Callable[[Channel, str], None],
        on_late: Callable[[Channel, Command], None] | None = None,
        first_frame_bytes: int | None = None,
    ) -> None:
        most = first_frame_bytes or settings.max_frame_bytes
        super().__init__(RemotingWire(max_frame=most, skips=first_frame_bytes is None), loop)
        self.name = name
        self.open = False
        self.over = False
        self.leaving = False
        self.good = False
        """Something was answered, so that the other side is what we take it for."""
        self.late = 0
        self.probes = 0
        self._clock = clock
        self._settings = settings
        self._probe = probe
        self._on_asked = on_asked
        self._on_opened = on_opened
        self._on_over = on_over
        self._on_late = on_late
        self._waiting: dict[int, PendingRequest] = {}
        self._queue: deque[tuple[int, bytes, Callable[[], None] | None]] = deque()
        self._queued_bytes = 0
        self._opaque = 0
        self._probe_opaque = -1
        self._heard_at = self._busy_since = clock.monotonic()
        self._probed_at = _NEVER
        self._alarm: Timer | None = None
        self._alarm_at = _NEVER
        self._why = ""
        self._finishing = False

    def __repr__(self) -> str:
        state = "over" if self.over else "leaving" if self.leaving else "open" if self.open else "connecting"
        return f"<Channel {self.name} {state} in-flight {len(self._waiting)} queued {len(self._queue)}>"

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def heard_at(self) -> float:
        """When the other side sent something, or when the connection was opened, in loop seconds."""
        return self._heard_at

    @property
    def awaits_sign(self) -> bool:
        """Whether a sign of life was asked for, and nothing came since."""
        return self._probed_at != _NEVER

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    def trust(self) -> None:
        """It is proved who the other side is: from the next read on its frames may have their full size."""
        self.wire = RemotingWire(max_frame=self._settings.max_frame_bytes, skips=True)

    def ask(
        self,
        code: int,
        fields: Mapping[str, str],
        body: bytes,
        now: float,
        timeout_s: float,
        speaker: Speaker = GATEWAY,
    ) -> PendingRequest:
        """Send a request; its future has the answer, or BrokerUnavailable, or BrokerTimeout.

        Raises BrokerBusy when too many wait already, BrokerUnavailable on a channel that is over,
        BadRequest for what fits into no frame.
        """
        if self.over:
            raise BrokerUnavailable(f"{self.name} cannot be reached: {self._why}")
        waiting = self._waiting
        if len(waiting) >= self._settings.max_in_flight:
            raise BrokerBusy(f"{self.name} owes {len(waiting)} answers, and no more are waited for")
        opaque = self._opaque = (self._opaque + 1) & _OPAQUES
        while opaque in waiting:
            opaque = self._opaque = (self._opaque + 1) & _OPAQUES
        command = Command(code, opaque, 0, cast("dict[str, str]", fields), body, "", *speaker)
        self._enqueue(opaque, _encode(command))
        if not waiting:
            self._busy_since = now
        request = PendingRequest(code, opaque, self.loop.create_future(), now + timeout_s, timeout_s)
        waiting[opaque] = request
        at = now + min(timeout_s, self._settings.probe_s)
        if at < self._alarm_at:
            self._arm(at, now)
        return request

    def tell(self, code: int, fields: Mapping[str, str], body: bytes, speaker: Speaker = GATEWAY) -> None:
        """Send a request that is not answered. Raises BrokerBusy when too much waits to be written."""
        opaque = self._opaque = (self._opaque + 1) & _OPAQUES
        command = Command(code, opaque, _ONEWAY, cast("dict[str, str]", fields), body, "", *speaker)
        self._enqueue(_UNANSWERED, _encode(command))

    def answer(self, command: Command, undone: Callable[[], None] | None = None) -> bool:
        """Answer a request of the other side; dropped when it is gone, or does not read what it is told.

        False: dropped. `undone` is called when the answer was certainly not written. Raises
        LocalWireError, and calls nothing, for one that does not fit into a frame.
        """
        data = encode_command(command)
        if not self.over and self._queued_bytes <= self._settings.max_queued_bytes:
            self._put(_UNANSWERED, data, undone)
            return True
        if undone is not None:
            undone()
        return False

    def forget(self, request: PendingRequest) -> None:
        """Nobody waits for this answer any more; it is not sent if it can be helped."""
        self._waiting.pop(request.opaque, None)
        if self.leaving and not self._waiting:
            self.close("everything was answered")

    def leave(self) -> None:
        """No new requests will come; closed when the last of the old ones is answered, or its time over."""
        self.leaving = True
        if not self._waiting:
            self.close("the other side asked us to go")

    def close(self, why: str) -> None:
        """End it now. What was written fails with BrokerTimeout, what was not with BrokerUnavailable."""
        self._why = self._why or why
        self.cut()
        self._end()

    def finish(self, why: str) -> None:
        """Close when all that there is to write was written; when depends on the other side, too."""
        self._why = self._why or why
        self._finishing = True
        self._write()

    def _enqueue(self, opaque: int, data: bytes) -> None:
        if self._queue and self._queued_bytes + len(data) > self._settings.max_queued_bytes:
            raise BrokerBusy(f"{self.name} does not read: {self._queued_bytes} bytes wait to be written")
        self._put(opaque, data)

    def _put(self, opaque: int, data: bytes, undone: Callable[[], None] | None = None) -> None:
        self._queue.append((opaque, data, undone))
        self._queued_bytes += len(data)
        self.write_soon()

    def _write(self) -> None:
        super()._write()
        if self._finishing and not self._queue and self.transport is not None:
            self.transport.close()

    def outgoing(self) -> list[bytes]:
        taken: list[bytes] = []
        size = 0
        queue, waiting = self._queue, self._waiting
        while queue and size < _WRITE_BYTES:
            opaque, data, _ = queue.popleft()
            size += len(data)
            if opaque != _UNANSWERED:
                request = waiting.get(opaque)
                if request is None:
                    self._queued_bytes -= len(data)
                    size -= len(data)
                    continue
                request.written = True
            self._queued_bytes -= len(data)
            taken.append(data)
        return taken

    def on_open(self, transport: asyncio.Transport) -> None:
        if self.over:
            transport.abort()
            return
        self.open = True
        self._heard_at = self._busy_since = self._clock.monotonic()
        sock = transport.get_extra_info("socket")
        if sock is not None:
            keep_alive(sock.fileno(), self._settings.probe_s)
        self._arm_next(self._heard_at)
        self._on_opened(self)

    def on_heard(self) -> None:
        self._heard_at = self._clock.monotonic()
        self._probed_at = _NEVER

    def on_event(self, event: Command) -> None:
        if event.is_response:
            request = self._waiting.pop(event.opaque, None)
            # A caller that is cancelled runs only in the next turn of the loop: until then its request is
            # still here, and its future is cancelled already.
            if request is None or request.future.done():
                self.late += event.opaque != self._probe_opaque
                if self._on_late is not None:
                    self._on_late(self, event)
            elif event.skipped:
                request.future.set_exception(AnswerTooLarge(self.name, request.code, event))
            else:
                request.future.set_result(event)
            self.good = self.good or event.code != ResponseCode.GO_AWAY
            if self.leaving and not self._waiting:
                self.close("everything was answered")
        else:
            self._on_asked(self, event)

    def on_nonsense(self, error: PeerWireError) -> None:
        self.close(f"it does not speak the remoting protocol: {error}")

    def on_gone(self, error: BaseException | None) -> None:
        self._why = self._why or ("the connection was closed" if error is None else f"{error}")
        self._end()

    def _end(self) -> None:
        if self.over:
            return
        self.over, self.open = True, False
        if self._alarm is not None:
            self._alarm.cancel()
        waiting, self._waiting = self._waiting, {}
        queue, self._queue = self._queue, deque()
        self._queued_bytes = 0
        for request in waiting.values():
            if not request.future.done():
                request.future.set_exception(self._lost(request))
        for _, _, undone in queue:
            if undone is not None:
                undone()
        self._on_over(self, self._why)

    def _lost(self, request: PendingRequest) -> BrokerTimeout | BrokerUnavailable:
        if request.written:
            return BrokerTimeout(
                f"{self.name} was lost before it answered {request_name(request.code)}: {self._why}"
            )
        return BrokerUnavailable(f"{self.name} cannot be reached: {self._why}")

    def _arm_next(self, now: float) -> None:
        """Ring for the earliest deadline, or when a sign of life is due."""
        settings = self._settings
        if self._waiting:
            at = min(request.deadline for request in self._waiting.values())
            at = min(at, max(self._heard_at, self._busy_since) + settings.probe_s)
        else:
            at = self._heard_at + settings.heartbeat_s
        if self._probed_at != _NEVER:
            at = min(at, self._probed_at + settings.probe_s)
        self._arm(max(at, now + _LEAST_WAIT_S), now)

    def _arm(self, at: float, now: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._clock.call_later(at - now, self._tick)

    def _tick(self) -> None:
        now = self._clock.monotonic()
        self._alarm_at = _NEVER
        silent = self._expire(now)
        if self.over:
            return
        if self.open:
            if self._probed_at != _NEVER:
                if now >= self._probed_at + self._settings.probe_s:
                    self.close(f"silent for {now - self._heard_at:.1f} s, also when asked for a sign of life")
                    return
            elif silent or now >= self._sign_due():
                self._ask_for_sign(now)
        if self.leaving and not self._waiting:
            self.close("everything was answered")
            return
        self._arm_next(now)

    def _sign_due(self) -> float:
        if self._waiting:
            return max(self._heard_at, self._busy_since) + self._settings.probe_s
        return self._heard_at + self._settings.heartbeat_s

    def _ask_for_sign(self, now: float) -> None:
        self.probes += 1
        self._probed_at = now
        self._opaque = self._probe_opaque = (self._opaque + 1) & _OPAQUES
        # Past every bound: it is small, and there is one of them.
        data = self._probe(self._opaque)
        self._queue.append((_UNANSWERED, data, None))
        self._queued_bytes += len(data)
        self.write_soon()

    def _expire(self, now: float) -> bool:
        """Fail what is over its time; whether the other side said nothing since that was asked."""
        due = [request for request in self._waiting.values() if request.deadline <= now]
        unwritten = silent = False
        for request in due:
            del self._waiting[request.opaque]
            sentence = (
                f"{self.name} did not answer {request_name(request.code)} within {request.timeout_s:.1f} s"
            )
            if request.written:
                silent = silent or self._heard_at < request.deadline - request.timeout_s
                failure: BrokerTimeout | BrokerUnavailable = BrokerTimeout(sentence)
            else:
                unwritten = True
                failure = BrokerUnavailable(f"{self.name} took nothing within {request.timeout_s:.1f} s")
            if not request.future.done():
                request.future.set_exception(failure)
        if unwritten:
            left = [each for each in self._queue if each[0] == _UNANSWERED or each[0] in self._waiting]
            self._queue = deque(left)
            self._queued_bytes = sum(len(data) for _, data, _ in left)
        return silent


def _encode(command: Command) -> bytes:
    try:
        return encode_command(command)
    except LocalWireError as error:
        raise BadRequest(f"the broker cannot be told this: {error}", Fault.BODY_TOO_LARGE) from None
