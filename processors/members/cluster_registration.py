"""Reports the clients of this replica to a broker whose cluster registers them, and answers its questions.

Not every broker wants that (`brokers.client_registration.RegistersClients`). Any replica may be
asked for the outcome of a half message only because each registers its producers (any-replica, section 2).
"""

from __future__ import annotations

from brokers.client_registration import ConnectedClient, RegistersClients
from brokers.port import Broker
from popgate.groups.verdict import Verdict
from popgate.model import StoredMessage
from processors.clients.client_queries import ClientQueries
from processors.clients.client_registry import ClientHandle, ClientKind, ClientRegistry
from processors.members.mapped_groups import MappedGroups


class ClusterRegistration:
    """Reports clients that connect, change and leave. As an `AsksClients` it forwards questions to them."""

    def __init__(
        self, broker: Broker, clients: ClientRegistry, asking: ClientQueries, mapping: MappedGroups
    ) -> None:
        self._broker = broker.capability(RegistersClients)
        self._clients = clients
        self._asking = asking
        self._mapping = mapping

    def __repr__(self) -> str:
        return f"<ClusterRegistration {'on' if self._broker is not None else 'not wanted'}>"

    def start(self) -> None:
        if self._broker is not None:
            self._clients.on_change = self.changed
            self._mapping.on_reading = lambda handle: self.changed(handle, handle.topics)
            self._broker.on_question(self)

    def changed(self, handle: ClientHandle, topics: frozenset[str]) -> None:
        """A client came or changed. The `ClientRegistry.on_change` listener."""
        if self._broker is None or not handle.alive:
            return
        producer, mapping = handle.kind is ClientKind.PRODUCER, self._mapping
        self._broker.client_is_here(
            ConnectedClient(
                handle.client_id,
                group=handle.group,
                pushed=handle.kind is ClientKind.PUSH_CONSUMER,
                topics=frozenset() if handle.producer_group else topics,
                producer_groups=frozenset(filter(None, [handle.producer_group])),
                subscriptions={} if producer else handle.subscriptions,
                language=handle.language,
                version=handle.version,
                broadcast=handle.broadcast,
                key=handle.key,
                reading=mapping.reading_of(handle),
                may_map=bool(handle.group) and mapping.may_map(handle.group),
            )
        )

    def left(self, handle: ClientHandle) -> None:
        """A client announced its end, or its stream ended."""
        if self._broker is None:
            return
        known = self._clients.get(handle.key)
        # A consumer whose stream broke still receives, and is forgotten when it falls silent. A producer
        # without a stream can be asked nothing: brokers are to ask others about its transactions.
        if known is None or (known is handle and handle.kind is ClientKind.PRODUCER):
            self._broker.client_left(handle.key)

    async def stack(self, client_id: str) -> str:
        return await self._asking.stack_of(client_id)

    async def running_info(self, client_id: str, group: str, *, with_stacks: bool) -> bytes | None:
        return await self._asking.running_info(client_id, group, with_stacks=with_stacks)

    async def consume(self, client_id: str, group: str, message: StoredMessage) -> Verdict:
        return await self._asking.consume(client_id, group, message)
