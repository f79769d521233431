"""Requests of tools to a client: what it runs, and to consume a message now.

Classic clients receive the request itself, and their answer is passed on; clients of other doors are asked
through their own protocol. Sources: protocol facts 5.5 (307, 309) and 5.14; remarks as a broker 5.5.0 makes
them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from brokers.relay import BrokerAnswer
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerUnavailable,
    ClientTimeout,
    GatewayError,
    NotFound,
    PeerWireError,
    TooManyRequests,
    shown,
)
from popgate.groups.verdict import Verdict
from popgate.ids.message_id import decode_offset_message_id, encode_offset_message_id
from popgate.model import StoredMessage
from popgate.naming import check_group, check_topic
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
    decode_offsets,
    encode_positions,
)
from popgate.wire.bodies.heartbeats import ACTIVELY, PASSIVELY, SubscriptionData
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from processors.clients.client_queries import ANSWER_S
from processors.clients.client_registry import ClientHandle, ClientKind
from protocols.remoting.clients.remoting_client import RemotingClient
from protocols.remoting.codec.fields import flag, text
from protocols.remoting.codec.records import encode_stored
from protocols.remoting.log_places import place_in
from protocols.remoting.mapped.offsets import is_virtual
from protocols.remoting.requests import DoorContext, Handler, Request
from protocols.remoting.routing import Brokers
from protocols.remoting.tools.relay import BrokersBehind
from protocols.remoting.virtual.translation import VirtualQueueTranslator

MOST_OPEN: Final = 256
"""Questions of tools without an answer at a time."""
_RESULTS: Final = {
    Verdict.CONSUMED: (SUCCESS, ""),
    Verdict.FAILED: (LATER, "its listener failed"),
    Verdict.CORRUPTED: (EXCEPTION, "the client could not read the message"),
}


class ClientQueryHandler:
    """Passes questions on to the clients of this replica, and of others where brokers know those."""

    def __init__(self, door_context: DoorContext, translator: VirtualQueueTranslator | None = None) -> None:
        self._translator = translator if translator is not None else VirtualQueueTranslator(door_context)
        self._processor = door_context.processor
        self._clients = door_context.processor.clients
        self._clock = door_context.clock
        self._address = door_context.address
        self._brokers = Brokers(door_context)
        self._behind = BrokersBehind(door_context)
        self._open = 0

    def __repr__(self) -> str:
        return f"<ClientQueryHandler open {self._open}>"

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.positions,
        }

    def drain(self) -> None:
        """Clients answer within seconds, or do not."""

    async def running_info(self, request: Request) -> Command:
        fields = request.fields
        group, client_id = check_group(text(fields, "consumerGroup")), text(fields, "clientId")
        self._processor.command_relay.admit(request.context, request.command.code, group=group)
        client = self.client(group, client_id)
        if client is None:
            return await self._asked_elsewhere(request, request.fields, group, client_id)
        stack = partial(self._processor.client_queries.stack, request.context, client_id)
        address = self._address(request.context)
        return _answer(request, await self.running_here(client, flag(fields, "jstackEnable"), address, stack))

    async def running_here(
        self, client: ClientHandle, stacks: bool, address: str, stack: Callable[[], Awaitable[str]]
    ) -> BrokerAnswer:
        """What a client of this replica runs: its own answer where it is a classic one.

        `address`: by which others came; `stack`: by what those are asked for one. Raises ClientTimeout,
        TooManyRequests.
        """
        if isinstance(client, RemotingClient):
            asked = {**client.named(), "jstackEnable": "true" if stacks else "false"}
            return await self._passed_on(client, RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
        stack_text = ""
        if stacks:
            try:
                stack_text = await stack()
            except GatewayError as error:
                stack_text = f"(not told: {error.sentence})"
        info = ConsumerRunningInfo(
            {
                NAME_SERVERS: address,
                THREADS: "0",
                ORDERED: "false",
                CONSUME_TYPE: PASSIVELY if client.kind is ClientKind.PUSH_CONSUMER else ACTIVELY,
                CLIENT_VERSION: client.version or "unknown",
                STARTED: "0",
            },
            tuple(
                SubscriptionData(topic, expression, kind.value)
                for topic, (kind, expression) in sorted(client.subscriptions.items())
            ),
            stacks=stack_text,
        )
        return BrokerAnswer(ResponseCode.SUCCESS, body=info.encode())

    async def consume(self, request: Request) -> Command:
        """The message is looked up by its id, in the given topic, or in those that the client reads."""
        fields = request.fields
        group, client_id = check_group(text(fields, "consumerGroup")), text(fields, "clientId")
        self._processor.command_relay.admit(request.context, request.command.code, group=group)
        client = self.client(group, client_id)
        if client is None:
            return await self._consumed_elsewhere(request, group, client_id)
        message = await self._message(request, client.topics, text(fields, "msgId"))
        return _answer(request, await self.consume_here(client, message))

    async def consume_here(self, client: ClientHandle, message: StoredMessage) -> BrokerAnswer:
        """What becomes of a message that a client of this replica is handed. Raises as `running_here`."""
        if isinstance(client, RemotingClient):
            origin = client.origin()
            asked = {
                **client.named(),
                "msgId": origin.message_id(message.broker, message.commit_offset),
                "brokerName": message.broker,
                "topic": message.topic,
            }
            return await self._passed_on(
                client, RequestCode.CONSUME_MESSAGE_DIRECTLY, asked, encode_stored(message, origin)
            )
        began = self._clock.monotonic()
        try:
            verdict = await self._processor.client_queries.consume(client.client_id, client.group, message)
            result, remark = _RESULTS[verdict]
        except GatewayError as error:
            result, remark = EXCEPTION, error.sentence
        spent_ms = round((self._clock.monotonic() - began) * 1000)
        return BrokerAnswer(ResponseCode.SUCCESS, body=ConsumeResult(result, remark, spent_ms).encode())

    async def positions(self, request: Request) -> Command:
        """The positions of each classic member of a group in a topic, or of the one in `clientAddr`.

        Of all gateways that share the broker, where any do. Before a cluster a broker is asked for the
        members that are not here: it asks the gateways, or the clients, that have registered them.
        """
        fields, context = request.fields, request.context
        topic, group = check_topic(text(fields, "topic")), check_group(text(fields, "group"))
        self._processor.command_relay.admit(context, request.command.code, group=group)
        if self._processor.command_relay.shared:
            answers: list[Mapping[str, Mapping[MessageQueue, int]]] = [
                *await self._behind.positions_in(context, fields, group)
            ]
        else:
            here = await self.positions_here(context, topic, group, fields.get("clientAddr", ""))
            wanted = self._behind.there and (here is None or not fields.get("clientAddr"))
            elsewhere = None
            try:
                if wanted:
                    elsewhere = await self._behind.positions_elsewhere(context, fields, group)
            except GatewayError:
                if here is None:
                    raise
            answers = [positions for positions in (elsewhere, here) if positions is not None]
        if not answers:
            return request.refusal(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{group}]"
            )
        merged = {client_id: offsets for positions in answers for client_id, offsets in positions.items()}
        return request.answer(body=encode_positions(await self.real_positions(context, group, merged)))

    async def real_positions(
        self, context: Context, group: str, positions: Mapping[str, Mapping[MessageQueue, int]]
    ) -> dict[str, dict[MessageQueue, int]]:
        """The positions by client id, with those of the group in the place of numbers of a mapped group."""
        return {
            client_id: {
                queue: await self._position(context, group, queue, at) for queue, at in offsets.items()
            }
            for client_id, offsets in positions.items()
        }

    async def positions_here(
        self, context: Context, topic: str, group: str, client_id: str
    ) -> dict[str, Mapping[MessageQueue, int]] | None:
        """The positions that classic members connected to this replica report, by client id.

        By real queues, also for members that know queues by virtual numbers.

        `client_id`: this one alone, unless it is empty. None when there is no such member.
        """
        clients = [
            member
            for member in self._clients.consumers_of(group)
            if isinstance(member, RemotingClient) and member.alive and client_id in ("", member.client_id)
        ][:MOST_OPEN]
        asked = {"topic": topic, "group": group}
        answers = await asyncio.gather(
            *(self._ask(member, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, asked) for member in clients),
            return_exceptions=True,
        )
        by_client: dict[str, Mapping[MessageQueue, int]] = {}
        for client, answer in zip(clients, answers, strict=True):
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                with contextlib.suppress(PeerWireError):
                    offsets: Mapping[MessageQueue, int] = decode_offsets(answer.body, "messageQueueTable")
                    if self._translator.names_none(client.peer):
                        offsets = await self._translator.meant(context, topic, offsets)
                    by_client[client.client_id] = offsets
            elif isinstance(answer, BaseException) and not isinstance(answer, GatewayError):
                raise answer
        return by_client if clients else None

    def client(self, group: str, client_id: str) -> ClientHandle | None:
        """A member of the group that is connected to this replica, and can be asked."""
        client = self._clients.find(client_id, group)
        return client if client is not None and client.group == group and client.alive else None

    # -- inside -------------------------------------------------------------------------------

    async def _position(self, context: Context, group: str, queue: MessageQueue, at: int) -> int:
        """A client's position; for a number of a mapped group, the position of the group."""
        if not is_virtual(at):
            return at
        place = queue.topic, queue.broker, queue.queue_id
        with contextlib.suppress(GatewayError):
            done = await self._processor.offsets.committed(context, group, *place)
            return done if done is not None else -1
        return -1

    async def _asked_elsewhere(
        self, request: Request, fields: Mapping[str, str], group: str, client_id: str, broker: str = ""
    ) -> Command:
        """By way of other replicas, or of the brokers of a cluster, which know the clients of all of them."""
        answer = None
        if self._behind.know_clients:
            code = request.command.code
            answer = await self._behind.client_answer(
                request.context, code, fields, group=group, broker=broker
            )
        if answer is None:
            return _answer(request, _unknown(group, client_id))
        body, code = answer.body, request.command.code
        if answer.code == ResponseCode.SUCCESS and code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            body = self._with_our_address(request, body)
        return _answer(request, replace(answer, fields={}, body=body))

    def _with_our_address(self, request: Request, body: bytes) -> bytes:
        """Of a client that says by which name server it came. Raises BrokerUnavailable: it makes no sense."""
        try:
            info = ConsumerRunningInfo.decode(body)
        except PeerWireError as error:
            raise BrokerUnavailable(f"what the client answered makes no sense: {error}") from None
        if not self._behind.there and info.properties.get(NAME_SERVERS):
            return body  # as the client said it to the gateway that it came to
        properties = {**info.properties, NAME_SERVERS: self._address(request.context)}
        return replace(info, properties=properties).encode()

    async def _consumed_elsewhere(self, request: Request, group: str, client_id: str) -> Command:
        """The broker of the message, or the client's gateway, looks it up by its place and hands it over."""
        if not self._behind.know_clients:
            return _answer(request, _unknown(group, client_id))
        named = request.fields.get("topic", "")
        topics = [named] if named else await self._processor.metadata.topics_of(request.context, group)
        message = await self._message(request, topics, text(request.fields, "msgId"))
        asked = {
            "consumerGroup": group,
            "clientId": client_id,
            "msgId": encode_offset_message_id(message.store_host, message.commit_offset),
            "brokerName": message.broker,
            "topic": message.topic,
        }
        return await self._asked_elsewhere(request, asked, group, client_id, message.broker)

    async def _message(self, request: Request, topics: Iterable[str], message_id: str) -> StoredMessage:
        """By the sender's id or by that of the place; both may look alike. Raises NotFound."""
        named = request.fields.get("topic", "")
        for topic in (named,) if named else sorted(topics):
            try:
                messages = await self._processor.lookup.find_by_id(request.context, topic, message_id)
            except NotFound:
                continue  # a topic that the client expects and that is not there
            if messages:
                return messages[0]
        # An id of its sender may look like that of a place, and be of no broker then.
        with contextlib.suppress(ValueError, NotFound, BadRequest):
            return await self._at_place(request, *decode_offset_message_id(message_id))
        raise NotFound(f"there is no message with the id {shown(message_id)} in {named or 'what it reads'}")

    async def _at_place(self, request: Request, host: str, offset: int) -> StoredMessage:
        """Raises NotFound; also when the id is one of another place than this."""
        if offset >= 0:
            context = request.context
            broker, place = await place_in(request, self._brokers, self._processor, offset)
            message = await self._processor.lookup.at_place(context, broker, place)
            if host in (message.store_host, self._address(context), self._brokers.door(context)):
                return message
        raise NotFound("nothing is there")

    async def _passed_on(
        self, client: RemotingClient, code: int, fields: Mapping[str, str], body: bytes = b""
    ) -> BrokerAnswer:
        """The client's own answer. Raises ClientTimeout, TooManyRequests."""
        try:
            response = await self._ask(client, code, fields, body)
        except BrokerUnavailable:
            return _unknown(client.group, client.client_id)
        return BrokerAnswer(response.code, response.remark, response.fields, bytes(response.body))

    async def _ask(
        self, client: RemotingClient, code: int, fields: Mapping[str, str], body: bytes = b""
    ) -> Command:
        """Raises ClientTimeout, TooManyRequests, BrokerUnavailable (it left)."""
        if self._open >= MOST_OPEN:
            raise TooManyRequests(f"the limit of {MOST_OPEN} questions without an answer is reached")
        answer = client.peer.ask(code, fields, body)
        if answer is None:
            raise TooManyRequests(f"client {shown(client.client_id)} has not read what it was asked before")
        timer = self._clock.call_later(
            ANSWER_S, partial(_fail, answer, ClientTimeout(client.client_id, ANSWER_S))
        )
        self._open += 1
        try:
            return await answer
        finally:
            timer.cancel()
            answer.cancel()
            self._open -= 1


def _fail(answer: asyncio.Future[Command], error: GatewayError) -> None:
    if not answer.done():
        answer.set_exception(error)


def _unknown(group: str, client_id: str) -> BrokerAnswer:
    return BrokerAnswer(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{shown(client_id)}> not online")


def _answer(request: Request, answer: BrokerAnswer) -> Command:
    return request.command.answer(answer.code, answer.remark, answer.fields, answer.body)
