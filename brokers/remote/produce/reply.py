"""Replies to request messages: sent to the waiting client through a broker, and received for clients here.

A broker finds the waiting client by its client id among its producers, and sends the reply over the
connection on which that client is registered. Source: protocol facts 7.6.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Mapping

from brokers.capabilities import CarriesReplies, ReplyHandler
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.produce.send_request import complete, send_request
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, Fault, NotFound, PeerWireError, shown
from popgate.model import Message, Sent, StoredMessage
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import LONGEST_BLOCK, REPLY_TO_CLIENT, find_property

_LONGEST_NUMBER = 20


class Replies(CarriesReplies):
    """`brokers.capabilities.CarriesReplies`."""

    def __init__(self, access: ClusterAccess) -> None:
        self._connections = access.connections
        self._client = access.client
        self._routes = access.routes
        self._clock = access.clock
        self._reply_handler: ReplyHandler | None = None
        self._connections.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed)

    def on_reply(self, handler: ReplyHandler) -> None:
        self._reply_handler = handler

    async def send_reply(self, context: Context, message: Message) -> Sent:
        """Also raises TopicNotFound, BadRequest (it does not say who waits for it)."""
        complete(message)
        waiting = find_property(message.properties, REPLY_TO_CLIENT.encode())
        if waiting is None:
            raise BadRequest("a reply must say who waits for it, in the property REPLY_TO_CLIENT")
        broker = message.broker
        if not broker:
            # The client that waits is registered at every broker of its cluster.
            route = await self._routes.of(message.topic)
            masters = [data.name for data in route.brokers if data.master is not None]
            if not masters:
                raise BrokerUnavailable(f"no broker of topic {message.topic} has a master now")
            broker = random.choice(masters)  # noqa: S311
        queue_id = max(message.queue_id, 0)
        _, fields, body = send_request([message], queue_id, message.born_ms or self._clock.now_ms())
        answer = await self._client.call(
            broker, RequestCode.SEND_REPLY_MESSAGE_V2, fields, body, context=context, named="n"
        )
        if answer.code == ResponseCode.SYSTEM_ERROR:
            who = shown(waiting.decode("utf-8", "replace"))
            raise NotFound(
                f"the reply did not reach client {who}: {shown(answer.remark)}", Fault.CLIENT_NOT_FOUND
            )
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker, topic=message.topic)
        return Sent(message.message_id, broker, queue_id, 0)

    def _pushed(self, address: str, link: int, request: Command) -> Command | Awaitable[Command]:
        try:
            message = _pushed_message(request, self._routes.clusters.at(address))
        except PeerWireError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"the reply cannot be read: {error}")
        client_property = find_property(message.properties, REPLY_TO_CLIENT.encode())
        client_id = client_property.decode("utf-8", "replace") if client_property else ""
        taken = self._reply_handler(client_id, message) if self._reply_handler is not None else False
        if inspect.isawaitable(taken):
            return _later(request, client_id, taken)
        return _told(request, client_id, taken=bool(taken))


async def _later(request: Command, client_id: str, taken: Awaitable[bool]) -> Command:
    return _told(request, client_id, taken=await taken)


def _told(request: Command, client_id: str, *, taken: bool) -> Command:
    if taken:
        return request.answer(ResponseCode.SUCCESS)
    return request.answer(ResponseCode.SYSTEM_ERROR, f"client {shown(client_id)} does not wait here")


def _pushed_message(request: Command, broker: str) -> StoredMessage:
    """Raises PeerWireError."""
    fields = request.fields
    properties = fields.get("properties", "").encode("utf-8", "surrogatepass")
    if len(properties) > LONGEST_BLOCK:
        raise PeerWireError(f"its properties have {len(properties)} bytes")
    return StoredMessage(
        fields.get("topic", ""),
        broker,
        _number(fields, "queueId"),
        0,
        0,
        _number(fields, "sysFlag"),
        _number(fields, "flag"),
        _number(fields, "bornTimestamp"),
        fields.get("bornHost", ""),
        _number(fields, "storeTimestamp"),
        fields.get("storeHost", ""),
        request.body,
        properties,
    )


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "0")
    try:
        return int(text[:_LONGEST_NUMBER])
    except ValueError:
        raise PeerWireError(f"{name} is {shown(text)}") from None
