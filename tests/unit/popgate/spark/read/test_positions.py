"""popgate.spark.read.positions: where to begin and to end, with queues that the test makes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from popgate.errors import TopicNotFound
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.source_options import SourceOptions, read_source_options
from popgate.spark.read.positions import ends_of, queues_of, starts_of
from tests.unit.popgate.spark import queues as made_up
from tests.unit.popgate.spark.queues import A, B

BOTH = [A, B]
LATE_MS = 1_000


class Queues(made_up.Queues):
    """The group readers is at 15 of A."""

    def committed(self, group: str, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        return {queue: 15 for queue in queues if queue == A and group == "readers"}


CLIENT = cast("QueueClient", Queues(A=(10, 30), B=(0, 5)))


def options(*, streaming: bool = False, **given: str) -> SourceOptions:
    return read_source_options({"endpoints": "a:1", "topic": "t", **given}, streaming=streaming)


def starts(*, streaming: bool = False, **given: str) -> dict[QueuePlace, int]:
    return starts_of(CLIENT, options(streaming=streaming, **given), BOTH)


def ends(**given: str) -> dict[QueuePlace, int]:
    return ends_of(CLIENT, options(**given), BOTH)


def test_all_queues_of_all_topics_are_read() -> None:
    assert queues_of(CLIENT, options()) == BOTH


@pytest.mark.parametrize(
    ("name", "value"),
    [("topic", "gone"), ("subscribe", "orders,gone"), ("assign", '{"gone":{"broker-a":[0]}}')],
)
def test_a_topic_that_is_not_there_is_told_with_the_option_that_names_it(name: str, value: str) -> None:
    class Gone(Named):
        def queues(self, topic: str) -> list[QueuePlace]:
            if topic == "gone":
                raise TopicNotFound(topic)
            return super().queues(topic)

    told = read_source_options({"endpoints": "a:1", name: value}, streaming=False)
    with pytest.raises(
        SparkSourceError, match=f"TOPIC_NOT_FOUND: topic gone .*option {name} names it: create"
    ):
        queues_of(cast("QueueClient", Gone()), told)


def test_a_topic_that_may_not_be_read_is_told_with_the_option_that_names_it() -> None:
    with pytest.raises(
        SparkSourceError, match="FORBIDDEN: topic closed has no queue that may be read; option"
    ):
        queues_of(CLIENT, options(topic="closed"))


class Named(made_up.Queues):
    """Topics of one queue each, of which one is gone when its queues are asked for."""

    def topics(self) -> list[str]:
        return ["orders", "orders-gone", "orders-new", "other-orders"]

    def queues(self, topic: str) -> list[QueuePlace]:
        if topic == "orders-gone":
            raise TopicNotFound(topic)
        return [QueuePlace(topic, "broker-a", 0)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders.*", ["orders", "orders-new"]),
        ("orders", ["orders"]),
        (".*orders", ["orders", "other-orders"]),
        ("order", []),
    ],
)
def test_topics_are_matched_by_their_whole_names(pattern: str, found: list[str]) -> None:
    told = read_source_options({"endpoints": "a:1", "subscribePattern": pattern}, streaming=False)
    assert [queue.topic for queue in queues_of(cast("QueueClient", Named()), told)] == found


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (".*", ["shop%bills", "shop%orders", "shop%shop%orders"]),
        ("orders", ["shop%orders"]),
        ("shop%.*", ["shop%shop%orders"]),
    ],
)
def test_a_pattern_matches_names_in_its_namespace(pattern: str, found: list[str]) -> None:
    class InNamespaces(Named):
        def topics(self) -> list[str]:
            return ["orders", "shop%bills", "shop%orders", "shop%shop%orders", "shop2%orders", "shopping"]

    told = read_source_options(
        {"endpoints": "a:1", "subscribePattern": pattern, "rocketmq.client.namespace": "shop"},
        streaming=False,
    )
    assert [queue.topic for queue in queues_of(cast("QueueClient", InNamespaces()), told)] == found


def test_those_that_are_assigned_are_read_and_no_others() -> None:
    given = {"endpoints": "a:1", "assign": '{"t":{"broker-a":[1]}}'}
    assert queues_of(CLIENT, read_source_options(given, streaming=False)) == [B]


def test_an_assigned_queue_that_is_not_there_is_refused_with_those_that_are() -> None:
    given = {"endpoints": "a:1", "assign": '{"t":{"broker-b":[1]}}'}
    with pytest.raises(SparkSourceError, match=r"queue 1 of t on broker-b.*broker-a/0, broker-a/1"):
        queues_of(CLIENT, read_source_options(given, streaming=False))


def test_a_batch_is_from_the_earliest_to_the_latest() -> None:
    assert (starts(), ends()) == ({A: 10, B: 0}, {A: 30, B: 5})


def test_a_stream_begins_at_the_latest() -> None:
    assert starts(streaming=True) == {A: 30, B: 5}


def test_offsets_by_queue_and_the_earliest_where_none_is_told() -> None:
    assert starts(startingOffsets='{"t":{"broker-a":{"0":12}}}') == {A: 12, B: 0}
    assert starts(streaming=True, startingOffsets='{"t":{"broker-a":{"0":-2,"1":-1}}}') == {A: 10, B: 5}


def test_ends_by_queue_and_the_latest_where_none_is_told() -> None:
    assert ends(endingOffsets='{"t":{"broker-a":{"0":12}}}') == {A: 12, B: 5}


def test_an_offset_that_retention_took_is_left_to_the_plan() -> None:
    assert starts(startingOffsets='{"t":{"broker-a":{"0":3}}}')[A] == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"t":{"broker-a":{"0":31}}}', "31 for queue 0 of t on broker-a, which ends at 30"),
        ('{"t":{"broker-a":{"7":1}}}', "queue 7 of t on broker-a, which is none of those read"),
    ],
)
def test_an_offset_that_cannot_be_is_refused(text: str, says: str) -> None:
    with pytest.raises(SparkSourceError, match=f"option startingOffsets .*{says}") as refused:
        starts(startingOffsets=text)
    assert refused.value.code is Code.ILLEGAL_OFFSET


def test_a_time_is_the_first_offset_stored_then_or_later() -> None:
    assert starts(startingTimestamp="3") == {A: 10, B: 3}
    assert ends(endingTimestamp="20") == {A: 20, B: 5}


def test_queues_without_a_time_are_read_as_a_whole() -> None:
    text = '{"t":{"broker-a":{"0":20}}}'
    assert starts(startingOffsetsByTimestamp=text) == {A: 20, B: 0}
    assert ends(endingOffsetsByTimestamp=text) == {A: 20, B: 5}


def test_a_time_after_everything_is_refused_or_the_end() -> None:
    with pytest.raises(SparkSourceError, match=r"nothing stored at 1000 ms or after.*Strategy=latest"):
        starts(startingTimestamp=str(LATE_MS))
    found = starts(startingTimestamp=str(LATE_MS), startingOffsetsByTimestampStrategy="latest")
    assert found == {A: 30, B: 5}
    assert ends(endingTimestamp=str(LATE_MS)) == {A: 30, B: 5}


def test_a_group_begins_where_it_is_and_elsewhere_by_the_fallback() -> None:
    assert starts(group="readers") == {A: 15, B: 0}
    assert starts(group="readers", startingOffsetsFallback="latest") == {A: 15, B: 5}
    assert starts(streaming=True, group="readers") == {A: 15, B: 5}
    assert starts(group="others") == {A: 10, B: 0}
