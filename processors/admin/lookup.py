"""Messages by id, key, and place."""

from __future__ import annotations

from brokers.capabilities import FindsByPlace
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    Fault,
    Unsupported,
    shown,
)
from popgate.kinds import Action
from popgate.model import (
    StoredMessage,
)
from processors.core import ProcessorCore, readable
from processors.observer import Watch

_LONGEST_ID = 1024


class MessageLookup:
    """Finds stored messages."""

    def __init__(self, core: ProcessorCore) -> None:
        self._broker = core.broker
        self._limits = core.limits
        self._admit = core.admit
        self._watch_find = Watch(core.observer, "find")

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        """Every stored copy with this message id (the client's, or the one of the place)."""
        with self._watch_find:
            self._admit(context, Action.GET, topic=readable(topic))
            if not message_id.strip() or len(message_id) > _LONGEST_ID:
                raise BadRequest(
                    f"the message id {shown(message_id)} is no message id: it must not be blank,"
                    f" nor longer than {_LONGEST_ID} characters",
                    Fault.ILLEGAL_MESSAGE_ID,
                )
            return await self._broker.find_by_id(context, topic, message_id)

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        """Messages with this key stored in [begin_ms, end_ms], newest first, at most `limit`."""
        with self._watch_find:
            self._admit(context, Action.GET, topic=readable(topic))
            if not key.strip() or len(key) > self._limits.max_properties_bytes:
                raise BadRequest("the key must not be blank, nor longer than a key can be", Fault.ILLEGAL_KEY)
            limit = min(max(limit, 1), self._limits.max_found)
            return await self._broker.find_by_key(
                context, topic, key, begin_ms=max(begin_ms, 0), end_ms=end_ms, limit=limit
            )

    async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
        """The message at a place of a broker's log. Raises NotFound, BadRequest, Unsupported."""
        with self._watch_find:
            self._admit(context, Action.GET)
            by_place = self._broker.capability(FindsByPlace)
            if by_place is None:
                raise Unsupported(f"to look a message up by its place in the log of {self._broker.name}")
            if not 0 <= commit_offset < 1 << 63:
                raise BadRequest(f"the commit log offset {commit_offset} is out of range")
            message = await by_place.at_place(context, broker, commit_offset)
            self._admit(context, Action.GET, topic=message.topic)
            return message
