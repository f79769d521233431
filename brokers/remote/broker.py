"""The remote broker: a RocketMQ cluster. It builds its parts and delegates each method of the port to one."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from brokers.port import Broker, Capability, CheckHandler
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.clients.cluster_report import ClusterReporter
from brokers.remote.clients.group_members import GroupMembers
from brokers.remote.clients.queue_assignment import QueueAssignment
from brokers.remote.clients.registration import ClientRegistration
from brokers.remote.consume.pop import Popper
from brokers.remote.consume.pop_filter import PopFilter
from brokers.remote.metadata.deletion import Deletion
from brokers.remote.metadata.groups import Groups
from brokers.remote.metadata.relay import CommandRelay
from brokers.remote.metadata.topics import Topics
from brokers.remote.produce.plan import SendPlanner
from brokers.remote.produce.recall import Recaller
from brokers.remote.produce.reply import Replies
from brokers.remote.produce.send import Sender
from brokers.remote.read.group_progress import GroupProgress
from brokers.remote.read.lookup import MessageLookup
from brokers.remote.read.new_topics import NewTopics
from brokers.remote.read.offsets import ClusterOffsets
from brokers.remote.read.pull import Puller
from brokers.remote.read.queue_locks import QueueLocks
from brokers.remote.read.queue_numbers import QueueNumberStore
from brokers.remote.retry_reclaim import RetryReclaimer
from brokers.remote.settings import RemoteSettings
from brokers.remote.settle.deliveries import Deliveries
from brokers.remote.settle.send_back import SendBacks
from brokers.remote.settle.settle import Settlement
from brokers.remote.traits import TRAITS
from brokers.remote.transactions.checks import TransactionChecks
from brokers.remote.transactions.end import TransactionEnder
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.messages.packed_messages import PackedMessages
from popgate.model import (
    Bounds,
    EndTransaction,
    Filter,
    GroupConfig,
    GroupStatus,
    Held,
    Message,
    Pop,
    Progress,
    Pulled,
    QueueOffsets,
    Route,
    SendBack,
    Sent,
    StartFrom,
    StoredMessage,
    TopicConfig,
)


class RemoteBroker(Broker):
    """A RocketMQ cluster. Everything is done in the loop that starts it.

    Its capabilities (`brokers.capabilities` and the like) are parts of it, returned by `capability`.
    """

    name = "rocketmq"
    traits = TRAITS

    def __init__(self, settings: RemoteSettings, *, clock: Clock) -> None:
        self.settings = settings
        access = self.access = ClusterAccess(settings, clock)
        self._topics = Topics(access)
        self._groups = Groups(access)
        self._deletion = Deletion(access, self._topics, self._groups)
        self._offsets = ClusterOffsets(access, self._groups)
        self._new_topics = NewTopics(access, self._topics, self._groups, self._offsets)
        self._puller = Puller(access, self._offsets)
        self._lookup = MessageLookup(access)
        self._locks = QueueLocks(access, self._groups)
        self._numbers = QueueNumberStore(access, self._locks)
        self._group_progress = GroupProgress(access, self._groups, self._offsets)
        self.deliveries = Deliveries(access)
        self._settlement = Settlement(access, self.deliveries, self._groups.group_settings)
        self._send_backs = SendBacks(access, self._groups)
        self._pop_filter = PopFilter(self.deliveries)
        self.popper = Popper(access, self._pop_filter, self._groups.group_settings, self.deliveries)
        self.registration = ClientRegistration(access)
        self.ender = TransactionEnder(access)
        self._checks = TransactionChecks(access, self.ender, self.registration)
        self._sender = Sender(access, SendPlanner(access, self.registration))
        self._recaller = Recaller(access)
        self._reporter = ClusterReporter(access, self.registration, self.popper.unserved.now)
        reclaimer = RetryReclaimer(
            access,
            self._locks,
            self._groups,
            self.popper,
            self._settlement,
            self._topics,
            self._lookup,
            self._sender,
            self._send_backs,
        )
        self._capabilities: tuple[object, ...] = (
            self._sender,
            self._groups,
            self._offsets,
            self._lookup,
            self._locks,
            self._numbers,
            self._pop_filter,
            self.registration,
            self._reporter,
            GroupMembers(access, self.registration),
            QueueAssignment(access),
            CommandRelay(access),
            Replies(access),
            reclaimer,
            access.connections.tls,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.access!r}>"

    def capability(self, kind: type[Capability]) -> Capability | None:
        return next((part for part in (self, *self._capabilities) if isinstance(part, kind)), None)

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises BrokerUnavailable with a sentence for the operator."""
        try:
            await self.access.start()
        except BaseException:
            await self.stop()
            raise
        self.registration.start()
        self._reporter.start()

    async def stop(self) -> None:
        """What requests is stopped before what it requests from; the connections last."""
        await self._sender.stop()
        await self._checks.stop()
        await self.popper.stop()
        await self.deliveries.stop()
        await self._topics.stop()
        await self._groups.stop()
        self._reporter.stop()
        await self.registration.stop()
        await self.access.stop()

    def figures(self) -> dict[str, float]:
        return {
            **self.access.figures(),
            **self.registration.figures(),
            **self._reporter.figures(),
            **self._numbers.figures(),
            **self.popper.figures(),
            **self.ender.figures(),
            **self._checks.figures(),
        }

    # -- Store --------------------------------------------------------------------------------

    # Those of every message hand on a coroutine: one of their own would be run for nothing.

    def send(
        self, context: Context, messages: Sequence[Message]
    ) -> Coroutine[Any, Any, list[Sent | GatewayError]]:
        return self._sender.send(context, messages)

    def send_packed(
        self, context: Context, packed: PackedMessages
    ) -> Coroutine[Any, Any, Sequence[Sent | GatewayError]]:
        return self._sender.send_packed(context, packed)

    def pop(self, context: Context, request: Pop) -> Coroutine[Any, Any, list[StoredMessage]]:
        return self.popper.pop(context, request)

    def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> Coroutine[Any, Any, list[GatewayError | None]]:
        return self._settlement.ack(context, topic, group, receipts)

    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> str:
        return await self._settlement.change_invisible(
            context, topic, group, receipt, invisible_ms, suspend=suspend
        )

    async def give_back(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> int:
        return await self._settlement.give_back(context, topic, group, receipts)

    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        await self._settlement.dead_letter(context, topic, group, receipt)

    async def send_back(self, context: Context, request: SendBack) -> None:
        await self._send_backs.send_back(context, request)

    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        return await self._recaller.recall(context, topic, recall_handle)

    # -- Offsets ------------------------------------------------------------------------------

    def pull(
        self,
        context: Context,
        topic: str,
        broker: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        passing: Filter,
        wait_until: float | None,
    ) -> Coroutine[Any, Any, Pulled]:
        return self._puller.pull(
            context,
            topic,
            broker,
            queue_id,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            passing=passing,
            wait_until=wait_until,
        )

    async def bounds(
        self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
    ) -> Bounds:
        return await self._offsets.bounds(context, topic, broker, queue_id, of_master=of_master)

    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        return await self._offsets.offset_at(context, topic, broker, queue_id, time_ms)

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        return await self._offsets.committed(context, group, topic, broker, queue_id)

    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        await self._offsets.commit(context, group, topic, broker, queue_id, offset)

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> list[tuple[str, str, int]]:
        return await self._locks.lock(context, group, client_id, queues)

    async def unlock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> None:
        await self._locks.unlock(context, group, client_id, queues)

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        return await self._lookup.find_by_id(context, topic, message_id)

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        return await self._lookup.find_by_key(
            context, topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit
        )

    # -- Transactions -------------------------------------------------------------------------

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        await self.ender.end_transaction(context, end)

    def on_check(self, handler: CheckHandler) -> None:
        self._checks.on_check(handler)

    # -- Directory ----------------------------------------------------------------------------

    async def route(self, topic: str) -> Route:
        return await self._topics.route(topic)

    async def topic(self, name: str) -> TopicConfig:
        return await self._topics.topic(name)

    async def topics(self) -> list[TopicConfig]:
        return await self._topics.topics()

    async def create_topic(self, config: TopicConfig) -> None:
        await self._new_topics.create(config)

    async def update_topic(self, config: TopicConfig) -> None:
        await self._topics.update_topic(config)

    async def delete_topic(self, name: str) -> None:
        await self._deletion.delete_topic(name)

    async def group(self, name: str) -> GroupConfig:
        return await self._groups.group(name)

    async def groups(self) -> list[GroupConfig]:
        return await self._groups.groups()

    async def create_group(self, config: GroupConfig) -> None:
        await self._groups.create_group(config)

    async def update_group(self, config: GroupConfig) -> None:
        await self._groups.update_group(config)

    async def delete_group(self, name: str) -> None:
        await self._deletion.delete_group(name)

    async def progress(self, group: str, topic: str) -> list[Progress]:
        return await self._group_progress.progress(group, topic)

    async def topics_of(self, group: str) -> list[str]:
        return await self._groups.topics_of(group)

    async def held(self, group: str, topic: str, limit: int) -> list[Held]:
        return await self._group_progress.held(group, topic, limit)

    async def standing(self, group: str, topic: str) -> GroupStatus:
        return await self._group_progress.standing(group, topic)

    async def standings(self, start: int, queues: int) -> tuple[list[GroupStatus], int | None]:
        return await self._group_progress.standings(start, queues)

    async def reset(self, group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        return await self._offsets.reset(group, topic, to)
