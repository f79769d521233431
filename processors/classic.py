"""What classic clients ask for beside sends, pulls and positions: retries, locks, members, replies.

A floor of the `MessagingProcessor`, with the same five steps in every method.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from brokers.capabilities import CarriesReplies, LeasesQueues, ReplyHandler, TellsConsumers, TellsReaders
from brokers.port import Broker
from brokers.resets import HoldsResets
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import AlreadyExists, BadRequest, GroupNotFound, TopicNotFound, Unsupported
from popgate.kinds import Action
from popgate.model import Message, SendBack, Sent, StoredMessage, TopicConfig
from popgate.naming import check_group, check_topic, retry_topic
from processors.broadcasting import is_member
from processors.explaining import Explaining
from processors.limits import Limits
from processors.numbering import Numbering
from processors.observing import Latest, Observer, Watch
from processors.policies.registry import Policies
from processors.producing import check_message, finish_message
from processors.query_reports import QueryReports
from processors.reclaiming import Reclaiming
from processors.relaying import Relaying

_MOST_QUEUES = 16_384
"""Queues that one request may lock: all those of many topics."""
_HIGHEST = 1 << 31
_AT_ONCE = 64

Named = tuple[str, str, int]
"""topic, broker, queue"""


class Classic(Explaining):
    """Retries by a topic of the group's own, locks of queues, members of groups, replies.

    `relaying` passes commands of tools on to brokers, `numbering` numbers those and their queues, and
    `query_reports` is told how streaming queries stand.
    """

    reclaiming: Reclaiming

    def __init__(
        self, broker: Broker, clock: Clock, limits: Limits, policies: Policies, observer: Observer
    ) -> None:
        super().__init__(broker, clock, limits, policies, observer)
        self._tells_consumers = broker if isinstance(broker, TellsConsumers) else None
        self._holds_resets = broker if isinstance(broker, HoldsResets) else None
        self._carries_replies = broker if isinstance(broker, CarriesReplies) else None
        self._reply_handlers: Latest[ReplyHandler] = Latest(_nobody_waits)
        self.relaying = Relaying(broker, self._admit)
        self.numbering = Numbering(broker, clock, self._admit)
        self.query_reports = QueryReports(clock, self._admit)
        self._watch_send_back = Watch(observer, "send_back")
        self._watch_lock = Watch(observer, "lock")
        self._watch_members = Watch(observer, "members")
        self._watch_reply = Watch(observer, "reply")

    async def send_back(self, context: Context, request: SendBack) -> None:
        """Have a pulled message come again, or be a dead letter: `brokers.port.Store.send_back`.

        Raises IllegalGroup, GroupNotFound, NotFound (the message is gone), BadRequest.
        """
        with self._watch_send_back:
            group = check_group(request.group)
            self._admit(context, Action.SUBSCRIBE, group=group)
            if not 0 <= request.commit_offset < 1 << 63:
                raise BadRequest(f"the commit log offset {request.commit_offset} is out of range")
            if not -_HIGHEST <= request.delay_level < _HIGHEST:
                raise BadRequest(f"the delay level {request.delay_level} is out of range")
            await self._routing.group(group)
            await self._broker.send_back(context, request)
        if request.delay_level < 0:
            self._observer.dead_lettered(retry_topic(group), group)

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        """A position that is about to change is told when it has."""
        if self.reclaiming.is_moving(group):
            await self.reclaiming.settled(group)
        return await super().committed(context, group, topic, broker, queue_id)

    async def begin_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int:
        """A member of a group continues at an offset: `HoldsResets.begin_read`."""
        if self._holds_resets is None:
            return offset
        with self._watch_offsets:
            self._admit(context, Action.SUBSCRIBE, topic=topic, group=check_group(group))
            return await self._holds_resets.begin_read(context, group, topic, broker, queue_id, offset)

    async def commit_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int | None:
        """As `commit`, by a member that reads the queue: `HoldsResets.commit_read`.

        None: it is kept; always, where the broker does not hold resets.
        """
        if self._holds_resets is None:
            await self.commit(context, group, topic, broker, queue_id, offset)
            return None
        with self._watch_offsets:
            reader = await self._committer(context, group, topic, broker, queue_id, offset)
            return await self._holds_resets.commit_read(context, reader, topic, broker, queue_id, offset)

    async def reset_queue(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        """Set a group to an offset on one queue, as `reset` sets it on all of them. Raises as `reset`."""
        with self._watch_directory:
            self._admit(context, Action.UPDATE, group=check_group(group), topic=topic)
            if self._holds_resets is None:
                await self._broker.commit(context, group, topic, broker, queue_id, offset)
            else:
                await self._holds_resets.reset_queue(context, group, topic, broker, queue_id, offset)

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[Named]
    ) -> list[Named]:
        """Lock queues for a client for 60 s, or renew; those that it has now.

        Raises IllegalGroup, GroupNotFound, BadRequest.
        """
        with self._watch_lock:
            self._check_locks(context, group, client_id, queues)
            await self._routing.group(group)
            return await self._broker.lock(context, group, client_id, queues)

    async def unlock(self, context: Context, group: str, client_id: str, queues: Sequence[Named]) -> None:
        """Give up locks; those of others stay. Raises IllegalGroup, BadRequest."""
        with self._watch_lock:
            self._check_locks(context, group, client_id, queues)
            await self._broker.unlock(context, group, client_id, queues)

    async def lease(self, context: Context, group: str, owner: str, queues: Sequence[Named]) -> list[Named]:
        """Have queues for 60 s, or renew; those that the owner has now. Nobody takes it for a lock.

        For what one gateway, or one client, does alone for a group. Raises as `lock`.
        """
        with self._watch_lock:
            self._check_locks(context, group, owner, queues)
            await self._routing.group(group)
            take = self._broker.lease if isinstance(self._broker, LeasesQueues) else self._broker.lock
            return await take(context, group, owner, queues)

    @property
    def pops_group_retries(self) -> bool:
        """Whether `%RETRY%group` can be popped as any topic."""
        return self._broker.traits.pops_group_retries

    async def end_lease(self, context: Context, group: str, owner: str, queues: Sequence[Named]) -> None:
        """Give queues up; those of others stay. Raises IllegalGroup, BadRequest."""
        with self._watch_lock:
            self._check_locks(context, group, owner, queues)
            give_up = (
                self._broker.end_lease if isinstance(self._broker, LeasesQueues) else self._broker.unlock
            )
            await give_up(context, group, owner, queues)

    async def consumers(self, context: Context, group: str) -> list[str]:
        """The ids of the clients of a consumer group, sorted: of all doors, and of all that the broker knows.

        Raises IllegalGroup, BrokerUnavailable, BrokerTimeout: then it is not known who shares its queues.
        """
        with self._watch_members:
            self._admit(context, Action.SUBSCRIBE, group=check_group(group))
            found = {client.client_id for client in self.clients.consumers_of(group)}
            if self._tells_consumers is not None:
                found.update(await self._tells_consumers.consumers(group))
        return sorted(found)

    async def readers_of(self, context: Context, topic: str) -> list[str]:
        """The groups that have read a topic, or subscribe to it now, sorted. Raises TopicNotFound."""
        with self._watch_members:
            self._admit(context, Action.GET, topic=topic)
            await self._broker.topic(topic)
            found = {one.group for one in self.clients.all() if one.group and topic in one.topics}
            if isinstance(self._broker, TellsReaders):
                return sorted(found.union(await self._broker.readers(topic)))
            for number, group in enumerate(await self._broker.groups()):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # there may be many, and the broker may answer at once
                if group.name not in found and not is_member(group):
                    with contextlib.suppress(GroupNotFound):  # deleted meanwhile
                        if topic in await self._broker.topics_of(group.name):
                            found.add(group.name)
        return sorted(found)

    async def prepare_group(self, context: Context, group: str) -> None:
        """Have the group, made on first use where that is allowed, and its topic `%RETRY%group`.

        A consumer asks for the route of that topic as soon as it has told who it is.
        Raises IllegalGroup, GroupNotFound, TooManyRequests.
        """
        with self._watch_members:
            self._admit(context, Action.SUBSCRIBE, group=check_group(group))
            await self._routing.group(group)
            topic = retry_topic(group)
            try:
                await self._routing.route(topic)
            except TopicNotFound:
                with contextlib.suppress(AlreadyExists):
                    await self._broker.create_topic(TopicConfig(topic, read_queues=1, write_queues=1))
                self._routing.forget_topic(topic)

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
        if not client_id:
            raise BadRequest("a lock needs the id of its client")
        if len(queues) > _MOST_QUEUES:
            raise BadRequest(f"{len(queues)} queues are named, the limit is {_MOST_QUEUES}")


def _nobody_waits(_client_id: str, _message: StoredMessage) -> bool:
    """Until there is a door whose clients wait for replies."""
    return False
