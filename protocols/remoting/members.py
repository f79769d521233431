"""The members of groups: lists of them, word when they change, and offsets that were reset.

Sources: protocol facts 5.5 (38, 40, 203, 220), 5.13, 5.14 and 7.5; code 222 as mqadmin 5.5.0 asks it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from popgate.context import Context
from popgate.errors import BadRequest, GatewayError
from popgate.model import Permission, Queue, StartFrom
from popgate.naming import check_group, check_topic
from popgate.wire.bodies import MessageQueue
from popgate.wire.codes import RequestCode, ResponseCode
from popgate.wire.fastjson import dumps
from popgate.wire.heartbeats import (
    Connection,
    ConsumerConnection,
    encode_producer_connections,
)
from popgate.wire.remoting import Command
from popgate.wire.running import encode_offsets
from processors.clients import ClientHandle
from protocols.remoting.clients import RemotingClient
from protocols.remoting.connected import consumers_of, merged, merged_alike, producers_of
from protocols.remoting.fields import flag, long_number, number, text
from protocols.remoting.gathered import clients_of
from protocols.remoting.relaying import BrokersBehind
from protocols.remoting.requests import DoorHouse, Handler, Peer, Request
from protocols.remoting.virtual.translating import Translating

PushMember = Callable[[Peer, str], RemotingClient | None]
"""The client of a connection that is a push consumer of a group and shares its messages."""

_LONGEST_GROUP: Final = 255
MOST_GATHERED: Final = 100_000
"""Groups whose members changed in one turn of the loop; who is not told asks every 20 s anyhow."""


def nobody(_peer: Peer, _group: str) -> None:
    """Where no heartbeats are served."""


class Members:
    """Tells who is in a group, and its classic members when that changes, or how the group reads."""

    def __init__(
        self, house: DoorHouse, push_member: PushMember = nobody, translating: Translating | None = None
    ) -> None:
        self._translating = translating if translating is not None else Translating(house)
        self._processor = house.processor
        self._clients = house.processor.clients
        self._changed: set[str] = set()
        self._clients.on_members = self.changed
        self._processor.on_reset = self.was_reset
        self._push_member = push_member
        self._behind = BrokersBehind(house)
        self._processor.mapping.on_switch(lambda group, _: self.changed(group))

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
        """Of all doors and replicas. Whoever asks shares the queues of a topic with those in the list.

        The members of a mapped group share messages: each is told of itself alone, and reads all queues.
        """
        group = text(request.fields, "consumerGroup")
        mapping = self._processor.mapping
        if mapping.may_map(group):
            member = self._push_member(request.peer, group)
            if member is not None and (await mapping.current(request.context, group)).mapped:
                return request.answer(body=dumps({"consumerIdList": [member.client_id]}))
        found = await self._processor.consumers(request.context, group)
        if not found:
            return request.refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return request.answer(body=dumps({"consumerIdList": sorted(set(found))}))

    async def consumer_connections(self, request: Request) -> Command:
        """Of clients of other replicas what those, or the brokers of a cluster, know."""
        group = text(request.fields, "consumerGroup")
        found = await self._processor.consumers(request.context, group)
        here = self._clients.consumers_of(group)
        if not found and not here:
            return request.refusal(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        elsewhere = await self._consumers_elsewhere(request.context, group)
        told = [consumers_of(here)] if here else []
        told += elsewhere
        by_id = [Connection(client_id) for client_id in found]
        connections = _by_id(clients_of((*(each.connections for each in told), by_id)))
        # What this gateway is told itself counts before what brokers were told of it.
        answer = merged(told) if self._behind.there else merged_alike(told)
        return request.answer(body=replace(answer, connections=tuple(connections)).encode())

    async def _consumers_elsewhere(self, context: Context, group: str) -> list[ConsumerConnection]:
        """As other replicas, or brokers of a cluster, know them; who is in the group is known without."""
        if self._behind.know_clients:
            with contextlib.suppress(GatewayError):
                return await self._behind.consumers_in(context, group)
        return []

    async def producer_connections(self, request: Request) -> Command:
        """Those of this replica, and those that other replicas or the brokers of a cluster know.

        Over gRPC the group of a producer is its topic.
        """
        group = text(request.fields, "producerGroup")
        here, behind = producers_of(self._clients, group), self._behind
        elsewhere = await behind.producers_in(request.context, group) if behind.know_clients else []
        found = _by_id(clients_of((here, *elsewhere)))
        if not found:
            return request.refusal(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{group[:_LONGEST_GROUP]}] not exist"
            )
        return request.answer(body=encode_producer_connections(tuple(found)))

    async def reset(self, request: Request) -> Command:
        """Set a group to a time, and tell its classic members, whose own positions would come back else.

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
            for queue in _readable(await self._processor.queues(context, topic))
            if broker in ("", queue.broker)
        ]
        offsets: dict[MessageQueue, int] = {}
        queue_id, offset = number(fields, "queueId", -1), long_number(fields, "offset", -1)
        if queue_id >= 0 and offset >= 0:
            if broker == "" and len({queue.broker for queue in queues}) > 1:
                raise BadRequest("the field bname does not say which broker's queue is meant")
            for queue in queues:
                if queue.queue_id == queue_id:
                    await self._processor.commit(context, group, topic, queue.broker, queue_id, offset)
                    offsets[MessageQueue(topic, queue.broker, queue_id)] = offset
            if not offsets:
                raise BadRequest(f"topic {topic} has no readable queue {queue_id}")
        elif flag(fields, "isForce", default=True):
            await self._processor.reset(context, group, topic, StartFrom.LAST if time_ms < 0 else time_ms)
            return request.answer(body=encode_offsets(await self._positions(context, group, topic, queues)))
        else:
            for queue in queues:
                place = group, topic, queue.broker, queue.queue_id
                done = await self._processor.committed(context, *place)
                if time_ms < 0:
                    at = (await self._processor.bounds(context, *place[1:])).maximum
                else:
                    at = await self._processor.offset_at(context, *place[1:], time_ms)
                if done is None or at < done:
                    await self._processor.commit(context, *place, at)
                    done = at
                offsets[MessageQueue(topic, queue.broker, queue.queue_id)] = done
        await self._tell_positions(context, group, topic, offsets)
        return request.answer(body=encode_offsets(offsets))

    async def was_reset(self, context: Context, group: str, topic: str) -> None:
        """The processor's listener: resets come by other ways, too."""
        if not peers_of(self._clients.consumers_of(group)):
            return
        queues = _readable(await self._processor.queues(context, topic))
        offsets = await self._positions(context, group, topic, queues)
        await self._tell_positions(context, group, topic, offsets)

    async def _positions(
        self, context: Context, group: str, topic: str, queues: Iterable[Queue]
    ) -> dict[MessageQueue, int]:
        offsets: dict[MessageQueue, int] = {}
        for queue in queues:
            done = await self._processor.committed(context, group, topic, queue.broker, queue.queue_id)
            if done is not None:
                offsets[MessageQueue(topic, queue.broker, queue.queue_id)] = done
        return offsets

    async def _tell_positions(
        self, context: Context, group: str, topic: str, offsets: Mapping[MessageQueue, int]
    ) -> None:
        """Tell the classic members of a group where they are to go on."""
        fields = {"topic": topic, "group": group, "timestamp": "-1", "isForce": "true"}
        peers, translating = peers_of(self._clients.consumers_of(group)), self._translating
        numbered = offsets
        if any(translating.names_none(peer) for peer in peers):
            numbered = await translating.positions(context, topic, offsets)
        for peer in peers:
            told = numbered if translating.names_none(peer) else offsets
            body = _offsets_for_c(told) if peer.language == "CPP" else encode_offsets(told)
            peer.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)


def peers_of(handles: Iterable[ClientHandle]) -> list[Peer]:
    """The connections of those that are classic clients, each once."""
    return list(dict.fromkeys(one.peer for one in handles if isinstance(one, RemotingClient)))


def _by_id(connections: Iterable[Connection]) -> list[Connection]:
    """So that all replicas tell them in one order."""
    return sorted(connections, key=lambda one: one.client_id)


def _readable(queues: Iterable[Queue]) -> list[Queue]:
    return [queue for queue in queues if queue.permission & Permission.READ]


def _offsets_for_c(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Clients in C++ read no objects as keys."""
    return dumps({"offsetTable": [{**queue.table(), "offset": at} for queue, at in offsets.items()]})
