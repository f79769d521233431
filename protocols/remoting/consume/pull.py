"""True pull: reads by offset, long polls, and the position that a pull may commit.

Sources: protocol facts 5.5, 5.13 and 7.8 ("Pull"), 9.5 (62, 63).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from popgate.clock import pause
from popgate.errors import GatewayError, IllegalOffset, NotFound, shown
from popgate.model import Bounds, FilterKind, Pulled
from popgate.naming import RETRY_PREFIX
from popgate.wire.bodies.heartbeats import SubscriptionData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from processors.requests import Pull
from protocols.drain import LongPolls
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.fields import long_number, number, text
from protocols.remoting.codec.records import encode_all
from protocols.remoting.mapped.answers import key_of
from protocols.remoting.mapped.handler import Mapped
from protocols.remoting.mapped.offsets import QueueKey, is_virtual
from protocols.remoting.queue_cache import Places
from protocols.remoting.requests import DoorContext, Handler, Peer, Request
from protocols.remoting.routing import Brokers, broker_of

COMMIT: Final = 0x1
SUSPEND: Final = 0x2
SUBSCRIPTION: Final = 0x4
"""Bits of the field sysFlag."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of one answer, where the client does not say: a consumer asks for every queue at the same time."""
_LARGEST_BYTES: Final = 12 * 1024 * 1024
"""Of one answer in any case: a frame has 16 MiB."""
_COMMIT_S: Final = 1.0
"""So often a position that pulls bring along is written. Every 5 s clients tell it by itself, too."""
_REST_S: Final = 0.2
"""Before a pull that would wait is answered with nothing while the gateway drains."""
_MOST_COMMITS: Final = 16_384
_RECENT_S: Final = 60.0
"""For which a group that falls back to true pull begins where its last reset sent it."""

Subscriptions = Callable[[str, str, Peer], SubscriptionData | None]
"""What a group reads of a topic, as the client of this connection told it, or any other."""


def _none(_group: str, _topic: str, _peer: Peer) -> SubscriptionData | None:
    return None


class PullHandler:
    """Serves pulls."""

    def __init__(
        self, door_context: DoorContext, subscriptions: Subscriptions = _none, mapped: Mapped | None = None
    ) -> None:
        self._mapped = mapped if mapped is not None else Mapped(door_context)
        self._processor = door_context.processor
        self._clock = door_context.clock
        self._subscriptions = subscriptions
        self._polls = LongPolls()
        self._places = Places(door_context)
        self._brokers = Brokers(door_context)
        self._commits: dict[QueueKey, float] = {}
        """Until when no pull needs to write the position of a group on a queue: every one brings it along."""

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def drain(self) -> None:
        self._polls.end()
        self._mapped.drain()

    async def pull(self, request: Request) -> Command:
        fields, context = request.fields, request.context
        group, topic = text(fields, "consumerGroup"), text(fields, "topic")
        queue_id, offset = number(fields, "queueId"), long_number(fields, "queueOffset")
        flags = number(fields, "sysFlag", 0)
        queues = self._places.kept(topic)
        if queues is None:
            queues = await self._places.of(context, topic)
        broker = broker_of(request, queues)
        may_map = self._mapped.may_map(group)
        if may_map and not flags & SUBSCRIPTION and self._mapped.is_early(request, group, offset):
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: no heartbeat named group {shown(group)} here yet",
            )
        kind, expression = self._filter(request, group, topic, flags)
        mapped = may_map and self._mapped.serves(request, group, (topic, broker, queue_id), offset)
        if may_map and not mapped and self._mapped.is_undecided(request, group, offset):
            mapped = await self._mapped.judges(request, group)
        key = QueueKey(group, topic, broker, queue_id)
        if flags & COMMIT and not mapped:
            await self._commit(request, key)
        wait_ms = long_number(fields, "suspendTimeoutMillis", 0) if flags & SUSPEND else 0
        most = number(fields, "maxMsgBytes", 0)
        asked = Pull(
            topic,
            broker,
            queue_id,
            offset,
            group,
            kind,
            expression,
            max_messages=number(fields, "maxMsgNums"),
            max_bytes=min(most, _LARGEST_BYTES) if most > 0 else MOST_BYTES,
            wait_s=wait_ms / 1000 if wait_ms > 0 else None,
        )
        if mapped and topic.startswith(RETRY_PREFIX) and self._mapped.reads_apart(asked):
            return await self._pull_apart(request, asked, flags)
        if mapped and self._mapped.can_go_on(offset):
            return await self._mapped.pull(request, asked, flags)
        if is_virtual(offset):
            return await self._anew(request, asked)
        self._mapped.seeks.pulls(request.peer, key)
        if not self._mapped.resets.idle:
            reset = await self._redirect(request, key, offset)
            if reset is not None:
                return await self._moved(request, asked, reset)
        if may_map and not await self._mapped.begins(request, asked):
            return await self._answer(request, asked, Pulled([], offset, Bounds(offset, offset)))
        nearest = None
        try:
            pulled = await self._pull(request, asked)
        except IllegalOffset as error:
            nearest = error.nearest
        if nearest is not None:
            return await self._moved(request, asked, nearest)
        if pulled.messages and self._mapped.maps(request.peer, group):
            # It waited while the group was mapped: these come by pop, and it asks again at once.
            pulled = Pulled([], asked.offset, pulled.bounds)
        return await self._answer(request, asked, pulled)

    # -- inside -------------------------------------------------------------------------------

    async def _redirect(self, request: Request, key: QueueKey, offset: int) -> int | None:
        """Where a true pull is sent because of a reset; None: it may be served."""
        peer, mapped = request.peer, self._mapped
        resets = mapped.resets
        if resets.target(peer, key) != offset:
            return resets.redirect(peer, key)
        if resets.is_under_way(key.group, key.topic):
            return None
        resets.arrived(peer, key)
        begins = await mapped.begin_at(request, key, offset)
        if begins == offset:
            return None
        mapped.sent_to(peer, key, begins)
        return begins

    async def _pull_apart(self, request: Request, asked: Pull, flags: int) -> Command:
        """Retries of a mapped group that cannot be popped."""
        if is_virtual(asked.offset):
            return await self._anew(request, asked)
        nearest = None
        try:
            pulled = await self._mapped.pull_apart(request, asked, flags)
        except IllegalOffset as error:
            nearest = error.nearest
        if nearest is not None:
            return await self._moved(request, asked, nearest)
        return await self._answer(request, asked, pulled)

    async def _pull(self, request: Request, asked: Pull) -> Pulled:
        """Raises IllegalOffset, and what the processor raises."""
        context = request.context
        if not self._polls.ended:
            pulled = await self._polls.wait(self._processor.pull(context, asked))
            if pulled is not None:
                return pulled
            # Called back: the gateway closes.
            bounds = await self._processor.offsets.bounds(context, asked.topic, asked.broker, asked.queue_id)
            return Pulled([], asked.offset, bounds)
        waits, asked.wait_s = asked.wait_s is not None, None
        pulled = await self._processor.pull(context, asked)
        if waits and not pulled.messages:
            # Whoever was not told to go pulls again at once.
            await pause(self._clock, _REST_S)
        return pulled

    def _filter(self, request: Request, group: str, topic: str, flags: int) -> tuple[FilterKind, str]:
        """The filter in the pull, else that of the client's heartbeat. Raises Refused."""
        if flags & SUBSCRIPTION:
            fields = request.fields
            return kind_of(fields.get("expressionType", "")), fields.get("subscription") or "*"
        known = self._subscriptions(group, topic, request.peer)
        if known is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {shown(group)} told none of {shown(topic)}",
            )
        if known.version < long_number(request.fields, "subVersion", 0):
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: that of group {shown(group)} is older here",
            )
        return kind_of(known.kind), known.expression or "*"

    async def _commit(self, request: Request, key: QueueKey) -> None:
        """The position that a pull brings along; that it cannot be kept hinders no reading."""
        offset = long_number(request.fields, "commitOffset", -1)
        if offset < 0 or is_virtual(offset):
            return
        now, mapped = self._clock.monotonic(), self._mapped
        if now < self._commits.get(key, 0.0):
            return
        member = mapped.tells_as_member(request.peer, key.group)
        with mapped.resets.writing(key.group, key.topic) if member else contextlib.nullcontext():
            if member and not mapped.resets.accepts(request.peer, key):
                return
            if len(self._commits) >= _MOST_COMMITS:
                self._commits.clear()
            self._commits[key] = now + _COMMIT_S
            try:
                await mapped.keep_position(request, key, offset)
            except GatewayError:
                self._commits.pop(key, None)

    async def _moved(self, request: Request, asked: Pull, to: int) -> Command:
        """Where the client can go on, or is to."""
        context = request.context
        try:
            bounds = await self._processor.offsets.bounds(context, asked.topic, asked.broker, asked.queue_id)
        except NotFound:
            bounds = Bounds(to, to)
        self._mapped.told_position(request.peer, key_of(asked), to)
        empty = bounds.minimum == bounds.maximum
        remark = "NO_MESSAGE_IN_QUEUE" if empty else _MOVED[asked.offset > bounds.maximum]
        fields = _fields(to, bounds)
        return request.command.answer(ResponseCode.PULL_OFFSET_MOVED, remark, fields)

    async def _anew(self, request: Request, asked: Pull) -> Command:
        """A number of when the group was mapped: its client is to begin where the group is."""
        context, place = request.context, (asked.topic, asked.broker, asked.queue_id)
        bounds = await self._processor.offsets.bounds(context, *place)
        key = key_of(asked)
        done = self._mapped.resets.target(request.peer, key, within_s=_RECENT_S)
        if done is None:
            self._mapped.resets.arrived(request.peer, key)
            done = await self._processor.offsets.committed(context, key.group, *place)
            if done is not None:
                done = await self._mapped.begin_at(request, key, done)
        at = done if done is not None else bounds.minimum
        self._mapped.told_position(request.peer, key, at)
        fields = _fields(at, bounds)
        return request.command.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", fields)

    async def _answer(self, request: Request, asked: Pull, pulled: Pulled) -> Command:
        fields = _fields(pulled.next_offset, pulled.bounds)
        answer = request.command.answer
        if pulled.messages:
            origin = await self._brokers.origin(request.context)
            body = encode_all(request.as_told(pulled.messages), origin)
            return answer(ResponseCode.SUCCESS, "FOUND", fields, body)
        if pulled.next_offset != asked.offset:
            # What lies between was looked at, and nothing passed.
            return answer(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", fields)
        return answer(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", fields)


_MOVED: Final = {False: "OFFSET_TOO_SMALL", True: "OFFSET_OVERFLOW_BADLY"}


def kind_of(name: str) -> FilterKind:
    """The kind of a filter; a tag filter if not given. Raises Refused."""
    if name in ("", FilterKind.TAG.value):
        return FilterKind.TAG
    if name != FilterKind.SQL92.value:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"filters of the type {shown(name)} are not known"
        )
    return FilterKind.SQL92


def _fields(next_offset: int, bounds: Bounds) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": str(bounds.minimum),
        "maxOffset": str(bounds.maximum),
    }
