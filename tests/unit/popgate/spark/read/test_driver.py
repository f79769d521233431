"""popgate.spark.read.driver: what a query's driver asks and plans, with queues that the test makes up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest

from popgate.errors import (
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Forbidden,
    GatewayError,
    GroupNotFound,
    Internal,
    TooManyRequests,
    TopicNotFound,
)
from popgate.model import Bounds
from popgate.queue_client import PullAnswer, QueueClient, QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.source_options import SourceOptions, read_source_options
from popgate.spark.read import driver as driver_module
from popgate.spark.read.driver import Stream, asked, batch_plan
from popgate.spark.read.read_plan import Range
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.hosts import NOWHERE
from popgate.wire.messages.records import encode_record
from tests.unit.popgate.spark import queues as made_up
from tests.unit.popgate.spark.queues import A, B, C

LEAST = {"endpoints": "gateway:1", "topic": "t"}
NOW_MS = 1_000
"""When streams ask; what the queues have until then was stored before."""


class Queues(made_up.Queues):
    """One connects to them, too."""

    @contextmanager
    def connect(self, options: SourceOptions) -> Iterator[QueueClient]:
        yield cast("QueueClient", self)


def warn_nothing(sentence: str) -> None:
    raise AssertionError(sentence)


def stream(queues: Queues, warn: Any = warn_nothing, **given: str) -> Stream:
    options = read_source_options({**LEAST, "startingOffsets": "earliest", **given}, streaming=True)
    return Stream(options, warn, connect=queues.connect, now_ms=lambda: NOW_MS)


def kept(offset: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint keeps it."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def batches_of(query: Stream, start: dict[str, Any]) -> tuple[list[Range], Any]:
    """The ranges of one batch after another until there is nothing new, and the last offset."""
    found: list[Range] = []
    while (end := query.latest(start)) is not start:
        found += [each for partition in query.plan(start, end) for each in partition]
        start = end
    return found, start


# -- batches ------------------------------------------------------------------------------------------


def test_a_batch_reads_what_is_there() -> None:
    queues = Queues(A=(3, 10), B=(0, 0))
    options = read_source_options(LEAST, streaming=False)
    assert batch_plan(options, warn_nothing, connect=queues.connect) == [[Range(A, 3, 10)]]


def test_a_batch_that_ends_before_it_begins_has_nothing() -> None:
    queues = Queues(A=(3, 10))
    given = {**LEAST, "startingTimestamp": "7", "endingTimestamp": "5"}
    options = read_source_options(given, streaming=False)
    assert batch_plan(options, warn_nothing, connect=queues.connect) == []


# -- streams ------------------------------------------------------------------------------------------


def test_a_stream_takes_everything_once_in_batches_of_the_limit() -> None:
    queues = Queues(A=(0, 10), B=(5, 7))
    query = stream(queues, maxOffsetsPerTrigger="6")
    start = query.initial()
    first = query.latest(start)
    assert query.plan(start, first) == [[Range(A, 0, 5), Range(B, 5, 6)]]
    rest, last = batches_of(query, first)
    assert rest == [Range(A, 5, 10), Range(B, 6, 7)]
    assert query.latest(last) is last
    queues.bounds[A] = (0, 12)
    assert batches_of(query, last)[0] == [Range(A, 10, 12)]


def test_what_is_new_by_text_is_new() -> None:
    """Spark compares offsets as text."""
    query = stream(Queues(A=(0, 10)))
    first = query.latest(query.initial())
    assert query.latest(kept(first)) == first
    assert list(first["q"]["t"]["broker-a"]) == ["0"]


def test_a_query_that_found_nothing_yet_begins_where_it_began() -> None:
    queues = Queues(A=(0, 10))
    first = stream(queues, startingOffsets="latest")
    start = first.initial()
    end = first.latest(start)
    assert end is not start
    assert first.plan(start, end) == []

    # It is restarted before the first commit, or after it: what came meanwhile is read.
    queues.bounds[A] = (0, 15)
    for begin in (lambda query: query.initial(), lambda query: kept(end)):
        again = stream(queues, startingOffsets="latest")
        assert again.plan(begin(again), kept(end)) == []
        assert batches_of(again, kept(end))[0] == [Range(A, 10, 15)]


def test_scenario_39_the_first_batch_is_planned_alike_after_a_restart() -> None:
    queues = Queues(A=(0, 10))
    first = stream(queues, startingOffsets="latest")
    start = first.initial()
    queues.bounds[A] = (0, 15)
    end = first.latest(start)
    planned = first.plan(start, end)
    assert planned == [[Range(A, 10, 15)]]

    queues.bounds[A] = (0, 20)
    again = stream(queues, startingOffsets="latest")
    assert again.plan(again.initial(), kept(end)) == planned
    assert batches_of(again, kept(end))[0] == [Range(A, 15, 20)]


def test_scenario_39_a_queue_that_appears_is_read_from_its_beginning_and_alike_after_a_restart() -> None:
    queues = Queues(A=(0, 10))
    query = stream(queues)
    start = query.latest(query.initial())
    queues.bounds[C] = (4, 6)
    end = query.latest(start)
    queues.bounds[C] = (4, 9)
    for each in (query, stream(queues)):
        assert each.plan(kept(start), kept(end)) == [[Range(C, 4, 6)]]
    assert batches_of(query, end)[0] == [Range(C, 6, 9)]


def test_a_queue_that_appears_empty_is_known_from_then_on() -> None:
    queues = Queues(A=(0, 10))
    query = stream(queues)
    start = query.latest(query.initial())
    queues.bounds[B] = (0, 0)
    end = query.latest(start)
    assert end is not start
    queues.bounds[B] = (2, 3)
    warnings: list[str] = []
    lax = stream(queues, warnings.append, failOnDataLoss="false")
    assert batches_of(lax, end)[0] == [Range(B, 2, 3)]
    assert "0 to 1 are gone" in warnings[0]


def test_a_queue_that_is_gone_keeps_its_place() -> None:
    queues = Queues(A=(0, 10), B=(0, 5))
    query = stream(queues)
    _, last = batches_of(query, query.initial())
    del queues.bounds[B]
    assert query.latest(last) is last
    queues.bounds[B] = (0, 6)
    assert batches_of(query, last)[0] == [Range(B, 5, 6)]


def test_a_topic_that_may_not_be_read_for_a_while_does_not_end_a_query_that_runs() -> None:
    queues = Queues(A=(0, 10))
    query = stream(queues)
    _, last = batches_of(query, query.initial())
    del queues.bounds[A]
    for _ in range(2):
        assert query.latest(last) is last
    queues.bounds[A] = (0, 11)
    assert batches_of(query, last)[0] == [Range(A, 10, 11)]
    del queues.bounds[A]
    with pytest.raises(SparkSourceError, match="no queue that may be read"):
        stream(queues).latest(last)


def test_an_assigned_queue_that_is_gone_keeps_its_place() -> None:
    """As while its broker restarts, and is not in the route."""
    queues = Queues(A=(0, 10), B=(0, 4))
    given = {"endpoints": "gateway:1", "assign": '{"t":{"broker-a":[0,1]}}', "startingOffsets": "earliest"}
    query = Stream(read_source_options(given, streaming=True), warn_nothing, connect=queues.connect)
    start = query.initial()
    first = query.latest(start)
    del queues.bounds[B]
    assert query.latest(first) is first
    queues.bounds[A] = (0, 12)
    ranges, last = batches_of(query, first)
    assert ranges == [Range(A, 10, 12)]
    queues.bounds[B] = (0, 6)
    assert batches_of(query, last)[0] == [Range(B, 4, 6)]


def test_a_queue_that_was_made_anew_is_refused() -> None:
    queues = Queues(A=(0, 10))
    query = stream(queues, failOnDataLoss="false")
    _, last = batches_of(query, query.initial())
    queues.bounds[A] = (0, 4)
    with pytest.raises(SparkSourceError, match="made anew"):
        batches_of(query, last)


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1"}])
def test_an_end_that_is_told_too_low_does_not_come_into_the_checkpoint(limit: dict[str, str]) -> None:
    """Spark writes an end before it plans it, and would plan it for ever."""
    queues = Queues(A=(0, 10), B=(0, 4))
    query = stream(queues, **limit)
    start = query.initial()
    last = query.latest(start, whole=True)
    assert query.plan(start, last) == [[Range(A, 0, 10), Range(B, 0, 4)]]
    queues.bounds = {A: (0, 8), B: (0, 5)}
    with pytest.raises(SparkSourceError, match="made anew"):
        query.latest(last)
    queues.bounds[A] = (0, 11)
    again = stream(queues, **limit)
    again.initial()
    assert batches_of(again, kept(last))[0] == [Range(A, 10, 11), Range(B, 4, 5)]


class Slaves(Queues):
    """They stand in for a master that is lost, and lack its last messages, for so many questions."""

    def __init__(self, lacking: int, questions: int, **bounds: tuple[int, int]) -> None:
        super().__init__(**bounds)
        self.lacking, self.questions = lacking, questions

    @contextmanager
    def connect(self, options: SourceOptions) -> Iterator[QueueClient]:
        try:
            yield cast("QueueClient", self)
        except GatewayError as error:
            raise SparkSourceError(Code.GATEWAY, error.sentence) from error

    def maximums(self, queues: Sequence[QueuePlace], *, of_masters: bool = False) -> dict[QueuePlace, int]:
        if not self.questions:
            return super().maximums(queues)
        if of_masters:
            self.questions -= 1
            raise BrokerUnavailable("broker-a has no master now")
        return {queue: end - self.lacking for queue, end in super().maximums(queues).items()}


@pytest.mark.parametrize("is_at_its_end", [False, True])
def test_a_master_is_waited_for_whose_slave_is_behind(is_at_its_end: bool) -> None:
    """A queue that ends before its place is one that was made anew only where a master says so."""
    queues = Slaves(2, 0, A=(0, 10), B=(0, 4))
    given = {"fetchOffset.retryIntervalMs": "0"}
    query = stream(queues, **given)
    _, last = batches_of(query, query.initial())
    queues.bounds[A], queues.questions = (0, 11), 3
    again = stream(queues, **given)
    again.initial()
    if is_at_its_end:
        queues.questions = 3
        again.end_here()
    assert batches_of(again, kept(last))[0] == [Range(A, 10, 11)]
    assert queues.questions == 0


def test_a_master_that_does_not_come_back_is_no_loss_of_data() -> None:
    queues = Slaves(2, 0, A=(0, 10))
    query = stream(queues, **{"fetchOffset.retryIntervalMs": "0", "fetchOffset.numRetries": "2"})
    _, last = batches_of(query, query.initial())
    queues.questions = 9
    with pytest.raises(SparkSourceError, match="has no master now") as told:
        query.latest(last)
    assert told.value.code is Code.GATEWAY


def test_a_batch_of_a_group_waits_for_a_master_whose_slave_is_behind() -> None:
    queues = Slaves(2, 2, A=(0, 10))
    queues.committed = lambda _group, _queues: {A: 10}  # type: ignore[attr-defined]
    given = {**LEAST, "group": "g", "fetchOffset.retryIntervalMs": "0"}
    options = read_source_options(given, streaming=False)
    assert batch_plan(options, warn_nothing, connect=queues.connect) == []
    assert queues.questions == 0


class Aged(Queues):
    """All of their messages were stored at one time; those before `first` are gone, as after a compaction."""

    def __init__(self, stored_ms: int, **bounds: tuple[int, int]) -> None:
        super().__init__(**bounds)
        self.stored_ms, self.first = stored_ms, 0
        self.damage = b""

    def pull(self, queue: QueuePlace, offset: int, *, most: int) -> PullAnswer:
        at = max(offset, self.first)
        record = encode_record(b"t", 0, at, 0, b"b", b"", 0, 0, 0, NOWHERE, self.stored_ms, NOWHERE)
        return PullAnswer(ResponseCode.SUCCESS, at + 1, Bounds(*self.bounds[queue]), self.damage + record)

    def offsets_at(self, times_ms: Mapping[QueuePlace, int]) -> dict[QueuePlace, int]:
        return {queue: self.bounds[queue][0 if self.stored_ms >= at else 1] for queue, at in times_ms.items()}


def test_a_queue_that_was_made_anew_and_has_grown_past_its_place_is_refused() -> None:
    """Its end tells nothing; that it has nothing as old as what was read does."""
    queues = Aged(500, A=(0, 10))
    query = stream(queues)
    _, last = batches_of(query, query.initial())
    assert last["at"] == NOW_MS
    queues.stored_ms, queues.bounds[A] = NOW_MS + 60_000, (0, 15)
    with pytest.raises(SparkSourceError, match="everything in it was stored since then") as told:
        stream(queues).latest(kept(last))
    assert told.value.code is Code.DATA_LOSS
    warnings: list[str] = []
    lax = stream(queues, warnings.append, failOnDataLoss="false")
    assert batches_of(lax, kept(last))[0] == [Range(A, 10, 15)]
    assert len(warnings) == 1


def test_a_batch_that_was_begun_is_not_read_from_a_queue_that_was_made_anew() -> None:
    """Spark plans it again before it asks for anything else, the first batch of a query too."""
    queues = Aged(500, A=(0, 10))
    query = stream(queues, maxOffsetsPerTrigger="6")
    start = query.initial()
    first = query.latest(start)
    second = query.latest(first)
    queues.stored_ms = NOW_MS + 60_000
    # It was there all the time: nothing is asked.
    assert query.plan(first, second) == [[Range(A, 6, 10)]]
    for begin, end in ((start, first), (first, second)):
        with pytest.raises(SparkSourceError, match="everything in it was stored since then"):
            stream(queues).plan(kept(begin), kept(end))
    warnings: list[str] = []
    lax = stream(queues, warnings.append, failOnDataLoss="false")
    assert lax.plan(kept(first), kept(second)) == [[Range(A, 6, 10)]]
    assert lax.plan(kept(first), kept(second)) == [[Range(A, 6, 10)]]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("stored_ms", "bounds"),
    [
        (NOW_MS + 59_999, (0, 15)),  # clocks differ
        (NOW_MS + 90_000, (10, 15)),  # what was read is not kept any more
        (500, (0, 15)),
    ],
)
def test_a_queue_that_may_be_the_same_is_read_on(stored_ms: int, bounds: tuple[int, int]) -> None:
    queues = Aged(500, A=(0, 10))
    query = stream(queues)
    _, last = batches_of(query, query.initial())
    queues.stored_ms, queues.bounds[A] = stored_ms, bounds
    assert batches_of(stream(queues), kept(last))[0] == [Range(A, 10, 15)]


def test_a_topic_that_comes_back_while_a_pattern_is_read_is_looked_at_again() -> None:
    queues = Aged(500, A=(0, 10), B=(0, 5))
    query = stream(queues)
    _, last = batches_of(query, query.initial())
    queues.stored_ms = NOW_MS + 90_000
    # It was there all the time: nothing is asked.
    assert query.latest(last) is last
    del queues.bounds[A]
    assert query.latest(last) is last
    queues.bounds[A] = (0, 15)
    with pytest.raises(SparkSourceError, match="queue 0 of t on broker-a was read up to 10"):
        query.latest(last)


@pytest.mark.parametrize(("first", "damage"), [(10, b""), (0, bytes(99))])
def test_a_queue_of_which_nothing_old_is_left_is_read_on(first: int, damage: bytes) -> None:
    """All that was read was superseded in a compacted topic; or what is there cannot be read."""
    queues = Aged(500, A=(0, 10))
    query = stream(queues)
    _, last = batches_of(query, query.initial())
    queues.stored_ms, queues.bounds[A], queues.first, queues.damage = NOW_MS + 90_000, (0, 15), first, damage
    assert batches_of(stream(queues), kept(last))[0] == [Range(A, 10, 15)]


def test_a_queue_of_a_checkpoint_without_a_time_is_read_on() -> None:
    queues = Aged(NOW_MS + 90_000, A=(0, 15))
    assert batches_of(stream(queues), {"v": 1, "q": {"t": {"broker-a": {"0": 10}}}})[0] == [Range(A, 10, 15)]


def test_what_is_gone_is_refused_or_passed_over() -> None:
    queues = Queues(A=(0, 10))
    query = stream(queues)
    start = query.initial()
    queues.bounds[A] = (4, 10)
    with pytest.raises(SparkSourceError, match="0 to 3 are gone") as told:
        batches_of(query, start)
    assert told.value.code is Code.DATA_LOSS


def test_in_a_compacted_topic_a_higher_minimum_is_no_loss() -> None:
    queues = Queues(A=(4, 10))
    queues.is_compacted = True
    query = stream(queues)
    start = query.initial()
    assert batches_of(query, start)[0] == [Range(A, 0, 10)]
    before = query.latest(start)
    queues.bounds = {A: (12, 14), B: (3, 5)}
    assert batches_of(stream(queues), kept(before))[0] == [Range(A, 10, 14), Range(B, 0, 5)]


class Deleted(Queues):
    """Topics that are asked for, and are not there, are told as a gateway tells them."""

    @contextmanager
    def connect(self, options: SourceOptions) -> Iterator[QueueClient]:
        try:
            yield cast("QueueClient", self)
        except TopicNotFound as error:
            raise SparkSourceError(Code.GATEWAY, f"TOPIC_NOT_FOUND: {error.sentence}") from error

    def minimums(self, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        for queue in queues:
            if queue not in self.bounds:
                raise TopicNotFound(queue.topic)
        return super().minimums(queues)


def test_a_topic_that_was_deleted_while_a_batch_of_it_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch stands in the checkpoint: a query could not go on from it any more."""
    rests: list[float] = []
    monkeypatch.setattr(driver_module, "asked", partial(asked, rest=rests.append))
    other = QueuePlace("u", "broker-a", 0)
    queues = Deleted(A=(0, 10))
    queues.bounds[other] = (0, 5)
    begun = stream(queues, topic="t,u")
    start, end = begun.initial(), begun.latest(begun.initial())
    del queues.bounds[other]
    with pytest.raises(SparkSourceError, match=r"topic u, of which.*failOnDataLoss=false") as refused:
        begun.plan(start, end)
    assert (refused.value.code, rests) == (Code.DATA_LOSS, [])
    # Of those that Spark shows one code alone.
    assert isinstance(refused.value.__cause__, TopicNotFound)

    said: list[str] = []
    query = stream(queues, said.append, topic="t,u", failOnDataLoss="false")
    assert query.plan(start, kept(end)) == [[Range(A, 0, 10)]]
    # Its brokers may only be away for a while.
    assert sum(rests) == 60
    assert [sentence.partition(",")[0] for sentence in said] == ["topic u"]


def test_available_now_ends_where_everything_ended() -> None:
    queues = Queues(A=(0, 10))
    # As many at least are waited for by no stream that has an end.
    query = stream(queues, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="4")
    query.end_here()
    queues.bounds = {A: (0, 15), B: (0, 5)}
    found, _ = batches_of(query, query.initial())
    assert found == [Range(A, 0, 4), Range(A, 4, 8), Range(A, 8, 10)]


def test_available_now_reads_nothing_of_what_came_before_its_start_was_asked() -> None:
    """Spark asks for the end first: a message between the two questions makes no queue go back."""
    queues = Queues(A=(0, 10), B=(3, 5))
    query = stream(queues, startingOffsets="latest")
    query.end_here()
    queues.bounds[A] = (0, 12)
    found, last = batches_of(query, query.initial())
    assert found == []
    queues.bounds = {A: (0, 15), B: (3, 5)}
    assert batches_of(stream(queues), kept(last))[0] == [Range(A, 12, 15)]

    # Nor does a queue that appeared, and of which nothing is kept that was there at the end.
    queues = Queues(A=(0, 10), B=(0, 5))
    query = stream(queues)
    query.end_here()
    queues.bounds[B] = (7, 9)
    found, last = batches_of(query, {"v": 1, "q": {"t": {"broker-a": {"0": 10}}}})
    assert (found, last["q"]["t"]["broker-a"]) == ([], {"0": 10, "1": 7})


def test_a_queue_that_is_gone_keeps_its_place_in_a_stream_with_an_end() -> None:
    queues = Queues(A=(0, 10), B=(0, 5))
    query = stream(queues, maxOffsetsPerTrigger="6")
    query.end_here()
    first = query.latest(query.initial())
    assert query.plan(query.initial(), first) == [[Range(A, 0, 4), Range(B, 0, 2)]]
    del queues.bounds[B]
    found, last = batches_of(query, first)
    assert found == [Range(A, 4, 10)]
    assert last["q"]["t"]["broker-a"] == {"0": 10, "1": 2}


def test_where_the_queues_end_is_reported_whatever_the_limit_is() -> None:
    query = stream(Queues(A=(0, 10)), maxOffsetsPerTrigger="4")
    assert query.reported is None
    assert query.latest(query.initial())["q"] == {"t": {"broker-a": {"0": 4}}}
    assert query.reported == {"v": 1, "q": {"t": {"broker-a": {"0": 10}}}}


def test_a_trigger_that_wants_everything_has_no_limits() -> None:
    query = stream(Queues(A=(0, 10)), maxOffsetsPerTrigger="4", minOffsetsPerTrigger="4")
    end = query.latest(query.initial(), whole=True)
    assert query.plan(query.initial(), end) == [[Range(A, 0, 10)]]


def test_a_batch_waits_for_as_many_as_it_should_have_and_no_longer_than_that() -> None:
    queues, clock = Queues(A=(0, 1)), [0.0]
    given = {**LEAST, "startingOffsets": "earliest", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "30s"}
    options = read_source_options(given, streaming=True)
    query = Stream(options, warn_nothing, connect=queues.connect, now_ms=lambda: NOW_MS, now=lambda: clock[0])

    # The first batch of a process waits for nothing.
    end = query.latest(query.initial())
    assert query.plan(query.initial(), end) == [[Range(A, 0, 1)]]
    queues.bounds[A] = (0, 4)
    assert query.latest(end) is end
    assert query.reported == {"v": 1, "q": {"t": {"broker-a": {"0": 4}}}}
    queues.bounds[A] = (0, 6)
    end, before = query.latest(end), end
    assert query.plan(before, end) == [[Range(A, 1, 6)]]
    queues.bounds[A] = (0, 7)
    clock[0] = 29.9
    assert query.latest(end) is end
    clock[0] = 30.0
    after = query.latest(end)
    assert query.plan(end, after) == [[Range(A, 6, 7)]]
    clock[0] = 90.0
    assert query.latest(after) is after


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"v": 2, "q": {}},
        {"v": 1, "q": {"t": {"b": {"0": -1}}}},
        {"offset": 3},
        {"v": 1, "q": {}, "at": "1"},
    ],
)
def test_an_offset_that_is_none_of_ours_is_refused(damage: dict[str, Any]) -> None:
    query = stream(Queues(A=(0, 10)))
    with pytest.raises(SparkSourceError) as told:
        query.latest(damage)
    assert told.value.code is Code.ILLEGAL_OFFSET


class Topics(Queues):
    """Of one queue each: where it begins and ends, by name."""

    def __init__(self, **bounds: tuple[int, int]) -> None:
        super().__init__()
        self.bounds = {QueuePlace(name, "broker-a", 0): each for name, each in bounds.items()}


def test_a_topic_that_appears_and_matches_is_read_from_its_beginning() -> None:
    queues = Topics(orders=(0, 10), others=(0, 5))
    given = {"endpoints": "gateway:1", "subscribePattern": "orders.*", "startingOffsets": "latest"}
    options = read_source_options(given, streaming=True)

    def query() -> Stream:
        return Stream(options, warn_nothing, connect=queues.connect, now_ms=lambda: NOW_MS)

    first = query()
    start = first.latest(first.initial())
    assert list(start["q"]) == ["orders"]
    new = QueuePlace("orders_new", "broker-a", 0)
    queues.bounds[new] = (2, 6)
    end = first.latest(start)
    queues.bounds[new] = (2, 9)
    for each in (first, query()):
        assert each.plan(kept(start), kept(end)) == [[Range(new, 2, 6)]]
    assert batches_of(first, end)[0] == [Range(new, 6, 9)]
    # A topic that is deleted keeps its place, and others go on.
    del queues.bounds[new]
    queues.bounds[QueuePlace("orders", "broker-a", 0)] = (0, 11)
    again = first.latest(end)
    assert first.plan(end, again) == [[Range(QueuePlace("orders", "broker-a", 0), 10, 11)]]
    assert again["q"]["orders_new"] == {"broker-a": {"0": 6}}


def test_a_pattern_that_matches_nothing_yet_waits() -> None:
    queues = Topics(others=(0, 5))
    options = read_source_options({"endpoints": "a:1", "subscribePattern": "orders"}, streaming=True)
    query = Stream(options, warn_nothing, connect=queues.connect, now_ms=lambda: NOW_MS)
    start = query.initial()
    end = query.latest(start)
    assert query.plan(start, end) == []
    queues.bounds[QueuePlace("orders", "broker-a", 0)] = (0, 1)
    assert batches_of(query, end)[0] == [Range(QueuePlace("orders", "broker-a", 0), 0, 1)]


# -- positions of a group ------------------------------------------------------------------------------


class Groups(Queues):
    """They have positions of groups, which may be refused."""

    def __init__(self, **bounds: tuple[int, int]) -> None:
        super().__init__(**bounds)
        self.positions: list[tuple[str, dict[QueuePlace, int]]] = []
        self.refusal: GatewayError | None = None

    def committed(self, group: str, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        return {}

    def commit(self, group: str, offsets: Mapping[QueuePlace, int]) -> None:
        if self.refusal is not None:
            raise SparkSourceError(Code.GATEWAY, self.refusal.sentence) from self.refusal
        self.positions.append((group, dict(offsets)))


def test_a_commit_that_is_late_or_comes_again_moves_nothing() -> None:
    """Spark commits a batch when it builds the next one, and once more after a restart."""
    queues = Groups(A=(0, 10), B=(0, 2))
    query = stream(queues, group="readers", maxOffsetsPerTrigger="6")
    first = query.latest(query.initial())
    second = query.latest(first, whole=True)
    for end in (second, kept(first), second, kept(second)):
        query.commit(end)
    assert queues.positions == [("readers", {A: 10, B: 2})]
    queues.bounds[A] = (0, 12)
    query.commit(query.latest(second))
    assert queues.positions[1:] == [("readers", {A: 12})]
    # Another process of the query says it once more; what is read does not go by it.
    again = stream(queues, group="readers")
    again.commit(kept(second))
    assert again.plan(kept(first), kept(second)) == query.plan(first, second)


def test_of_a_queue_that_is_gone_no_position_is_moved() -> None:
    queues = Groups(A=(0, 10), B=(0, 2))
    query = stream(queues, group="readers")
    end = query.latest(query.initial())
    # A process that begins anew has its place in the checkpoint.
    del queues.bounds[B]
    again = stream(queues, group="readers")
    assert again.latest(end) is end
    again.commit(kept(end))
    assert queues.positions == [("readers", {A: 10})]


def test_positions_that_are_refused_are_warned_of_and_told_with_the_next() -> None:
    queues, warnings = Groups(A=(0, 10)), list[str]()
    query = stream(queues, warnings.append, group="readers")
    end = query.latest(query.initial())
    queues.refusal = Forbidden("not yours")
    query.commit(end)
    assert "positions of group readers could not be moved: [ROCKETMQ_GATEWAY] not yours" in warnings[0]
    # It is made by the first who reads, and there was nothing to read yet.
    queues.refusal = GroupNotFound("readers")
    query.commit(end)
    assert len(warnings) == 1
    queues.refusal = None
    query.commit(end)
    assert queues.positions == [("readers", {A: 10})]


def test_a_group_that_is_beyond_the_end_is_told_of_in_a_stream_with_an_end() -> None:
    """Its position is of a topic that was deleted, as a rule."""

    class Ahead(Groups):
        def committed(self, group: str, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
            return dict.fromkeys(queues, 20)

    query = Stream(
        read_source_options({**LEAST, "group": "readers"}, streaming=True),
        warn_nothing,
        connect=Ahead(A=(0, 4)).connect,
    )
    query.end_here()
    with pytest.raises(SparkSourceError, match="ends at 4, and was read up to 20"):
        batches_of(query, query.initial())


@pytest.mark.parametrize(
    "given", [{}, {"endingTimestamp": "2"}, {"endingOffsets": '{"t":{"broker-a":{"0":2}}}'}]
)
def test_a_group_that_is_beyond_the_end_is_told_of_in_a_batch(given: dict[str, str]) -> None:
    class Ahead(Groups):
        def committed(self, group: str, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
            return dict.fromkeys(queues, 4)

    options = read_source_options({**LEAST, "group": "readers", **given}, streaming=False)
    # It has read all that is there.
    assert batch_plan(options, warn_nothing, connect=Ahead(A=(0, 4)).connect) == []
    with pytest.raises(SparkSourceError, match="ends at 3, and was read up to 4") as told:
        batch_plan(options, warn_nothing, connect=Ahead(A=(0, 3)).connect)
    assert told.value.code is Code.DATA_LOSS


@pytest.mark.parametrize("given", [{}, {"group": "readers", "commitOffsets": "false"}])
def test_without_a_group_or_with_commits_off_nothing_is_committed(given: dict[str, str]) -> None:
    queues = Groups(A=(0, 10))
    query = stream(queues, **given)
    query.commit(query.latest(query.initial()))
    assert queues.positions == []


# -- a gateway that cannot be reached -----------------------------------------------------------------


class Doors:
    """Fails so often before it lets one in."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left, self.error, self.rests = failures, error, list[float]()

    @contextmanager
    def connect(self, options: SourceOptions) -> Iterator[QueueClient]:
        if self.left:
            self.left -= 1
            raise SparkSourceError(Code.GATEWAY, str(self.error)) from self.error
        yield cast("QueueClient", "client")

    def ask(self, **given: str) -> Any:
        options = read_source_options({**LEAST, **given}, streaming=True)
        return asked(options, lambda client: client, connect=self.connect, rest=self.rests.append)


def test_a_gateway_that_comes_back_is_asked_again() -> None:
    doors = Doors(3, BrokerUnavailable("gone"))
    assert doors.ask(**{"fetchOffset.retryIntervalMs": "250"}) == "client"
    assert doors.rests == [0.25, 0.5, 1.0]


@pytest.mark.parametrize("error", [BrokerBusy("b"), BrokerTimeout("t"), Internal("i"), TooManyRequests("r")])
def test_whatever_may_pass_is_asked_again(error: GatewayError) -> None:
    doors = Doors(1, error)
    assert doors.ask() == "client"
    assert doors.rests == [0.1]


def test_a_gateway_that_is_started_anew_has_most_of_a_minute() -> None:
    doors = Doors(15, BrokerUnavailable("gone"))
    assert doors.ask() == "client"
    assert max(doors.rests) == 5.0
    assert sum(doors.rests) > 50


def test_a_pause_that_is_longer_from_the_start_stays_as_long() -> None:
    doors = Doors(2, BrokerUnavailable("gone"))
    doors.ask(**{"fetchOffset.retryIntervalMs": "9000"})
    assert doors.rests == [9.0, 9.0]


def test_a_gateway_that_does_not_come_back_is_told() -> None:
    doors = Doors(3, BrokerUnavailable("gone"))
    with pytest.raises(SparkSourceError, match="gone"):
        doors.ask(**{"fetchOffset.numRetries": "2"})
    assert len(doors.rests) == 2


def test_a_refusal_is_not_asked_for_again() -> None:
    doors = Doors(1, Forbidden("no"))
    with pytest.raises(SparkSourceError):
        doors.ask()
    assert doors.rests == []


def test_a_topic_that_is_not_there_yet_is_waited_for_when_a_query_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []
    queues = Queues(A=(0, 5))
    there = dict(queues.bounds)
    queues.bounds.clear()

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            queues.bounds |= there

    def asks(topic: str) -> list[QueuePlace]:
        if not queues.bounds:
            raise TopicNotFound(topic)
        return sorted(queues.bounds)

    monkeypatch.setattr(queues, "queues", asks)
    monkeypatch.setattr(driver_module, "asked", partial(asked, rest=rest))
    options = read_source_options(
        {**LEAST, "waitForTopic": "2500ms", "startingOffsets": "earliest"}, streaming=True
    )
    stream = Stream(options, print, connect=queues.connect)
    start = stream.initial()
    assert (rests, start["q"]) == ([1.0, 1.0, 0.5], {"t": {"broker-a": {"0": 0}}})
    stream.latest(start)
    queues.bounds.clear()
    # One that was there and is gone is not waited for.
    with pytest.raises(SparkSourceError, match="TOPIC_NOT_FOUND"):
        stream.latest(start)
    assert len(rests) == 3
    # And after its time it is told, as it is without.
    with pytest.raises(SparkSourceError, match="TOPIC_NOT_FOUND"):
        batch_plan(
            read_source_options({**LEAST, "waitForTopic": "2s"}, streaming=False),
            print,
            connect=queues.connect,
        )
    assert rests[3:] == [1.0, 1.0]


def test_an_idle_stream_ticks() -> None:
    queues, times = Queues(A=(0, 5)), [100.0]
    options = read_source_options({**LEAST, "idleTick": "10s", "startingOffsets": "earliest"}, streaming=True)
    stream = Stream(
        options, print, connect=queues.connect, now_ms=lambda: int(times[0] * 1000), now=lambda: times[0]
    )
    first = stream.latest(stream.initial())
    assert stream.tick(stream.initial(), first) is None
    times[0] += 9
    assert stream.latest(first) is first
    times[0] += 1
    tick = stream.latest(first)
    assert (tick["tick"], tick["q"]) == (1, first["q"])
    assert stream.plan(first, tick) == []
    # The same each time that the batch is planned, whatever time it is then.
    assert stream.tick(first, tick) == 110_000
    times[0] += 9
    assert stream.latest(tick) is tick
    queues.bounds[A] = (0, 6)
    more = stream.latest(tick)
    assert (more["tick"], stream.tick(tick, more)) == (1, None)
    times[0] += 10
    assert stream.latest(more)["tick"] == 2


def test_an_idle_stream_ticks_while_it_waits_for_more() -> None:
    queues, times = Queues(A=(0, 5)), [100.0]
    given = {"idleTick": "10s", "minOffsetsPerTrigger": "3", "startingOffsets": "earliest"}
    stream = Stream(
        read_source_options({**LEAST, **given}, streaming=True),
        print,
        connect=queues.connect,
        now_ms=lambda: int(times[0] * 1000),
        now=lambda: times[0],
    )
    first = stream.latest(stream.initial())
    times[0] += 10
    tick = stream.latest(first)
    assert stream.tick(first, tick) == 110_000
    # A tick would make messages late that are held back.
    queues.bounds[A] = (0, 7)
    times[0] += 10
    assert stream.latest(tick) is tick
    queues.bounds[A] = (0, 8)
    assert stream.latest(tick)["q"] == {"t": {"broker-a": {"0": 8}}}


def test_a_tick_is_no_later_than_the_look_at_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that comes behind it must not be late."""
    queues, times = Queues(A=(0, 5)), [100.0]
    options = read_source_options({**LEAST, "idleTick": "10s", "startingOffsets": "earliest"}, streaming=True)
    stream = Stream(
        options, print, connect=queues.connect, now_ms=lambda: int(times[0] * 1000), now=lambda: times[0]
    )
    first = stream.latest(stream.initial())
    times[0] += 10
    ends = queues.maximums

    def slow(asked: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        found = ends(asked)
        times[0] += 5
        return found

    monkeypatch.setattr(queues, "maximums", slow)
    assert stream.tick(first, stream.latest(first)) == 110_000


def test_a_stream_with_an_end_never_ticks() -> None:
    queues, times = Queues(A=(0, 5)), [100.0]
    options = read_source_options({**LEAST, "idleTick": "10s", "startingOffsets": "earliest"}, streaming=True)
    stream = Stream(options, print, connect=queues.connect, now=lambda: times[0])
    stream.end_here()
    first = stream.latest(stream.initial())
    times[0] += 100
    assert stream.latest(first) is first
