"""Messages that clients of mapped groups send back: hidden for the delay, or dead letters; none is copied.

Source: protocol facts 5.5 (36) and 7.8.
"""

from __future__ import annotations

from typing import Final

from popgate.errors import BadRequest, NotFound
from popgate.groups.delay_levels import delay_ms_of
from popgate.model import SendBack
from protocols.remoting.mapped.holdings import ConnectionHoldings, PlaceIndex
from protocols.remoting.mapped.offsets import Fate
from protocols.remoting.mapped.settlement import MappedSettlement, answered, unasked, with_asked
from protocols.remoting.requests import DoorContext, Request

_FIRST_LEVEL: Final = 3
"""Of the first retry, where the client leaves it to the broker; each one rests for a level more."""


class MappedSendBack:
    """Serves requests to send back held messages."""

    def __init__(self, door_context: DoorContext, index: PlaceIndex, ending: MappedSettlement) -> None:
        self._processor = door_context.processor
        self._clock = door_context.clock
        self._index = index
        self._ending = ending

    async def send_back(self, request: Request, back: SendBack, mine: ConnectionHoldings | None) -> bool:
        """As `handler.Mapped.send_back`; messages of the own connection take precedence."""
        context = request.context
        place = back.group, back.broker, back.commit_offset
        if self._index.find(*place, mine) is None:
            return False
        config = await self._processor.settings(context, back.group, make=False)
        pair = self._index.find(*place, mine)
        if pair is None:
            return False
        delivery = pair[1]
        await unasked((delivery,))
        if delivery.fate is not Fate.HELD:
            # It is on its way back already. Who is done with it may not have sent it back.
            return delivery.fate is Fate.FREED and back.delay_level >= 0
        most = back.max_attempts if back.max_attempts is not None else config.max_attempts
        topic, group = delivery.queue.key.topic, delivery.queue.key.group
        with_asked((delivery,))
        try:
            if back.delay_level < 0 or delivery.attempt >= most:
                await self._processor.dead_letter(context, topic, group, delivery.receipt)
            else:
                level = back.delay_level or _FIRST_LEVEL + max(delivery.attempt - 1, 0)
                rest_ms = min(delay_ms_of(level), self._processor.limits.max_invisible_ms)
                await self._processor.change_invisible(context, topic, group, delivery.receipt, rest_ms)
        except (BadRequest, NotFound):
            # Its time is over, or it was finished elsewhere.
            self._ending.settle(delivery)
            return False
        finally:
            answered((delivery,))
        delivery.queue.finished(1, self._clock.monotonic())
        self._ending.settle(delivery)
        return True
