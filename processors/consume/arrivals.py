"""Checks whether messages are available, without taking them. Source: protocol facts 5.5 (200054, 200055)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokers.port import Broker
from popgate.clock import Clock, pause
from popgate.context import Context
from popgate.errors import TooManyRequests, Unsupported
from popgate.kinds import Action
from popgate.model import GroupStatus
from popgate.naming import check_group, check_topic
from processors.consume.receive_rules import wait_until
from processors.limits import Limits
from processors.routing import Routing

_AGAIN_S: Final = 0.25
"""How often it is looked. Who asks this is another gateway or proxy, and one for many of its clients."""
_EACH_S: Final = 0.002
"""So much longer is it for each that waits: however many ask, a bounded part of the time is spent on it."""


class ArrivalNotices:
    """Derives the answer from the progress of the group, which only the embedded broker knows exactly."""

    def __init__(
        self, broker: Broker, routing: Routing, clock: Clock, limits: Limits, admit: Callable[..., None]
    ) -> None:
        self._broker = broker
        self._routing = routing
        self._clock = clock
        self._limits = limits
        self._admit = admit
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<ArrivalNotices waiting {self._waiting}>"

    async def anything(self, context: Context, topic: str, group: str, wait_s: float) -> bool:
        """Whether a receive would get something, now or within this time; others may be quicker.

        Raises as `receivers`, and BadRequest (ILLEGAL_POLLING_TIME), TooManyRequests.
        """
        until = wait_until(context, wait_s, self._limits, self._clock.monotonic())
        if self._waiting >= self._limits.max_waiting:
            raise TooManyRequests(
                f"the limit of {self._limits.max_waiting} waiting receives is reached",
                known_as="polling full",
            )
        self._waiting += 1
        try:
            while True:
                standing = await self._standing(context, topic, group)
                if standing.free or standing.unread:
                    return True
                left = 0.0 if until is None else until - self._clock.monotonic()
                if left <= 0:
                    return False
                await pause(self._clock, min(left, max(_AGAIN_S, self._waiting * _EACH_S)))
        finally:
            self._waiting -= 1

    async def receivers(self, context: Context, topic: str, group: str) -> int:
        """How many receives wait.

        Raises IllegalTopic, IllegalGroup, TopicNotFound, GroupNotFound, Unsupported (of a cluster).
        """
        return (await self._standing(context, topic, group)).receivers

    async def _standing(self, context: Context, topic: str, group: str) -> GroupStatus:
        self._admit(context, Action.SUBSCRIBE, topic=check_topic(topic), group=check_group(group))
        if not self._broker.traits.tells_deliveries:
            raise Unsupported(
                "to ask whether there is something to receive", "the brokers of the cluster answer that"
            )
        await self._routing.group(group)
        return await self._broker.standing(group, topic)
