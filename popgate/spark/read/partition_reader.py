"""Reads ranges of offsets, with many pulls in flight, into Arrow batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from popgate.errors import PeerWireError
from popgate.naming import without_namespace
from popgate.queue_client import PullAnswer, QueueClient
from popgate.spark.connections import client_of, passes
from popgate.spark.errors import Code, SparkSourceError, data_loss
from popgate.spark.offsets import named
from popgate.spark.options.source_columns import LEGACY, OF_THE_QUEUE
from popgate.spark.options.source_options import SourceOptions
from popgate.spark.read.compaction import is_compacted, is_removed
from popgate.spark.read.driver import Connect
from popgate.spark.read.pull_size import PullSize
from popgate.spark.read.read_plan import Range, Warn
from popgate.spark.read.record_decoder import Records, TooMuchUnpacked, halves
from popgate.wire.frames.codes import ResponseCode

_REST_S: Final = 0.05
"""Before a pull is asked again that found nothing where something must be, or that failed."""
_LONGEST_REST_S: Final = 1.0
_STORED: Final = ("store_timestamp", "storeTimestamp")
_PATIENCE_S: Final = 60.0
"""The time without any data after which a task fails: gateways that restart in turn are back by then."""


class _Part(NamedTuple):
    """A pull in flight, by its request number. `whole`: it is not the rest of a partly answered one."""

    begin: int
    end: int
    number: int
    whole: bool


def batches(
    ranges: Sequence[Range],
    schema: pa.Schema,
    options: SourceOptions,
    warn: Warn,
    *,
    connect: Connect = client_of,
    rest: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """The messages of the ranges, in order. `rest` takes seconds. Raises SparkSourceError."""
    rows, size = options.number("arrowBatchRows"), options.number("arrowBatchBytes")
    for each in ranges:
        held: list[bytes] = []
        count = bytes_held = 0
        for body, messages in whole(each, options, warn, connect=connect, rest=rest):
            held.append(body)
            count += messages
            bytes_held += len(body)
            if count >= rows or bytes_held >= size:
                yield from decoded(b"".join(held), each, schema, options)
                held, count, bytes_held = [], 0, 0
        if held:
            yield from decoded(b"".join(held), each, schema, options)


def tick_row(at_ms: int, schema: pa.Schema) -> pa.RecordBatch:
    """The row of a stream to which nothing came for a while: the time, and no message."""
    columns = [
        pa.array([at_ms * 1000 if field.name in _STORED else None], pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.nulls(1, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def decoded(
    data: bytes, range_: Range, schema: pa.Schema, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Decode pulled records; those outside of the range, or with another tag, are left out.

    It is one batch, unless the bodies unpack to more than that can have. Raises SparkSourceError (DAMAGED).
    """
    batch = None
    try:
        batch = _batch(data, range_, schema, options)
    except TooMuchUnpacked:
        # The error goes before anything is yielded, and with it what was unpacked.
        pass
    except PeerWireError as error:
        place = f"{named(range_.queue)}, offsets {range_.begin} to {range_.end - 1}"
        raise SparkSourceError(
            Code.DAMAGED,
            f"a message cannot be read ({place}): {error}; begin behind it, by option startingOffsets, and a"
            " stream with another checkpoint",
        ) from error
    if batch is not None:
        yield batch
        return
    for half in halves(data):
        yield from decoded(half, range_, schema, options)


def whole(
    range_: Range,
    options: SourceOptions,
    warn: Warn,
    *,
    connect: Connect = client_of,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[bytes, int]]:
    """`pulled` for a range, which continues at its position after a temporary failure of the gateway.

    A connection breaks when a gateway restarts, or when the consumer of the rows pauses for so long that the
    connection is idle. Raises SparkSourceError, for temporary failures after a minute without a response.
    """
    at, times, began = range_.begin, 0, 0.0
    while at < range_.end:
        try:
            with connect(options) as client:
                left = Range(range_.queue, at, range_.end)
                for body, messages, reached in pulled(client, left, options, warn, now=now, rest=rest):
                    at, times = reached, 0
                    if body:
                        yield body, messages
        except SparkSourceError as error:
            if times == 0:
                began = now()
            if not passes(error) or now() - began >= _PATIENCE_S:
                raise
            rest(min(_REST_S * 2**times, _LONGEST_REST_S))
            times += 1


def pulled(
    client: QueueClient,
    range_: Range,
    options: SourceOptions,
    warn: Warn,
    *,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the bodies of pull responses by offset, each with its maximum message count and its next offset.

    A body may be empty. Without a filter, several pulls are in flight, each as large as one response of the
    broker (`popgate.spark.read.pull_size`). With a filter the offset that a pull reaches is not known in
    advance, so only one is in flight. Raises SparkSourceError (DATA_LOSS) and GatewayError, for what never
    comes BrokerUnavailable where there is no master now.
    """
    most = options.number("pullBatchSize")
    expression, kind = options.filter
    depth = options.number("pullPipeline") if expression == "*" else 1
    under_way: deque[_Part] = deque()

    def ask(begin: int, end: int, *, whole: bool = False) -> _Part:
        number = client.start_pull(
            range_.queue,
            begin,
            most=min(most, end - begin) if depth > 1 else most,
            expression=expression,
            kind=kind,
        )
        return _Part(begin, end, number, whole)

    at, size = range_.begin, PullSize(most)
    # The first answer tells how large a part may be.
    at_once = 1
    has_holes: bool | None = False
    found_by = now() + options.timeout_s
    while under_way or at < range_.end:
        while at < range_.end and len(under_way) < at_once:
            end = min(at + size.next(), range_.end) if depth > 1 else range_.end
            under_way.append(ask(at, end, whole=True))
            at = end
        begin, end, number, is_whole = under_way.popleft()
        answer = client.finish_pull(number, range_.queue, timeout_s=options.timeout_s)
        if answer.code == ResponseCode.PULL_NOT_FOUND or (
            # So a slave says it, where no gateway stands before it. Source: DefaultMessageStore.getMessage.
            answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.next_offset == begin
        ):
            # The range ends where the queue ended, or before: this replica has not heard of it yet.
            if now() > found_by:
                # A slave that stands in for its master may lack it: without a master nobody knows.
                client.maximums([range_.queue], of_masters=True)
                raise SparkSourceError(
                    Code.DATA_LOSS,
                    f"{named(range_.queue)} has nothing at {begin} after {options.timeout_s:g} s,"
                    f" though it ended at {range_.end} when this was planned",
                )
            rest(_REST_S)
            under_way.appendleft(ask(begin, end, whole=is_whole))
            continue
        reached, first = answer.next_offset, _first(answer)
        if reached <= begin:
            raise SparkSourceError(
                Code.DATA_LOSS,
                f"{named(range_.queue)} has no offset {begin} any more, it goes on at {reached}: it was made"
                " anew, and needs a checkpoint, or a start, of its own",
            )
        has_moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
        if first > begin and (has_moved or expression == "*"):
            if has_holes is False:
                has_holes = is_compacted(client, range_.queue.topic)
            # Where nobody tells, offsets that are passed over may be those of a compacted topic.
            if (has_moved and not has_holes) or (
                has_holes is False and is_removed(client, range_.queue, begin, now=now, rest=rest)
            ):
                _report_gap(range_, begin, first, options, warn)
        yield answer.body, reached - begin if depth > 1 else most, reached
        # Not before: whoever takes the rows may pause for longer than that.
        found_by = now() + options.timeout_s
        if is_whole and answer.code == ResponseCode.SUCCESS:
            at_once = depth
            size.learn(min(reached, end) - begin)
        if reached < end and not under_way:
            at = reached
        elif reached < end:
            under_way.appendleft(ask(reached, end))
        at = max(at, reached)
        # Where offsets are missing, as after a compaction, a pull reaches into what was asked for beside it.
        while under_way and under_way[0].begin < reached:
            part = under_way.popleft()
            client.connection.forget(part.number)
            if reached < part.end:
                under_way.appendleft(ask(reached, part.end))


def _first(answer: PullAnswer) -> int:
    """The offset of its first message, without which the one that it reached."""
    return int.from_bytes(answer.body[20:28], "big") if answer.body else answer.next_offset


def _report_gap(range_: Range, begin: int, end: int, options: SourceOptions, warn: Warn) -> None:
    """Raises SparkSourceError, unless a loss of data is to be passed over."""
    gone = f"{begin} to {min(end, range_.end) - 1} are gone"
    sentence = f"{named(range_.queue)} keeps nothing before {end}: {gone}"
    if options.fail_on_data_loss:
        raise data_loss(sentence)
    warn(sentence)


def _batch(data: bytes, range_: Range, schema: pa.Schema, options: SourceOptions) -> pa.RecordBatch:
    """Raises PeerWireError, and TooMuchUnpacked for two or more records."""
    records = Records(data)
    keep = (records.offsets >= range_.begin) & (records.offsets < range_.end)
    if not keep.all():
        records.keep(keep)
    if options.tag and options.tag != "*":
        # Brokers compare hashes of tags.
        wanted = pa.array([each.strip() for each in options.tag.split("||")])
        keep = pc.is_in(records.column("tag"), value_set=wanted)
        records.keep(keep.to_numpy(zero_copy_only=False))
    columns = [_column(records, range_, field, options) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(records: Records, range_: Range, field: Any, options: SourceOptions) -> Any:
    name = LEGACY[field.name][0] if options.legacy else field.name
    if name not in OF_THE_QUEUE:
        return records.column(name).cast(field.type)
    topic, broker, queue_id = range_.queue
    topic = without_namespace(options.gateway.namespace, topic)
    value = {"topic": topic, "broker_name": broker, "queue_id": queue_id}[name]
    return pa.repeat(pa.scalar(value, field.type), len(records))
