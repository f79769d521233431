"""Request and reply: a consumer's reply goes to the client that waits for it, wherever it is connected.

The broker knows where that is, and sends the reply to the door of that client. Source: protocol facts 7.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final

from popgate.errors import BrokerUnavailable, ClientTimeout, Fault, GatewayError, NotFound, shown
from popgate.model import StoredMessage
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.batches import BatchItem
from popgate.wire.messages.hosts import host_text, pack_host
from popgate.wire.messages.properties import REPLY_TO_CLIENT, find_property
from protocols.remoting.clients.remoting_client import RemotingClient
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.messages import LONG, SHORT, Head, message_in
from protocols.remoting.requests import DoorContext, Handler, Request

PATIENCE_S: Final = 3.0
"""How long a client may take to take a reply: as long as clients wait for a send."""
_LONGEST_ID: Final = 1024


class ReplyMessageHandler:
    """Serves SEND_REPLY_MESSAGE, and hands on the replies that a broker has for clients of this door."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor
        self._clients = door_context.processor.clients
        self._clock = door_context.clock
        door_context.ends.callback(self._processor.classic.on_reply(self.push))

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: partial(self.reply, names=LONG),
            RequestCode.SEND_REPLY_MESSAGE_V2: partial(self.reply, names=SHORT),
        }

    def drain(self) -> None:
        """Clients take replies within seconds, or do not."""

    async def reply(self, request: Request, names: Mapping[str, str]) -> Command:
        """Answered when the client that waits has the reply. Raises BadRequest, and as the broker does."""
        head = Head.read(request.fields, names)
        message = message_in(
            head,
            BatchItem(head.flag, request.command.body, head.properties),
            topic=head.topic,
            born_host=request.context.peer,
            now_ms=self._clock.now_ms(),
            limits=self._processor.limits,
        )
        client_id = _asker_of(message.properties)
        if not client_id:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "reply message properties[REPLY_TO_CLIENT] is null: nobody waits"
            )
        try:
            sent = await self._processor.classic.reply(request.context, message)
        except NotFound as error:
            if error.fault is not Fault.CLIENT_NOT_FOUND:
                raise
            return request.refusal(
                ResponseCode.SYSTEM_ERROR,
                f"push reply message fail, channel of <{shown(client_id)}> not found: {error.sentence}",
            )
        return request.answer({"msgId": "0", "queueId": str(sent.queue_id), "queueOffset": "0"})

    def push(self, client_id: str, message: StoredMessage) -> bool | Awaitable[bool]:
        """Hand a reply to a client here; False when it is not here. `CarriesReplies.on_reply`."""
        for client in self._clients.of_id(client_id):
            if isinstance(client, RemotingClient) and client.alive:
                break
        else:
            return False
        answer = client.peer.ask(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, _fields(client, message), message.body
        )
        return False if answer is None else self._taken(client_id, answer)

    async def _taken(self, client_id: str, answer: asyncio.Future[Command]) -> bool:
        timer = self._clock.call_later(
            PATIENCE_S, partial(_fail, answer, ClientTimeout(client_id, PATIENCE_S))
        )
        try:
            return (await answer).code == ResponseCode.SUCCESS
        except (BrokerUnavailable, ClientTimeout):
            return False
        finally:
            timer.cancel()
            answer.cancel()


def _fields(client: RemotingClient, message: StoredMessage) -> dict[str, str]:
    return {
        "producerGroup": client.producer_group or client.group,
        "topic": message.topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(message.queue_id),
        "sysFlag": str(message.sys_flag),
        "bornTimestamp": str(message.born_ms),
        "flag": str(message.flag),
        "properties": message.properties.decode("utf-8", "replace"),
        "reconsumeTimes": "0",
        "unitMode": "false",
        # Clients take them apart: what is no address is told as none.
        "bornHost": host_text(pack_host(message.born_host)),
        "storeHost": host_text(pack_host(client.origin().host)),
        "storeTimestamp": str(message.store_ms),
    }


def _asker_of(properties: bytes) -> str:
    value = find_property(properties, REPLY_TO_CLIENT.encode())
    return value.decode("utf-8", "replace") if value and len(value) <= _LONGEST_ID else ""


def _fail(answer: asyncio.Future[Command], error: GatewayError) -> None:
    if not answer.done():
        answer.set_exception(error)
