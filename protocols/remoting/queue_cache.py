"""A short-lived cache of topics' queues: every pull and every position names one; none creates a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from popgate.context import Context
from popgate.model import Queue
from protocols.remoting.codec.fields import number, text
from protocols.remoting.requests import DoorContext, Request
from protocols.remoting.routing import broker_of

_FRESH_S: Final = 1.0
_MOST: Final = 16_384


class Places:
    """What route each topic has, asked for once a second at most."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor
        self._clock = door_context.clock
        self._known: dict[str, tuple[float, Sequence[Queue]]] = {}

    def __repr__(self) -> str:
        return f"<Places {len(self._known)}>"

    async def of(self, context: Context, topic: str) -> Sequence[Queue]:
        """The queues of a topic that is there. Raises TopicNotFound."""
        known = self.kept(topic)
        if known is not None:
            return known
        now = self._clock.monotonic()
        queues = await self._processor.metadata.queues(context, topic)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[topic] = now + _FRESH_S, queues
        return queues

    def kept(self, topic: str) -> Sequence[Queue] | None:
        """What `of` returns, if it need not ask."""
        known = self._known.get(topic)
        return known[1] if known is not None and self._clock.monotonic() < known[0] else None

    async def queue_in(self, request: Request) -> tuple[str, str, int]:
        """Topic, broker and queue of a request that names one. Raises TopicNotFound, Refused, BadRequest."""
        fields = request.fields
        topic, queue_id = text(fields, "topic"), number(fields, "queueId")
        return topic, broker_of(request, await self.of(request.context, topic)), queue_id
