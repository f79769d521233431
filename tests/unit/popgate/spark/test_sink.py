"""popgate.spark.sink: what Spark is given, without a JVM."""

from __future__ import annotations

import inspect
import logging
import pickle

import pytest
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import BinaryType, StringType, StructType

from popgate.spark import sink
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.ledger import Ledger
from popgate.spark.guarantees.openings import Opened
from popgate.spark.options.sink_columns import check_sink_columns
from popgate.spark.options.sink_options import read_sink_options
from popgate.spark.sink import RocketMQStreamWriter, RocketMQWriter, Written
from popgate.spark.source import RocketMQDataSource
from popgate.spark.write.message_ids import BATCH_ID, QUERY_ID

ROWS = StructType().add("body", BinaryType())
GIVEN = {"endpoints": "a:1", "topic": "t"}


def batch(schema: StructType = ROWS, *, overwrite: bool = False) -> RocketMQWriter:
    return RocketMQWriter(schema, read_sink_options(GIVEN), overwrite=overwrite)


def stream() -> RocketMQStreamWriter:
    return RocketMQStreamWriter(ROWS, read_sink_options(GIVEN))


def test_spark_gives_arrow_batches_and_arguments_by_name() -> None:
    source = RocketMQDataSource(dict(GIVEN))
    assert isinstance(source.writer(schema=ROWS, overwrite=False), DataSourceArrowWriter)
    assert isinstance(source.streamWriter(schema=ROWS, overwrite=False), DataSourceStreamArrowWriter)
    # The whole result of a query in complete mode comes so.
    assert isinstance(source.streamWriter(schema=ROWS, overwrite=True), DataSourceStreamArrowWriter)
    for ours, theirs in (
        (RocketMQWriter, DataSourceArrowWriter),
        (RocketMQStreamWriter, DataSourceStreamArrowWriter),
    ):
        for name in ("write", "commit", "abort"):
            told = list(inspect.signature(getattr(ours, name)).parameters)
            assert told == list(inspect.signature(getattr(theirs, name)).parameters)


def test_what_cannot_be_written_is_refused_before_a_task_begins() -> None:
    with pytest.raises(SparkSourceError, match="did you mean tag") as refused:
        batch(StructType().add("body", BinaryType()).add("tags", StringType()))
    assert refused.value.code is Code.ILLEGAL_SCHEMA
    with pytest.raises(SparkSourceError, match="a topic is never emptied") as refused:
        batch(overwrite=True)
    assert refused.value.code is Code.UNSUPPORTED


def test_all_tasks_of_a_write_have_one_name_for_it_and_other_writes_others() -> None:
    one = batch()
    tasks = [pickle.loads(pickle.dumps(one)) for _ in range(2)]
    assert {task._run for task in tasks} == {one._run}
    assert batch()._run != one._run


def test_an_abort_takes_nothing_back_and_may_follow_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    messages = [Written(3), None, Written(4)]
    writer = stream()
    writer.commit(messages, 7)
    with caplog.at_level(logging.WARNING):
        writer.abort(messages, 7)
        batch().abort(messages)
    assert [record.getMessage() for record in caplog.records] == [
        "a write was given up; at least 7 rows of it were sent, and stay"
    ] * 2


LEDGERED = {**GIVEN, "sinkId": "s", "ledgerTopic": "books", "deliveryGuarantee": "effectively-once"}


class Books:
    """In the place of a ledger: what was asked of it."""

    def __init__(self) -> None:
        self.opened = 0
        self.done: list[tuple[str, str, int, int, int]] = []

    def open(self) -> Opened:
        self.opened += 1
        return Opened(f"token {self.opened}", 1, "", -1, 0)

    def finish(self, opened: Opened, query: str, batch: int, rows: int, checksum: int) -> None:
        self.done.append((opened.token, query, batch, rows, checksum))


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    found = Books()
    monkeypatch.setattr(sink, "Ledger", lambda _options: found)
    monkeypatch.setattr(Ledger, "open", lambda _self: found.open())
    monkeypatch.setattr(Ledger, "finish", lambda _self, *told: found.finish(*told))
    return found


def test_a_batch_is_opened_once_where_it_is_planned_and_nowhere_else(books: Books) -> None:
    """Spark pickles a writer twice in the process that plans, and makes another one to commit."""
    writer = RocketMQStreamWriter(ROWS, read_sink_options(LEDGERED))
    assert books.opened == 0
    tasks = [pickle.loads(pickle.dumps(writer)) for _ in range(2)]
    assert {task._opened.token for task in tasks} == {"token 1"}
    assert books.opened == 1
    stream().__getstate__()
    assert books.opened == 1


def test_a_commit_says_what_its_tasks_did_as_a_whole(books: Books) -> None:
    opened = books.open()
    batch_ = ("query", 7)
    parts = [
        Written(2, opened, batch_, sink.Outcome(3, (1 << 64) - 1, 2)),
        Written(0, opened, batch_, sink.Outcome(1, 2, 0)),
    ]
    RocketMQStreamWriter(ROWS, read_sink_options(LEDGERED)).commit(parts, 7)
    assert books.done == [("token 1", "query", 7, 4, 1)]


def test_a_write_outside_of_streams_has_no_ledger(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RocketMQWriter(ROWS, read_sink_options(LEDGERED), overwrite=False)
    task = pickle.loads(pickle.dumps(writer))
    with pytest.raises(SparkSourceError, match="belongs to no stream"):
        task.write(iter([]))

    class Task:
        def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's
            return {QUERY_ID: "q", BATCH_ID: "4"}[name]

        def partitionId(self) -> int:  # noqa: N802 - Spark's
            return 2

    monkeypatch.setattr(sink, "TaskContext", type("Context", (), {"get": staticmethod(Task)}))
    monkeypatch.setattr(
        "popgate.spark.guarantees.replay.written_once",
        lambda _rows, _options, identity, _opened, batch: sink.Outcome(identity.partition, 0, batch[1]),
    )
    with pytest.raises(SparkSourceError, match="a writer that no ledger was opened for"):
        writer.__class__(ROWS, read_sink_options(LEDGERED), overwrite=False).write(iter([]))
    # In foreachBatch Spark says which batch it is.
    told = task.write(iter([]))
    assert (told.batch, told.rows, told.outcome.rows) == (("q", 4), 4, 2)


NUMBERED = {**LEDGERED, "txnAppId": "s", "txnVersion": "4"}
del NUMBERED["sinkId"]


def test_a_write_outside_of_streams_is_numbered_by_its_options(
    books: Books, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SparkSourceError, match="option txnVersion = '4': Spark numbers the batches"):
        RocketMQStreamWriter(ROWS, read_sink_options(NUMBERED))
    outcomes = [sink.Outcome(3, 9, 3), sink.Outcome(3, 9, 0, skipped=True)]
    monkeypatch.setattr("popgate.spark.guarantees.replay.written_once", lambda *_: outcomes[len(books.done)])
    for opened in ((-1, 0, 0), (4, 3, 9)):
        monkeypatch.setattr(books, "open", lambda opened=opened: Opened("token", 1, "txnVersion", *opened))
        writer = RocketMQWriter(ROWS, read_sink_options(NUMBERED), overwrite=False)
        told = pickle.loads(pickle.dumps(writer)).write(iter([]))
        assert told.batch == ("txnVersion", 4)
        with caplog.at_level(logging.WARNING):
            writer.commit([told])
    assert books.done == [("token", "txnVersion", 4, 3, 9)]
    assert caplog.messages == ["version 4 of s, or a higher one, was written before; nothing was sent now"]


def test_half_messages_have_no_groups_and_no_times() -> None:
    options = read_sink_options({**LEDGERED, "deliveryGuarantee": "transactional"})
    check_sink_columns([("body", "binary"), ("tag", "string")], options)
    for name, kind in (
        ("message_group", "string"),
        ("delivery_timestamp", "timestamp"),
        ("priority", "int"),
        ("lite_topic", "string"),
    ):
        with pytest.raises(SparkSourceError, match=f"column {name} cannot be written with") as refused:
            check_sink_columns([("body", "binary"), (name, kind)], options)
        assert refused.value.code is Code.ILLEGAL_SCHEMA
    once = read_sink_options(LEDGERED)
    check_sink_columns([("body", "binary"), ("message_group", "string"), ("priority", "int")], once)
    for name, kind in (("delivery_timestamp", "timestamp"), ("lite_topic", "string")):
        with pytest.raises(SparkSourceError, match=f"column {name} cannot be written with"):
            check_sink_columns([("body", "binary"), (name, kind)], once)
