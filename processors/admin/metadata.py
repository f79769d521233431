"""Topics, groups, positions and look-ups: what is asked about messages, and not of them.

The base of the `MessagingProcessor`, with the same steps in every method.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from brokers.capabilities import BrokerPlace, FindsByPlace, TellsBrokers
from brokers.port import Broker
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    Fault,
    GroupNotFound,
    TooManyRequests,
    TopicNotFound,
    Unsupported,
    shown,
)
from popgate.filters import compile_filter
from popgate.kinds import Action
from popgate.model import (
    Bounds,
    GroupConfig,
    Progress,
    Pulled,
    Queue,
    QueueOffsets,
    StartFrom,
    StoredMessage,
    TopicConfig,
)
from popgate.naming import check_group, check_topic, is_system_topic
from popgate.stored_records import body_bytes
from processors.admin.config_checks import check_group_config, check_topic_config
from processors.admin.redrive import DeadLetters
from processors.admission import Admission
from processors.budgets import Budgets
from processors.consume.receive_rules import check_enabled, wait_until
from processors.consume.resets import Reset, ResetListeners
from processors.limits import Limits
from processors.members.broadcast import Broadcasting, Member, is_member
from processors.observer import Observer, Watch
from processors.policies.registry import Policies
from processors.produce.routing import Routing
from processors.requests import Pull

_LONGEST_ID = 1024
DEFAULT_CLUSTER = "DefaultCluster"
"""The cluster of a broker that is none: RocketMQ's own default name."""


class Directing:
    """Everything of the processor that the hot path does not need."""

    def __init__(
        self, broker: Broker, clock: Clock, limits: Limits, policies: Policies, observer: Observer
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._limits = limits
        self._observer = observer
        self._policies = policies
        self._admit = Admission(policies, clock).admit
        self._routing = Routing(broker, clock, limits, observer)
        self.letters = DeadLetters(broker, self._admit, observer)
        self.budgets = Budgets(
            process_bytes=limits.process_bytes,
            group_bytes=limits.group_bytes,
            connection_bytes=limits.connection_bytes,
        )
        self.broadcasting = Broadcasting(
            broker,
            self._routing,
            clock,
            expiry_s=limits.broadcast_expiry_s,
            max_members=limits.max_broadcast_members,
        )
        self._waiting = 0
        self.on_reset = ResetListeners()
        self._topic_changed: Callable[[str], None] = _nobody_listens
        self._group_changed: Callable[[str], None] = _nobody_listens
        self._watch_pull = Watch(observer, "pull")
        self._watch_offsets = Watch(observer, "offsets")
        self._watch_find = Watch(observer, "find")
        self._watch_directory = Watch(observer, "directory")

    async def pull(self, context: Context, request: Pull) -> Pulled:
        """Read by offset, without taking. The group and the topic are made on first use, as by a receive.

        Raises IllegalOffset, IllegalFilter, BadRequest (no such queue, ILLEGAL_POLLING_TIME), Forbidden,
        IllegalTopic, IllegalGroup, TopicNotFound, GroupNotFound, TooManyRequests.
        """
        began = self._clock.monotonic()
        with self._watch_pull:
            topic = _readable(request.topic)
            group = None if request.group is None else check_group(request.group)
            self._admit(context, Action.SUBSCRIBE, topic=topic, group=group or "")
            _check_queue(request.queue_id)
            passing = compile_filter(request.filter_kind, request.filter_expression)
            wait_s = request.wait_s
            until = None if wait_s is None else wait_until(context, wait_s, self._limits, began)
            if group is not None:
                check_enabled(await self._routing.group(group))
            await self._routing.route(topic)
            max_bytes = min(max(request.max_bytes, 1), self._limits.max_pull_bytes)
            if context.allowance is not None:
                context.allowance.for_group(group or "")
                max_bytes = min(max_bytes, context.allowance.room())
            self._check_waiting()
            self._waiting += 1
            try:
                pulled = await self._broker.pull(
                    context,
                    topic,
                    request.broker,
                    request.queue_id,
                    request.offset,
                    max_messages=min(max(request.max_messages, 1), self._limits.max_pull_messages),
                    max_bytes=max_bytes,
                    passing=passing,
                    wait_until=until,
                )
            except TopicNotFound:
                self._routing.forget_topic(topic)
                raise
            finally:
                self._waiting -= 1
        took, size = self._clock.monotonic() - began, body_bytes(pulled.messages)
        self._observer.pulled(topic, group or "", len(pulled.messages), size, took)
        return pulled

    async def bounds(self, context: Context, topic: str, broker: str, queue_id: int) -> Bounds:
        with self._watch_offsets:
            self._admit(context, Action.SUBSCRIBE, topic=_readable(topic))
            _check_queue(queue_id)
            return await self._broker.bounds(context, topic, broker, queue_id)

    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms`; the maximum when there is none."""
        with self._watch_offsets:
            self._admit(context, Action.SUBSCRIBE, topic=_readable(topic))
            _check_queue(queue_id)
            time_ms = min(max(time_ms, 0), (1 << 63) - 1)
            return await self._broker.offset_at(context, topic, broker, queue_id, time_ms)

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        """Below this the group is done; None when it never read the queue.

        A group that would be made on first use is not made by asking: it has read nothing.
        """
        with self._watch_offsets:
            self._admit(context, Action.SUBSCRIBE, topic=_readable(topic), group=check_group(group))
            _check_queue(queue_id)
            reader = await self.broadcasting.of(context, group)
            try:
                return await self._broker.committed(context, reader, topic, broker, queue_id)
            except GroupNotFound:
                # Of a client of a broadcast group it says only that the client has not received yet.
                if reader == group and not self._limits.auto_create_groups:
                    raise
            await self._broker.bounds(context, topic, broker, queue_id)  # no such queue is told all the same
            return None

    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        """Set the group's position on a queue; the group is made on first use when that is allowed."""
        with self._watch_offsets:
            reader = await self._committer(context, group, topic, broker, queue_id, offset)
            await self._broker.commit(context, reader, topic, broker, queue_id, offset)

    async def _committer(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> str:
        """The group whose position a client sets: of a broadcast one its own. Raises as `commit`."""
        self._admit(context, Action.SUBSCRIBE, topic=_readable(topic), group=check_group(group))
        _check_queue(queue_id)
        if not 0 <= offset < 1 << 63:
            raise BadRequest(f"the offset {offset} is out of range", Fault.ILLEGAL_OFFSET)
        if await self._routing.known(group) is None:
            # Asked first: a group is not made for a queue that is not there.
            await self._broker.bounds(context, topic, broker, queue_id)
        return await self.broadcasting.join(context, await self._routing.group(group))

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        """Every stored copy with this message id (the client's, or the one of the place)."""
        with self._watch_find:
            self._admit(context, Action.GET, topic=_readable(topic))
            if not message_id.strip() or len(message_id) > _LONGEST_ID:
                raise BadRequest(
                    f"the message id {shown(message_id)} is no message id: it must not be blank,"
                    f" nor longer than {_LONGEST_ID} characters",
                    Fault.ILLEGAL_MESSAGE_ID,
                )
            return await self._broker.find_by_id(context, topic, message_id)

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        """Messages with this key stored in [begin_ms, end_ms], newest first, at most `limit`."""
        with self._watch_find:
            self._admit(context, Action.GET, topic=_readable(topic))
            if not key.strip() or len(key) > self._limits.max_properties_bytes:
                raise BadRequest("the key must not be blank, nor longer than a key can be", Fault.ILLEGAL_KEY)
            limit = min(max(limit, 1), self._limits.max_found)
            return await self._broker.find_by_key(
                context, topic, key, begin_ms=max(begin_ms, 0), end_ms=end_ms, limit=limit
            )

    async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
        """The message at a place of a broker's log. Raises NotFound, BadRequest, Unsupported."""
        with self._watch_find:
            self._admit(context, Action.GET)
            by_place = self._broker.capability(FindsByPlace)
            if by_place is None:
                raise Unsupported(f"to look a message up by its place in the log of {self._broker.name}")
            if not 0 <= commit_offset < 1 << 63:
                raise BadRequest(f"the commit log offset {commit_offset} is out of range")
            found = await by_place.at_place(context, broker, commit_offset)
            self._admit(context, Action.GET, topic=found.topic)
            return found

    @property
    def tells_deliveries(self) -> bool:
        """Whether the broker knows what is held: else figures of that mean nothing, and are not shown."""
        return self._broker.traits.tells_deliveries

    async def topic(self, context: Context, name: str) -> TopicConfig:
        """Raises TopicNotFound; nothing is made by asking."""
        with self._watch_directory:
            self._admit(context, Action.GET, topic=name)
            return await self._broker.topic(name)

    async def queues(self, context: Context, topic: str) -> Sequence[Queue]:
        """All queues of a topic, which is never made by asking. Raises TopicNotFound."""
        with self._watch_directory:
            self._admit(context, Action.GET, topic=topic)
            return (await self._broker.route(topic)).queues

    async def brokers(self, context: Context) -> Sequence[BrokerPlace]:
        """The brokers behind this gateway, by the names that routes have. Raises BrokerUnavailable."""
        with self._watch_directory:
            self._admit(context, Action.GET)
            several = self._broker.capability(TellsBrokers)
            if several is not None:
                return await several.known_brokers()
            return [BrokerPlace(DEFAULT_CLUSTER, self._broker.name)]

    async def topics(self, context: Context) -> list[TopicConfig]:
        with self._watch_directory:
            self._admit(context, Action.LIST)
            return await self._broker.topics()

    def check_config(self, config: TopicConfig | GroupConfig) -> None:
        """Raises what making it, or changing it to this, would raise before the broker is asked."""
        if isinstance(config, TopicConfig):
            check_topic(config.name)
            check_topic_config(config, self._limits)
        else:
            check_group(config.name)
            check_group_config(config, self._limits)

    async def create_topic(self, context: Context, config: TopicConfig) -> None:
        """Raises IllegalTopic, BadRequest (its settings), AlreadyExists."""
        with self._watch_directory:
            self._admit(context, Action.CREATE, topic=check_topic(config.name))
            check_topic_config(config, self._limits)
            await self._broker.create_topic(config)
            self._routing.forget_topic(config.name)
            self._topic_changed(config.name)

    async def update_topic(self, context: Context, config: TopicConfig) -> None:
        """Raises IllegalTopic, BadRequest (its settings, fewer queues), TopicNotFound."""
        with self._watch_directory:
            self._admit(context, Action.UPDATE, topic=check_topic(config.name))
            check_topic_config(config, self._limits)
            await self._broker.update_topic(config)
            self._routing.forget_topic(config.name)
            self._topic_changed(config.name)

    async def delete_topic(self, context: Context, name: str) -> None:
        """Raises TopicNotFound."""
        with self._watch_directory:
            self._admit(context, Action.DELETE, topic=name)
            self._routing.forget_topic(name)
            await self._broker.delete_topic(name)
            self._routing.forget_topic(name)
            self._topic_changed(name)

    async def group(self, context: Context, name: str) -> GroupConfig:
        """Raises GroupNotFound; nothing is made by asking."""
        with self._watch_directory:
            self._admit(context, Action.GET, group=name)
            return await self._broker.group(name)

    async def groups(self, context: Context) -> list[GroupConfig]:
        """Those that people made or named; `members` are those of one broadcast group."""
        with self._watch_directory:
            self._admit(context, Action.LIST)
            return [group for group in await self._broker.groups() if not is_member(group)]

    async def members(self, context: Context, group: str) -> list[Member]:
        """The clients of a broadcast group that have a cursor. Raises GroupNotFound."""
        with self._watch_directory:
            self._admit(context, Action.GET, group=group)
            await self._broker.group(group)
            return await self.broadcasting.members(group)

    async def create_group(self, context: Context, config: GroupConfig) -> None:
        """Raises IllegalGroup, BadRequest (its settings), AlreadyExists."""
        with self._watch_directory:
            self._admit(context, Action.CREATE, group=check_group(config.name))
            check_group_config(config, self._limits)
            await self._broker.create_group(config)
            self._routing.forget_group(config.name)
            self._group_changed(config.name)

    async def update_group(self, context: Context, config: GroupConfig) -> None:
        """Raises IllegalGroup, BadRequest (its settings), GroupNotFound."""
        with self._watch_directory:
            self._admit(context, Action.UPDATE, group=check_group(config.name))
            check_group_config(config, self._limits)
            await self._broker.update_group(config)
            self._routing.forget_group(config.name)
            self._group_changed(config.name)
            if not config.broadcast:
                await self.broadcasting.forget(config.name)

    async def delete_group(self, context: Context, name: str) -> None:
        """Raises GroupNotFound."""
        with self._watch_directory:
            self._admit(context, Action.DELETE, group=name)
            self._routing.forget_group(name)
            await self._broker.delete_group(name)
            self._routing.forget_group(name)
            self._group_changed(name)
            await self.broadcasting.forget(name)

    async def progress(self, context: Context, group: str, topic: str) -> list[Progress]:
        """How far the group is, per queue. Raises GroupNotFound, TopicNotFound."""
        with self._watch_directory:
            self._admit(context, Action.GET, group=group, topic=topic)
            return await self._broker.progress(group, topic)

    async def topics_of(self, context: Context, group: str) -> list[str]:
        """The topics that the group has read. Raises GroupNotFound."""
        with self._watch_directory:
            self._admit(context, Action.GET, group=group)
            return await self._broker.topics_of(group)

    async def reset(self, context: Context, group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        """Set the group on every queue to the first, the last, or the offset at a wall time in ms.

        Of a broadcast group: every client that has a cursor. What was set, as `Directory.reset` says it.
        """
        with self._watch_directory:
            self._admit(context, Action.UPDATE, group=group, topic=topic)
            if isinstance(to, int) and not 0 <= to < 1 << 63:
                raise BadRequest(f"the time {to} ms is out of range")
            reset = Reset(context, group, topic)
            async with self.on_reset.during(reset):
                reset.offsets.update(await self._broker.reset(group, topic, to))
                for member in await self.broadcasting.members(group):
                    with contextlib.suppress(GroupNotFound):  # forgotten meanwhile
                        await self._broker.reset(member.member_group, topic, to)
            return reset.offsets

    def _check_waiting(self) -> None:
        """Before a request that may wait for messages. Raises TooManyRequests."""
        if self._waiting >= self._limits.max_waiting:
            raise TooManyRequests(
                f"the limit of {self._limits.max_waiting} waiting receives is reached",
                known_as="polling full",
            )


def _readable(topic: str) -> str:
    """Topics of the system cannot be used by clients, but what lies in them can be read."""
    return topic if is_system_topic(topic) else check_topic(topic)


def _check_queue(queue_id: int) -> None:
    if not 0 <= queue_id < 1 << 31:
        raise BadRequest(f"the queue id {queue_id} is out of range")


def _nobody_listens(_name: str) -> None:
    """Until clients can be told."""
