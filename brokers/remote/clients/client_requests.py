"""Requests of the cluster's operators to clients, sent by brokers: what it runs, positions, a message to it.

A broker sends such a request over the connection on which the client is registered; the gateway asks the
client over its own connection, through the `AsksClients` that `on_question` was given, or for its positions
through the `CommandHandler` of `on_command`. Sources: protocol facts 5.5 (40, 221, 307, 309) and 5.14; the
requests as mqadmin 5.5.0 causes them.
"""

from __future__ import annotations

from collections.abc import Callable

from brokers.client_registration import AsksClients, ConnectedClient
from brokers.relay import CommandHandler
from brokers.remote.clients.heartbeats import consume_type_of, subscriptions_of
from brokers.remote.clients.registry import ClientRegistry
from brokers.remote.cluster.routes import Routes
from brokers.remote.read.pull import stored
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock
from popgate.errors import GatewayError, PeerWireError
from popgate.groups.verdict import Verdict
from popgate.wire.bodies.consumer_info import (
    CLIENT_VERSION,
    CONSUME_TYPE,
    EXCEPTION,
    LATER,
    NAME_SERVERS,
    ORDERED,
    STARTED,
    SUCCESS,
    THREADS,
    ConsumeResult,
    ConsumerRunningInfo,
    decode_positions,
    encode_offsets,
)
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.records import decode_record

_RESULTS = {
    Verdict.CONSUMED: (SUCCESS, ""),
    Verdict.FAILED: (LATER, "its listener failed"),
    Verdict.CORRUPTED: (EXCEPTION, "the client could not read the message"),
}


class ClientRequests:
    """Answers what brokers ask of the clients in the register. `asker`: who can ask them."""

    def __init__(
        self,
        register: ClientRegistry,
        links: ConnectionPool,
        routes: Routes,
        settings: RemoteSettings,
        clock: Clock,
    ) -> None:
        self.asker: AsksClients | None = None
        self.handler: CommandHandler | None = None
        self.on_members: Callable[[str], None] = _nobody_counts
        self._register = register
        self._routes = routes
        self._settings = settings
        self._clock = clock
        links.on_request(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)
        links.on_request(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume)
        links.on_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._positions)
        links.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)

    async def _running_info(self, address: str, link: int, request: Command) -> Command:
        """A classic client says it itself.

        Of others all is known here but the stacks, which they are asked for only where those are wanted.
        """
        fields = request.fields
        group = fields.get("consumerGroup", "")
        registered = self._register.find(fields.get("clientId", ""), group)
        if registered is None:
            return _unknown(request)
        client, since_ms = registered
        stacks, with_stacks = "", fields.get("jstackEnable") == "true"
        if self.asker is not None:
            # One that does not answer is not asked again: the broker waits for 10 s in all.
            try:
                own = await self.asker.running_info(client.client_id, group, with_stacks=with_stacks)
                if own is not None:
                    return request.answer(ResponseCode.SUCCESS, body=own)
                if with_stacks:
                    stacks = await self.asker.stack(client.client_id)
            except GatewayError as error:
                stacks = f"(not told: {error.sentence})" if with_stacks else ""
        info = ConsumerRunningInfo(
            self._properties(client, since_ms),
            subscriptions_of(client.subscriptions, since_ms),
            stacks=stacks,
        )
        return request.answer(ResponseCode.SUCCESS, body=info.encode())

    def _properties(self, client: ConnectedClient, since_ms: int) -> dict[str, str]:
        return {
            NAME_SERVERS: ";".join(self._settings.name_servers),
            THREADS: "0",
            ORDERED: "false",
            CONSUME_TYPE: consume_type_of(client),
            CLIENT_VERSION: client.version or "unknown",
            STARTED: str(since_ms),
        }

    async def _consume(self, address: str, link: int, request: Command) -> Command:
        fields = request.fields
        group, client_id = fields.get("consumerGroup", ""), fields.get("clientId", "")
        registered = self._register.find(client_id, group)
        if registered is None or self.asker is None:
            return _unknown(request)
        try:
            record = decode_record(request.body)
        except PeerWireError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"the message cannot be read: {error}")
        broker = fields.get("brokerName") or self._routes.clusters.at(address)
        began = self._clock.monotonic()
        try:
            verdict = await self.asker.consume(
                client_id, group, stored(record, broker, record.queue_id, record.offset)
            )
            result, remark = _RESULTS[verdict]
        except GatewayError as error:
            result, remark = EXCEPTION, error.sentence
        spent_ms = round((self._clock.monotonic() - began) * 1000)
        return request.answer(ResponseCode.SUCCESS, body=ConsumeResult(result, remark, spent_ms).encode())

    async def _positions(self, address: str, link: int, request: Command) -> Command:
        """Of the member of the group that this connection is for: the request does not name it.

        Only a classic client has positions; for others the broker gets no success, and leaves them out.
        """
        topic, group = request.fields.get("topic", ""), request.fields.get("group", "")
        client_id = self._register.on_link(link, group)
        if client_id is None or self.handler is None:
            return _unknown(request)
        asked = {"topic": topic, "group": group, "clientAddr": client_id}
        answer = await self.handler(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
        if answer.code != ResponseCode.SUCCESS:
            return request.answer(answer.code, answer.remark or "no classic client")
        offsets = decode_positions(answer.body).get(client_id, {})
        return request.answer(ResponseCode.SUCCESS, body=encode_offsets(offsets, "messageQueueTable"))

    def _members_changed(self, address: str, link: int, request: Command) -> None:
        """The members of a group changed: consumers with queues of their own rebalance."""
        self.on_members(request.fields.get("consumerGroup", ""))


def _nobody_counts(_group: str) -> None:
    """The default listener: ignores changes of members."""


def _unknown(request: Command) -> Command:
    return request.answer(ResponseCode.SYSTEM_ERROR, "the client is not known to this gateway")
