"""popgate.spark.read.compaction: what a compacted topic keeps, with queues that the test makes up."""

from __future__ import annotations

from typing import Any, cast

import pytest

from popgate.errors import BrokerUnavailable, Forbidden, GatewayError, Internal, TopicNotFound, Unsupported
from popgate.model import Bounds
from popgate.queue_client import PullAnswer, QueueClient, QueuePlace
from popgate.spark.read.compaction import is_compacted, is_removed, minimums_of
from popgate.wire.bodies.configs import TopicConfig
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.hosts import NOWHERE
from popgate.wire.messages.records import encode_record
from tests.unit.popgate.spark.queues import A, B, Queues


class Refusing(Queues):
    """Tells the settings of no topic."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(A=(5, 9))
        self.error = error

    def topic_config(self, topic: str) -> TopicConfig:
        raise self.error


def test_of_a_compacted_topic_everything_may_be_asked_for() -> None:
    """The minimum of a RocketMQ broker is that of the log of all messages, which retention shortens."""
    queues = Queues(A=(5, 9), B=(0, 3))
    client = cast("QueueClient", queues)
    assert minimums_of(client, {A: 0, B: 0}) == {A: 5, B: 0}
    queues.is_compacted = True
    assert minimums_of(client, {A: 0, B: 0}) == {A: 0, B: 0}


def test_settings_are_asked_for_where_something_seems_to_be_gone() -> None:
    queues = Refusing(Forbidden("no"))
    client = cast("QueueClient", queues)
    assert minimums_of(client, {A: 0}) == {A: 5}
    queues.error = BrokerUnavailable("gone")
    assert minimums_of(client, {A: 5}) == {A: 5}
    with pytest.raises(BrokerUnavailable):
        minimums_of(client, {A: 4})


@pytest.mark.parametrize("error", [Forbidden("no"), Internal("why?"), Unsupported("it"), TopicNotFound("t")])
def test_who_does_not_tell_leaves_it_open(error: GatewayError) -> None:
    assert is_compacted(cast("QueueClient", Refusing(error)), "t") is None


# -- what a pull passed over ---------------------------------------------------------------------------


class Answering(Queues):
    """Answers pulls from the minimum of queue A, 2, or from offset 3, with what the test gives."""

    def __init__(self, at_minimum: PullAnswer, before: PullAnswer) -> None:
        super().__init__(A=(2, 99))
        self.answers = {2: at_minimum, 3: before}

    def pull(self, queue: QueuePlace, offset: int, *, most: int) -> PullAnswer:
        assert (queue, most) == (A, 1)
        return self.answers[offset]


def answer_of(body: bytes, reached: int, code: int = ResponseCode.SUCCESS) -> PullAnswer:
    return PullAnswer(code, reached, Bounds(2, 99), body)


def record(offset: int, topic: bytes = b"t") -> bytes:
    return encode_record(topic, 0, offset, 0, b"body", b"", 0, 0, 0, NOWHERE, 0, NOWHERE)


def looked(queues: Queues, offset: int, shown_at_s: float) -> tuple[bool, float]:
    """Whether it was removed, and the time that it took to know; the minimum is 9 from a time on."""
    at_s = 0.0

    def rest(seconds: float) -> None:
        nonlocal at_s
        at_s += seconds
        if at_s >= shown_at_s:
            queues.bounds[A] = (9, 99)

    ask: Any = {"now": lambda: at_s, "rest": rest}
    return is_removed(cast("QueueClient", queues), A, offset, **ask), at_s


NONE = answer_of(b"", 99, ResponseCode.PULL_RETRY_IMMEDIATELY)


@pytest.mark.parametrize(
    "queues",
    [
        Answering(NONE, answer_of(record(3), 4)),
        # As where a range begins within a gap; the first messages may be gone, and the minimum is late.
        Answering(answer_of(record(2), 3), NONE),
        Answering(answer_of(record(3), 4), answer_of(record(9), 10)),
    ],
)
def test_while_an_older_message_is_there_nothing_is_removed(queues: Answering) -> None:
    assert looked(queues, 4, 5.0) == (False, 0.0)


@pytest.mark.parametrize(("shown_at_s", "expected"), [(5.0, (True, 5.0)), (1_000.0, (False, 30.0))])
@pytest.mark.parametrize(
    "answer",
    [
        NONE,
        answer_of(record(9), 10),
        # For the first of its log a broker answers with one of another file.
        answer_of(record(3), 3),
        answer_of(record(2, b"other"), 3),
        answer_of(record(3, b"other"), 4),
        answer_of(b"damaged", 3),
    ],
)
def test_where_none_is_there_the_minimum_is_waited_for(
    answer: PullAnswer, shown_at_s: float, expected: tuple[bool, float]
) -> None:
    assert looked(Answering(answer, NONE), 4, shown_at_s) == expected
    assert looked(Answering(NONE, answer), 4, shown_at_s) == expected


def test_a_gap_at_the_beginning_is_waited_for() -> None:
    assert looked(Queues(A=(4, 99)), 4, 5.0) == (True, 5.0)
    assert looked(Queues(A=(9, 99)), 4, 5.0) == (True, 0.0)


class Failing(Queues):
    def pull(self, queue: QueuePlace, offset: int, *, most: int) -> PullAnswer:
        raise BrokerUnavailable("gone")


def test_a_look_that_fails_fails() -> None:
    """A task continues where it was, and looks again."""
    with pytest.raises(BrokerUnavailable):
        looked(Failing(A=(2, 99)), 4, 5.0)
