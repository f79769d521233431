"""Reads by offset: pull without taking.

A pull names a group that every broker has, so that none needs to be created; the group's position does not
change. Brokers compare only hashes of tags, and return all messages where they cannot read an
expression: the gateway filters their messages again. Source: protocol facts 5.5, 5.13 and 7.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import number_in
from brokers.remote.cluster.queues import Place
from brokers.remote.read.offsets import (
    LARGEST_OFFSET,
    NOTHING_PULLED,
    SUBSCRIPTION,
    ClusterOffsets,
    pull_fields,
)
from brokers.remote.read.origins import true_origin
from brokers.remote.read.record_scan import scan_records
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerUnavailable,
    Forbidden,
    IllegalOffset,
    PeerWireError,
)
from popgate.messages.stored_records import StoredRecords, held_bytes
from popgate.model import Bounds, Filter, FilterKind, Permission, Pulled, StoredMessage
from popgate.naming import DEAD_LETTER_PREFIX, RETRY_PREFIX, TOOLS_GROUP
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.records import Record, decode_record, decode_records, sender_host, sender_ms

_SUSPEND = 0x2
_LONGEST_WAIT_S = 5.0
"""Of one request at the broker: it looks at the time every 5 s only, and not whether the topic is there."""
_LEAST_WAIT_S = 0.01
_REJECTED = "[REJECTREQUEST]"
"""How a broker refuses without a look at the request; also a slave that is not to be read from."""
_LOOK_AGAIN_S = 1.0
"""How often it is looked where too many wait at the broker already."""
_REST_S = 0.2
"""After an answer that neither has messages nor leads on, nor took its time."""
_MOST_MESSAGES = 1_024
_DERIVED = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
"""Topics whose messages may need another origin than their broker tells."""


class Puller:
    """The part of the port's `Offsets` that looks at messages."""

    def __init__(self, access: ClusterAccess, offsets: ClusterOffsets) -> None:
        self._access = access
        self._settings = access.settings
        self._clock = access.clock
        self._offsets = offsets

    async def pull(
        self,
        context: Context,
        topic: str,
        broker: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        passing: Filter,
        wait_until: float | None,
    ) -> Pulled:
        if max_messages < 1:
            raise BadRequest(f"a pull takes at least one message, not {max_messages}")
        place = await self._readable(topic, broker, queue_id)
        if not 0 <= offset <= LARGEST_OFFSET:
            bounds = await self._offsets.bounds(context, topic, broker, queue_id)
            raise IllegalOffset(offset, bounds.minimum, bounds.maximum)
        fields = _request(passing, min(max_messages, _MOST_MESSAGES))
        wait_s = 0.0
        while True:
            room = max_bytes if context.allowance is None else min(max_bytes, context.allowance.room())
            asked = self._clock.monotonic()
            answer = await self._pull_once(context, place, {**fields, "queueOffset": str(offset)}, wait_s)
            if answer is not None:
                pulled = await self._pulled(place, answer, offset, passing, max_messages, room)
                if pulled.messages or wait_until is None:
                    if context.allowance is not None and pulled.messages:
                        # Others may have taken meanwhile what was free when this was asked for.
                        context.allowance.room()
                        context.allowance.add(held_bytes(pulled.messages))
                    return pulled
                early = wait_s > 0 and self._clock.monotonic() - asked < wait_s / 2
                if pulled.next_offset == offset and (
                    early or answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                ):
                    await self._access.rest(_REST_S)
                offset = pulled.next_offset
                place = await self._readable(topic, place.broker, queue_id)  # its leader may be another now
            # The first look does not wait, so that the bounds are known when the time is over.
            left = -1.0 if wait_until is None else wait_until - self._clock.monotonic()
            if left < _LEAST_WAIT_S:
                return Pulled([], offset, pulled.bounds)
            wait_s = min(left, _LONGEST_WAIT_S)

    # -- inside -------------------------------------------------------------------------------

    async def _readable(self, topic: str, broker: str, queue_id: int) -> Place:
        place = await self._access.place(topic, broker, queue_id)
        if not place.permission & Permission.READ:
            raise Forbidden(f"topic {topic} is not readable")
        return place

    async def _pull_once(
        self, context: Context, place: Place, fields: dict[str, str], wait_s: float
    ) -> Command | None:
        """The broker's answer; None when none came in the time in which one may be waited for."""
        try:
            return await self._pull_within(context, place, fields, wait_s)
        except BrokerBusy as error:
            if _REJECTED in error.sentence and not self._access.knows_best(place.broker):
                raise BrokerUnavailable(
                    f"broker {place.broker} has no master now, and its slave is set up not to be read from"
                    " (slaveReadEnable)"
                ) from error
            raise

    async def _pull_within(
        self, context: Context | None, place: Place, fields: dict[str, str], wait_s: float
    ) -> Command | None:
        if wait_s <= 0:
            return await self._access.ask_queue(
                context, place, RequestCode.PULL_MESSAGE, fields, reading=True, also=NOTHING_PULLED
            )
        long_polls = self._access.long_polls
        if not long_polls.begin(place.broker):
            await self._access.rest(min(wait_s, _LOOK_AGAIN_S))
            left = wait_s - _LOOK_AGAIN_S
            return await self._answered(place, fields, left) if left > 0 else None
        waiting = {
            "sysFlag": str(SUBSCRIPTION | _SUSPEND),
            "suspendTimeoutMillis": str(int(wait_s * 1000)),
        }
        try:
            return await self._answered(place, fields | waiting, wait_s)
        finally:
            long_polls.end(place.broker)

    async def _answered(self, place: Place, fields: dict[str, str], wait_s: float) -> Command | None:
        limit = wait_s + self._settings.slow_s
        return await self._access.within(
            wait_s,
            self._access.ask_queue(
                None,
                place,
                RequestCode.PULL_MESSAGE,
                fields,
                reading=True,
                timeout_s=limit,
                also=NOTHING_PULLED,
            ),
        )

    async def _pulled(
        self, place: Place, answer: Command, offset: int, passing: Filter, most: int, room: int
    ) -> Pulled:
        """What an answer says, from `offset` on. Raises IllegalOffset, BrokerUnavailable (no sense in it)."""
        broker = place.broker
        bounds = Bounds(
            max(number_in(answer, broker, "minOffset"), 0), max(number_in(answer, broker, "maxOffset"), 0)
        )
        self._offsets.told_bounds(place, bounds)
        behind = number_in(answer, broker, "nextBeginOffset")
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            if bounds.minimum <= offset <= bounds.maximum:
                # An operator has reset the reader's group here: told once, and not of interest.
                return Pulled([], offset, bounds)
            raise IllegalOffset(offset, bounds.minimum, bounds.maximum)
        if answer.code != ResponseCode.SUCCESS:
            return Pulled([], max(behind, offset), bounds)
        shift = number_in(answer, broker, "offsetDelta") if answer.fields.get("offsetDelta") else 0
        if not (shift or place.static or place.topic.startswith(_DERIVED)):
            scan = scan_records(answer.body, offset, passing, most, room)
            if scan is not None:
                records = StoredRecords(
                    scan.data, scan.starts, scan.body_bytes, broker, partial(_stored_at, place)
                )
                following = behind if scan.next_offset is None else scan.next_offset
                return Pulled(records, max(following, offset), bounds)
        messages: list[StoredMessage] = []
        for record in _records(answer.body, broker):
            at = record.offset + shift
            if at < offset:
                continue
            if len(messages) == most or (messages and record.size > room):
                behind = at
                break
            if passing.everything or passing.matches(record.properties):
                messages.append(stored(record, place.broker, place.queue_id, at))
                room -= record.size
        return Pulled(messages, max(behind, offset), bounds)


def _stored_at(place: Place, data: bytes, start: int) -> StoredMessage:
    try:
        record = decode_record(data, start)
    except PeerWireError as error:
        raise BrokerUnavailable(
            f"broker {place.broker} sent a message that makes no sense: {error}"
        ) from None
    return stored(record, place.broker, place.queue_id, record.offset)


def stored(record: Record, broker: str, queue_id: int, offset: int) -> StoredMessage:
    """A message as a broker has it, at the place by which the domain knows it."""
    return StoredMessage(
        record.topic,
        broker,
        queue_id,
        offset,
        record.commit_offset,
        record.sys_flag,
        record.flag,
        sender_ms(record),
        sender_host(record),
        record.store_ms,
        host_text(record.store_host),
        record.body,
        true_origin(record.topic, record.properties),
        reconsume_times=record.reconsume_times,
    )


def _records(body: bytes, broker: str) -> Iterator[Record]:
    try:
        yield from decode_records(body)
    except PeerWireError as error:
        raise BrokerUnavailable(f"broker {broker} sent messages that make no sense: {error}") from None


def _request(passing: Filter, most: int) -> dict[str, str]:
    """What is the same in every request of a pull. Only tags are a broker's own business: see above."""
    tags = not passing.everything and passing.kind is FilterKind.TAG
    return pull_fields(TOOLS_GROUP, passing.expression if tags else "*", most)
