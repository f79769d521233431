"""Decodes stored records into Arrow columns, many at a time; columns that were not selected are skipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from popgate.errors import PeerWireError, Unsupported
from popgate.spark.options.source_columns import ALL_PROPERTIES
from popgate.wire.messages import properties as names
from popgate.wire.messages.compression import compression_of, decompress
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.properties import RESERVED, TRANSIENT_PREFIX
from popgate.wire.messages.records import (
    BORN_HOST_V6,
    COMPRESSED,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD,
    STORE_HOST_V6,
)

_LARGEST_BODY: Final = 64 << 20
"""Bytes that a compressed body may unpack to."""
_LARGEST_BODIES: Final = 1 << 30
"""Bytes that all those of one batch may: Arrow's offsets have 31 bits."""
_LAST_MS: Final = ((1 << 63) - 1) // 1000
_LAST_INT: Final = (1 << 31) - 1
_unpack_size = Struct(">I").unpack_from


class TooMuchUnpacked(PeerWireError):
    """The bodies of several records are together above the limit of one batch, or one of them is damaged."""


class Records:
    """Records that stand one behind the other. Raises PeerWireError when they do not."""

    def __init__(self, data: bytes) -> None:
        self._bytes = data
        self._data = np.frombuffer(data, np.uint8)
        self._starts = np.array(_starts(data), np.int64)
        self._pairs: _Pairs | None = None
        self._ends: Any
        self._bodies: Any
        self._body_ends: Any
        self._blocks: Any
        self._sys = self._read(36, ">u4")
        longer = (self._sys & BORN_HOST_V6 != 0) * 12
        self._born_host_ends = 56 + longer
        heads = 88 + longer + (self._sys & STORE_HOST_V6 != 0) * 12
        self._heads = self._starts + heads
        self.offsets = self._read(20, ">i8")
        self._check()

    def __len__(self) -> int:
        return len(self._starts)

    def keep(self, rows: Any) -> None:
        """Go on with these rows alone (truth values by row)."""
        for name in ("_starts", "_sys", "_born_host_ends", "_heads", "_bodies", "_body_ends", "_blocks"):
            setattr(self, name, getattr(self, name)[rows])
        self._pairs = None
        self._ends, self.offsets = self._ends[rows], self.offsets[rows]

    def column(self, name: str) -> Any:
        """A column of the records as an Arrow array. Raises PeerWireError, KeyError (unknown column)."""
        return _COLUMNS[name](self)

    # -- numbers ----------------------------------------------------------------------------------

    def _read(self, at: Any, kind: str) -> Any:
        """A number of each record, `at` bytes behind its start."""
        return self._numbers(self._starts + at, kind)

    def _numbers(self, places: Any, kind: str) -> Any:
        """The numbers that begin at these places of the data."""
        count = max(len(self._bytes) - np.dtype(kind).itemsize + 1, 0)
        # One that begins at each byte: nothing is copied but what is taken.
        everywhere: Any = np.ndarray(count, kind, self._bytes, strides=(1,))
        return everywhere[places].astype(kind[1:])

    @property
    def after_born_host(self) -> Any:
        """Where the store time stands in each record."""
        return self._born_host_ends

    @property
    def after_hosts(self) -> Any:
        """Where the number of deliveries stands in each record."""
        return self._heads - self._starts - 16

    def number(self, at: Any, kind: str) -> Any:
        return pa.array(self._read(at, kind))

    def _check(self) -> None:
        """Find the parts of all records, and that they fill them exactly."""
        starts, heads, data = self._starts, self._heads, self._data
        sizes = self._read(0, ">u4").astype(np.int64)
        self._ends = starts + sizes
        self._refuse(heads + 3 > self._ends, "a record with IPv6 hosts is too short for them")
        self._bodies = heads
        self._body_ends = heads + self._numbers(heads - 4, ">u4").astype(np.int64)
        self._refuse(
            self._body_ends + 3 > self._ends, "a record claims a body that is longer than the record"
        )
        magics = self._read(4, ">u4")
        self._refuse((magics != MAGIC_V1) & (magics != MAGIC_V2), "a record has an unknown magic number")
        short = magics == MAGIC_V1
        first = data[self._body_ends].astype(np.int64)
        topics = np.where(short, first, first << 8 | data[self._body_ends + 1])
        topic_ends = self._body_ends + np.where(short, 1, 2) + topics
        too_long = (first > 127) | (topic_ends + 2 > self._ends)
        self._refuse(too_long, "a record claims a topic that is longer than the record")
        self._blocks = topic_ends + 2
        others = self._blocks + self._numbers(topic_ends, ">u2") != self._ends
        self._refuse(others, "the properties of a record do not fill the rest of it")

    def _refuse(self, wrong: Any, sentence: str) -> None:
        """Raises PeerWireError, with the offset of the first record that is wrong, if there is one."""
        if wrong.any():
            raise PeerWireError(f"{sentence} (offset {self.offsets[int(wrong.argmax())]})")

    def times(self, at: Any) -> Any:
        """Milliseconds as timestamps; values that do not fit into a timestamp become null."""
        millis = self._read(at, ">i8")
        wrong = (millis > _LAST_MS) | (millis < -_LAST_MS)
        micros = np.where(wrong, 0, millis) * 1000
        return pa.array(micros, pa.int64(), mask=wrong).cast(pa.timestamp("us", "UTC"))

    # -- bytes ------------------------------------------------------------------------------------

    def body(self) -> Any:
        if not np.any(self._sys & COMPRESSED):
            return self._slices(self._bodies, self._body_ends)
        data = self._bytes
        bodies = [
            data[begin:end]
            for begin, end in zip(self._bodies.tolist(), self._body_ends.tolist(), strict=True)
        ]
        left = _LARGEST_BODIES
        # An empty one is empty, whatever is said of it, as to all consumers.
        for row in np.flatnonzero((self._sys & COMPRESSED) * (self._body_ends - self._bodies)).tolist():
            try:
                bodies[row] = _unpacked(bodies[row], min(_LARGEST_BODY, left))
            except PeerWireError as error:
                # Which of the two it is shows when there are fewer of them.
                fewer = left < _LARGEST_BODY and len(self) > 1
                sentence = f"{error} (offset {self.offsets[row]})"
                raise (TooMuchUnpacked if fewer else PeerWireError)(sentence) from error
            left -= len(bodies[row])
        return pa.array(bodies, pa.binary())

    def _slices(self, begins: Any, ends: Any) -> Any:
        """Parts of the data, one behind the other, as binaries: every other one of an array that has the gaps
        between them, too, and copies nothing."""
        bounds = np.empty(2 * len(begins), np.int32)
        bounds[0::2], bounds[1::2] = begins, ends
        with_gaps = pa.Array.from_buffers(
            pa.binary(), max(len(bounds) - 1, 0), [None, pa.py_buffer(bounds), pa.py_buffer(self._bytes)]
        )
        return with_gaps.take(pa.array(np.arange(0, len(bounds), 2)))

    def born_hosts(self) -> Any:
        data = self._bytes
        ends = (self._starts + self._born_host_ends).tolist()
        begins = (self._starts + 48).tolist()
        return pa.array(
            [host_text(data[begin:end]) for begin, end in zip(begins, ends, strict=True)], pa.string()
        )

    # -- properties -------------------------------------------------------------------------------

    def pairs(self) -> _Pairs:
        if self._pairs is None:
            self._pairs = _Pairs(self._slices(self._blocks, self._ends))
        return self._pairs

    def all_properties(self) -> Any:
        """One JSON object for each message, those of the system among them."""
        blocks = zip(self._blocks.tolist(), self._ends.tolist(), strict=True)
        return pa.array(
            [
                json.dumps(names.decode_properties(self._bytes[begin:end]), ensure_ascii=False)
                for begin, end in blocks
            ],
            pa.string(),
        )

    def keys(self) -> Any:
        texts = pc.utf8_trim_whitespace(self.pairs().find(names.KEYS))
        # A producer may leave more than one blank between two keys, and blanks alone are none.
        split = pc.split_pattern_regex(pc.if_else(pc.equal(texts, ""), None, texts), r"\s+")
        return split.cast(pa.list_(pa.string()))


class _Pairs:
    """The properties of many messages: one row per entry, the last of those with one name counts."""

    def __init__(self, blocks: Any) -> None:
        """`blocks`: an Arrow array of binaries."""
        self._count = len(blocks)
        try:
            texts = blocks.cast(pa.string())
        except pa.ArrowInvalid:
            replaced = [block.decode("utf-8", "replace") for block in blocks.to_pylist()]
            texts = pa.array(replaced, pa.string())
        entries = pc.split_pattern(texts, "\x02")
        flat = entries.flatten()
        rows = np.repeat(np.arange(self._count), np.diff(entries.offsets.to_numpy()))
        at = pc.find_substring(flat, "\x01").to_numpy(zero_copy_only=False)
        lengths = pc.binary_length(flat).to_numpy(zero_copy_only=False)
        whole = (at > 0) & (lengths > at + 1)
        halves = pc.split_pattern(flat.filter(pa.array(whole)), "\x01", max_splits=1).flatten()
        evens = np.arange(0, len(halves), 2)
        self._rows = rows[whole]
        self._names, self._values = halves.take(pa.array(evens)), halves.take(pa.array(evens + 1))

    def find(self, name: str) -> Any:
        """One property of each message; null where it has none."""
        hits = np.flatnonzero(pc.equal(self._names, name).to_numpy(zero_copy_only=False))
        index = np.full(self._count, -1, np.int64)
        index[self._rows[hits]] = hits
        return self._values.take(pa.array(index, mask=index < 0))

    def number(self, name: str) -> Any:
        """As `find`, for whole numbers; null for invalid ones."""
        numbers = [_whole(text) for text in self.find(name).to_pylist()]
        return pa.array(numbers, pa.int32())

    def times(self, name: str) -> Any:
        """As `find`, for milliseconds as timestamps; null for invalid ones."""
        times_ms = [_millis(text) for text in self.find(name).to_pylist()]
        micros = pa.array([None if each is None else each * 1000 for each in times_ms], pa.int64())
        return micros.cast(pa.timestamp("us", "UTC"))

    def types(self) -> Any:
        """The message types that gRPC clients see, derived from the properties of a message, in order of
        precedence.
        """
        codes = np.zeros(self._count, np.int64)
        # The last one that fits counts.
        for code, (_, deciding) in enumerate(_TYPES):
            hits = pc.is_in(self._names, value_set=pa.array(deciding, pa.string()))
            codes[self._rows[hits.to_numpy(zero_copy_only=False)]] = code
        half = pc.equal(self.find(names.TRAN_MSG), "true").fill_null(False)
        codes[half.to_numpy(zero_copy_only=False)] = len(_TYPES)
        return pa.array([*(name for name, _ in _TYPES), "TRANSACTION"]).take(pa.array(codes))

    def of_users(self) -> Any:
        """All that are not the system's and have no column of their own, as maps."""
        reserved = pc.is_in(self._names, value_set=_RESERVED)
        theirs = pc.invert(pc.or_(reserved, pc.starts_with(self._names, TRANSIENT_PREFIX)))
        kept = np.flatnonzero(theirs.to_numpy(zero_copy_only=False))
        rows = self._rows[kept]
        codes = self._names.take(pa.array(kept)).dictionary_encode().indices.to_numpy()
        # The last entry of each name in each row: from behind, the first one.
        places = rows * (len(codes) + 1) + codes
        _, last = np.unique(places[::-1], return_index=True)
        order = np.sort(len(kept) - 1 - last)
        kept, rows = kept[order], rows[order]
        offsets = np.searchsorted(rows, np.arange(self._count + 1)).astype(np.int32)
        taken = pa.array(kept)
        return pa.MapArray.from_arrays(pa.array(offsets), self._names.take(taken), self._values.take(taken))


_RESERVED: Final = pa.array(sorted(RESERVED | {names.SHARDING_KEY, names.TRACE_CONTEXT}))
_TYPES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("NORMAL", ()),
    ("LITE", (names.LITE_TOPIC,)),
    ("PRIORITY", (names.PRIORITY,)),
    ("FIFO", (names.SHARDING_KEY,)),
    ("DELAY", (names.TIMER_DELIVER_MS, names.DELAY, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)),
)
"""And the properties that make a message one."""
_MAP: Final = pa.map_(pa.string(), pa.string())


def halves(data: bytes) -> tuple[bytes, bytes]:
    """Two or more records in two parts. Raises PeerWireError."""
    starts = _starts(data)
    middle = starts[len(starts) // 2]
    return data[:middle], data[middle:]


def _unpacked(body: bytes, limit: int) -> bytes:
    """As `decompress`, without its packages too: executors may have Arrow alone."""
    try:
        return decompress(body, limit)
    except Unsupported:
        kind = compression_of(body)
    assert kind is not None  # noqa: S101 - a package of its own is for a kind that is known
    try:
        plain: bytes = pa.CompressedInputStream(pa.BufferReader(body), kind.value).read(limit + 1)
    except OSError as error:
        raise PeerWireError(f"the {kind.value} body is damaged: {error}") from error
    if len(plain) > limit:
        raise PeerWireError(f"the {kind.value} body unpacks to more than {limit} bytes")
    return plain


def _starts(data: bytes) -> list[int]:
    """Where records begin. Raises PeerWireError for one that does not fit."""
    starts = []
    at, end = 0, len(data)
    while at < end:
        size = _unpack_size(data, at)[0] if end - at >= SMALLEST_RECORD else 0
        if not SMALLEST_RECORD <= size <= end - at:
            raise PeerWireError(f"a record claims {size} bytes, there are {end - at}")
        starts.append(at)
        at += size
    return starts


def _whole(text: str | None) -> int | None:
    """A 31-bit number, otherwise None."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    return int(text) if int(text) <= _LAST_INT else None


def _millis(text: str | None) -> int | None:
    """Milliseconds that fit into a timestamp, otherwise None."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 16):
        return None
    return int(text) if int(text) <= _LAST_MS else None


def _told(name: str) -> Callable[[Records], Any]:
    return lambda records: records.pairs().find(name)


_COLUMNS: Final[dict[str, Callable[[Records], Any]]] = {
    "queue_offset": lambda records: pa.array(records.offsets),
    "flag": lambda records: records.number(16, ">i4"),
    "born_timestamp": lambda records: records.times(40),
    "born_host": Records.born_hosts,
    "store_timestamp": lambda records: records.times(records.after_born_host),
    "reconsume_times": lambda records: records.number(records.after_hosts, ">i4"),
    "body": Records.body,
    "properties": lambda records: records.pairs().of_users().cast(_MAP),
    "message_id": _told(names.UNIQ_KEY),
    "message_type": lambda records: records.pairs().types(),
    "delivery_timestamp": lambda records: records.pairs().times(names.TIMER_DELIVER_MS),
    ALL_PROPERTIES: Records.all_properties,
    "tag": _told(names.TAGS),
    "keys": Records.keys,
    "message_group": _told(names.SHARDING_KEY),
    "lite_topic": _told(names.LITE_TOPIC),
    "trace_context": _told(names.TRACE_CONTEXT),
    "priority": lambda records: records.pairs().number(names.PRIORITY),
}
