"""Brokers that were slow or failed are left alone, by RocketMQ's table (protocol facts 6.3)."""

from __future__ import annotations

import pytest

from brokers.remote.produce.broker_latency import BrokerLatency


@pytest.mark.parametrize(
    ("took_s", "rest_s"),
    [
        *((0.01, 0), (0.05, 0), (0.1, 0), (0.54, 0), (0.55, 2), (1.7, 2), (1.8, 5)),
        *((2.9, 5), (3.0, 6), (5.0, 10), (14.0, 10), (15.0, 30), (600.0, 30)),
    ],
)
def test_how_long_a_broker_is_left_alone(took_s, rest_s):
    latency = BrokerLatency()
    latency.answered("a", took_s, 100.0)
    assert latency.available("a", 100.0 + rest_s)
    assert latency.available("b", 100.0)
    if rest_s:
        assert not latency.available("a", 100.0 + rest_s - 0.01)


def test_a_failure_counts_as_a_slow_answer_and_a_quick_one_forgives():
    latency = BrokerLatency()
    latency.failed("a", 0.0)
    assert not latency.available("a", 9.9)
    latency.answered("a", 0.02, 1.0)
    assert latency.available("a", 1.0)
    assert len(latency) == 0
