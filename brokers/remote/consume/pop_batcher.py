"""Pops with equal arguments in one event-loop turn become one POP_MESSAGE; its messages are distributed.

Waiting callers have no task, shield or timer of their own: the response is passed to its batch, which
distributes the messages among callers that still wait; messages for which no caller has room are returned
to the broker. Source: protocol facts 4.3, 1 and 6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from brokers.remote.access.broker_client import BrokerClient
from brokers.remote.consume.pop_filter import PopAttempt
from popgate.answers import AnswerTooLarge
from popgate.clock import Clock, Timer
from popgate.errors import BrokerTimeout, GatewayError
from popgate.model import FilterKind, StoredMessage
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command

_log = logging.getLogger(__name__)

MOST_MESSAGES: Final = 32
"""That a broker gives in one answer (protocol facts 4.3, 1)."""
_GATHERED_BYTES: Final = 256 * 1024
"""Approximate limit of a request for several callers: a broker reads no more from a queue at a time."""
_LATE_S: Final = 60.0
"""How long the response to an abandoned request is still awaited, or twice its timeout if that is longer:
its messages can then be returned at once."""
_STOP_S: Final = 10.0
"""So long a stop waits for such answers."""
_SOON_S: Final = 0.0005
"""Timers fire slightly early, and floats are inexact: less remaining time than this counts as none."""

Key = tuple[str, str, str, int, int, bool, str]


class PopCaller:
    """A caller of `take`: requests `asks` messages, accepts up to `most`, and always the first one."""

    __slots__ = ("about", "asks", "got", "max_bytes", "most", "size", "want")

    def __init__(
        self,
        want: PopAttempt,
        asks: int,
        max_bytes: int,
        about: float,
        got: asyncio.Future[list[StoredMessage]],
    ) -> None:
        self.want = want
        self.asks = asks
        self.about = about
        """Bytes of a message, about."""
        self.most = want.request.max_messages
        self.max_bytes = max_bytes
        self.size = 0
        """Bytes of the bodies that it was dealt."""
        self.got = got


class Batch:
    """A request in progress, and the callers that share it."""

    __slots__ = ("alone", "asked", "asks", "broker", "over", "takers")

    def __init__(self, broker: str, taker: PopCaller, *, alone: bool) -> None:
        self.broker = broker
        self.takers = [taker]
        self.asks = taker.asks
        self.alone = alone
        """No other caller may join, and no further request is sent on its account."""
        self.asked = 0.0
        self.over: asyncio.Future[None] | None = None
        """For who waits until it is answered."""

    @property
    def want(self) -> PopAttempt:
        """What all of them want."""
        return self.takers[0].want

    def waiting(self) -> list[PopCaller]:
        """Those who are still there."""
        return [taker for taker in self.takers if not taker.got.done()]

    def fail(self, error: BaseException) -> None:
        for taker in self.waiting():
            taker.got.set_exception(error)


class PopReader(Protocol):
    """Builds the fields of pop requests and processes their responses."""

    def pop_fields(self, want: PopAttempt, most: int) -> dict[str, str]: ...

    def read_pop(
        self, want: PopAttempt, broker: str, answer: Command, asked: float, *, late: bool
    ) -> tuple[list[StoredMessage], int]:
        """What passes, and how much more there is. Raises what the broker fails with."""
        ...

    def return_popped(self, want: PopAttempt, messages: Sequence[StoredMessage]) -> None:
        """Nobody has them."""
        ...

    def suspect(self, broker: str) -> None:
        """It did not answer in time."""
        ...

    def too_large(self, want: PopAttempt, broker: str, answer: Command, asks: int) -> GatewayError:
        """Messages of which only the header could be read; what callers are told."""
        ...


def deal(messages: list[StoredMessage], takers: Sequence[PopCaller]) -> tuple[list[list[StoredMessage]], int]:
    """The messages for each caller, and how many of `messages` were distributed; the rest has no taker.

    Every caller gets one message, however large, before the earliest callers get all that they have room for.
    Each caller gets messages in their order, and gets no more after the first one that it has no room for.
    """
    dealt = [[message] for message in messages[: len(takers)]]
    done = len(dealt)
    for taker, its in zip(takers, dealt, strict=False):
        taker.size = len(its[0].body)
    dealt += [[] for _ in range(len(takers) - done)]
    at = 0
    while done < len(messages) and at < len(takers):
        taker, size = takers[at], len(messages[done].body)
        if len(dealt[at]) < taker.most and taker.size + size <= taker.max_bytes:
            dealt[at].append(messages[done])
            taker.size += size
            done += 1
        else:
            at += 1
    return dealt, done


class PopBatcher:
    """One request per broker, set of pop arguments and loop turn, or several if one would be too large.

    These pops do not wait at the broker, so it responds at once: after `answer_s` the caller tries others.
    """

    def __init__(self, client: BrokerClient, clock: Clock, answers: PopReader, answer_s: float) -> None:
        self._client = client
        self._clock = clock
        self._answers = answers
        self._answer_s = answer_s
        self._gathered: list[Batch] = []
        self._open: dict[Key, Batch] = {}
        """Those of `_gathered` that others may join."""
        self._under_way: dict[Batch, None] = {}
        """In the order in which they were asked; those that were given up are in `_late`."""
        self._late: set[Batch] = set()
        self._timer: Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<PopBatcher under way {len(self._under_way)} late {len(self._late)}>"

    async def take(
        self, want: PopAttempt, broker: str, asks: int, max_bytes: int, *, size: float
    ) -> list[StoredMessage]:
        """Messages for one caller, at least one if there is one; `size`: of one, about.

        A caller who is cancelled holds nothing. Raises what the broker fails with, or BrokerTimeout.
        """
        loop = self._loop
        if loop is None:  # to find it costs a call of the system before Python 3.12
            loop = self._loop = asyncio.get_running_loop()
        taker = PopCaller(want, asks, max_bytes, size, loop.create_future())
        self._join(taker, broker)
        try:
            return await taker.got
        except BaseException:
            self._left(taker)
            raise
        finally:
            del taker  # lest an error holds on to the frame that holds on to it

    async def stop(self) -> None:
        """Wait, for a limited time, for responses without callers, so that their messages are returned."""
        overs = []
        for batch in [*self._late, *self._under_way]:
            if not batch.waiting():
                batch.over = asyncio.get_running_loop().create_future()
                overs.append(batch.over)
        if overs:
            await asyncio.wait(overs, timeout=_STOP_S)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- on the way out ----------------------------------------------------------------------------

    def _join(self, taker: PopCaller, broker: str, *, first: bool = False) -> None:
        """Ask in the name of this one with others; `first`: before those who came meanwhile."""
        request = taker.want.request
        if request.ordered or request.one_per_message_group:
            self._send(Batch(broker, taker, alone=True))
            return
        passing = request.filter
        key = (
            broker,
            request.topic,
            request.group,
            request.queue_id,
            request.invisible_ms,
            passing.kind is FilterKind.SQL92,
            passing.expression,
        )
        batch = self._open.get(key)
        if batch is not None:
            asks = batch.asks + taker.asks
            if asks <= MOST_MESSAGES and asks * taker.about <= _GATHERED_BYTES:
                batch.takers.insert(0 if first else len(batch.takers), taker)
                batch.asks = asks
                return
        elif not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        other = Batch(broker, taker, alone=False)
        self._gathered.append(other)
        # Of two that have no room for all, the one with more room for who comes next.
        if batch is None or other.asks < batch.asks:
            self._open[key] = other

    def _flush(self) -> None:
        batches, self._gathered = self._gathered, []
        self._open = {}
        for batch in batches:
            batch.takers = batch.waiting()
            if batch.takers:
                self._send(batch)

    def _send(self, batch: Batch) -> None:
        answers = self._answers
        asks = batch.asks = sum([taker.asks for taker in batch.takers])
        batch.asked = self._clock.monotonic()
        self._under_way[batch] = None
        if self._timer is None:
            self._timer = self._clock.call_later(self._answer_s, self._ring)
        try:
            self._client.ask(
                batch.broker,
                RequestCode.POP_MESSAGE,
                answers.pop_fields(batch.want, asks),
                lambda answer: self._answered(batch, answer),
                timeout_s=max(_LATE_S, 2 * self._answer_s),
            )
        except Exception as error:
            self._answered(batch, error)

    # -- and back ----------------------------------------------------------------------------------

    def _answered(self, batch: Batch, answer: Command | Exception) -> None:
        self._under_way.pop(batch, None)
        self._late.discard(batch)
        if isinstance(answer, AnswerTooLarge):
            self._failed(batch, self._answers.too_large(batch.want, batch.broker, answer.answer, batch.asks))
        elif isinstance(answer, Exception):
            self._failed(batch, answer)
        else:
            try:
                self._deal(batch, answer)
            except Exception as error:
                self._failed(batch, error)
        if batch.over is not None and not batch.over.done():
            batch.over.set_result(None)

    def _failed(self, batch: Batch, error: Exception) -> None:
        """End all waiting callers, whatever the failure is."""
        if not isinstance(error, GatewayError):
            _log.error("a pop of broker %s failed", batch.broker, exc_info=error)
        # Without the frames that have those who are told.
        batch.fail(error.with_traceback(None))

    def _deal(self, batch: Batch, answer: Command) -> None:
        """Raises what the broker fails with."""
        answers = self._answers
        want, takers = batch.want, batch.waiting()
        messages, rest = answers.read_pop(want, batch.broker, answer, batch.asked, late=not takers)
        dealt, done = deal(messages, takers)
        if done < len(messages):
            answers.return_popped(want, messages[done:])
        unserved = []
        for taker, its in zip(takers, dealt, strict=True):
            if its or not messages or not rest or batch.alone:
                taker.want.rest = rest
                taker.got.set_result(its)
            else:
                unserved.append(taker)
        # There is more, and it is no news that others were first: they are the first of the next request, and
        # as each that brings something serves one at least, each of them comes to an end.
        for taker in reversed(unserved):
            self._join(taker, batch.broker, first=True)

    def _left(self, taker: PopCaller) -> None:
        """The caller was cancelled, or failed: return the messages that it was just given."""
        got = taker.got
        if not got.done():
            got.cancel()
        elif not got.cancelled() and got.exception() is None and got.result():
            self._answers.return_popped(taker.want, got.result())

    def _ring(self) -> None:
        """Give up those who have not answered in time."""
        self._timer = None
        now = self._clock.monotonic()
        for batch in list(self._under_way):
            left = batch.asked + self._answer_s - now
            if left > _SOON_S:
                self._timer = self._clock.call_later(left, self._ring)
                return
            del self._under_way[batch]
            self._late.add(batch)
            if batch.waiting():
                self._answers.suspect(batch.broker)
                sentence = f"broker {batch.broker} did not answer a pop within {self._answer_s:g} s"
                batch.fail(BrokerTimeout(sentence))
