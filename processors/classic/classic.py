"""Operations that only classic clients request: messages sent back, locks of queues, replies."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from brokers.capabilities import CarriesReplies, FindsByPlace, LeasesQueues, ReplyHandler
from popgate.context import Context
from popgate.errors import AlreadyExists, BadRequest, TopicNotFound, Unsupported
from popgate.kinds import Action
from popgate.model import Message, SendBack, Sent, StoredMessage, TopicConfig
from popgate.naming import check_group, check_topic, pop_retry_origin, retry_topic
from processors.core import ProcessorCore
from processors.members.broadcast import member_of
from processors.observer import Latest, Watch
from processors.produce.message_checks import check_message, finish_message

_MOST_QUEUES = 16_384
"""Queues that one request may lock: all those of many topics."""
_LONGEST_ID = 255
"""Characters of the id of a client that holds locks: as of one that says in a heartbeat who it is."""
_HIGHEST = 1 << 31
_LEASES = "lease of "
"""Before the name that a group's leases are locked under, so that no client's lock is in their way: no name
of a group has a blank."""

Named = tuple[str, str, int]
"""topic, broker, queue"""


class ClassicRequests:
    """Retries by a topic of the group's own, locks of queues, replies to requests."""

    def __init__(self, core: ProcessorCore) -> None:
        self._broker = core.broker
        self._clock = core.clock
        self._limits = core.limits
        self._observer = core.observer
        self._admit, self._permit, self._permits_all = core.admit, core.permit, core.permits_all
        self._routing = core.routing
        self._by_place = core.broker.capability(FindsByPlace)
        self._leases = core.broker.capability(LeasesQueues)
        self._carries_replies = core.broker.capability(CarriesReplies)
        self._reply_handlers: Latest[ReplyHandler] = Latest(_nobody_waits)
        self._watch_send_back = Watch(core.observer, "send_back")
        self._watch_lock = Watch(core.observer, "lock")
        self._watch_members = Watch(core.observer, "members")
        self._watch_reply = Watch(core.observer, "reply")

    def start(self) -> None:
        if self._carries_replies is not None:
            self._carries_replies.on_reply(self.hand_reply)

    async def send_back(self, context: Context, request: SendBack) -> None:
        """Have a pulled message come again, or be a dead letter: `brokers.port.Store.send_back`.

        Raises IllegalGroup, GroupNotFound, NotFound (the message is gone), BadRequest, Forbidden (the caller
        may not read its topic).
        """
        with self._watch_send_back:
            group = check_group(request.group)
            self._admit(context, Action.SUBSCRIBE, group=group)
            if not 0 <= request.commit_offset < 1 << 63:
                raise BadRequest(f"the commit log offset {request.commit_offset} is out of range")
            if not -_HIGHEST <= request.delay_level < _HIGHEST:
                raise BadRequest(f"the delay level {request.delay_level} is out of range")
            request = replace(request, member=member_of(context, await self._routing.group(group)))
            if not self._permits_all:
                await self._check_place(context, request)
            await self._broker.send_back(context, request)
        if request.delay_level < 0:
            self._observer.dead_lettered(retry_topic(group), group)

    async def _check_place(self, context: Context, request: SendBack) -> None:
        """Whether the caller may read what lies there: its group would read a copy of any message.

        Raises Forbidden, NotFound.
        """
        if self._by_place is None:
            return
        message = await self._by_place.at_place(context, request.broker, request.commit_offset)
        topic = _failed_in(request.group, message.topic)
        if topic:
            self._permit(context, Action.SUBSCRIBE, topic=topic)

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[Named]
    ) -> list[Named]:
        """Lock queues for a client for 60 s, or renew the locks; returns those that it holds now.

        Every client of a broadcast group has all queues. Raises IllegalGroup, GroupNotFound, BadRequest.
        """
        with self._watch_lock:
            self._check_locks(context, group, client_id, queues)
            config = await self._routing.group(group)
            # Also of a broadcast group: that it reads in order decides what becomes of what it gives up.
            held = await self._broker.lock(context, group, client_id, queues)
            return list(queues) if config.broadcast else held

    async def unlock(self, context: Context, group: str, client_id: str, queues: Sequence[Named]) -> None:
        """Give up locks; those of others stay. Raises IllegalGroup, BadRequest."""
        with self._watch_lock:
            self._check_locks(context, group, client_id, queues)
            await self._broker.unlock(context, group, client_id, queues)

    async def lease(self, context: Context, group: str, owner: str, queues: Sequence[Named]) -> list[Named]:
        """Lease queues for 60 s, or renew the leases; returns those that the owner holds now. Not a lock.

        For what one gateway, or one client, does alone for a group. Raises as `lock`.
        """
        with self._watch_lock:
            self._check_locks(context, group, owner, queues)
            await self._routing.group(group)
            if self._leases is not None:
                return await self._leases.lease(context, group, owner, queues)
            return await self._broker.lock(context, _LEASES + group, owner, queues)

    async def end_lease(self, context: Context, group: str, owner: str, queues: Sequence[Named]) -> None:
        """Give queues up; those of others stay. Raises IllegalGroup, BadRequest."""
        with self._watch_lock:
            self._check_locks(context, group, owner, queues)
            if self._leases is not None:
                await self._leases.end_lease(context, group, owner, queues)
            else:
                await self._broker.unlock(context, _LEASES + group, owner, queues)

    @property
    def pops_group_retries(self) -> bool:
        """Whether `%RETRY%group` can be popped as any topic."""
        return self._broker.traits.pops_group_retries

    def check_member(self, context: Context, group: str) -> None:
        """Whether a client may say that it is in the group. Before anything is kept of what it says.

        Raises IllegalGroup, Forbidden.
        """
        self._permit(context, Action.SUBSCRIBE, group=check_group(group))

    async def prepare_group(self, context: Context, group: str) -> str:
        """Create the group on first use, where that is allowed, and its topic `%RETRY%group`.

        A consumer asks for the route of that topic right after its first heartbeat. Returns `member_of`.
        Raises IllegalGroup, GroupNotFound, TooManyRequests.
        """
        with self._watch_members:
            self._admit(context, Action.SUBSCRIBE, group=check_group(group))
            config = await self._routing.group(group)
            topic = retry_topic(group)
            try:
                await self._routing.route(topic)
            except TopicNotFound:
                with contextlib.suppress(AlreadyExists):
                    await self._broker.create_topic(TopicConfig(topic, read_queues=1, write_queues=1))
                self._routing.forget_topic(topic)
        return member_of(context, config)

    async def reply(self, context: Context, message: Message) -> Sent:
        """Hand a reply to the client that its property REPLY_TO_CLIENT names, wherever it is connected.

        Raises IllegalTopic, NotFound (CLIENT_NOT_FOUND), Unsupported, BrokerUnavailable, BrokerTimeout.
        """
        with self._watch_reply:
            self._admit(context, Action.PUBLISH, topic=check_topic(message.topic))
            if self._carries_replies is None:
                raise Unsupported(f"a reply by way of broker {self._broker.name}")
            # Nothing is stored, and RocketMQ's classic client for Go makes replies without a body. A RocketMQ
            # behind refuses them by itself.
            limits = replace(self._limits, refuse_empty_bodies=False)
            now_ms = self._clock.now_ms()
            check_message(message, limits, now_ms=now_ms, max_delay_ms=limits.max_delay_ms)
            finish_message(message)
            return await self._carries_replies.send_reply(context, message)

    def on_reply(self, handler: ReplyHandler) -> Callable[[], None]:
        """Who hands replies to clients of this replica that wait; the last one set counts.

        What is returned is called, once, when it is there no longer.
        """
        return self._reply_handlers.add(handler)

    def hand_reply(self, client_id: str, message: StoredMessage) -> bool | Awaitable[bool]:
        """Hand a reply to a client of this replica; False when it is not here, or did not take it."""
        return self._reply_handlers.now(client_id, message)

    def _check_locks(self, context: Context, group: str, client_id: str, queues: Sequence[Named]) -> None:
        self._admit(context, Action.SUBSCRIBE, group=check_group(group))
        if not 0 < len(client_id) <= _LONGEST_ID:
            raise BadRequest(f"a lock needs the id of its client, of at most {_LONGEST_ID} characters")
        if len(queues) > _MOST_QUEUES:
            raise BadRequest(f"{len(queues)} queues are named, the limit is {_MOST_QUEUES}")


def _failed_in(group: str, topic: str) -> str:
    """The topic that has to be readable; "": whoever may read as the group may read its retries.

    For a retry topic of pops it is the one that they were made of. As the names go, the retries of another
    group may be called like that: `%RETRY%a_b` has those of `a` of the topic `b`, or all of `a_b`.
    """
    return "" if topic == retry_topic(group) else pop_retry_origin(group, topic) or topic


def _nobody_waits(_client_id: str, _message: StoredMessage) -> bool:
    """Until there is a door whose clients wait for replies."""
    return False
