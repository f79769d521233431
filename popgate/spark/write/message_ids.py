"""Derives message ids from rows: the same id when a row is sent again, another one for every other row."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from popgate.spark.errors import Code, SparkSourceError, illegal_option
from popgate.spark.options.sink_options import BY_VERSION, SinkOptions

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
"""Properties of Spark's tasks. They are there in foreachBatch, too."""
VERSION: Final = "01"
"""The prefix of the ids of gRPC clients."""
_OF_CONTENTS: Final = "02"


@dataclass(frozen=True, slots=True)
class Identity:
    """The basis of a task's message ids. `write`: shared by all tasks of a write, also if it is repeated."""

    write: tuple[str, ...]
    sink_id: str
    partition: int
    by_contents: bool = False
    """Whether rows are identified by their content, at any position in their partition: with a ledger."""

    @property
    def batch_tag(self) -> str:
        """The prefix of all ids of a batch, in every partition, if they are `by_contents`."""
        return _OF_CONTENTS + _hash("batch", *self.write, self.sink_id).hexdigest()[:16].upper()

    @property
    def tag(self) -> str:
        """The prefix of the ids of this partition."""
        return f"{self.batch_tag}{self.partition:08X}"

    def partitions_of(self, ids: Iterable[str]) -> Iterator[int]:
        """Those whose rows have these ids, where they are rows of this batch and known by their contents."""
        match = re.compile(f"{self.batch_tag}([0-9A-F]{{8}})[0-9A-F]{{32}}").fullmatch
        return (int(matched[1], 16) for each in ids if (matched := match(each)))

    def of_rows(self) -> Callable[[int, bytes, bytes], str]:
        """The id of a row: its number, the block of its properties, and its body."""
        if self.by_contents:
            return self._of_contents()
        base = self.row_hash()

        def row_id(number: int, block: bytes, body: bytes) -> str:
            hasher = base.copy()
            hasher.update(b"%d %d " % (number, len(block)) + block + body)
            return VERSION + hasher.hexdigest().upper()

        return row_id

    def row_hash(self) -> hashlib.blake2b:
        """The hash that `of_rows` continues, for rows that are not `by_contents`."""
        return _hash("row", *self.write, self.sink_id, str(self.partition))

    def _of_contents(self) -> Callable[[int, bytes, bytes], str]:
        """Rows with equal content are counted: the first one has the same id each time.

        Instead of the body they use the result of `digest_of_contents`.
        """
        tag, seen = self.tag, dict[bytes, int]()

        def row_id(_number: int, _block: bytes, digest: bytes) -> str:
            count = seen.get(digest, 0)
            seen[digest] = count + 1
            if count:
                digest = hashlib.blake2b(b"%b again %d" % (digest, count), digest_size=16).digest()
            return tag + digest.hex().upper()

        return row_id

    def digest_of_contents(self) -> Callable[[bytes, bytes], bytes]:
        """The digest of a row's columns and body: the same in any partition and at any position."""
        base = self.content_hash()

        def digest(rest: bytes, body: bytes) -> bytes:
            hasher = base.copy()
            hasher.update(b"%d " % len(rest) + rest + body)
            return hasher.digest()

        return digest

    def content_hash(self) -> hashlib.blake2b:
        """The hash that `digest_of_contents` continues."""
        return _hash("content", *self.write, self.sink_id)

    def of_keys(self) -> Callable[[bytes], str]:
        """The id of a row by its key: the same for all writes of a sink, with a ledger those of its batch.

        There a batch that is done does not come again, and a key of an earlier one is another row.
        """
        base = self.key_hash()

        def key_id(key: bytes) -> str:
            hasher = base.copy()
            hasher.update(key)
            return VERSION + hasher.hexdigest().upper()

        return key_id

    def key_hash(self) -> hashlib.blake2b:
        """The hash that `of_keys` continues."""
        of = ("key of batch", *self.write) if self.by_contents else ("key",)
        return _hash(*of, self.sink_id)


def identity_of(
    properties: Mapping[str, str], options: SinkOptions, *, run: str, partition: int, streaming: bool
) -> Identity:
    """`properties`: those of the task. `run`: unique for every planned write.

    A batch that is written within foreachBatch is recognised when it is repeated if `sinkId` distinguishes
    it from the other writes of the same function. Raises SparkSourceError: outside of it `sinkId` works with
    keys only, and so do the rows of a stream if Spark does not report the batch number. A batch that options
    number is recognised by that number alone, wherever it is written.
    """
    if options.version >= 0:
        return Identity(("version", str(options.version)), options.sink_id, partition, options.has_ledger)
    query, batch = properties.get(QUERY_ID, ""), properties.get(BATCH_ID, "")
    sink_id, in_query = options.sink_id, bool(query and batch)
    if sink_id and not in_query and not options.dedupe_key:
        raise illegal_option(
            "sinkId",
            sink_id,
            "this batch belongs to no stream, leave it out, or give dedupeKeyColumn too",
        )
    if streaming and not in_query and not options.dedupe_key:
        raise SparkSourceError(
            Code.UNSUPPORTED,
            f"Spark does not tell the task which batch of which stream it writes ({QUERY_ID}, {BATCH_ID}):"
            " what is sent again could not be known again; give dedupeKeyColumn",
        )
    if options.has_ledger and not in_query:
        raise illegal_option(
            "deliveryGuarantee",
            options.guarantee,
            "this batch belongs to no stream, nothing tells it when it comes again: leave it out, or give"
            " txnAppId and txnVersion in the place of sinkId",
        )
    if in_query and (streaming or sink_id):
        write = ("stream" if streaming else "each", query, batch)
        return Identity(write, sink_id, partition, options.has_ledger)
    return Identity(("batch", run), sink_id, partition)


def batch_of(properties: Mapping[str, str], options: SinkOptions) -> tuple[str, int]:
    """Its query and its batch, as `identity_of` has found them."""
    if options.version >= 0:
        return BY_VERSION, options.version
    return properties[QUERY_ID], int(properties[BATCH_ID])


def digests(base: hashlib.blake2b, data: bytes, ends: Sequence[int]) -> list[bytes]:
    """Of each part of `data`, as if `base` went on with it. A part begins where the one before it ends."""
    row_digests = []
    for begin, end in pairwise(ends):
        hasher = base.copy()
        hasher.update(data[begin:end])
        row_digests.append(hasher.digest())
    return row_digests


def _hash(*parts: str) -> hashlib.blake2b:
    """Of 16 bytes, begun with these; none of them runs into the next."""
    encoded_parts = [part.encode() for part in parts]
    return hashlib.blake2b(b"".join(b"%d:%b" % (len(part), part) for part in encoded_parts), digest_size=16)
