"""popgate.spark.offsets: the form in the checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.offsets import StreamOffset, started

A, B = QueuePlace("t", "broker-a", 0), QueuePlace("t", "broker-a", 10)
C, D = QueuePlace("t", "broker-a", 9), QueuePlace("s", "broker-b", 1)


def test_the_same_offsets_are_the_same_text_whatever_their_order() -> None:
    offsets = {A: 1, B: 2, C: 3, D: 4}
    text = json.dumps(StreamOffset(offsets).encode())
    assert json.dumps(StreamOffset(dict(reversed(offsets.items()))).encode()) == text
    assert (
        text == '{"v": 1, "q": {"s": {"broker-b": {"1": 4}}, "t": {"broker-a": {"0": 1, "9": 3, "10": 2}}}}'
    )


def test_what_is_written_is_read() -> None:
    for offset in (
        StreamOffset({A: 5}),
        StreamOffset({A: 5, B: 0}, starts={A: 1, B: 0}),
        StreamOffset({A: 5, D: 7}, new={D: 2}),
        StreamOffset({}, initial=True),
    ):
        assert StreamOffset.decode(json.loads(json.dumps(offset.encode()))) == offset


def test_a_batch_begins_where_the_one_before_ended_and_new_queues_where_they_did() -> None:
    assert started(StreamOffset({A: 5}), StreamOffset({A: 9, D: 4}, new={D: 2})) == {A: 5, D: 2}


def test_the_first_batch_begins_where_it_was_planned_whatever_the_start_is_now() -> None:
    first = StreamOffset({A: 15}, starts={A: 10})
    assert started(StreamOffset({A: 20}, initial=True), first) == {A: 10}


def test_a_queue_that_began_nowhere_is_refused() -> None:
    with pytest.raises(SparkSourceError, match="queue 1 of s on broker-b"):
        started(StreamOffset({A: 5}), StreamOffset({A: 9, D: 4}))


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {"v": 2, "q": {}},
        {"v": True, "q": {}},
        {"v": 1},
        {"v": 1, "q": {}, "x": 1},
        {"v": 1, "q": {}, "initial": 1},
        {"v": 1, "q": {"t": 1}},
        {"v": 1, "q": {"": {}}},
        {"v": 1, "q": {"t": {"b": {"00": 1}}}},
        {"v": 1, "q": {"t": {"b": {"²": 1}}}},
        {"v": 1, "q": {"t": {"b": {"9999999999": 1}}}},
        {"v": 1, "q": {"t": {"b": {"0": -1}}}},
        {"v": 1, "q": {"t": {"b": {"0": 1 << 63}}}},
        {"v": 1, "q": {"t": {"b": {"0": 1.0}}}},
        {"v": 1, "q": {}, "from": 1},
        {"v": 1, "q": {}, "new": None},
    ],
)
def test_a_damaged_offset_is_refused(told: Any) -> None:
    with pytest.raises(SparkSourceError) as refused:
        StreamOffset.decode(told)
    assert refused.value.code is Code.ILLEGAL_OFFSET
