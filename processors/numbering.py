"""Numbers of brokers and of queues, for clients that know those of several brokers by numbers alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from brokers.numbering import BROKERS, NumbersQueues
from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import GatewayError, Unsupported
from popgate.kinds import Action
from popgate.queue_numbers import Numbered, QueueNumbers

_WAIT_S: Final = 1.0
"""So long at most requests wait for the number of a broker that has just become known."""
_AGAIN_S: Final = 5.0
"""Before what could not be told is asked for again."""
_REFRESH_S: Final = 120.0
"""After which it is looked whether all gateways still say the same."""

_log = logging.getLogger(__name__)


class Numbering:
    """What the broker keeps of it, if it is one that has several."""

    def __init__(self, broker: Broker, clock: Clock, admit: Callable[..., None]) -> None:
        self._name = broker.name
        self._numbers = broker if isinstance(broker, NumbersQueues) else None
        self._clock = clock
        self._admit = admit
        self._latest = QueueNumbers()
        self._due = self._again = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._ready = asyncio.Event()
        self._ready.set()
        self._is_told = False
        """Whether the log has it that numbers cannot be had."""

    @property
    def is_kept(self) -> bool:
        """Else there is one broker only, whose queues have the numbers that they have there."""
        return self._numbers is not None

    async def queues(self, context: Context, topic: str, queues: Sequence[Numbered]) -> QueueNumbers:
        """Those of a topic's queues, and first of these. Raises BrokerUnavailable, Unsupported."""
        self._admit(context, Action.GET, topic=topic)
        return await self._kept().numbered(context, topic, queues)

    async def brokers(self, context: Context, names: Sequence[str]) -> QueueNumbers:
        """Those of brokers, each as its queue 0. Raises as `queues`."""
        self._admit(context, Action.GET)
        return await self._told(context, names)

    @property
    def latest(self) -> QueueNumbers:
        """Those of brokers as they were told last, of none before; the same object until they change."""
        return self._latest

    async def know(self, names: Sequence[str]) -> None:
        """Have `latest` soon be with those of these brokers, where they can be had. Raises nothing.

        Nobody waits for it but where one of them has just become known, as all have when a process begins:
        a second at most, and not again while they cannot be had.
        """
        now = self._clock.monotonic()
        missing = not self._latest.has_all((name, 0) for name in names)
        if self._asking is None and now >= (self._again if missing else self._due):
            self._due = self._again = now + _AGAIN_S
            if missing and not self._is_told:
                self._ready.clear()
                self._timer = self._clock.call_later(_WAIT_S, self._ready.set)
            self._asking = asyncio.get_running_loop().create_task(self._ask(names))
        if missing:
            await self._ready.wait()

    # -- inside -------------------------------------------------------------------------------

    async def _ask(self, names: Sequence[str]) -> None:
        try:
            await self._told(Context(), names)
        except GatewayError as error:
            if not self._is_told:
                self._is_told = True
                _log.warning(
                    "which number each broker has cannot be told now, so until then ids of the places of"
                    " messages may say no broker: %s",
                    error.sentence,
                )
        finally:
            self._asking = None
            self._ready.set()
            if self._timer is not None:
                self._timer.cancel()

    async def _told(self, context: Context, names: Sequence[str]) -> QueueNumbers:
        numbers = await self._kept().numbered(context, BROKERS, [(name, 0) for name in names])
        self._due, self._again = self._clock.monotonic() + _REFRESH_S, float("-inf")
        self._is_told = False
        if numbers != self._latest:
            self._latest = numbers
        return numbers

    def _kept(self) -> NumbersQueues:
        if self._numbers is None:
            raise Unsupported(f"to number the queues of {self._name}")
        return self._numbers
