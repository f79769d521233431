"""Encodes the plain rows of an Arrow batch as messages, column by column instead of row by row.

A row is plain if it is valid, may go to any queue of its topic, and has no order, delay or id of its own. A
batch with any other row is not packed: `popgate.spark.write.encoder` encodes it row by row, with the same
bytes for plain rows, and names the row that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from popgate.spark.options.sink_columns import SINK_COLUMNS
from popgate.spark.write.outgoing_rows import PackedRows
from popgate.spark.write.property_blocks import Wrong, check_name, tag_entry
from popgate.wire.messages.batches import size_in_batch
from popgate.wire.messages.properties import KEYS, LONGEST_IN_BATCH, UNIQ_KEY

_COLUMNS: Final = frozenset({"topic", "body", "tag", "keys", "properties"})
_FEWEST: Final = 64
"""Rows: the work by columns costs some 0.3 ms for each batch, as much as that by rows for so many."""
_MOST_BYTES: Final = 64 << 20
"""Of a batch: it is there three times while it is packed, and rows of larger ones are large themselves."""
_MOST_ROWS: Final = 1 << 20
"""Of a batch: a name of a topic and an id stand before and behind each row, some hundred bytes, and all of a
column has to stay below 2 GB."""
_ARROW_REFUSES: Final = pa.ArrowInvalid, pa.ArrowNotImplementedError
"""Arrow's errors for a column that cannot be cast, or has invalid text."""
_ROWS_OF_A_TOPIC: Final = 32
"""On average at least so many rows in a row have one topic."""
_HEAD: Final = np.dtype([("size", ">u4"), ("magic", ">u8"), ("flag", ">i4"), ("body", ">u4")])
"""Of a message in a send (`popgate/wire/messages/batches.py`): the size of all, and that of its body."""
_UNIQ: Final = UNIQ_KEY.encode() + b"\x01"
# Arrow takes some 5 to 40 µs to make a scalar of a Python value, in each call that is given one.
_OF_NO_QUEUE: Final = pa.scalar(b"\x01\x01None\x02")
"""The bytes between the topic and the block in the hashed contents of a row."""
_ZERO: Final = pa.scalar(0, pa.int32())
_SPACE: Final = pa.scalar(b" ")
_NOTHING: Final = pa.scalar(b"")
_NO_TEXT: Final = pa.scalar("")
_NULL_TEXT: Final = pa.scalar(None, pa.string())
_FRONT_OF_KEYS: Final = pa.scalar(f"{KEYS}\x01")
_START: Final = pa.scalar("\x01")
"""The character between a property's name and its value, and the one that ends it."""
_END: Final = pa.scalar("\x02")


class _NotPlain(Exception):
    """The rows of a batch have to be taken one by one."""


def plain_rows(batch: pa.RecordBatch, *, topic: str, key: str) -> PlainRows | None:
    """The rows of a batch if all of them are plain. `key`: the key column; empty: none."""
    if (
        not _FEWEST <= batch.num_rows <= _MOST_ROWS
        or batch.get_total_buffer_size() > _MOST_BYTES
        or not _COLUMNS | ({key} - SINK_COLUMNS.keys()) >= set(batch.schema.names)
    ):
        return None
    try:
        return PlainRows(batch, topic=topic, key=key)
    except (_NotPlain, Wrong, *_ARROW_REFUSES, UnicodeDecodeError):
        # By rows it is found out which row that is, and said.
        return None


class PlainRows:
    """The result of `plain_rows`. Columns are bytes, with the start and the end of each row."""

    def __init__(self, batch: pa.RecordBatch, *, topic: str, key: str) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._count: int = batch.num_rows
        self._bodies = _binary(columns["body"])
        self._topics = _text(columns["topic"]) if "topic" in columns else None
        self.topics = _runs(self._topics) if self._topics is not None else [(topic, self._count)]
        """Names, and where the rows of each end."""
        self._blocks = _blocks(columns, self._count)
        self._lengths = _lengths(self._blocks)
        if int(self._lengths.max()) + 255 + len(_UNIQ) > LONGEST_IN_BATCH:
            raise _NotPlain
        self._keys = _keys_apart(columns[key]) if key else None

    def __len__(self) -> int:
        return self._count

    def numbered(self, first: int) -> tuple[bytes, list[int]]:
        """Of each row its number, its block and its body, as its id is made of them."""
        numbers = pa.array(np.arange(first, first + self._count)).cast(pa.string()).cast(pa.binary())
        lengths = pa.array(self._lengths).cast(pa.string()).cast(pa.binary())
        return _data(_joined(numbers, _SPACE, lengths, _SPACE, self._blocks, self._bodies))

    def contents(self) -> tuple[bytes, list[int]]:
        """The content of each row, from which its id is derived."""
        if self._topics is None:
            topics = pa.scalar(self.topics[0][0].encode())
            widths = len(topics.as_py())
        else:
            topics = self._topics.cast(pa.binary())
            widths = _lengths(topics)
        lengths = (
            pa.array(self._lengths + widths + len(_OF_NO_QUEUE.as_py())).cast(pa.string()).cast(pa.binary())
        )
        return _data(_joined(lengths, _SPACE, topics, _OF_NO_QUEUE, self._blocks, self._bodies))

    def keys(self) -> tuple[bytes, list[int]]:
        """The key of each row."""
        return _data(self._keys)

    def pack(self, first: int, front: bytes, ids: bytes) -> Iterator[PackedRows]:
        """All rows under these ids, which are of one length; before each stands `front`."""
        count = self._count
        entries = np.empty((count, len(_UNIQ) + len(front) + len(ids) // count + 1), np.uint8)
        at = len(_UNIQ) + len(front)
        entries[:, :at] = np.frombuffer(_UNIQ + front, np.uint8)
        entries[:, at:-1] = np.frombuffer(ids, np.uint8).reshape(count, -1)
        entries[:, -1] = 2
        lengths = self._lengths + entries.shape[1]
        bodies = _lengths(self._bodies)
        heads = np.zeros(count, _HEAD)
        heads["size"], heads["body"] = lengths + bodies + size_in_batch(1), bodies
        shorts = lengths.astype(">i2")
        data, ends = _data(
            _joined(_of_width(heads), self._bodies, _of_width(shorts), self._blocks, _of_width(entries))
        )
        begin = 0
        for topic, stop in self.topics:
            yield PackedRows(first + begin, topic, data, ends[begin : stop + 1])
            begin = stop


# -- columns ------------------------------------------------------------------------------------------


def _blocks(columns: dict[str, Any], count: int) -> Any:
    """The block of each row, without its id. Raises _NotPlain, Wrong."""
    parts = []
    if "properties" in columns:
        parts.append(_properties(columns["properties"]))
    if "tag" in columns:
        parts.append(_tags(columns["tag"]).cast(pa.binary()))
    if "keys" in columns:
        parts.append(_keys(columns["keys"]).cast(pa.binary()))
    if not parts:
        return pa.array([b""] * count, pa.binary())
    return pc.binary_join_element_wise(*parts, _NOTHING, null_handling="replace", null_replacement=b"")


def _tags(column: Any) -> Any:
    """Of each row the entry of its tag, null where it has none: they are few, and looked at one by one."""
    encoded = _text(column).dictionary_encode()
    entries = pa.array(
        [tag_entry(tag) if tag else None for tag in encoded.dictionary.to_pylist()], pa.string()
    )
    return entries.take(encoded.indices)


def _keys(column: Any) -> Any:
    if pa.types.is_list(column.type):
        column = column.cast(pa.list_(pa.string()))
        keys = column.flatten()
        if keys.null_count or not _is_clean(keys, least=33, most=126) or 0 in _lengths(keys):
            raise _NotPlain
        keys = pc.binary_join(column, " ")
    else:
        keys = _text(column)
        if not _is_clean(keys, most=126):
            raise _NotPlain
    blank = pc.equal(pc.binary_length(pc.ascii_trim(keys, " ")), _ZERO)
    keys = pc.if_else(blank, _NULL_TEXT, keys)
    return pc.binary_join_element_wise(_FRONT_OF_KEYS, keys, _END, _NO_TEXT)


def _properties(column: Any) -> Any:
    """Of each row all entries, one behind the other."""
    if not pa.types.is_map(column.type):
        raise _NotPlain
    offsets = column.offsets.to_numpy()
    begin, end = int(offsets[0]), int(offsets[-1])
    if column.null_count and np.diff(offsets)[column.is_null().to_numpy(zero_copy_only=False)].any():
        raise _NotPlain
    names, values = (_text(each.slice(begin, end - begin)) for each in (column.keys, column.items))
    if values.null_count or not _is_clean(values) or 0 in _lengths(values):
        raise _NotPlain
    encoded = names.dictionary_encode()
    for name in encoded.dictionary.to_pylist():
        check_name(name)
    fronts = pc.binary_join_element_wise(encoded.dictionary, _START, _NO_TEXT).take(encoded.indices)
    entries = pc.binary_join_element_wise(fronts, values, _END, _NO_TEXT)
    # Those of a row follow one another already: only the ends of the rows are others.
    return _of_ends(_offsets(entries)[offsets - begin], entries.buffers()[2])


def _keys_apart(column: Any) -> Any:
    keys = _binary(column.cast(pa.string()) if pa.types.is_integer(column.type) else column)
    if 0 in _lengths(keys):
        raise _NotPlain
    return keys


def _runs(topics: Any) -> list[tuple[str, int]]:
    """Raises _NotPlain: there is none somewhere, or they change too often."""
    runs = pc.run_end_encode(topics)
    if topics.null_count or len(runs.values) * _ROWS_OF_A_TOPIC > len(topics):
        raise _NotPlain
    return list(zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True))


# -- arrays of bytes ----------------------------------------------------------------------------------


def _text(column: Any) -> Any:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise _NotPlain
    return column.cast(pa.string())


def _binary(column: Any) -> Any:
    """Raises _NotPlain: something is null, or it is no text and no bytes."""
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    if column.null_count or not (
        pa.types.is_binary(column.type)
        or pa.types.is_large_binary(column.type)
        or pa.types.is_string(column.type)
    ):
        raise _NotPlain
    return column.cast(pa.binary())


def _is_clean(texts: Any, *, least: int = 32, most: int = 255) -> bool:
    """Whether texts are UTF-8 without control characters, in bytes from `least` to `most`."""
    offsets = _offsets(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    if not data.size:
        return True
    if int(data.min()) < least or int(data.max()) > most or (data == 127).any():
        return False
    if int(data.max()) < 128:
        return True
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    # U+0080 to U+009F are control characters as well; in UTF-8 they begin with this byte.
    leads = np.flatnonzero(data == 0xC2)
    return not (data[leads + 1] < 0xA0).any()


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _offsets(array: Any) -> Any:
    """Where its items begin in its data, and where the last one ends."""
    if not len(array):
        # Arrow allows one without items to have no offsets at all, and that of Java makes such.
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _lengths(array: Any) -> Any:
    """In bytes; of what is null as well."""
    return np.diff(_offsets(array))


def _data(array: Any) -> tuple[bytes, list[int]]:
    buffer = array.buffers()[2]
    return b"" if buffer is None else buffer.to_pybytes(), _offsets(array).tolist()


def _of_width(rows: Any) -> Any:
    """The bytes of each row of a numpy array."""
    width = rows.nbytes // len(rows)
    return _of_ends(np.arange(0, rows.nbytes + 1, width, dtype=np.int32), pa.py_buffer(rows.tobytes()))


def _of_ends(ends: Any, data: Any) -> Any:
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(np.ascontiguousarray(ends, np.int32)), data]
    )
