"""The members of groups: lists of them, notices when they change, and resets of their positions.

Sources: protocol facts 5.5 (38, 40, 203, 220), 5.13, 5.14 and 7.5; code 222 as mqadmin 5.5.0 sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from popgate.context import Context
from popgate.errors import BadRequest, GatewayError
from popgate.model import Permission, Queue, QueueOffsets, StartFrom
from popgate.naming import check_group, check_topic
from popgate.wire.bodies.consumer_info import encode_offsets
from popgate.wire.bodies.heartbeats import (
    Connection,
    ConsumerConnection,
    encode_producer_connections,
)
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.json_syntax.fastjson import dumps
from processors.consume.resets import Reset
from protocols.remoting.clients.connected import consumers_of, merged, merged_alike, producers_of
from protocols.remoting.clients.remoting_client import RemotingClient, peers_of
from protocols.remoting.codec.fields import flag, long_number, number, text
from protocols.remoting.codec.merged_responses import clients_of
from protocols.remoting.mapped.handler import Mapped
from protocols.remoting.mapped.offsets import QueueKey
from protocols.remoting.requests import DoorContext, Handler, Peer, Request
from protocols.remoting.tools.relay import BrokersBehind
from protocols.remoting.virtual.translation import VirtualQueueTranslator

PushMember = Callable[[Peer, str], RemotingClient | None]
"""The client of a connection that is a push consumer of a group and shares its messages."""

_LONGEST_GROUP: Final = 255
_GATHERED_S: Final = 0.5
"""For how long a client's commits are collected before it is sent where a reset sets it, on all queues."""
RESTS_S: Final = 15.0
"""From one reset that a client is told of to the next that was made elsewhere.

A Java client rests for 10 s in one of its threads for callbacks, of which it has as many as there are cores;
then it asks for its queues anew, which takes another one. With two resets at once on two cores none of its
requests ends for 20 s (seen of 5.5.0; NettyRemotingClient, `clientCallbackExecutorThreads`)."""
MOST_GATHERED: Final = 100_000
"""Groups whose members changed in one turn of the loop; who is not told asks every 20 s anyhow."""


def nobody(_peer: Peer, _group: str) -> None:
    """Where no heartbeats are served."""


def _everybody(_peer: Peer) -> bool:
    """Where there is one listener."""
    return True


class Members:
    """Tells who is in a group, and its classic members when that changes, or how the group reads."""

    def __init__(
        self,
        door_context: DoorContext,
        push_member: PushMember = nobody,
        translator: VirtualQueueTranslator | None = None,
        mapped: Mapped | None = None,
        is_here: Callable[[Peer], bool] = _everybody,
    ) -> None:
        """`is_here`: whether a connection is one of this listener, not of another one of the gateway."""
        self._mapped = mapped if mapped is not None else Mapped(door_context)
        self._translator = translator if translator is not None else VirtualQueueTranslator(door_context)
        self._processor = door_context.processor
        self._clock = door_context.clock
        self._clients = door_context.processor.clients
        self._changed: set[str] = set()
        door_context.ends.callback(self._clients.on_members.add(self.changed))
        door_context.ends.callback(self._processor.offsets.on_reset.add(self.resetting))
        self._mapped.on_reset_elsewhere = self._gather
        self._late: dict[tuple[Peer, str, str], dict[MessageQueue, int]] = {}
        """Of members that have not heard of a reset, by group and topic."""
        self._resting: dict[Peer, float] = {}
        """Until when, in loop seconds, nobody is told of a reset that was made elsewhere."""
        self._telling: set[asyncio.Task[None]] = set()
        self._push_member = push_member
        self._is_here = is_here
        self._behind = BrokersBehind(door_context)
        door_context.ends.callback(
            self._processor.mapped_groups.on_switch(lambda group, _: self.changed(group))
        )

    def __repr__(self) -> str:
        return f"<Members changed {len(self._changed)}>"

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumers,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    def changed(self, group: str) -> None:
        """A consumer joined or left. The `Clients.on_members` listener."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._tell)
        if len(self._changed) < MOST_GATHERED:
            self._changed.add(group)

    def _tell(self) -> None:
        changed, self._changed = self._changed, set()
        for group in changed:
            for peer in peers_of(self._clients.consumers_of(group)):
                peer.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    async def consumers(self, request: Request) -> Command:
        """Of all doors and replicas. A client shares the queues of a topic with those in the list.

        Members of a mapped group share messages: each gets only itself, and reads all queues. So does each of
        a broadcast group.
        """
        group = text(request.fields, "consumerGroup")
        mapping = self._processor.mapped_groups
        if mapping.may_map(group):
            member = self._push_member(request.peer, group)
            if member is not None and (await mapping.current(request.context, group)).mapped:
                return request.answer(body=dumps({"consumerIdList": [member.client_id]}))
        ids = await self._processor.group_members.sharers(request.context, group)
        if not ids:
            return request.refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return request.answer(body=dumps({"consumerIdList": sorted(set(ids))}))

    async def consumer_connections(self, request: Request) -> Command:
        """Of clients of other replicas what those, or the brokers of a cluster, know."""
        group = text(request.fields, "consumerGroup")
        ids = await self._processor.group_members.consumers(request.context, group)
        here = self._clients.consumers_of(group)
        if not ids and not here:
            return request.refusal(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        elsewhere = await self._consumers_elsewhere(request.context, group)
        reports = [consumers_of(here)] if here else []
        if self._behind.there:
            reports += (
                elsewhere  # what this gateway is told itself counts before what brokers were told of it
            )
            answer = merged(reports)
        else:
            reports = elsewhere + reports  # all gateways have the same first
            answer = merged_alike(reports)
        by_id = [Connection(client_id) for client_id in ids]
        connections = _by_id(clients_of((*(each.connections for each in reports), by_id)))
        return request.answer(body=replace(answer, connections=tuple(connections)).encode())

    async def _consumers_elsewhere(self, context: Context, group: str) -> list[ConsumerConnection]:
        """As other replicas, or brokers of a cluster, know them; who is in the group is known without."""
        if self._behind.know_clients:
            with contextlib.suppress(GatewayError):
                return await self._behind.consumers_in(context, group)
        return []

    async def producer_connections(self, request: Request) -> Command:
        """Producers of this replica, and those that other replicas or the brokers of a cluster report.

        Over gRPC the group of a producer is its topic.
        """
        group = text(request.fields, "producerGroup")
        behind = self._behind
        elsewhere: list[tuple[Connection, ...]] = []
        if behind.know_clients:
            elsewhere = await behind.producers_in(request.context, group)
        else:
            # Who may see none elsewhere may see none here, either.
            self._processor.command_relay.admit(request.context, request.command.code)
        here = producers_of(self._clients, group)
        connections = _by_id(clients_of((here, *elsewhere) if behind.there else (*elsewhere, here)))
        if not connections:
            return request.refusal(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{group[:_LONGEST_GROUP]}] not exist"
            )
        return request.answer(body=encode_producer_connections(tuple(connections)))

    async def reset(self, request: Request) -> Command:
        """Set a group to a time, and notify its classic members, which would otherwise commit the old one.

        `timestamp` -1 is the end. Without `isForce` no queue is set forwards. `queueId` and `offset`
        name one queue of a broker, and its position.
        """
        fields, context = request.fields, request.context
        topic, group = check_topic(text(fields, "topic")), check_group(text(fields, "group"))
        time_ms = long_number(fields, "timestamp", -1)
        if time_ms < -1:
            raise BadRequest(f"the time {time_ms} ms is out of range")
        broker = fields.get("bname", "")
        queues = [
            queue
            for queue in _readable(await self._processor.metadata.queues(context, topic))
            if broker in ("", queue.broker)
        ]
        queue_id, offset = number(fields, "queueId", -1), long_number(fields, "offset", -1)
        one_queue = queue_id >= 0 and offset >= 0
        if one_queue and broker == "" and len({queue.broker for queue in queues}) > 1:
            raise BadRequest("the field bname does not say which broker's queue is meant")
        if not one_queue and flag(fields, "isForce", default=True):
            to = StartFrom.LAST if time_ms < 0 else time_ms
            was_set = await self._processor.offsets.reset(context, group, topic, to)
            return request.answer(body=encode_offsets(_offsets_of(topic, queues, was_set)))
        async with self._mapped.resets.under_way(group, topic):
            if one_queue:
                stay: QueueOffsets = {}
                change = {
                    (read_queue.broker, queue_id): offset
                    for read_queue in queues
                    if read_queue.queue_id == queue_id
                }
                if not change:
                    raise BadRequest(f"topic {topic} has no readable queue {queue_id}")
            else:
                stay, change = await self._those_ahead(context, group, topic, queues, time_ms)
            if change:
                reset = Reset(context, group, topic, frozenset(change))
                async with self._processor.offsets.on_reset.during(reset):
                    for (name, number_of), to_offset in change.items():
                        await self._processor.offsets.reset_queue(
                            context, group, topic, name, number_of, to_offset
                        )
                    reset.offsets.update(stay | change)
        return request.answer(body=encode_offsets(_offsets_of(topic, queues, stay | change)))

    async def _those_ahead(
        self, context: Context, group: str, topic: str, queues: Iterable[Queue], time_ms: int
    ) -> tuple[QueueOffsets, QueueOffsets]:
        """Where the group is on queues that it has not read past a time, and where that is on the others."""
        stay: QueueOffsets = {}
        change: QueueOffsets = {}
        for queue in queues:
            place = topic, queue.broker, queue.queue_id
            position = await self._processor.offsets.committed(context, group, *place)
            if time_ms < 0:
                at = (await self._processor.offsets.bounds(context, *place)).maximum
            else:
                at = await self._processor.offsets.offset_at(context, *place, time_ms)
            if position is None or at < position:
                change[queue.broker, queue.queue_id] = at
            else:
                stay[queue.broker, queue.queue_id] = position
        return stay, change

    @contextlib.asynccontextmanager
    async def resetting(self, reset: Reset) -> AsyncIterator[None]:
        """The processor's listener: resets are made through other doors and interfaces, too.

        Notifies the clients of this door; other doors notify theirs.
        """
        context, group, topic = reset.context, reset.group, reset.topic
        async with self._mapped.resetting(group, topic, reset.queues):
            yield
            peers = [peer for peer in peers_of(self._clients.consumers_of(group)) if self._is_here(peer)]
            if peers:
                with contextlib.suppress(GatewayError):  # it is done, whoever can be told
                    queues = _readable(await self._processor.metadata.queues(context, topic))
                    offsets = _offsets_of(topic, queues, reset.offsets)
                    await self._tell_positions(context, group, topic, offsets, peers)

    def _gather(self, context: Context, peer: Peer, key: QueueKey, offset: int) -> None:
        """Collect queues, because a client pauses for 10 s per notice, and commits all queues at once."""
        place = peer, key.group, key.topic
        if place not in self._late:
            self._late[place] = {}
            context = replace(context, allowance=None, deadline=None)
            self._clock.call_later(_GATHERED_S, lambda: self._tell_late(context, place))
        self._late[place][MessageQueue(key.topic, key.broker, key.queue_id)] = offset

    def _tell_late(self, context: Context, place: tuple[Peer, str, str]) -> None:
        peer, group, topic = place
        wait_s = self._resting.get(peer, 0.0) - self._clock.monotonic()
        if wait_s > 0:
            self._clock.call_later(wait_s, lambda: self._tell_late(context, place))
            return
        offsets = {
            queue: offset
            for queue, offset in self._late.pop(place).items()
            if self._is_sent_to(peer, group, queue, offset)  # else it has asked meanwhile
        }
        if not offsets:
            return
        self._rests(peer)
        telling = self._tell_positions(context, group, topic, offsets, [peer])
        task = asyncio.get_running_loop().create_task(telling)
        self._telling.add(task)
        self._processor.settlement.finishes(task)
        task.add_done_callback(self._telling.discard)

    def _rests(self, peer: Peer) -> None:
        """A reset notice is being sent to it now."""
        known = peer in self._resting
        self._resting[peer] = self._clock.monotonic() + RESTS_S
        if not known:
            peer.on_gone(partial(self._left, peer))

    def _left(self, peer: Peer) -> None:
        self._resting.pop(peer, None)

    def _is_sent_to(self, peer: Peer, group: str, queue: MessageQueue, offset: int) -> bool:
        key = QueueKey(group, queue.topic, queue.broker, queue.queue_id)
        return self._mapped.resets.target(peer, key) == offset

    async def _tell_positions(
        self,
        context: Context,
        group: str,
        topic: str,
        offsets: Mapping[MessageQueue, int],
        peers: Sequence[Peer],
    ) -> None:
        """Tell members of a group where they are to go on.

        What push members commit until they do so is where they were before.
        """
        fields = {"topic": topic, "group": group, "timestamp": "-1", "isForce": "true"}
        translator = self._translator
        numbered = offsets
        if any(translator.names_none(peer) for peer in peers):
            numbered = await translator.positions(context, topic, offsets)
        for peer in peers:
            positions = numbered if translator.names_none(peer) else offsets
            body = _offsets_for_c(positions) if peer.language == "CPP" else encode_offsets(positions)
            heard = peer.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
            self._rests(peer)
            if self._push_member(peer, group) is not None:
                for queue, at in offsets.items():
                    key = QueueKey(group, queue.topic, queue.broker, queue.queue_id)
                    self._mapped.sent_to(peer, key, at, heard=heard)


def _offsets_of(topic: str, queues: Iterable[Queue], was_set: QueueOffsets) -> dict[MessageQueue, int]:
    """What was set of these queues."""
    places = ((queue.broker, queue.queue_id) for queue in queues)
    return {MessageQueue(topic, *place): was_set[place] for place in places if place in was_set}


def _by_id(connections: Iterable[Connection]) -> list[Connection]:
    """Sorted, so that all replicas return the same order."""
    return sorted(connections, key=lambda connection: connection.client_id)


def _readable(queues: Iterable[Queue]) -> list[Queue]:
    return [queue for queue in queues if queue.permission & Permission.READ]


def _offsets_for_c(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Clients in C++ read no objects as keys."""
    return dumps({"offsetTable": [{**queue.table(), "offset": at} for queue, at in offsets.items()]})
