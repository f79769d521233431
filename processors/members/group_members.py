"""The clients of a group, and the groups that read a topic."""

from __future__ import annotations

import asyncio
import contextlib

from brokers.capabilities import TellsConsumers, TellsReaders
from popgate.context import Context
from popgate.errors import GroupNotFound
from popgate.kinds import Action
from popgate.naming import check_group
from processors.clients.client_registry import ClientRegistry
from processors.core import ProcessorCore
from processors.members.broadcast import is_member
from processors.observer import Watch

_AT_ONCE = 64


class GroupMembers:
    """Members of consumer groups, at all doors and gateways."""

    def __init__(self, core: ProcessorCore, clients: ClientRegistry) -> None:
        self._broker = core.broker
        self._admit = core.admit
        self._routing = core.routing
        self._clients = clients
        self._tells_consumers = core.broker.capability(TellsConsumers)
        self._tells_readers = core.broker.capability(TellsReaders)
        self._watch_members = Watch(core.observer, "members")

    def start(self) -> None:
        if self._tells_consumers is not None:
            self._tells_consumers.on_members(self._clients.members_changed)

    async def consumers(self, context: Context, group: str) -> list[str]:
        """The ids of the clients of a consumer group, sorted: of all doors, and of all that the broker knows.

        Raises IllegalGroup, BrokerUnavailable, BrokerTimeout: then it is not known who shares its queues.
        """
        with self._watch_members:
            self._admit(context, Action.SUBSCRIBE, group=check_group(group))
            clients = {client.client_id for client in self._clients.consumers_of(group)}
            if self._tells_consumers is not None:
                clients.update(await self._tells_consumers.consumers(group))
        return sorted(clients)

    async def sharers(self, context: Context, group: str) -> list[str]:
        """Those of `consumers` with whom the caller shares the queues of a topic. Raises as they do.

        A client of a broadcast group reads all queues, from positions of its own: what it took over from
        another client it would begin to read anywhere.
        """
        ids = await self.consumers(context, group)
        if context.client_id in ids:
            config = await self._routing.known(group)
            if config is not None and config.broadcast:
                return [context.client_id]
        return ids

    async def readers_of(self, context: Context, topic: str) -> list[str]:
        """The groups that have read a topic, or subscribe to it now, sorted. Raises TopicNotFound."""
        with self._watch_members:
            self._admit(context, Action.GET, topic=topic)
            await self._broker.topic(topic)
            readers = {
                client.group for client in self._clients.all() if client.group and topic in client.topics
            }
            if self._tells_readers is not None:
                return sorted(readers.union(await self._tells_readers.readers(topic)))
            for number, group in enumerate(await self._broker.groups()):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # there may be many, and the broker may answer at once
                if group.name not in readers and not is_member(group):
                    with contextlib.suppress(GroupNotFound):  # deleted meanwhile
                        if topic in await self._broker.topics_of(group.name):
                            readers.add(group.name)
        return sorted(readers)
