"""Messages that a consumer could not process: redelivered later, or dead letters.

Sources: protocol facts 5.5 (36) and 7.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from popgate.errors import Fault, NotFound
from popgate.model import SendBack
from popgate.naming import check_group
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from protocols.remoting.codec.fields import long_number, number, text
from protocols.remoting.log_places import broker_in, resolve_place
from protocols.remoting.mapped.handler import Mapped
from protocols.remoting.requests import DoorContext, Handler, Request
from protocols.remoting.routing import Brokers

_MOST_RETRIES: Final = (1 << 31) - 2


class SendBackHandler:
    """Serves CONSUMER_SEND_MSG_BACK."""

    def __init__(self, door_context: DoorContext, mapped: Mapped | None = None) -> None:
        self._mapped = mapped if mapped is not None else Mapped(door_context)
        self._processor = door_context.processor
        self._brokers = Brokers(door_context)

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def drain(self) -> None:
        """Nothing waits here."""

    async def send_back(self, request: Request) -> Command:
        """`maxReconsumeTimes` are retries, after the first delivery; -1 and missing mean the group's own.

        Raises GroupNotFound, BadRequest.
        """
        fields, context = request.fields, request.context
        group = check_group(text(fields, "group"))
        topic = fields.get("originTopic", "")
        offset = long_number(fields, "offset")
        broker, place = await resolve_place(request, self._brokers, offset)
        retries = number(fields, "maxReconsumeTimes", -1)
        back = SendBack(
            group,
            broker,
            place,
            number(fields, "delayLevel", 0),
            None if retries < 0 else min(retries, _MOST_RETRIES) + 1,
            topic,
            fields.get("originMsgId", ""),
            self._brokers.door(context),
        )
        if await self._mapped.send_back(request, back):
            return request.answer()
        if not back.broker:
            broker = await broker_in(request, self._brokers, self._processor, topic)
            back = replace(back, broker=broker)
        try:
            await self._processor.classic.send_back(context, back)
        except NotFound as error:
            if error.fault is not Fault.MESSAGE_NOT_FOUND:
                raise
            # Then the client sends the message to the retry topic itself.
            return request.refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        return request.answer()
