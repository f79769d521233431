"""Offsets of queues and of groups: read, and set elsewhere. Source: protocol facts 5.5 and 7.8."""

from __future__ import annotations

import asyncio
import contextlib

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import number_in
from brokers.remote.cluster.queues import Place, places_of
from brokers.remote.metadata.groups import Groups
from brokers.remote.read.static_queues import logic_offset_at
from brokers.resets import HoldsResets
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import (
    BrokerUnavailable,
    Forbidden,
    GatewayError,
    IllegalOffset,
    PeerWireError,
    TopicNotFound,
)
from popgate.model import Bounds, Permission, QueueOffsets, StartFrom
from popgate.naming import pop_retry_topic_v1, pop_retry_topic_v2
from popgate.wire.bodies.consumer_info import decode_offsets
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command

LARGEST_OFFSET = (1 << 63) - 1
_NOT_FOUND = (int(ResponseCode.QUERY_NOT_FOUND),)
_UNKNOWN = Bounds(0, -1)
_KNOWN_FOR_S = 60.0
"""Bounds only move up, unless the topic is made anew: those told lately are good for commits."""
_MOST_KNOWN = 16_384
NOTHING_PULLED = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Answers to a pull that are no failures."""
SUBSCRIPTION = 0x4
"""Bit of a pull's sysFlag: the subscription comes along."""
_REFUSES_RESET = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.NO_PERMISSION,
)
_RESET_PENDING = "previously reset"
"""How a broker says that it did not take a position, because an operator's has not been read from yet."""


class ClusterOffsets(HoldsResets):
    """The part of the port's `Offsets` and `Directory` that is about positions.

    A position of a RocketMQ is how far a group has popped: what it holds counts as done, until it comes
    back through the group's retry topic (`Traits.tells_deliveries`).
    """

    def __init__(self, access: ClusterAccess, groups: Groups) -> None:
        self._access = access
        self._clock = access.clock
        self._client = access.client
        self._groups = groups
        self._known: dict[Place, tuple[float, Bounds]] = {}
        """Bounds of queues as told last, and until when they are good."""

    async def bounds(
        self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
    ) -> Bounds:
        place = await self._access.place(topic, broker, queue_id)
        if of_master and self._access.routes.is_acting(place.broker):
            raise BrokerUnavailable(f"broker {place.broker} has no master now, a slave acts for it")
        return await self.bounds_of(context, place, reading=not of_master)

    async def bounds_of(self, context: Context | None, place: Place, *, reading: bool = True) -> Bounds:
        lowest, highest = await asyncio.gather(
            self._access.ask_queue(context, place, RequestCode.GET_MIN_OFFSET, {}, reading=reading),
            self._access.ask_queue(
                context, place, RequestCode.GET_MAX_OFFSET, {"committed": "true"}, reading=reading
            ),
        )
        minimum = max(number_in(lowest, place.broker, "offset"), 0)
        bounds = Bounds(minimum, max(number_in(highest, place.broker, "offset"), minimum))
        self.told_bounds(place, bounds)
        return bounds

    def told_bounds(self, place: Place, bounds: Bounds) -> None:
        """A broker said so: a commit within these need not ask."""
        if len(self._known) >= _MOST_KNOWN and place not in self._known:
            self._known.clear()
        self._known[place] = self._clock.monotonic() + _KNOWN_FOR_S, bounds

    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        return await self._offset_at(context, await self._access.place(topic, broker, queue_id), time_ms)

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        place = await self._access.place(topic, broker, queue_id)
        await self._groups.group(group)
        return await self.position_of(context, group, place)

    async def position_of(self, context: Context | None, group: str, place: Place) -> int | None:
        """None when the group has no position there."""
        fields = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        answer = await self._access.ask_queue(
            context, place, RequestCode.QUERY_CONSUMER_OFFSET, fields, reading=True, also=_NOT_FOUND
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            if not self._access.knows_best(place.broker):
                raise BrokerUnavailable(
                    f"broker {place.broker} has no master now, and its slave no position of group {group}"
                )
            return None
        return number_in(answer, place.broker, "offset")

    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        place = await self._place_for(context, group, topic, broker, queue_id, offset)
        if not await self._commit(context, group, place, offset):
            # A reset waits for its first reader, who would get that one; so that is set anew.
            try:
                await self.reset_place(group, place, offset)
            except Forbidden:
                raise _kept(group, place) from None

    async def begin_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int:
        """Other pulls use another group; the first one of the group itself reports a pending reset."""
        place = await self._access.place(topic, broker, queue_id)
        if place.static:
            return offset
        fields = {**pull_fields(group, "*", 1), "queueOffset": str(offset)}
        answer = await self._access.ask_queue(
            context, place, RequestCode.PULL_MESSAGE, fields, also=NOTHING_PULLED
        )
        if answer.code != ResponseCode.PULL_OFFSET_MOVED:
            return offset
        minimum, maximum, to = (
            number_in(answer, place.broker, name) for name in ("minOffset", "maxOffset", "nextBeginOffset")
        )
        if not minimum <= offset <= maximum:
            return to if await self.position_of(context, group, place) == to else offset
        # A reset, reported once. For a group without any position the broker has no other record of it.
        with contextlib.suppress(GatewayError):
            if await self.position_of(context, group, place) is None:
                await self._commit(context, group, place, to)
        return to

    async def commit_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int | None:
        place = await self._place_for(context, group, topic, broker, queue_id, offset)
        if await self._commit(context, group, place, offset):
            return None
        to = await self.position_of(context, group, place)
        if to is None or to == offset:
            to = await self.begin_read(context, group, topic, broker, queue_id, offset)
        return to if to != offset else None

    async def reset_queue(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        place = await self._place_for(context, group, topic, broker, queue_id, offset)
        await self.reset_place(group, place, offset)

    async def reset(self, group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        """Also the group's retry topics of the topic, which are skipped: the messages come by position."""
        await self._groups.group(group)
        route = await self._access.routes.of(topic)
        places = [place for place in places_of(topic, route) if place.permission & Permission.READ]
        # All are known before the first queue is changed.
        offsets = [await self._offset_for(place, to) for place in places]
        was_set = {(place.broker, place.queue_id): at for place, at in zip(places, offsets, strict=True)}
        brokers = {data.name for data in route.brokers if data.addresses}
        for make in (pop_retry_topic_v2, pop_retry_topic_v1):
            retries = await self._retry_places(make(group, topic), brokers)
            places += retries
            offsets += [await self._offset_for(place, StartFrom.LAST) for place in retries]
        for place, offset in zip(places, offsets, strict=True):
            await self.reset_place(group, place, offset)
        return was_set

    async def reset_place(self, group: str, place: Place, offset: int) -> None:
        """Set the position so that pops begin there, whatever they hold or are blocked by.

        Brokers that leave resets to their clients, and queues of static topics, have the position only.
        An account that may not reset is refused: a position alone would leave what pops hold.
        """
        if not place.static:
            fields = {
                "group": group,
                "topic": place.topic,
                "queueId": str(place.queue_id),
                "offset": str(offset),
                "timestamp": "0",
                "isForce": "true",
            }
            answer = await self._client.call(place.broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            if answer.code in _REFUSES_RESET:
                raise error_of(answer, broker=place.broker, topic=place.topic, group=group)
            if await self._serves_resets(place, answer, offset):
                return
            if await self.position_of(None, group, place) == offset:
                return
        if not await self._commit(None, group, place, offset):
            raise _kept(group, place)

    async def places_if_there(self, topic: str) -> list[Place]:
        """The queues of a topic that need not be there. Raises BrokerUnavailable."""
        try:
            return places_of(topic, await self._access.routes.of(topic))
        except TopicNotFound:
            return []

    # -- inside -------------------------------------------------------------------------------

    async def _retry_places(self, topic: str, brokers: set[str]) -> list[Place]:
        """Also those that name servers do not know yet, at these brokers of the topic itself."""
        places = await self.places_if_there(topic)
        others = brokers - {place.broker for place in places}
        for broker, count in (await self._access.unlisted(topic, sorted(others))).items():
            permission = Permission.READ | Permission.WRITE
            places += [Place(topic, broker, queue_id, permission) for queue_id in range(count)]
        return places

    async def _place_for(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> Place:
        """Where a position is to be set. Raises IllegalOffset, GroupNotFound, TopicNotFound."""
        place = await self._access.place(topic, broker, queue_id)
        await self._groups.group(group)
        if not self._is_surely_within(place, offset):
            bounds = await self.bounds_of(context, place)
            if not bounds.minimum <= offset <= bounds.maximum:
                raise IllegalOffset(offset, bounds.minimum, bounds.maximum)
        return place

    def _is_surely_within(self, place: Place, offset: int) -> bool:
        until, known = self._known.get(place, (0.0, _UNKNOWN))
        return known.minimum <= offset <= known.maximum and self._clock.monotonic() < until

    async def _offset_for(self, place: Place, to: StartFrom | int) -> int:
        if isinstance(to, StartFrom):
            bounds = await self.bounds_of(None, place)
            return bounds.minimum if to is StartFrom.FIRST else bounds.maximum
        return await self._offset_at(None, place, to)

    async def _offset_at(self, context: Context | None, place: Place, time_ms: int) -> int:
        fields = {"timestamp": str(min(max(time_ms, 0), LARGEST_OFFSET)), "boundaryType": "lower"}
        if place.static:
            offset = await logic_offset_at(self._access, context, place, fields)
        else:
            answer = await self._access.ask_queue(
                context, place, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields, reading=True
            )
            offset = number_in(answer, place.broker, "offset")
        bounds = await self.bounds_of(context, place)
        # Below zero: of a logic queue no piece is so new.
        return bounds.maximum if offset < 0 else min(max(offset, bounds.minimum), bounds.maximum)

    async def _commit(self, context: Context | None, group: str, place: Place, offset: int) -> bool:
        """Whether the broker took it."""
        fields = {"consumerGroup": group, "commitOffset": str(offset)}
        answer = await self._access.ask_queue(context, place, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return _RESET_PENDING not in answer.remark

    async def _serves_resets(self, place: Place, answer: Command, offset: int) -> bool:
        """Whether a broker's response says that it has reset this queue itself.

        Then the position no longer shows it: pops may have moved on already. A broker that leaves
        resets to clients returns all queues, which makes no difference where it has only one.
        """
        if answer.code != ResponseCode.SUCCESS:
            return False
        queues = await self.places_if_there(place.topic)  # of a new retry topic, which has one queue, none
        if sum(queue.broker == place.broker for queue in queues) <= 1:
            return False
        try:
            offsets = decode_offsets(answer.body)
        except PeerWireError:
            return False
        return offsets == {MessageQueue(place.topic, place.broker, place.queue_id): offset}


def _kept(group: str, place: Place) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"broker {place.broker} keeps the position that an operator has set before"
        f" for group {group} in topic {place.topic}"
    )


def pull_fields(group: str, tags: str, max_messages: int) -> dict[str, str]:
    """Of a pull that does not wait, without its queue and offset."""
    return {
        "consumerGroup": group,
        "maxMsgNums": str(max_messages),
        "sysFlag": str(SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": tags,
        "subVersion": "0",
        "expressionType": "TAG",
    }
