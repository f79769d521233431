"""popgate.spark.read.trigger_limits: the size of a batch, with messages of sizes that the test sets."""

from __future__ import annotations

from typing import cast

import pytest

from popgate.errors import BrokerUnavailable
from popgate.model import Bounds
from popgate.queue_client import PullAnswer, QueueClient, QueuePlace
from popgate.spark.options.source_options import read_source_options
from popgate.spark.read.trigger_limits import Limits
from popgate.wire.frames.codes import ResponseCode
from tests.unit.popgate.spark.queues import A, B, C


class Pulls:
    """Answers each pull with messages of one size; `passing` of every hundred offsets have one."""

    def __init__(self, size: int, passing: int = 100) -> None:
        self.size, self.passing = size, passing
        self.code: int = ResponseCode.SUCCESS
        self.asked: list[tuple[QueuePlace, int, int, str, str]] = []

    def start_pull(self, queue: QueuePlace, offset: int, *, most: int, expression: str, kind: str) -> int:
        self.asked.append((queue, offset, most, expression, kind))
        return len(self.asked) - 1

    def finish_pull(self, number: int, queue: QueuePlace, *, timeout_s: float) -> PullAnswer:
        _, offset, most, *_ = self.asked[number]
        if self.code == ResponseCode.PULL_OFFSET_MOVED:
            return PullAnswer(self.code, offset + 50, Bounds(offset + 50, 1000), b"")
        body = bytes(self.size * most * self.passing // 100)
        return PullAnswer(self.code, offset + most, Bounds(0, 1000), body)

    @property
    def client(self) -> QueueClient:
        return cast("QueueClient", self)


def limits(**given: str) -> Limits:
    options = {"endpoints": "a:1", "topic": "t", "pullBatchSize": "10", **given}
    return Limits(read_source_options(options, streaming=True), lambda: 0.0)


def taken(pulls: Pulls, limits: Limits, size: int = 100) -> int:
    return limits.applied(pulls.client, {A: 0}, {A: size})[A]


def test_without_limits_everything_is_taken_and_nothing_is_read_for_it() -> None:
    pulls = Pulls(100)
    assert taken(pulls, limits()) == 100
    assert taken(pulls, limits(maxOffsetsPerTrigger="7")) == 7
    assert pulls.asked == []


def test_bytes_are_offsets_of_the_size_that_messages_have() -> None:
    pulls = Pulls(100)
    assert taken(pulls, limits(maxBytesPerTrigger="2000")) == 20
    assert taken(pulls, limits(maxBytesPerTrigger="1m")) == 100
    assert taken(pulls, limits(maxBytesPerTrigger="10")) == 1
    assert pulls.asked[0] == (A, 0, 10, "*", "TAG")


def test_the_smaller_of_two_limits_counts() -> None:
    assert taken(Pulls(100), limits(maxBytesPerTrigger="2000", maxOffsetsPerTrigger="10")) == 10
    assert taken(Pulls(100), limits(maxBytesPerTrigger="2000", maxOffsetsPerTrigger="30")) == 20


def test_sizes_are_a_running_mean() -> None:
    pulls, its = Pulls(100), limits(maxBytesPerTrigger="3000")
    assert taken(pulls, its) == 30
    pulls.size = 200
    assert taken(pulls, its) == 20
    assert taken(pulls, its) == 17


def test_what_a_filter_leaves_out_has_no_bytes() -> None:
    pulls = Pulls(100, passing=50)
    assert taken(pulls, limits(maxBytesPerTrigger="2000", sql92="a = 1")) == 40
    assert pulls.asked[0][3:] == ("a = 1", "SQL92")
    pulls.passing, pulls.code = 0, ResponseCode.PULL_RETRY_IMMEDIATELY
    assert taken(pulls, limits(maxBytesPerTrigger="20", tag="a")) == 20


def test_the_fullest_queues_are_looked_into() -> None:
    more = QueuePlace("t", "broker-a", 3), QueuePlace("t", "broker-a", 4)
    queues = dict(zip((A, B, C, *more), (5, 50, 40, 30, 20), strict=True))
    pulls = Pulls(100)
    limits(maxBytesPerTrigger="100").applied(pulls.client, dict.fromkeys(queues, 0), queues)
    assert [queue for queue, *_ in pulls.asked] == [B, C, *more]


def test_where_nothing_could_be_looked_at_sizes_are_as_before_or_assumed() -> None:
    pulls, its = Pulls(100), limits(maxBytesPerTrigger="10k")
    pulls.code = ResponseCode.PULL_OFFSET_MOVED
    assert taken(pulls, its) == 10
    pulls.code = ResponseCode.SUCCESS
    assert taken(pulls, its, 1000) == 102
    pulls.code = ResponseCode.PULL_OFFSET_MOVED
    assert taken(pulls, its, 1000) == 102


def test_idle_queues_are_not_read() -> None:
    pulls = Pulls(100)
    assert taken(pulls, limits(maxBytesPerTrigger="10"), 0) == 0
    assert pulls.asked == []


def test_what_fails_is_told() -> None:
    class Gone(Pulls):
        def finish_pull(self, number: int, queue: QueuePlace, *, timeout_s: float) -> PullAnswer:
            raise BrokerUnavailable("gone")

    with pytest.raises(BrokerUnavailable):
        taken(Gone(1), limits(maxBytesPerTrigger="10"))
