"""Looks messages up: by key, by the sender's id, by the id of their place.

Source: protocol facts 3.7, 5.5; codes 12 and 33 as RocketMQ 5.5.0's QueryMessageProcessor serves them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from popgate.errors import Fault, NotFound
from popgate.model import StoredMessage
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from protocols.remoting.codec.fields import long_number, number, text
from protocols.remoting.codec.records import encode_stored
from protocols.remoting.log_places import place_in
from protocols.remoting.requests import DoorContext, Handler, Request
from protocols.remoting.routing import Brokers

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_UNIQUE_INDEX: Final = "U"
_MOST_COPIES: Final = 32
_LARGEST_BYTES: Final = 12 * 1024 * 1024


class LookupHandler:
    """Serves look-ups."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor
        self._brokers = Brokers(door_context)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    async def query(self, request: Request) -> Command:
        """By a key, the newest first; with the field `_UNIQUE_KEY_QUERY` by the sender's id."""
        fields, context = request.fields, request.context
        topic, key = text(fields, "topic"), text(fields, "key")
        begin_ms = max(long_number(fields, "beginTimestamp", 0), 0)
        end_ms = long_number(fields, "endTimestamp", (1 << 63) - 1)
        most = number(fields, "maxNum", _MOST_COPIES)
        unique = fields.get(_UNIQUE_KEY_QUERY, "").lower() == "true"
        if unique or fields.get("indexType") == _UNIQUE_INDEX:
            messages = [
                message
                for message in await self._processor.lookup.find_by_id(context, topic, key)
                if begin_ms <= message.store_ms <= end_ms
            ][:_MOST_COPIES]
        else:
            messages = await self._processor.lookup.find_by_key(
                context, topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=most
            )
        if not messages:
            return request.refusal(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
        newest = max(messages, key=lambda candidate: candidate.store_ms)
        return request.answer(
            {
                "indexLastUpdateTimestamp": str(newest.store_ms),
                "indexLastUpdatePhyoffset": str(newest.commit_offset),
            },
            await self._records(request, messages),
        )

    async def view(self, request: Request) -> Command:
        """By the place alone: the client has taken it from an id, which also has the broker's address."""
        fields, context = request.fields, request.context
        offset = long_number(fields, "offset")
        topic = fields.get("topic", "")
        broker, place = await place_in(request, self._brokers, self._processor, offset, topic)
        try:
            message = await self._processor.lookup.at_place(context, broker, place)
        except NotFound as error:
            if error.fault is not Fault.MESSAGE_NOT_FOUND:
                raise
            return request.refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return request.answer(body=await self._records(request, [message]))

    async def _records(self, request: Request, messages: Sequence[StoredMessage]) -> bytes:
        """As many as fit, and always the first."""
        origin = await self._brokers.origin(request.context)
        encoded: list[bytes] = []
        room = _LARGEST_BYTES
        for message in request.as_told(messages):
            record = encode_stored(message, origin)
            room -= len(record)
            if encoded and room < 0:
                break
            encoded.append(record)
        return b"".join(encoded)
