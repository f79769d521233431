"""Answers gateways that share the broker about the clients of this one: see `brokers.relay`.

The gateway that asks has checked permissions. The answers cover clients of all doors, even if this gateway
has no remoting door.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from brokers.relay import BrokerAnswer
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import BadRequest, GatewayError, Unsupported
from popgate.ids.message_id import decode_offset_message_id
from popgate.naming import check_group
from popgate.wire.bodies.broker_stats import encode_producers
from popgate.wire.bodies.consumer_info import encode_positions
from popgate.wire.bodies.heartbeats import encode_producer_connections
from popgate.wire.frames.codes import RequestCode, ResponseCode
from processors.messaging import MessagingProcessor
from protocols.remoting.clients.connected import all_producers, consumers_of, producers_of
from protocols.remoting.codec.errors import code_of
from protocols.remoting.codec.fields import flag, text
from protocols.remoting.requests import DoorContext
from protocols.remoting.tools.client_queries import ClientQueryHandler

MOST_CLIENTS: Final = 20_000
"""That are told of in one answer, a producer of several groups in each of them; what is beyond
`brokers.relay.MOST_OF_GATEWAY` is refused."""
_NOT_HERE: Final = BrokerAnswer(ResponseCode.CONSUMER_NOT_ONLINE)


class Neighbours:
    """A `brokers.relay.CommandHandler` is its `answer`."""

    def __init__(self, processor: MessagingProcessor, clock: Clock) -> None:
        self._processor = processor
        self._clients = processor.clients
        self._clock = clock
        # By which address clients came only the gateway knows that is asked: it tells its own.
        self._asking = ClientQueryHandler(DoorContext(processor, clock, _no_address))
        self._answers: Mapping[int, Callable[[Mapping[str, str]], Awaitable[BrokerAnswer]]] = {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._positions,
        }

    def __repr__(self) -> str:
        return f"<Neighbours {self._asking!r}>"

    async def answer(self, code: int, fields: Mapping[str, str]) -> BrokerAnswer:
        """What cannot be done is an answer, too."""
        answer = self._answers.get(code)
        try:
            if answer is None:
                raise Unsupported(f"request code {code} of another gateway")
            return await answer(fields)
        except GatewayError as error:
            return BrokerAnswer(code_of(error), error.sentence)

    async def _consumers(self, fields: Mapping[str, str]) -> BrokerAnswer:
        here = self._clients.consumers_of(text(fields, "consumerGroup"))[:MOST_CLIENTS]
        return BrokerAnswer(ResponseCode.SUCCESS, body=consumers_of(here).encode()) if here else _NOT_HERE

    async def _producers(self, fields: Mapping[str, str]) -> BrokerAnswer:
        here = producers_of(self._clients, text(fields, "producerGroup"))[:MOST_CLIENTS]
        if not here:
            return _NOT_HERE
        return BrokerAnswer(ResponseCode.SUCCESS, body=encode_producer_connections(tuple(here)))

    async def _all_producers(self, fields: Mapping[str, str]) -> BrokerAnswer:
        here = all_producers(self._clients, self._clock, MOST_CLIENTS)
        return BrokerAnswer(ResponseCode.SUCCESS, body=encode_producers(here))

    async def _running_info(self, fields: Mapping[str, str]) -> BrokerAnswer:
        client = self._asking.client(check_group(text(fields, "consumerGroup")), text(fields, "clientId"))
        if client is None:
            return _NOT_HERE
        stack = partial(self._processor.client_queries.stack_of, client.client_id)
        return await self._asking.running_here(client, flag(fields, "jstackEnable"), "", stack)

    async def _consume(self, fields: Mapping[str, str]) -> BrokerAnswer:
        """All gateways have the same messages: the id of the place is enough."""
        client = self._asking.client(check_group(text(fields, "consumerGroup")), text(fields, "clientId"))
        if client is None:
            return _NOT_HERE
        try:
            _, offset = decode_offset_message_id(text(fields, "msgId"))
        except ValueError as error:
            raise BadRequest("the field msgId is no id of a place") from error
        message = await self._processor.client_queries.message_at(text(fields, "brokerName"), offset)
        return await self._asking.consume_here(client, message)

    async def _positions(self, fields: Mapping[str, str]) -> BrokerAnswer:
        """As the clients report them, in offsets: a broker knows no numbers of mapped groups."""
        topic, group = text(fields, "topic"), text(fields, "group")
        positions = await self._asking.positions_here(Context(), topic, group, fields.get("clientAddr", ""))
        if positions is None:
            return _NOT_HERE
        real = await self._asking.real_positions(Context(), group, positions)
        return BrokerAnswer(ResponseCode.SUCCESS, body=encode_positions(real))


def _no_address(_context: Context) -> str:
    return ""
