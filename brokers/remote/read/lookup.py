"""Look-up by message id and by key; every hit is compared, because brokers compare hashes.

A broker returns at most 64 messages for a request (`maxMsgsNumBatch`), those indexed last, and times in
its index are whole seconds. Source: protocol facts 3.7, 5.5.
"""

from __future__ import annotations

from collections.abc import Callable

from brokers.capabilities import FindsByPlace
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import of_each, worst
from brokers.remote.read.pull import stored
from popgate.answers import AnswerTooLarge, error_of
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, NotFound, PeerWireError, shown
from popgate.ids.message_id import decode_offset_message_id
from popgate.model import StoredMessage
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import KEYS, UNIQ_KEY, find_property
from popgate.wire.messages.records import Record, decode_record, decode_records

_KEYS = KEYS.encode()
_UNIQ_KEY = UNIQ_KEY.encode()
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_FOREVER_MS = (1 << 63) - 1
_SECOND_MS = 1_000
_MOST_COPIES = 64
_LONGEST_KEY = 32_767
"""Bytes: what a block of properties holds."""


class MessageLookup(FindsByPlace):
    """The part of the port's `Offsets` that looks messages up."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._routes = access.routes

    async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
        if all(known.name != broker for known in await self._routes.brokers()):
            raise BadRequest(f"there is no broker {shown(broker)}")
        record = await self._viewed(context, broker, {"offset": str(commit_offset)})
        if record is None or record.commit_offset != commit_offset:
            raise NotFound(f"broker {broker} has no message at {commit_offset}")
        return stored(record, broker, record.queue_id, record.offset)

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        route = await self._access.routes.of(topic)
        packed = _packed(message_id)
        if packed is None:
            return []
        messages = await self._query(
            context,
            topic,
            [data.name for data in route.brokers],
            {
                "key": message_id,
                "maxNum": str(_MOST_COPIES),
                "beginTimestamp": "0",
                "endTimestamp": str(_FOREVER_MS),
                UNIQUE_KEY_QUERY: "true",
            },
            lambda record: find_property(record.properties, _UNIQ_KEY) == packed,
        )
        placed = await self._find_place(context, topic, message_id)
        if placed is not None and all(_place(message) != _place(placed) for message in messages):
            messages.append(placed)
        return messages

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        route = await self._access.routes.of(topic)
        packed = _packed(key)
        if packed is None or limit < 1 or begin_ms > end_ms or end_ms < 0:
            return []
        messages = await self._query(
            context,
            topic,
            [data.name for data in route.brokers],
            {
                "key": key,
                "maxNum": str(min(limit, _MOST_COPIES)),
                "beginTimestamp": str(min(max(begin_ms - _SECOND_MS, 0), _FOREVER_MS)),
                "endTimestamp": str(min(end_ms, _FOREVER_MS)),
            },
            lambda record: (
                begin_ms <= record.store_ms <= end_ms
                and packed in (find_property(record.properties, _KEYS) or b"").split(b" ")
            ),
        )
        return messages[:limit]

    # -- inside -------------------------------------------------------------------------------

    async def _query(
        self,
        context: Context,
        topic: str,
        brokers: list[str],
        fields: dict[str, str],
        fits: Callable[[Record], bool],
    ) -> list[StoredMessage]:
        """What the brokers that answer have, newest first. Raises when none of them answers."""

        async def ask(broker: str) -> list[StoredMessage]:
            answer = await self._asked(context, broker, {"topic": topic, **fields})
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            if answer.code != ResponseCode.SUCCESS:
                raise error_of(answer, broker=broker, topic=topic)
            return [
                stored(record, broker, record.queue_id, record.offset)
                for record in _records_in(answer, broker)
                if record.topic == topic and fits(record)
            ]

        by_broker, failures = await of_each(brokers, ask)
        if failures and not by_broker:
            raise worst(failures)
        by_place = {_place(message): message for messages in by_broker.values() for message in messages}
        return sorted(by_place.values(), key=lambda message: (message.store_ms, message.offset), reverse=True)

    async def _asked(self, context: Context, broker: str, fields: dict[str, str]) -> Command:
        """The answer to a query: for fewer messages where all of them are too large to be read."""
        most = int(fields["maxNum"])
        while True:
            try:
                return await self._access.read_from(
                    broker, RequestCode.QUERY_MESSAGE, {**fields, "maxNum": str(most)}, context=context
                )
            except AnswerTooLarge as error:
                if most == 1:
                    raise
                room = self._access.settings.max_frame_bytes
                most = max(min(most * room // error.answer.skipped, most - 1), 1)

    async def _find_place(self, context: Context, topic: str, message_id: str) -> StoredMessage | None:
        """The message that an offset message id names, if its host is one of this cluster."""
        try:
            host, offset = decode_offset_message_id(message_id)
        except ValueError:
            return None
        if offset < 0:
            return None
        owner = next(
            (known.name for known in await self._routes.brokers() if host in known.addresses.values()), None
        )
        if owner is None:
            return None
        record = await self._viewed(context, owner, {"topic": topic, "offset": str(offset)})
        if record is None or record.topic != topic or record.commit_offset != offset:
            return None
        return stored(record, owner, record.queue_id, record.offset)

    async def _viewed(self, context: Context, broker: str, fields: dict[str, str]) -> Record | None:
        """What a broker has at an offset of its log: any may be asked for, and need not be a message's."""
        answer = await self._access.read_from(broker, RequestCode.VIEW_MESSAGE_BY_ID, fields, context=context)
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            return decode_record(answer.body)
        except PeerWireError:
            return None


def _packed(text: str) -> bytes | None:
    """The packed host as in a message; None if no message can contain it."""
    try:
        packed = text.encode()
    except UnicodeEncodeError:
        return None
    return packed if 0 < len(packed) <= _LONGEST_KEY else None


def _place(message: StoredMessage) -> tuple[str, int]:
    return message.broker, message.commit_offset


def _records_in(answer: Command, broker: str) -> list[Record]:
    try:
        return list(decode_records(answer.body))
    except PeerWireError as error:
        raise BrokerUnavailable(f"broker {broker} sent messages that make no sense: {error}") from None
