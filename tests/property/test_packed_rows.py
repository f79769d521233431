"""What Spark's sink makes of many rows at a time is what it makes of them one by one, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import BrokerBusy, BrokerTimeout, GatewayError, TopicNotFound
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.errors import SparkSourceError
from popgate.spark.options.sink_options import SinkOptions, read_sink_options
from popgate.spark.write import sender as sender_module
from popgate.spark.write.encoder import Encoder
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.outgoing_rows import Outgoing, PackedRows
from popgate.spark.write.sender import Sender
from popgate.wire.bodies.configs import TopicConfig
from popgate.wire.bodies.routes import QueueData, TopicRoute
from popgate.wire.messages.batches import decode_batch

MAP = pa.map_(pa.string(), pa.string())
Column = tuple[pa.DataType, list[Any]]

values = st.sampled_from(["red", "10 €", "größe", "a b", "x" * 300, "中文"])
odd = st.sampled_from(["", " ", "\u00a0", "\x01", "a\x7f", "a\x85", "|", "\u2028", "\ud7ff"])
names = st.sampled_from(["color", "größe", "a b", "N"])
odd_names = st.sampled_from(["", "TAGS", "__SHARDINGKEY", "a\x02", "__RMQ.TRANSIENT.x"])
keys = st.sampled_from(["k", "k1 k2", "0000000000000001", "x" * 300])


def columns(
    name: str, kinds: list[pa.DataType], usual: st.SearchStrategy[Any], rare: st.SearchStrategy[Any]
) -> Any:
    """Of a column most often all rows are usual, and otherwise one is rare."""
    return st.tuples(
        st.just(name),
        st.sampled_from(kinds),
        st.lists(usual, min_size=1, max_size=12),
        st.one_of(st.none(), st.none(), st.none(), st.tuples(st.integers(0, 400), rare)),
    )


TEXTS = [pa.string(), pa.large_string()]
BODIES = columns(
    "body", [pa.binary(), pa.large_binary(), *TEXTS], st.sampled_from(["", "b", "ü" * 40]), st.none()
)
OTHERS = [
    columns("topic", TEXTS, st.just("t"), st.sampled_from(["s", "a b", "", None])),
    columns("tag", TEXTS, st.sampled_from(["paid", "größe", None, ""]), odd),
    columns("keys", TEXTS, keys | st.sampled_from([None, "", " "]), odd),
    columns(
        "keys",
        [pa.list_(pa.string())],
        st.lists(st.sampled_from(["k", "1" * 30]), max_size=3) | st.none(),
        st.lists(odd | st.none(), min_size=1, max_size=2),
    ),
    columns(
        "properties",
        [MAP],
        st.dictionaries(names, values, max_size=3).map(lambda found: list(found.items())) | st.none(),
        st.tuples(names | odd_names, values | odd | st.none()).map(lambda pair: [pair]),
    ),
    columns("queue_id", [pa.int32()], st.none(), st.sampled_from([0, 3])),
    columns("key", [pa.string(), pa.binary(), pa.int64()], st.integers(0, 3), st.none()),
]
batches = st.tuples(
    st.sampled_from([1, 63, 64, 65, 100, 200]),
    BODIES,
    st.lists(st.one_of(OTHERS), max_size=4, unique_by=lambda column: column[0]),
    st.integers(0, 9),
)


def batch_of(rows: int, body: Any, others: list[Any], cut: int) -> pa.RecordBatch:
    """With some rows before it that do not belong to it any more."""
    arrays = {}
    for name, kind, usual, rare in (body, *others):
        told = [usual[at % len(usual)] for at in range(rows + cut)]
        if rare is not None:
            told[rare[0] % len(told)] = rare[1]
        if pa.types.is_string(kind) and name == "key":
            told = [str(each) for each in told]
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            told = [None if each is None else str(each).encode() for each in told]
        arrays[name] = pa.array(told, kind)
    return pa.RecordBatch.from_pydict(arrays).slice(cut)


def identity(*, by_contents: bool) -> Identity:
    return Identity(("stream", "q", "1"), "sink", 4, by_contents)


def options_of(batch: pa.RecordBatch, **given_: str) -> SinkOptions:
    told = {"endpoints": "a:1", **given_}
    if "topic" not in batch.schema.names:
        told["topic"] = "t"
    if "key" in batch.schema.names:
        told["dedupeKeyColumn"] = "key"
    return read_sink_options(told)


def rows_of(piece: Outgoing | PackedRows) -> list[Outgoing]:
    if isinstance(piece, Outgoing):
        return [piece]
    found = [piece.row(at) for at in range(len(piece))]
    items = decode_batch(piece.part(0, len(piece)))
    assert [(item.flag, item.body, item.properties) for item in items] == [
        (0, row.body, row.block) for row in found
    ]
    return found


def taken(take: Callable[[pa.RecordBatch], Iterator[Any]], told: list[pa.RecordBatch]) -> Any:
    """All rows, and the sentence that ended them."""
    found: list[Outgoing] = []
    try:
        for each in told:
            for piece in take(each):
                found += rows_of(piece)
    except SparkSourceError as error:
        return found, str(error)
    return found, None


@given(st.lists(batches, min_size=1, max_size=3), st.booleans())
def test_rows_are_the_same_many_at_a_time(told: list[Any], by_contents: bool) -> None:
    made = [batch_of(*each) for each in told]
    for batch in made:
        options = options_of(batch)
        one, many = (Encoder(options, identity(by_contents=by_contents)) for _ in range(2))
        assert taken(many.pieces, [batch, batch]) == taken(one.messages, [batch, batch])
        assert (many.count, many.checksum) == (one.count, one.checksum)


def plain(rows: int, *topics: str) -> pa.RecordBatch:
    """Nothing but plain rows; every topic has some in a row."""
    return pa.RecordBatch.from_pydict(
        {
            "topic": [topics[at * len(topics) // rows] for at in range(rows)],
            "body": [b"%d" % at * (at % 90) for at in range(rows)],
            "tag": ["paid" if at % 3 else None for at in range(rows)],
            "keys": [f"{at:016}" if at % 5 else None for at in range(rows)],
            "properties": pa.array(
                [[("color", "rot"), ("größe", str(at))] if at % 7 else None for at in range(rows)], MAP
            ),
        }
    )


def test_plain_rows_are_packed() -> None:
    """Otherwise the test above would compare rows with themselves."""
    batch = plain(300, "t", "s")
    for by_contents in (False, True):
        pieces = list(Encoder(options_of(batch), identity(by_contents=by_contents)).pieces(batch))
        assert [(type(each), len(each)) for each in pieces] == [(PackedRows, 150), (PackedRows, 150)]


class Gateway:
    """Topics with two queues each; answers are what the test says."""

    def __init__(self, failures: list[GatewayError | None], topics: set[str], *, compacted: bool) -> None:
        self.failures, self.topics, self.compacted = list(failures), set(topics), compacted
        self.sends: list[tuple[QueuePlace, list[tuple[bytes, bytes]], bool]] = []

    @contextmanager
    def connect(self, options: SinkOptions) -> Iterator[QueueClient]:
        self.is_open = True
        yield cast("QueueClient", self)

    @property
    def connection(self) -> Gateway:
        return self

    def close(self) -> None:
        self.is_open = False

    def route(self, topic: str) -> TopicRoute:
        if topic != "TBW102" and topic not in self.topics:
            raise TopicNotFound(topic)
        return TopicRoute((QueueData("b", 2, 2, perm=7),), ())

    def topic_config(self, topic: str) -> TopicConfig:
        return TopicConfig(topic, attributes={"cleanup.policy": "COMPACTION"} if self.compacted else {})

    def start_send(self, queue: QueuePlace, messages: Any, *, once: bool, half: bool) -> int:
        self.sends.append((queue, list(messages), once))
        return 0

    def start_send_batch(self, queue: QueuePlace, items: bytes, *, once: bool) -> int:
        messages = [(item.body, item.properties) for item in decode_batch(items)]
        return self.start_send(queue, messages, once=once, half=False)

    def finish_send(self, opaque: int, queue: QueuePlace, *, timeout_s: float) -> None:
        self.topics.add(queue.topic)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def found(self, topic: str) -> set[str]:
        """Every third message that was sent is there."""
        blocks = [block.decode() for _, told, _ in self.sends for _, block in told][::3]
        return {block.partition("UNIQ_KEY\x01")[2].strip("\x02") for block in blocks}


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.sampled_from([("t",), ("t", "s"), ("s", "t", "u")])), max_size=4
    ),
    st.lists(st.sampled_from([None, None, BrokerBusy("busy"), BrokerTimeout("slow")]), max_size=8),
    st.sets(st.sampled_from("tsu")),
    st.integers(1, 1024),
    st.integers(1, 9_000),
    st.integers(100, 20_000),
    st.booleans(),
)
def test_they_are_sent_the_same_way(
    told: list[tuple[int, tuple[str, ...]]],
    failures: list[GatewayError | None],
    topics: set[str],
    most_rows: int,
    most_bytes: int,
    most_held: int,
    compacted: bool,
) -> None:
    """In the same sends, to the same queues, in the same order, over failures and answers that are lost."""
    given_ = {"sendBatchRows": str(most_rows), "sendBatchBytes": str(most_bytes), "sendInFlight": "2"}
    made = [plain(rows, *names_) for rows, names_ in told]
    options = read_sink_options({"endpoints": "a:1", **given_})
    sends = []
    held, sender_module._MOST_HELD = sender_module._MOST_HELD, most_held
    try:
        for packed in (False, True):
            gateway = Gateway(failures, topics, compacted=compacted)
            encoder = Encoder(options, identity(by_contents=True))
            with Sender(
                options, 4, connect=gateway.connect, rest=lambda _: None, find_sent=gateway.found
            ) as sender:
                for batch in made:
                    sender.add_all(encoder.pieces(batch) if packed else encoder.messages(batch))
                assert sender.finish() == sum(rows for rows, _ in told)
            sends.append(gateway.sends)
    finally:
        sender_module._MOST_HELD = held
    assert sends[0] == sends[1]
