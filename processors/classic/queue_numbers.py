"""Numbers of brokers and of queues, for clients that identify those of several brokers only by number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from brokers.capabilities import BrokerPlace, TellsBrokers
from brokers.numbering import BROKERS, MOST_BROKERS, NumbersQueues
from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import GatewayError, Unsupported
from popgate.ids.queue_numbers import Numbered, QueueNumbers, may_be_numbered
from popgate.kinds import Action

_WAIT_S: Final = 1.0
"""So long at most requests wait for the number of a broker that has just become known."""
_START_WAIT_S: Final = 5.0
"""So long at most a door waits before it serves: for longer than a name server that gives no answer takes."""
_AGAIN_S: Final = 5.0
"""Before what could not be told is asked for again."""
_REFRESH_S: Final = 120.0
"""After which it is looked whether all gateways still say the same."""

_log = logging.getLogger(__name__)


class QueueNumbering:
    """What the broker keeps of it, if it is one that has several."""

    def __init__(self, broker: Broker, clock: Clock, admit: Callable[..., None]) -> None:
        self._name = broker.name
        self._numbers = broker.capability(NumbersQueues)
        self._tells = broker.capability(TellsBrokers)
        self._clock = clock
        self._admit = admit
        self._latest = QueueNumbers()
        self._due = self._again = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._sought: set[str] = set()
        """Brokers that the task asks for, or the one after it will."""
        self._next: set[str] = set()
        """Brokers to ask for when the task is done, since one of them became known meanwhile."""
        self._ready = asyncio.Event()
        self._ready.set()
        self._timer: Timer | None = None
        """Sets `_ready`, so that nobody waits for longer."""
        self._is_logged = False
        """Whether the log has it that numbers cannot be had."""
        self._stopped = False

    @property
    def is_kept(self) -> bool:
        """Else there is one broker only, whose queues have the numbers that they have there."""
        return self._numbers is not None

    async def queues(self, context: Context, topic: str, queues: Sequence[Numbered]) -> QueueNumbers:
        """Those of a topic's queues, and first of these. Raises BrokerUnavailable, Unsupported."""
        self._admit(context, Action.GET, topic=topic)
        return await self._kept().numbered(context, topic, queues)

    async def brokers(self, context: Context, names: Sequence[str]) -> QueueNumbers:
        """Those of brokers, each as its queue 0. Whoever asks, because it is for places of messages.

        Raises BrokerUnavailable, Unsupported.
        """
        return await self._fetch(context, names)

    @property
    def latest(self) -> QueueNumbers:
        """The last known numbers of brokers, empty at first; the same object until they change."""
        return self._latest

    async def prime(self) -> None:
        """Have `latest` be with all brokers that there are, before a door serves. Raises nothing."""
        if self._task is None and self.is_kept and not (len(self._latest) or self._stopped):
            self._ask(None)
            self._have_wait(_START_WAIT_S)
        await self._ready.wait()

    async def refresh(self, names: Sequence[str], *, wait_s: float = _WAIT_S) -> None:
        """Have `latest` soon be with these brokers, where their numbers can be had. Raises nothing.

        Nobody waits for it but where one of them has just become known: `wait_s` at most, and not again while
        numbers cannot be had.
        """
        now = self._clock.monotonic()
        missing = self._missing(names)
        if self._task is None:
            if now >= (self._again if missing else self._due) and not self._stopped:
                self._ask(names)
                if missing:
                    self._have_wait(wait_s)
        elif not missing <= self._sought:
            self._sought |= missing
            self._next |= set(names)
            self._have_wait(wait_s)
        if missing:
            await self._ready.wait()

    async def stop(self) -> None:
        """Ask for nothing any more."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._let_go()  # it may have had no time to do so

    # -- inside -------------------------------------------------------------------------------

    def _missing(self, names: Collection[str]) -> set[str]:
        """Those that have no number and may get one."""
        latest = self._latest
        if latest.has_all((name, 0) for name in names) or len(latest) >= MOST_BROKERS:
            return set()
        return {name for name in names if latest.number_of(name, 0) is None and may_be_numbered(name)}

    def _ask(self, names: Collection[str] | None) -> None:
        """Begin to ask for those of these brokers; None: of all that there are."""
        self._due = self._again = self._clock.monotonic() + _AGAIN_S
        self._sought = set(names or ())
        self._task = asyncio.get_running_loop().create_task(self._run(names))

    def _have_wait(self, wait_s: float) -> None:
        """Start to wait for missing numbers; those that are waited for already keep their deadline."""
        if self._ready.is_set() and not self._is_logged:
            self._ready.clear()
            self._timer = self._clock.call_later(wait_s, self._ready.set)

    async def _run(self, names: Collection[str] | None) -> None:
        try:
            if names is None:
                names = [data.name for data in await self._known()]
            await self._fetch(Context(), names)
        except GatewayError as error:
            if not self._is_logged:
                self._is_logged = True
                _log.warning(
                    "which number each broker has cannot be told now, so until then ids of the places of"
                    " messages may say no broker: %s",
                    error.sentence,
                )
        finally:
            self._task = None
            following, self._next = self._next, set()
            if self._missing(following) and not self._stopped:
                self._ask(following)
            else:
                self._let_go()

    def _let_go(self) -> None:
        """Nobody waits any more."""
        self._ready.set()
        if self._timer is not None:
            self._timer.cancel()

    async def _known(self) -> Sequence[BrokerPlace]:
        return await self._tells.known_brokers() if self._tells is not None else ()

    async def _fetch(self, context: Context, names: Collection[str]) -> QueueNumbers:
        numbers = await self._kept().numbered(context, BROKERS, [(name, 0) for name in names])
        self._due, self._again = self._clock.monotonic() + _REFRESH_S, float("-inf")
        self._is_logged = False
        if numbers != self._latest:
            self._latest = numbers
        return numbers

    def _kept(self) -> NumbersQueues:
        if self._numbers is None:
            raise Unsupported(f"to number the queues of {self._name}")
        return self._numbers
