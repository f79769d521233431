"""Arrow batches into messages: every row checked, its properties a block, its id its own.

What a message cannot keep is refused before it is sent: SparkSourceError (ILLEGAL_ROW) names the row and the
column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NoReturn

import pyarrow as pa

from popgate.errors import BadRequest, shown
from popgate.naming import check_topic, with_namespace
from popgate.queue_client import PRODUCER_GROUP
from popgate.spark.options.sink_options import SinkOptions
from popgate.spark.write.message_ids import VERSION, Identity, digests
from popgate.spark.write.outgoing_rows import Outgoing, PackedRows, illegal_row
from popgate.spark.write.packed_rows import PlainRows, plain_rows
from popgate.spark.write.property_blocks import Wrong, block_of, find_control
from popgate.wire.messages.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    LONGEST_IN_BATCH,
    PGROUP,
    TRAN_MSG,
    UNIQ_KEY,
)

_HALF: Final = (
    f"{TRAN_MSG}\x01true\x02{PGROUP}\x01{PRODUCER_GROUP}\x02{CHECK_IMMUNITY_TIME_IN_SECONDS}\x013600\x02"
)
"""Properties of a half message, behind those of its row: its first transaction check is an hour later,
because no producer could answer."""
_LAST_U64: Final = (1 << 64) - 1
_LONGEST_ID: Final = 255
"""Bytes, as over gRPC."""


class Encoder:
    """Encodes the rows of one task as messages and counts them; `identity` defines their ids."""

    def __init__(self, options: SinkOptions, identity: Identity) -> None:
        self._options = options
        self._identity, self._partition = identity, identity.partition
        self._row_id, self._key_id = identity.of_rows(), identity.of_keys()
        self._digest = identity.digest_of_contents() if identity.by_contents else None
        self.checksum = 0
        """Of all rows, in whatever order they came; 0 where rows are not known by their contents."""
        self._half = _HALF if options.transactional else ""
        self.count = 0
        self._topics: dict[str, str] = {}

    def pieces(self, batch: pa.RecordBatch) -> Iterator[Outgoing | PackedRows]:
        """The `messages`, many at a time where all rows are plain. Raises as these do."""
        options = self._options
        batch = _in_namespace(batch, options.gateway.namespace)
        # Half messages go one by one.
        rows = None if self._half else plain_rows(batch, topic=options.topic, key=options.dedupe_key)
        if rows is None or not all(_is_topic(topic) for topic, _ in rows.topics):
            return self._messages(batch)
        first = self.count
        self.count += len(rows)
        return rows.pack(first, *self._ids_of(rows, first))

    def messages(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Raises SparkSourceError (ILLEGAL_ROW) when it comes to such a row."""
        return self._messages(_in_namespace(batch, self._options.gateway.namespace))

    # -- inside -----------------------------------------------------------------------------------

    def _messages(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        columns = _Columns(batch)
        find_key = self._keys_of(columns)
        rows = zip(
            columns.texts("topic") if "topic" in columns else repeat(self._options.topic),
            columns.binaries("body"),
            columns.texts("tag"),
            columns.of("keys"),
            columns.texts("message_group"),
            columns.of("properties"),
            columns.millis("delivery_timestamp"),
            columns.of("priority"),
            columns.texts("lite_topic"),
            columns.texts("broker_name"),
            columns.of("queue_id"),
            strict=False,
        )
        plain = columns.plain
        for at, row in zip(range(batch.num_rows), rows, strict=False):
            topic, body, tag, keys, group, properties, due_ms, priority, lite, broker, queue_id = row
            number = self.count
            self.count += 1
            if body is None:
                self._refuse(number, "body", "is null")
            if not self._topics.get(topic or ""):
                self._check_topic(number, topic)
            try:
                if plain and not tag:
                    block = ""
                else:
                    block = block_of(tag, keys, group, properties, due_ms, priority, lite)
                if self._digest is None:
                    message_id = find_key(at, number, block, body)
                else:
                    rest = f"{topic}\x01{broker or ''}\x01{queue_id}\x02{block}"
                    digest = self._digest(rest.encode(), body)
                    self.checksum = self.checksum + int.from_bytes(digest[:8], "big") & _LAST_U64
                    message_id = find_key(at, number, block, digest)
            except Wrong as wrong:
                self._refuse(number, wrong.column, wrong.why)
            packed = f"{block}{self._half}{UNIQ_KEY}\x01{message_id}\x02".encode()
            if queue_id is not None and queue_id < 0:
                self._refuse(number, "queue_id", f"is {queue_id}")
            if broker and queue_id is None:
                self._refuse(number, "queue_id", "is null, though broker_name is not")
            if priority is not None and queue_id is not None:
                self._refuse(
                    number, "priority", f"is {priority}, and chooses the queue: queue_id is null then"
                )
            alone = (
                due_ms is not None
                or priority is not None
                or bool(lite)
                or bool(self._half)
                or len(packed) > LONGEST_IN_BATCH
            )
            yield Outgoing(number, topic, body, packed, group or "", broker or "", queue_id, alone)

    def _keys_of(self, columns: _Columns) -> Callable[[int, int, str, bytes], str]:
        """A function for the id of a row, from its place in the batch, its number, its block and its body."""
        name = self._options.dedupe_key
        if "message_id" in columns:
            given = list(columns.texts("message_id"))

            def own(at: int, number: int, block: str, body: bytes) -> str:
                given_id = given[at]
                if given_id is None:
                    if name:
                        raise Wrong("message_id", "is null, though dedupeKeyColumn names it")
                    return self._row_id(number, block.encode(), body)
                return _checked_id(given_id)

            return own
        if not name:
            return lambda _at, number, block, body: self._row_id(number, block.encode(), body)
        keys = columns.keys(name)

        def keyed(at: int, number: int, block: str, body: bytes) -> str:
            key = keys[at]
            if not key:
                raise Wrong(name, "is null or empty, though dedupeKeyColumn names it")
            return self._key_id(key)

        return keyed

    def _ids_of(self, rows: PlainRows, first: int) -> tuple[bytes, bytes]:
        """The common prefix of the ids of plain rows, and the rest of each, concatenated."""
        identity, by_contents = self._identity, self._digest is not None
        contents = digests(identity.content_hash(), *rows.contents()) if by_contents else []
        self.checksum = self.checksum + sum(int.from_bytes(each[:8], "big") for each in contents) & _LAST_U64
        if self._options.dedupe_key:
            row_digests = digests(identity.key_hash(), *rows.keys())
        elif by_contents:
            return b"", "".join(self._row_id(0, b"", each) for each in contents).encode()
        else:
            row_digests = digests(identity.row_hash(), *rows.numbered(first))
        return VERSION.encode(), b"".join(row_digests).hex().upper().encode()

    def _check_topic(self, number: int, topic: str | None) -> None:
        if not topic:
            self._refuse(number, "topic", "is null or empty")
        try:
            self._topics[topic] = check_topic(topic)
        except BadRequest as error:
            self._refuse(number, "topic", f"is wrong: {error.sentence}")

    def _refuse(self, number: int, column: str, why: str) -> NoReturn:
        raise illegal_row(number, self._partition, column, why)


class _Columns:
    """The columns of a batch as Python values; a missing column is null in every row."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._names = frozenset(batch.schema.names)
        self.plain = self._names.isdisjoint(
            ("keys", "message_group", "properties", "delivery_timestamp", "priority", "lite_topic")
        )
        """Whether a block has nothing but a tag and an id."""

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def of(self, name: str) -> Sequence[Any] | repeat[None]:
        return self._batch.column(name).to_pylist() if name in self._names else repeat(None)

    def texts(self, name: str) -> Sequence[str | None] | repeat[None]:
        return self.of(name)

    def binaries(self, name: str) -> Sequence[bytes | None]:
        column = self._batch.column(name)
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            column = column.cast(pa.large_string()).cast(pa.large_binary())
        return list(column.to_pylist())

    def millis(self, name: str) -> Sequence[int | None] | repeat[None]:
        """Milliseconds since 1970."""
        if name not in self._names:
            return repeat(None)
        column = self._batch.column(name)
        micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
        return [None if each is None else each // 1000 for each in micros]

    def keys(self, name: str) -> Sequence[bytes | None]:
        """The values of a key column as bytes; numbers as their digits."""
        column = self._batch.column(name)
        if pa.types.is_integer(column.type):
            return [None if each is None else b"%d" % each for each in column.to_pylist()]
        return self.binaries(name)


def _in_namespace(batch: pa.RecordBatch, namespace: str) -> pa.RecordBatch:
    """With the names of topics as they are on the wire; those that are so already stay."""
    if not namespace or "topic" not in batch.schema.names:
        return batch
    encoded = batch.column("topic").dictionary_encode()
    names = [with_namespace(namespace, each) for each in encoded.dictionary.to_pylist()]
    topics = pa.array(names, encoded.type.value_type).take(encoded.indices)
    return batch.set_column(batch.schema.get_field_index("topic"), "topic", topics)


def _is_topic(name: str) -> bool:
    try:
        return bool(check_topic(name))
    except BadRequest:
        return False


def _checked_id(message_id: str) -> str:
    if not message_id.strip() or find_control(message_id) or len(message_id.encode()) > _LONGEST_ID:
        raise Wrong(
            "message_id",
            f"is {shown(message_id)}: it has 1 to {_LONGEST_ID} bytes, not blank and no control character",
        )
    return message_id
