"""popgate.spark.write.packed_rows: which rows are plain (bytes: tests/property/test_packed_rows.py)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from popgate.spark.errors import SparkSourceError
from popgate.spark.options.sink_options import read_sink_options
from popgate.spark.write import packed_rows
from popgate.spark.write.encoder import Encoder
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.outgoing_rows import Outgoing, PackedRows
from popgate.wire.messages.properties import LONGEST_IN_BATCH

MAP = pa.map_(pa.string(), pa.string())
LIST = pa.list_(pa.string())
ROWS, AT = 100, 70


def encoder(**given: str) -> Encoder:
    options = read_sink_options({"endpoints": "a:1", **given})
    return Encoder(options, Identity(("stream", "q", "1"), "", 4))


def batch(name: str, kind: pa.DataType, value: Any, usual: Any = None) -> pa.RecordBatch:
    """Plain rows, but for one value."""
    told = [usual] * ROWS
    told[AT] = value
    body = pa.array([b"%d" % at for at in range(ROWS)])
    return pa.RecordBatch.from_pydict({"body": body, name: pa.array(told, kind)})


def rows_of(made: pa.RecordBatch, *, packed: bool, **given: str) -> tuple[list[Outgoing], str]:
    """Rows, and the sentence of the one that was refused."""
    one = encoder(**given)
    found: list[Outgoing] = []
    try:
        for piece in one.pieces(made) if packed else one.messages(made):
            found += [piece.row(at) for at in range(len(piece))] if isinstance(piece, PackedRows) else [piece]
    except SparkSourceError as error:
        return found, str(error)
    return found, ""


def is_packed(made: pa.RecordBatch, **given: str) -> bool:
    return all(isinstance(piece, PackedRows) for piece in encoder(**given).pieces(made))


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        *(("tag", pa.string(), value) for value in ("paid", "größe", "", " x")),
        *(("keys", pa.string(), value) for value in ("k", "", " ", "   ", " k ", "k1 k2")),
        *(("keys", LIST, value) for value in (["k"], ["k1", "k2"], [])),
        *(("properties", MAP, value) for value in ([("a", "b")], [("ö ", " "), ("b", "\u2028ü")], [])),
        ("tag", pa.large_string(), "paid"),
        ("keys", pa.list_(pa.large_string()), ["k1", "k2"]),
    ],
)
def test_plain_values_are_packed(name: str, kind: pa.DataType, value: Any) -> None:
    made = batch(name, kind, value)
    assert is_packed(made, topic="t")
    assert rows_of(made, packed=True, topic="t") == rows_of(made, packed=False, topic="t")


@pytest.mark.parametrize(
    ("name", "kind", "value", "refused"),
    [
        *(("tag", pa.string(), value, True) for value in ("a|b", " ", "\u00a0", "\x01", "a\x85")),
        *(("keys", pa.string(), value, True) for value in ("a\x01", "a\x7f", "a\x85", "\tk")),
        *(("keys", pa.string(), value, False) for value in ("\u00a0", "ü", "\u2003 ")),
        *(("keys", LIST, value, True) for value in ([""], [None], ["a b"], ["k", "a\u00a0b"], ["\x02"])),
        *(("properties", MAP, [pair], True) for pair in (("", "a"), ("TAGS", "a"), ("a\x01", "a"))),
        *(
            ("properties", MAP, [("a", value)], True)
            for value in ("", None, "\x1f", "a\x7f", "ü\x80", "\x9fa")
        ),
        ("properties", MAP, [("a", "b" * LONGEST_IN_BATCH)], False),
        ("queue_id", pa.int32(), 3, False),
        ("queue_id", pa.int32(), -1, True),
        ("message_id", pa.string(), "my own", False),
        ("message_group", pa.string(), "g", False),
        ("lite_topic", pa.string(), "l", False),
        ("priority", pa.int32(), 1, False),
    ],
)
def test_what_is_not_plain_is_taken_row_by_row(
    name: str, kind: pa.DataType, value: Any, refused: bool
) -> None:
    made = batch(name, kind, value)
    assert not is_packed_until_refused(made)
    found, sentence = rows_of(made, packed=True, topic="t")
    assert (found, sentence) == rows_of(made, packed=False, topic="t")
    assert len(found) == (AT if refused else ROWS)
    assert (f"row {AT} of partition 4: column {name} " in sentence) is refused


def is_packed_until_refused(made: pa.RecordBatch) -> bool:
    return isinstance(next(encoder(topic="t").pieces(made)), PackedRows)


# The last is no placeholder: RocketMQ's topic of delayed messages is called so (protocol facts 2.1).
@pytest.mark.parametrize("value", [None, "", "a b", "SCHEDULE_TOPIC_XXXX"])
def test_topics_that_are_none_are_refused_at_their_row(value: str | None) -> None:
    made = batch("topic", pa.string(), value, "t")
    found, sentence = rows_of(made, packed=True)
    assert (found, sentence) == rows_of(made, packed=False)
    assert len(found) == AT
    assert f"row {AT} of partition 4: column topic " in sentence


def test_topics_that_change_often_are_taken_row_by_row() -> None:
    def made(topics: int) -> pa.RecordBatch:
        told = [f"t{at * topics // 1000}" for at in range(1000)]
        return pa.RecordBatch.from_pydict({"body": [b"x"] * 1000, "topic": told})

    assert is_packed(made(31))
    assert not is_packed(made(32))
    one = encoder()
    assert [
        (each.first, each.topic, len(each)) for each in one.pieces(made(2)) if isinstance(each, PackedRows)
    ] == [
        (0, "t0", 500),
        (500, "t1", 500),
    ]
    assert one.count == 1000


def test_a_null_body_and_no_key_are_refused_at_their_row() -> None:
    body = pa.array([b"x" if at != AT else None for at in range(ROWS)], pa.binary())
    made = pa.RecordBatch.from_pydict({"body": body})
    assert "column body is null" in rows_of(made, packed=True, topic="t")[1]
    for kind, value, usual in ((pa.int64(), None, 7), (pa.string(), "", "a"), (pa.binary(), b"", b"a")):
        made = batch("key", kind, value, usual)
        found, sentence = rows_of(made, packed=True, topic="t", dedupeKeyColumn="key")
        assert (len(found), f"row {AT} of partition 4: column key is null or empty" in sentence) == (AT, True)


def test_a_column_with_a_meaning_is_not_plain_because_it_is_the_key() -> None:
    made = batch("message_id", pa.string(), "b", "a")
    given = {"topic": "t", "dedupeKeyColumn": "message_id"}
    assert not is_packed(made, **given)
    assert rows_of(made, packed=True, **given) == rows_of(made, packed=False, **given)
    for kind, value, usual in ((pa.int64(), -1, 1), (pa.string(), "ü", "a"), (pa.binary(), b"\xff", b"a")):
        made = batch("key", kind, value, usual)
        given = {"topic": "t", "dedupeKeyColumn": "key"}
        assert is_packed(made, **given)
        assert rows_of(made, packed=True, **given) == rows_of(made, packed=False, **given)


def test_what_lies_behind_a_null_is_not_told() -> None:
    """Arrow allows null maps that have entries."""
    entries = pa.array(
        [("a", str(at)) for at in range(ROWS)], pa.struct([("key", pa.string()), ("value", pa.string())])
    )
    bits = pa.py_buffer(bytes([0b11111110]) + b"\xff" * 15)
    offsets = pa.array(range(ROWS + 1), pa.int32()).buffers()[1]
    told = pa.Array.from_buffers(MAP, ROWS, [bits, offsets], children=[entries])
    made = pa.RecordBatch.from_pydict({"body": [b"x"] * ROWS, "properties": told})
    assert rows_of(made, packed=True, topic="t") == rows_of(made, packed=False, topic="t")
    assert b"a\x01" not in rows_of(made, packed=True, topic="t")[0][0].block


@pytest.mark.parametrize("none", [None, pa.py_buffer(b"")])
def test_columns_without_any_entry_may_have_no_offsets_for_them(none: pa.Buffer | None) -> None:
    """As Arrow of Java writes them."""
    offsets = pa.array([0] * (ROWS + 1), pa.int32()).buffers()[1]
    texts = [pa.Array.from_buffers(pa.string(), 0, [None, none, pa.py_buffer(b"")]) for _ in range(2)]
    pairs = pa.Array.from_buffers(MAP.field(0).type, 0, [None], children=texts)
    maps = pa.Array.from_buffers(MAP, ROWS, [None, offsets], children=[pairs])
    lists = pa.Array.from_buffers(LIST, ROWS, [None, offsets], children=texts[:1])
    made = pa.RecordBatch.from_pydict({"body": [b"x"] * ROWS, "properties": maps, "keys": lists})
    assert is_packed(made, topic="t")
    assert rows_of(made, packed=True, topic="t") == rows_of(made, packed=False, topic="t")


def test_small_batches_and_half_messages_are_taken_row_by_row() -> None:
    made = pa.RecordBatch.from_pydict({"body": [b"x"] * 64})
    assert is_packed(made, topic="t")
    assert not is_packed(made.slice(1), topic="t")
    half = {"topic": "t", "deliveryGuarantee": "transactional", "sinkId": "s", "ledgerTopic": "l"}
    assert not is_packed(made, **half)


def test_a_batch_of_very_many_rows_is_taken_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pa.RecordBatch.from_pydict({"body": [b""] * ROWS})
    assert is_packed(made, topic="t")
    monkeypatch.setattr(packed_rows, "_MOST_ROWS", ROWS - 1)
    assert not is_packed(made, topic="t")


def test_a_fault_of_the_program_is_not_taken_for_an_odd_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("cannot reshape")

    monkeypatch.setattr(packed_rows, "_blocks", broken)
    with pytest.raises(ValueError, match="cannot reshape"):
        encoder(topic="t").pieces(pa.RecordBatch.from_pydict({"body": [b"x"] * ROWS}))


def test_texts_that_are_no_text_fail_as_they_do_row_by_row() -> None:
    """Spark's texts may be anything that was cast to one."""
    for name in ("tag", "keys"):
        told = pa.array([b"\xff" if at == AT else b"a" for at in range(ROWS)]).view(pa.string())
        made = pa.RecordBatch.from_pydict({"body": [b"x"] * ROWS, name: told})
        for packed in (True, False):
            with pytest.raises(UnicodeDecodeError):
                rows_of(made, packed=packed, topic="t")
