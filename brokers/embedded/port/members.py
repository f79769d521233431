"""Clients of this broker's gateways: the members of groups, and clients that wait for a reply.

Soft state: doors and guests of a shared broker report it, and it is gone with the process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from brokers.capabilities import (
    CarriesReplies,
    GroupMember,
    ReplyHandler,
    TellsConsumers,
)
from brokers.client_registration import AsksClients, ConnectedClient, RegistersClients
from brokers.embedded.engine.facet import Facet
from popgate.context import Context
from popgate.errors import BadRequest, ClientNotFound
from popgate.model import Message, Sent, StoredMessage
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.properties import (
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    find_property,
    set_if_room,
)


class Membership:
    """Clients by their keys, and the consumers among them by group."""

    def __init__(self) -> None:
        self._clients: dict[str, ConnectedClient] = {}
        self._groups: dict[str, dict[str, ConnectedClient]] = {}
        self.on_members: Callable[[str], None] = _nobody_counts

    def __repr__(self) -> str:
        return f"<Membership clients {len(self._clients)} groups {len(self._groups)}>"

    def __len__(self) -> int:
        return len(self._clients)

    def here(self, client: ConnectedClient) -> None:
        old = self._clients.get(client.key)
        self._clients[client.key] = client
        if old is not None and old.group != client.group:
            self._leave(old)
        if client.group:
            self._groups.setdefault(client.group, {})[client.key] = client
            if old is None or old.group != client.group or old.reading is not client.reading:
                self.on_members(client.group)

    def left(self, key: str) -> None:
        client = self._clients.pop(key, None)
        if client is not None:
            self._leave(client)

    def consumers(self, group: str) -> list[str]:
        return sorted({member.client_id for member in self._groups.get(group, {}).values()})

    def members(self, group: str) -> list[GroupMember]:
        """Nobody comes here but through gateways."""
        members = self._groups.get(group, {}).values()
        return [GroupMember(member.client_id, True, member.reading) for member in members]

    def _leave(self, client: ConnectedClient) -> None:
        members = self._groups.get(client.group)
        if members is not None and members.pop(client.key, None) is not None:
            if not members:
                del self._groups[client.group]
            self.on_members(client.group)


class MembersFacet(Facet, RegistersClients, TellsConsumers, CarriesReplies):
    """`RegistersClients`, `TellsConsumers` and `CarriesReplies` of the embedded broker."""

    _membership: Membership
    _reply_handler: ReplyHandler | None = None

    def client_is_here(self, client: ConnectedClient) -> None:
        self._membership.here(client)

    def client_left(self, key: str) -> None:
        self._membership.left(key)

    def on_question(self, asker: AsksClients) -> None:
        """Nobody asks by way of this broker: operators ask the gateway itself."""

    async def consumers(self, group: str) -> list[str]:
        return self._membership.consumers(group)

    async def members(self, group: str) -> list[GroupMember]:
        return self._membership.members(group)

    def on_members(self, handler: Callable[[str], None]) -> None:
        self._membership.on_members = handler

    async def send_reply(self, context: Context, message: Message) -> Sent:
        """Also raises BadRequest: it does not say who waits for it. Nothing is stored."""
        engine = self._engine
        engine.check_open()
        client_property = find_property(message.properties, REPLY_TO_CLIENT.encode())
        if client_property is None:
            raise BadRequest("a reply must say who waits for it, in the property REPLY_TO_CLIENT")
        client_id, now_ms = client_property.decode("utf-8", "replace"), engine.clock.now_ms()
        queue_id = max(message.queue_id, 0)
        reply = StoredMessage(
            message.topic,
            engine.settings.name,
            queue_id,
            0,
            0,
            message.sys_flag,
            message.flag,
            message.born_ms or now_ms,
            message.born_host,
            now_ms,
            host_text(engine.store_host),
            message.body,
            set_if_room(message.properties, PUSH_REPLY_TIME.encode(), b"%d" % now_ms),
        )
        taken = self._reply_handler(client_id, reply) if self._reply_handler is not None else False
        if inspect.isawaitable(taken):
            taken = await taken
        if not taken:
            raise ClientNotFound(client_id, "did not take the reply: it is not connected")
        return Sent(message.message_id, engine.settings.name, queue_id, 0)

    def on_reply(self, handler: ReplyHandler) -> None:
        self._reply_handler = handler


def _nobody_counts(_group: str) -> None:
    """The default listener: ignores changes of members."""
