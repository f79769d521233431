"""popgate.spark.read.partition_reader: ranges become batches, with a broker in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import BrokerTimeout, BrokerUnavailable, Forbidden, GatewayError
from popgate.model import CLEANUP_POLICY, COMPACTION, Bounds
from popgate.queue_client import PullAnswer, QueueClient, QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.source_options import SourceOptions, read_source_options
from popgate.spark.read.partition_reader import batches, pulled, tick_row, whole
from popgate.spark.read.read_plan import Range
from popgate.wire.bodies.configs import TopicConfig
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.compression import compress_zlib
from popgate.wire.messages.hosts import NOWHERE
from popgate.wire.messages.records import COMPRESSED, decode_records, encode_record

QUEUE = QueuePlace("orders", "broker-a", 3)
LEAN = pa.schema([("body", pa.binary()), ("queue_id", pa.int32()), ("queue_offset", pa.int64())])


@dataclass
class Broker:
    """One queue. `offsets` are those that are there, the odd ones with the tag odd.

    Those of `late` come one by one, with each pull that finds nothing.
    """

    offsets: list[int]
    begin: int = 0
    end: int = 0
    late: list[int] = field(default_factory=list)
    few: int = 32
    """Messages in one answer at most,"""
    few_until: int | None = None
    """to pulls from before this offset."""
    cut_at: int | None = None
    """Behind this offset an answer ends, as behind a large message."""
    pulls: list[tuple[int, int]] = field(default_factory=list)
    under_way: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    most_under_way: int = 0
    forgotten: list[int] = field(default_factory=list)
    body_size: int = 0
    has_master: bool = True
    is_compacted: bool = True
    looks: int = 0
    """How often the settings of the topic were asked for."""
    minimums_told: list[int] = field(default_factory=lambda: [0])
    """The minimum at each look; the last one stays."""

    def minimums(self, queues: list[QueuePlace]) -> dict[QueuePlace, int]:
        minimum = self.minimums_told.pop(0) if len(self.minimums_told) > 1 else self.minimums_told[0]
        return dict.fromkeys(queues, minimum)

    def maximums(self, queues: list[QueuePlace], *, of_masters: bool) -> dict[QueuePlace, int]:
        if of_masters and not self.has_master:
            raise BrokerUnavailable("broker broker-a has no master now")
        return dict.fromkeys(queues, self.end)

    def topic_config(self, topic: str) -> TopicConfig:
        self.looks += 1
        return TopicConfig(topic, attributes={CLEANUP_POLICY: COMPACTION} if self.is_compacted else {})

    @property
    def connection(self) -> Broker:
        return self

    def forget(self, number: int) -> None:
        del self.under_way[number]
        self.forgotten.append(number)

    def start_pull(self, queue: QueuePlace, offset: int, *, most: int, expression: str, kind: str) -> int:
        assert queue._replace(topic=QUEUE.topic) == QUEUE
        self.pulls.append((offset, most))
        self.under_way[len(self.pulls)] = (offset, most, expression)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return len(self.pulls)

    def finish_pull(self, number: int, queue: QueuePlace, *, timeout_s: float) -> PullAnswer:
        offset, most, expression = self.under_way.pop(number)
        if offset < self.begin:
            return self.answer(ResponseCode.PULL_OFFSET_MOVED, self.begin)
        if offset > self.end:
            return self.answer(ResponseCode.PULL_OFFSET_MOVED, self.end)
        there = [each for each in self.offsets if each >= offset]
        if not there:
            if self.late:
                self.offsets.append(self.late.pop(0))
            return self.answer(ResponseCode.PULL_NOT_FOUND, offset)
        is_few = self.few_until is None or offset < self.few_until
        found = there[: min(most, self.few) if is_few else most]
        if self.cut_at in found:
            found = found[: found.index(self.cut_at) + 1]
        after = found[-1] + 1
        # Brokers compare hashes of tags: one that is not asked for passes here.
        passed = [each for each in found if expression == "*" or each % 2 or each == 4]
        if not passed:
            return self.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, after)
        return self.answer(ResponseCode.SUCCESS, after, b"".join(self.record(each) for each in passed))

    def pull(self, queue: QueuePlace, offset: int, *, most: int) -> PullAnswer:
        number = self.start_pull(queue, offset, most=most, expression="*", kind="TAG")
        return self.finish_pull(number, queue, timeout_s=1.0)

    def answer(self, code: int, reached: int, body: bytes = b"") -> PullAnswer:
        return PullAnswer(code, reached, Bounds(self.begin, self.end), body)

    def record(self, offset: int) -> bytes:
        properties = b"TAGS\x01odd\x02" if offset % 2 else b"TAGS\x01even\x02"
        body = b"body %d" % offset + bytes(self.body_size)
        return encode_record(b"orders", 3, offset, 0, body, properties, 0, 0, 0, NOWHERE, 0, NOWHERE)


def queue_of(offsets: Iterator[int] | range | list[int], **more: Any) -> Broker:
    there = list(offsets)
    return Broker(there, **{"end": there[-1] + 1, **more})


def options(**given: str) -> SourceOptions:
    return read_source_options({"endpoints": "gateway:1", "topic": "orders", **given}, streaming=False)


def read(broker: Broker, begin: int, end: int, schema: pa.Schema = LEAN, **given: str) -> list[Any]:
    found = batches([Range(QUEUE, begin, end)], schema, options(**given), warn_nothing, connect=to(broker))
    return list(found)


def to(broker: Broker) -> Any:
    """Connects to it always."""
    return lambda _: nullcontext(broker)


def warn_nothing(sentence: str) -> None:
    raise AssertionError(sentence)


def offsets_of(found: list[Any]) -> list[int]:
    return [offset for batch in found for offset in batch.column("queue_offset").to_pylist()]


def ticking(step_s: float) -> Callable[[], float]:
    """A clock that moves when it is looked at."""
    at = 0.0

    def now() -> float:
        nonlocal at
        at += step_s
        return at

    return now


# -- everything, once, in order -----------------------------------------------------------------------


@pytest.mark.parametrize("few", [1, 3, 32])
@pytest.mark.parametrize("size", ["1", "7", "32", "1024"])
@pytest.mark.parametrize("depth", ["1", "4"])
def test_a_range_is_read_once_and_in_order(few: int, size: str, depth: str) -> None:
    broker = queue_of(range(100), few=few)
    found = read(broker, 10, 90, pullBatchSize=size, pullPipeline=depth)

    assert offsets_of(found) == list(range(10, 90))
    assert broker.most_under_way <= int(depth)
    assert not broker.under_way


def test_pulls_are_under_way_at_the_same_time() -> None:
    broker = queue_of(range(100))
    assert offsets_of(read(broker, 0, 100, pullBatchSize="10", pullPipeline="4")) == list(range(100))
    assert broker.most_under_way == 4
    assert broker.pulls == [(begin, 10) for begin in range(0, 100, 10)]


def test_parts_are_as_large_as_what_the_broker_answers_at_once() -> None:
    """The first answer tells it, so that all others are asked for at the same time."""
    broker = queue_of(range(100), few=8)
    assert offsets_of(read(broker, 0, 100, pullPipeline="4")) == list(range(100))
    assert broker.pulls == [(0, 100), *((begin, 8) for begin in range(8, 96, 8)), (96, 4)]
    assert broker.most_under_way == 4


def test_a_large_message_makes_no_small_parts() -> None:
    """Its answer is short, and so is that of what is left: neither is what the broker gives at once."""
    broker = queue_of(range(1000), few_until=0, cut_at=300)
    found = read(broker, 0, 1000, pullBatchSize="100", pullPipeline="4")

    assert offsets_of(found) == list(range(1000))
    assert sorted(broker.pulls) == sorted([*((begin, 100) for begin in range(0, 1000, 100)), (301, 99)])


def test_offsets_that_are_missing_are_no_loss() -> None:
    """As after a compaction: a pull is answered with what comes next, beyond what it was asked for."""
    there = [*range(13), *range(41, 44), 97, 98]
    broker = queue_of(there, end=100)
    found = read(broker, 0, 99, pullBatchSize="10", pullPipeline="4")
    assert offsets_of(found) == there
    assert not broker.under_way
    assert broker.forgotten


def test_what_lies_behind_the_range_is_not_of_it() -> None:
    broker = queue_of([1, 2, 50])
    assert offsets_of(read(broker, 0, 20)) == [1, 2]
    assert offsets_of(read(broker, 3, 20)) == []


def test_batches_have_so_many_rows_or_bytes_and_no_message_twice() -> None:
    broker = queue_of(range(100), body_size=1000)
    by_rows = read(broker, 0, 100, pullBatchSize="10", arrowBatchRows="25")
    by_bytes = read(broker, 0, 100, pullBatchSize="10", arrowBatchBytes="20k")
    assert [batch.num_rows for batch in by_rows] == [30, 30, 30, 10]
    assert [batch.num_rows for batch in by_bytes] == [20, 20, 20, 20, 20]
    assert offsets_of(by_rows) == offsets_of(by_bytes) == list(range(100))


def test_bodies_that_unpack_to_much_make_more_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may be read; together they are too much for one batch."""
    monkeypatch.setattr("popgate.spark.read.record_decoder._LARGEST_BODIES", 250)
    broker = queue_of(range(10))

    def record(offset: int) -> bytes:
        body, sys_flag = compress_zlib(bytes(offset + 90)), COMPRESSED
        return encode_record(b"orders", 3, offset, 0, body, b"", sys_flag, 0, 0, NOWHERE, 0, NOWHERE)

    broker.record = record  # type: ignore[method-assign]
    found = read(broker, 1, 10)
    assert offsets_of(found) == list(range(1, 10))
    bodies = [body for batch in found for body in batch.column("body").to_pylist()]
    assert bodies == [bytes(offset + 90) for offset in range(1, 10)]
    assert all(batch.num_rows <= 2 for batch in found)


def test_ranges_follow_each_other() -> None:
    ranges = [Range(QUEUE, 0, 3), Range(QUEUE, 5, 7)]
    found = batches(ranges, LEAN, options(), warn_nothing, connect=to(queue_of(range(9))))
    assert offsets_of(list(found)) == [0, 1, 2, 5, 6]


def test_a_batch_has_the_columns_of_the_schema_in_its_order_and_types() -> None:
    schema = pa.schema([("topic", pa.string()), ("body", pa.binary()), ("broker_name", pa.string())])
    (batch,) = read(queue_of(range(2)), 0, 2, schema)
    assert batch.schema == schema
    assert batch.to_pylist() == [
        {"topic": "orders", "body": b"body %d" % n, "broker_name": "broker-a"} for n in range(2)
    ]


@pytest.mark.parametrize("style", ["default", "legacy"])
@pytest.mark.parametrize(("topic", "named"), [("shop%orders", "orders"), ("shop2%orders", "shop2%orders")])
def test_rows_name_their_topic_without_its_namespace(topic: str, named: str, style: str) -> None:
    given = options(schemaStyle=style, **{"rocketmq.client.namespace": "shop"})
    ranges = [Range(QUEUE._replace(topic=topic), 0, 2)]
    schema = pa.schema([("topic", pa.string())])
    (batch,) = batches(ranges, schema, given, warn_nothing, connect=to(queue_of(range(2))))
    assert batch.column("topic").to_pylist() == [named] * 2


def test_legacy_columns_have_their_old_names() -> None:
    schema = pa.schema(
        [
            ("properties", pa.string()),
            ("brokerName", pa.string()),
            ("queueId", pa.int32()),
            ("queueOffset", pa.int64()),
        ]
    )
    (batch,) = read(queue_of(range(2)), 0, 2, schema, schemaStyle="legacy")
    assert batch.schema == schema
    assert batch.to_pylist() == [
        {"properties": f'{{"TAGS": "{tag}"}}', "brokerName": "broker-a", "queueId": 3, "queueOffset": number}
        for number, tag in enumerate(("even", "odd"))
    ]


# -- filters ------------------------------------------------------------------------------------------


def test_a_tag_is_compared_as_text_too() -> None:
    broker = queue_of(range(20), few=3)
    assert offsets_of(read(broker, 0, 20, tag="odd")) == list(range(1, 20, 2))
    assert broker.most_under_way == 1
    assert offsets_of(read(queue_of(range(9)), 0, 9, tag=" even || other")) == [4]


def test_where_nothing_passes_the_filter_reading_goes_on() -> None:
    assert offsets_of(read(queue_of([*range(0, 40, 2), 41], few=2), 6, 41, tag="odd")) == []


# -- a gateway that fails for now ----------------------------------------------------------------------


class Failing:
    """Connects to a queue; each connection fails after so many answers, the last one never."""

    def __init__(self, broker: Broker, error: GatewayError, *answers: int) -> None:
        self._broker, self._error = broker, error
        self._left = list(answers)
        self.connected = 0
        self.rests: list[float] = []

    @contextmanager
    def connect(self, options: SourceOptions) -> Iterator[Broker]:
        self.connected += 1
        fails_after = self._left.pop(0) if self._left else None
        broker, told = replace(self._broker, under_way={}), 0
        finish = broker.finish_pull

        def finish_or_fail(*given: Any, **how: Any) -> PullAnswer:
            nonlocal told
            if told == fails_after:
                raise self._error
            told += 1
            return finish(*given, **how)

        broker.finish_pull = finish_or_fail  # type: ignore[method-assign]
        try:
            yield broker
        except GatewayError as error:  # as `client_of` does
            raise SparkSourceError(Code.GATEWAY, error.sentence) from error

    def read(self, end: int, now: Callable[[], float], **given: str) -> list[tuple[bytes, int]]:
        ask: Any = {"connect": self.connect, "now": now, "rest": self.rests.append}
        return list(whole(Range(QUEUE, 0, end), options(**given), warn_nothing, **ask))


@pytest.mark.parametrize("depth", ["1", "4"])
@pytest.mark.parametrize("error", [BrokerUnavailable("it closed it"), BrokerTimeout("no answer")])
def test_reading_goes_on_where_it_was_when_the_gateway_fails_for_now(error: GatewayError, depth: str) -> None:
    broker = queue_of(range(100))
    failing = Failing(broker, error, 0, 3, 0, 0, 2)
    found = failing.read(100, ticking(0.001), pullBatchSize="10", pullPipeline=depth)
    expected = b"".join(broker.record(offset) for offset in range(100))
    assert b"".join(body for body, _ in found) == expected
    assert failing.connected == 6
    assert failing.rests == [0.05, 0.05, 0.1, 0.2, 0.05]


@given(
    st.sets(st.integers(0, 60)),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(1, 5),
    st.lists(st.integers(0, 4), max_size=6),
)
def test_whatever_is_missing_or_fails_each_message_is_read_once(
    there: set[int], few: int, size: int, depth: int, failures: list[int]
) -> None:
    # Where a range ends something is, also after a compaction.
    broker = queue_of(sorted({*there, 60}), few=few)
    failing = Failing(broker, BrokerUnavailable("it closed it"), *failures)
    found = failing.read(61, ticking(0.001), pullBatchSize=str(size), pullPipeline=str(depth))
    read_offsets = [record.offset for body, _ in found for record in decode_records(body)]
    assert read_offsets == broker.offsets
    assert failing.connected <= len(failures) + 1


def test_what_does_not_pass_is_told_after_a_minute() -> None:
    failing = Failing(queue_of(range(9)), BrokerUnavailable("nobody is there"), *[0] * 1000)
    with pytest.raises(SparkSourceError, match="nobody is there"):
        failing.read(9, ticking(5.0))
    assert 5 < failing.connected < 30


def test_what_is_refused_is_told_at_once() -> None:
    failing = Failing(queue_of(range(9)), Forbidden("not yours"), 0)
    with pytest.raises(SparkSourceError, match="not yours"):
        failing.read(9, ticking(0.001))
    assert (failing.connected, failing.rests) == (1, [])


# -- what is not there --------------------------------------------------------------------------------


def eight_pulled(
    broker: Any, now: Callable[[], float], rest: Callable[[float], None]
) -> Iterator[tuple[bytes, int, int]]:
    """What is pulled of a range of eight offsets."""
    return pulled(
        cast("QueueClient", broker), Range(QUEUE, 0, 8), options(), warn_nothing, now=now, rest=rest
    )


def test_what_this_replica_has_not_heard_of_yet_is_waited_for() -> None:
    broker = queue_of(range(5), end=8, late=[5, 6, 7])
    rests: list[float] = []
    found = eight_pulled(broker, ticking(0.001), rests.append)
    assert len([body for body, *_ in found]) == 4
    assert len(rests) == 3


def test_a_slave_that_has_not_heard_of_an_offset_yet_is_waited_for() -> None:
    """It sends the reader back to the same offset, at once: so it is passed on by RocketMQ's own proxy."""
    broker = queue_of(range(5), end=8, late=[5, 6, 7])
    answer = broker.answer

    def as_slave(code: int, reached: int, body: bytes = b"") -> PullAnswer:
        same = code == ResponseCode.PULL_NOT_FOUND
        return answer(ResponseCode.PULL_RETRY_IMMEDIATELY if same else code, reached, body)

    broker.answer = as_slave  # type: ignore[method-assign]
    rests: list[float] = []
    found = eight_pulled(broker, ticking(0.001), rests.append)
    assert len([body for body, *_ in found]) == 4
    assert len(rests) == 3


def test_a_pause_of_the_reader_is_no_time_in_which_nothing_came() -> None:
    """Whoever takes the rows may need long for them, and the replica was not asked meanwhile."""
    broker, at = queue_of(range(5), end=8, late=[5, 6, 7]), [0.0]
    rests: list[float] = []
    found = eight_pulled(broker, lambda: at[0], rests.append)
    bodies = []
    for body, *_ in found:
        bodies.append(body)
        at[0] += 1_000.0
    assert len(bodies) == 4
    assert len(rests) == 3


def test_what_never_comes_is_a_loss() -> None:
    found = eight_pulled(queue_of(range(5), end=8), ticking(10.0), lambda _: None)
    with pytest.raises(SparkSourceError, match="queue 3 of orders on broker-a has nothing at 5") as told:
        list(found)
    assert told.value.code is Code.DATA_LOSS
    assert "failOnDataLoss" not in str(told.value)


def test_what_a_slave_lacks_is_no_loss_while_its_master_is_away() -> None:
    slave = queue_of(range(5), end=8, has_master=False)
    failing = Failing(slave, BrokerUnavailable("it is never raised"))
    with pytest.raises(SparkSourceError, match="no master now") as told:
        failing.read(8, ticking(1.0))
    assert told.value.code is Code.GATEWAY
    assert failing.connected > 1


def test_what_a_slave_lacked_is_read_when_its_master_is_back() -> None:
    slave = queue_of(range(5), end=8, has_master=False)
    failing = Failing(slave, BrokerUnavailable("it is never raised"))
    rest = failing.rests.append

    def come_back(seconds: float) -> None:
        rest(seconds)
        if failing.connected > 1:
            slave.has_master, slave.late = True, [5, 6, 7]

    ask: Any = {"connect": failing.connect, "now": ticking(1.0), "rest": come_back}
    found = list(whole(Range(QUEUE, 0, 8), options(), warn_nothing, **ask))
    read_offsets = [record.offset for body, _ in found for record in decode_records(body)]
    assert read_offsets == list(range(8))


@pytest.mark.parametrize("depth", ["1", "8"])
def test_a_gap_is_refused_or_passed_over_with_a_warning(depth: str) -> None:
    def broker() -> Broker:
        return queue_of(range(50, 100), begin=50, is_compacted=False)

    with pytest.raises(SparkSourceError, match="keeps nothing before 50: 10 to 49 are gone") as told:
        read(broker(), 10, 90, pullPipeline=depth)
    assert told.value.code is Code.DATA_LOSS

    warnings: list[str] = []
    lax = options(failOnDataLoss="false", pullBatchSize="8", pullPipeline=depth)
    found = batches([Range(QUEUE, 10, 90)], LEAN, lax, warnings.append, connect=to(broker()))
    assert offsets_of(list(found)) == list(range(50, 90))
    assert len(warnings) == 1


def test_a_gap_that_swallows_the_range_leaves_nothing() -> None:
    warnings: list[str] = []
    broker = queue_of(range(50, 100), begin=50, is_compacted=False)
    found = batches(
        [Range(QUEUE, 10, 20)],
        LEAN,
        options(failOnDataLoss="false"),
        warnings.append,
        connect=to(broker),
    )
    assert offsets_of(list(found)) == []
    assert "10 to 19 are gone" in warnings[0]


def removing(broker: Broker, at: int, until: int) -> Broker:
    """Retention removes what is before `until` when a pull from `at` on comes; the minimum comes later."""
    finish = broker.finish_pull

    def remove_first(number: int, *given: Any, **how: Any) -> PullAnswer:
        if broker.under_way[number][0] >= at and broker.offsets[0] < until:
            broker.offsets = [each for each in broker.offsets if each >= until]
            broker.minimums_told = [0, 0, until]
        return finish(number, *given, **how)

    broker.finish_pull = remove_first  # type: ignore[method-assign]
    return broker


@pytest.mark.parametrize("depth", ["1", "4"])
def test_what_is_removed_before_the_minimum_says_so_is_a_loss(depth: str) -> None:
    """For seconds a broker passes over what it has removed, and tells the old minimum."""

    rests: list[float] = []
    warnings: list[str] = []

    def found(**more: str) -> list[int]:
        broker = removing(queue_of(range(60), is_compacted=False), 7, 40)
        asked = options(pullBatchSize="4", pullPipeline=depth, **more)
        ask: Any = {"connect": to(broker), "rest": rests.append}
        return offsets_of(list(batches([Range(QUEUE, 3, 50)], LEAN, asked, warnings.append, **ask)))

    with pytest.raises(SparkSourceError, match="keeps nothing before 40: 7 to 39 are gone") as told:
        found()
    assert told.value.code is Code.DATA_LOSS
    assert rests == [1.0, 1.0]
    assert found(failOnDataLoss="false") == [*range(3, 7), *range(40, 50)]
    assert len(warnings) == 1


class Waits:
    """A clock that only rests move."""

    at_s = 0.0

    def now(self) -> float:
        return self.at_s

    def rest(self, seconds: float) -> None:
        self.at_s += seconds


@pytest.mark.parametrize(("oldest", "begin", "waits_s"), [(0, 0, 0.0), (0, 31, 0.0), (1, 0, 30.0)])
@pytest.mark.parametrize("depth", ["1", "4"])
def test_gaps_that_are_no_loss_cost_at_most_one_wait(
    depth: str, oldest: int, begin: int, waits_s: float
) -> None:
    """As where damaged records are passed over: an older message that is still there says that it is none."""
    broker, waits = queue_of(range(oldest, 100, 2), is_compacted=False, few=1), Waits()
    ask: Any = {"connect": to(broker), "now": waits.now, "rest": waits.rest}
    asked = options(pullBatchSize="4", pullPipeline=depth)
    found = list(whole(Range(QUEUE, begin, 98), asked, warn_nothing, **ask))
    read_offsets = [record.offset for body, _ in found for record in decode_records(body)]
    assert [each for each in read_offsets if each < 98] == [
        each for each in range(oldest, 98, 2) if each >= begin
    ]
    assert waits.at_s == waits_s
    assert not broker.under_way


@pytest.mark.parametrize(("oldest", "waits_s"), [(0, 2.0), (1, 32.0)])
@pytest.mark.parametrize("depth", ["1", "4"])
def test_a_loss_behind_gaps_that_are_none_is_reported(depth: str, oldest: int, waits_s: float) -> None:
    broker, waits = queue_of(range(oldest, 100, 2), is_compacted=False, few=1), Waits()
    ask: Any = {"connect": to(removing(broker, 31, 60)), "now": waits.now, "rest": waits.rest}
    asked = options(pullBatchSize="1", pullPipeline=depth)
    gone = f"keeps nothing before {60 + oldest}: {31 + oldest} to {59 + oldest} are gone"
    with pytest.raises(SparkSourceError, match=gone):
        list(whole(Range(QUEUE, 0, 98), asked, warn_nothing, **ask))
    assert waits.at_s == waits_s


@given(
    st.sets(st.integers(0, 60)),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(1, 5),
    st.integers(0, 20),
    st.integers(1, 60),
    st.integers(0, 20),
)
def test_no_removal_under_a_read_is_passed_over(
    there: set[int], few: int, size: int, depth: int, pulls: int, until: int, late: int
) -> None:
    """Whatever is missing beside it, and however late the minimum is."""
    broker, waits = queue_of(sorted({*there, 60}), few=few, is_compacted=False), Waits()
    stored, finish = list(broker.offsets), broker.finish_pull

    def finish_or_remove(*given: Any, **how: Any) -> PullAnswer:
        if len(broker.pulls) > pulls and broker.minimums_told == [0]:
            broker.offsets = [each for each in broker.offsets if each >= until]
            broker.minimums_told = [*[0] * late, until]
        return finish(*given, **how)

    broker.finish_pull = finish_or_remove  # type: ignore[method-assign]
    ask: Any = {"connect": to(broker), "now": waits.now, "rest": waits.rest}
    asked = options(pullBatchSize=str(size), pullPipeline=str(depth))
    read_offsets, code = list[int](), None
    try:
        for body, _ in whole(Range(QUEUE, 0, 61), asked, warn_nothing, **ask):
            read_offsets += [record.offset for record in decode_records(body)]
    except SparkSourceError as error:
        code = error.code
    assert read_offsets == stored or code is Code.DATA_LOSS


def test_where_a_filter_passes_over_messages_nothing_is_asked() -> None:
    broker = queue_of([*range(7), *range(40, 60)], is_compacted=False)
    assert offsets_of(read(broker, 0, 50, tag="odd")) == [1, 3, 5, *range(41, 50, 2)]
    assert broker.looks == 0


def test_in_a_compacted_topic_an_offset_that_moved_is_no_loss() -> None:
    there = [*range(50, 60), *range(70, 80), 88, 89]
    broker = queue_of(there, begin=50)
    assert offsets_of(read(broker, 10, 90, pullBatchSize="5", pullPipeline="1")) == there
    assert broker.looks == 1


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_queue_that_went_back_was_made_anew(fail: str) -> None:
    with pytest.raises(SparkSourceError, match="made anew") as told:
        read(queue_of(range(5)), 10, 20, failOnDataLoss=fail)
    assert told.value.code is Code.DATA_LOSS
    assert "failOnDataLoss" not in str(told.value)


def test_damage_names_the_queue_and_the_offsets() -> None:
    broker = queue_of(range(5))
    broker.record = lambda offset: b"nonsense"  # type: ignore[method-assign]
    with pytest.raises(SparkSourceError, match="queue 3 of orders on broker-a, offsets 0 to 4") as told:
        read(broker, 0, 5)
    assert told.value.code is Code.DAMAGED
    assert "begin behind it, by option startingOffsets" in str(told.value)


def test_a_body_that_does_not_unpack_is_damage() -> None:
    """As its flag says that it is compressed, and it is not. The error names its offset."""
    broker = queue_of(range(5))
    plain = broker.record

    def record(offset: int) -> bytes:
        data = bytearray(plain(offset))
        if offset == 3:
            data[36:40] = (int.from_bytes(data[36:40], "big") | COMPRESSED).to_bytes(4, "big")
        return bytes(data)

    broker.record = record  # type: ignore[method-assign]
    with pytest.raises(SparkSourceError, match="queue 3 of orders on broker-a, offsets 0 to 4") as told:
        read(broker, 0, 5)
    assert told.value.code is Code.DAMAGED
    assert "(offset 3)" in str(told.value)


def test_damage_within_a_record_names_its_offset() -> None:
    broker = queue_of(range(5))
    plain = broker.record

    def record(offset: int) -> bytes:
        data = bytearray(plain(offset))
        if offset == 2:
            data[4:8] = b"none"  # its magic number
        return bytes(data)

    broker.record = record  # type: ignore[method-assign]
    with pytest.raises(SparkSourceError, match=r"unknown magic number \(offset 2\)"):
        read(broker, 0, 5)


def test_a_tick_is_a_row_with_a_time_and_nothing_else() -> None:
    micros = pa.timestamp("us", tz="UTC")
    schema = pa.schema(
        [
            ("body", pa.binary()),
            ("queue_id", pa.int32()),
            ("store_timestamp", micros),
            ("born_timestamp", micros),
        ]
    )
    batch = tick_row(1_500, schema)
    assert batch.schema == schema
    [row] = batch.to_pylist()
    assert row.pop("store_timestamp").timestamp() == 1.5
    assert row == {"body": None, "queue_id": None, "born_timestamp": None}
