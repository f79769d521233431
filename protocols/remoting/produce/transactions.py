"""Transactions of classic producers: their ends, and checks.

A classic producer names a half message by its offsets, from the response to its send or from a check.
Sources: protocol facts 5.5 (37, 39), 7.4, 7.7 and 7.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from popgate.errors import BadRequest
from popgate.model import EndTransaction, HalfPlace, Resolution, TransactionCheck
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import PGROUP, UNIQ_KEY, find_property, set_property
from popgate.wire.messages.records import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from protocols.remoting.codec.fields import flag, long_number, number, text
from protocols.remoting.codec.marks import Origin
from protocols.remoting.codec.records import encode_stored
from protocols.remoting.log_places import place_in
from protocols.remoting.requests import DoorContext, Handler, Peer, Request
from protocols.remoting.routing import Brokers

_RESOLUTIONS: Final = {
    TRANSACTION_COMMIT: Resolution.COMMIT,
    TRANSACTION_ROLLBACK: Resolution.ROLLBACK,
}


class TransactionHandler:
    """Serves END_TRANSACTION."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor
        self._brokers = Brokers(door_context)

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.END_TRANSACTION: self.end}

    def drain(self) -> None:
        """Nothing waits here."""

    async def end(self, request: Request) -> Command | None:
        """`commitOrRollback` 0: the producer does not know, and will be asked, again.

        Raises IllegalTransactionId, BadRequest, and what the broker raises.
        """
        fields = request.fields
        group = text(fields, "producerGroup")
        commit_offset = long_number(fields, "commitLogOffset")
        queue_offset = long_number(fields, "tranStateTableOffset")
        word = number(fields, "commitOrRollback")
        resolution = _RESOLUTIONS.get(word)
        if resolution is None:
            if word & ~TRANSACTION_MASK == 0:
                return request.answer()
            raise BadRequest(f"the field commitOrRollback is {word}, it must be 0, 8 or 12")
        if commit_offset < 0 or queue_offset < 0:
            raise BadRequest(f"there is no half message at {commit_offset} and {queue_offset}")
        topic = fields.get("topic", "")
        broker, place = await place_in(request, self._brokers, self._processor, commit_offset, topic)
        end = EndTransaction(
            topic,
            "",
            fields.get("msgId", ""),
            resolution,
            flag(fields, "fromTransactionCheck"),
            HalfPlace(broker, group, place, queue_offset),
        )
        await self._processor.end_transaction(request.context, end)
        return request.answer()


def ask_producer(peer: Peer, check: TransactionCheck, origin: Origin) -> bool:
    """Send a client the check of a half message; False when that is not possible now.

    It finds its producer by the property PGROUP of the message, and copies `bname` into its answer where
    it knows it. Producers of other doors do not use offsets, so their doors send those checks.
    `origin`: the place of the half message as the client sees it.
    """
    place, message = check.place, check.message
    if place is None or not check.producer_group:
        return False
    block = message.properties
    if find_property(block, PGROUP.encode()) is None:
        block = set_property(block, PGROUP.encode(), check.producer_group.encode("utf-8", "replace"))
    message_id = (find_property(block, UNIQ_KEY.encode()) or b"").decode("utf-8", "replace")
    offset_id = origin.message_id(place.broker, place.commit_offset)
    fields = {
        "topic": check.topic,
        "tranStateTableOffset": str(place.queue_offset),
        "commitLogOffset": str(origin.place(place.broker, place.commit_offset)),
        "msgId": message_id or offset_id,
        "transactionId": message_id or check.transaction_id,
        "offsetMsgId": offset_id,
        "bname": place.broker,
    }
    asked = replace(
        message,
        broker=place.broker,
        properties=block,
        offset=place.queue_offset,
        commit_offset=place.commit_offset,
    )
    return peer.tell(RequestCode.CHECK_TRANSACTION_STATE, fields, encode_stored(asked, origin))
