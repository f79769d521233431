"""popgate.spark.write.encoder: rows into messages, and rows that are none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.sink_options import read_sink_options
from popgate.spark.write.encoder import Encoder
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.outgoing_rows import Outgoing, PackedRows
from popgate.wire.messages.properties import LONGEST_IN_BATCH, decode_properties

MAP = pa.map_(pa.string(), pa.string())
TYPES = {
    "body": pa.binary(),
    "keys": pa.list_(pa.string()),
    "properties": MAP,
    "delivery_timestamp": pa.timestamp("us", "UTC"),
    "priority": pa.int32(),
    "queue_id": pa.int32(),
}
IDENTITY = Identity(("stream", "q", "1"), "", 4)


def encoder(**given: str) -> Encoder:
    return Encoder(read_sink_options({"endpoints": "a:1", "topic": "t", **given}), IDENTITY)


def batch(*, types: dict[str, Any] | None = None, **columns: list[Any]) -> pa.RecordBatch:
    kinds = {**TYPES, **(types or {})}
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def messages(given: dict[str, str] | None = None, **columns: Any) -> list[Outgoing]:
    return list(encoder(**(given or {})).messages(batch(**columns)))


def refusal(given: dict[str, str] | None = None, **columns: Any) -> str:
    with pytest.raises(SparkSourceError) as refused:
        messages(given, **columns)
    assert refused.value.code is Code.ILLEGAL_ROW
    return str(refused.value)


def without_id(message: Outgoing) -> dict[str, str]:
    told = decode_properties(message.block)
    assert len(told.pop("UNIQ_KEY")) == 34
    return told


def test_a_body_is_a_message() -> None:
    one, two = messages(body=[b"one", b""])
    assert (one.number, one.topic, one.body, one.group, one.queue_id, one.alone) == (
        *(0, "t", b"one", "", None, False),
    )
    assert (two.number, two.body) == (1, b"")
    assert without_id(one) == {}


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_rows_name_topics_without_their_namespace(rows: int, kind: pa.DataType) -> None:
    """One by one, and many at a time; rows with the name on the wire are the same messages."""

    def sent(given: dict[str, str], topics: list[str]) -> list[tuple[str, bytes, bytes]]:
        encoded = encoder(**given)
        pieces = list(encoded.pieces(batch(body=[b"b"] * rows, topic=topics, types={"topic": kind})))
        assert all(isinstance(piece, PackedRows) for piece in pieces) == (rows == 100)
        told = [
            piece.row(at) for piece in pieces if isinstance(piece, PackedRows) for at in range(len(piece))
        ] or [piece for piece in pieces if isinstance(piece, Outgoing)]
        return [(each.topic, each.body, each.block) for each in told]

    shop, half = {"rocketmq.client.namespace": "shop"}, rows // 2
    in_full = sent({}, ["shop%orders"] * half + ["shop%bills"] * half)
    assert {topic for topic, _, _ in in_full} == {"shop%orders", "shop%bills"}
    assert sent(shop, ["orders"] * half + ["shop%bills"] * half) == in_full


def test_a_topic_with_its_namespace_is_a_legal_one() -> None:
    shop = {"rocketmq.client.namespace": "shop"}
    for topic, says in ((None, "is null or empty"), ("", "is null or empty"), ("a b", "'shop%a b'")):
        assert says in refusal(shop, body=[b"b"], topic=[topic])
    assert "belongs to the system" in refusal(shop, body=[b"b"], topic=["TBW102"])
    assert [each.topic for each in messages(shop, body=[b"b"])] == ["shop%t"]


def test_every_column_has_its_place() -> None:
    due = datetime(2026, 1, 2, 3, 4, 5, 678_999, UTC)
    one, two = messages(
        body=[b"b", b"b"],
        topic=["orders", "bills"],
        tag=["paid", None],
        keys=[["k1", "k2"], None],
        message_group=["g", None],
        properties=[[("color", "red"), ("größe", "10 €")], None],
        delivery_timestamp=[due, None],
        lite_topic=["l", None],
        broker_name=["broker-a", None],
        queue_id=[3, None],
    )
    assert without_id(one) == {
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "g",
        "TIMER_DELIVER_MS": str(int(due.timestamp() * 1000)),
        "__LITE_TOPIC": "l",
        "color": "red",
        "größe": "10 €",
    }
    assert (one.topic, one.group, one.broker, one.queue_id, one.alone) == ("orders", "g", "broker-a", 3, True)
    assert (two.topic, two.group, two.broker, two.queue_id, two.alone) == ("bills", "", "", None, False)
    assert without_id(two) == {}


def test_texts_may_be_bodies_and_keys_and_types_may_be_large() -> None:
    (one,) = messages(body=["grün"], keys=["a b"], types={"body": pa.string(), "keys": pa.string()})
    assert (one.body, without_id(one)) == ("grün".encode(), {"KEYS": "a b"})
    (one,) = messages(body=[b"x"], tag=["a"], types={"body": pa.large_binary(), "tag": pa.large_string()})
    assert (one.body, without_id(one)) == (b"x", {"TAGS": "a"})


def test_empty_texts_say_nothing() -> None:
    (one,) = messages(
        body=[b"x"],
        tag=[""],
        keys=[[]],
        message_group=[""],
        lite_topic=[""],
        properties=[[]],
        broker_name=[""],
    )
    assert (without_id(one), one.alone, one.group) == ({}, False, "")


def test_a_half_message_has_an_hour_whatever_its_row_says() -> None:
    """Rows that were read from a topic have the properties of those who sent them."""
    given = {"deliveryGuarantee": "transactional", "sinkId": "s", "ledgerTopic": "l"}
    name = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    (one,) = messages(given, body=[b"x"], properties=[[(name, "6"), ("color", "red")]])
    told = without_id(one)
    assert (told[name], told["TRAN_MSG"], told["color"]) == ("3600", "true", "red")


def test_priorities_delays_and_lite_topics_and_what_is_long_go_alone() -> None:
    assert messages(body=[b"x"], priority=[0])[0].alone
    assert messages(body=[b"x"], lite_topic=["l"])[0].alone
    assert messages(body=[b"x"], delivery_timestamp=[datetime(1960, 1, 1, tzinfo=UTC)])[0].alone
    assert messages(body=[b"x"], properties=[[("a", "b" * LONGEST_IN_BATCH)]])[0].alone
    assert not messages(body=[b"x"], properties=[[("a", "b" * 1000)]])[0].alone


def test_rows_are_counted_over_batches_and_ids_come_again() -> None:
    def ids() -> list[str]:
        one = encoder()
        rows = [*one.messages(batch(body=[b"a", b"a"])), *one.messages(batch(body=[b"a"]))]
        assert [row.number for row in rows] == [0, 1, 2]
        return [decode_properties(row.block)["UNIQ_KEY"] for row in rows]

    assert ids() == ids()
    assert len(set(ids())) == 3


def test_a_key_is_the_same_message_wherever_it_stands() -> None:
    def ids(**columns: Any) -> list[str]:
        rows = messages({"dedupeKeyColumn": "key"}, **columns)
        return [decode_properties(row.block)["UNIQ_KEY"] for row in rows]

    one, two, three = ids(body=[b"a", b"b", b"c"], key=["1", "2", "1"])
    assert one == three != two
    assert ids(body=[b"z"], key=[2], types={"key": pa.int64()}) == [two]
    assert "column key is null" in refusal({"dedupeKeyColumn": "key"}, body=[b"a"], key=[None])


def test_an_id_of_ones_own_is_kept() -> None:
    mine, made = messages(body=[b"a", b"b"], message_id=["my own", None])
    assert decode_properties(mine.block)["UNIQ_KEY"] == "my own"
    assert len(decode_properties(made.block)["UNIQ_KEY"]) == 34
    given = {"dedupeKeyColumn": "message_id"}
    assert "column message_id is null" in refusal(given, body=[b"a"], message_id=[None])


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"body": [None]}, "column body is null"),
        ({"topic": [None]}, "column topic is null or empty"),
        ({"topic": ["a b"]}, "column topic is wrong: "),
        ({"tag": ["a|b"]}, "column tag is 'a|b': a tag is not blank and has no |"),
        ({"tag": [" "]}, "column tag is ' '"),
        ({"tag": ["a\x01b"]}, "column tag is 'a\\x01b': it holds a control character"),
        ({"keys": [["a b"]]}, "column keys has 'a b'"),
        ({"keys": [[""]]}, "a key is not empty"),
        ({"keys": [[None]]}, "a key is not empty"),
        ({"message_group": ["a\x02"]}, "column message_group is"),
        ({"lite_topic": ["a\x02"]}, "column lite_topic is"),
        ({"properties": [[("", "a")]]}, "a property without a name"),
        ({"properties": [[("a", "")]]}, "no value for 'a'"),
        ({"properties": [[("a", None)]]}, "no value for 'a'"),
        ({"properties": [[("TAGS", "a")]]}, "'TAGS', which belongs to the system"),
        ({"properties": [[("__SHARDINGKEY", "a")]]}, "belongs to the system"),
        ({"properties": [[("__RMQ.TRANSIENT.x", "a")]]}, "belongs to the system"),
        ({"properties": [[("a\x01", "a")]]}, "the name 'a\\x01': it holds a control character"),
        ({"properties": [[("a", "b\x02")]]}, "column properties is 'b\\x02'"),
        ({"priority": [-1]}, "column priority is -1"),
        ({"priority": [1], "queue_id": [1]}, "queue_id is null then"),
        ({"queue_id": [-1]}, "column queue_id is -1"),
        ({"queue_id": [None], "broker_name": ["b"]}, "queue_id is null, though broker_name is not"),
        ({"message_id": [""]}, "column message_id is ''"),
        ({"message_id": ["a" * 256]}, "1 to 255 bytes"),
        ({"message_id": ["a\x02"]}, "no control character"),
    ],
)
def test_what_a_message_cannot_keep_is_refused(columns: dict[str, list[Any]], says: str) -> None:
    good = {"body": [b"good"], **{name: [None] for name in columns if name not in ("body", "topic")}}
    if "topic" in columns:
        good["topic"] = ["fine"]
    told = {"body": [b"x"], **columns}
    sentence = refusal(**{name: good[name] + told[name] for name in told})
    assert says in sentence
    assert "row 1 of partition 4: " in sentence
