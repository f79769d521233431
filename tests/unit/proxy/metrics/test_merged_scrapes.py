"""proxy.metrics.merged_scrapes: several scrapes as one."""

from __future__ import annotations

import math

import pytest

from popgate.errors import Fault
from proxy.metrics import Metrics
from proxy.metrics.merged_scrapes import Sum, lasting
from proxy.metrics.names import SPECS

ONE = """# HELP popgate_messages_sent_total Messages stored.
# TYPE popgate_messages_sent_total counter
popgate_messages_sent_total{topic="a b}"} 3.0
# HELP popgate_group_lag Lag.
# TYPE popgate_group_lag gauge
popgate_group_lag{topic="t",group="g"} 7.0
# HELP popgate_clients Clients known.
# TYPE popgate_clients gauge
popgate_clients 2.0
# HELP popgate_send_duration_seconds Time.
# TYPE popgate_send_duration_seconds histogram
popgate_send_duration_seconds_bucket{topic="t",le="0.1"} 1.0
popgate_send_duration_seconds_bucket{topic="t",le="+Inf"} 2.0
popgate_send_duration_seconds_sum{topic="t"} 0.5
popgate_send_duration_seconds_count{topic="t"} 2.0
"""
OTHER = """# HELP popgate_messages_sent_total Messages stored.
# TYPE popgate_messages_sent_total counter
popgate_messages_sent_total{topic="a b}"} 4.0
popgate_messages_sent_total{topic="new"} 1.0
# TYPE popgate_group_lag gauge
popgate_group_lag{topic="t",group="g"} 5.0
# TYPE popgate_clients gauge
popgate_clients 5.0
# TYPE popgate_send_duration_seconds histogram
popgate_send_duration_seconds_bucket{topic="t",le="0.1"} 2.0
popgate_send_duration_seconds_bucket{topic="t",le="+Inf"} 2.0
popgate_send_duration_seconds_sum{topic="t"} 0.25
popgate_send_duration_seconds_count{topic="t"} 2.0
# TYPE popgate_broker_host_connected gauge
popgate_broker_host_connected 0.0
"""


def summed(*texts: str) -> dict[str, float]:
    total = Sum()
    for text in texts:
        total.add(text)
    lines = [line for line in total.text().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_counters_and_histograms_are_added_and_gauges_as_each_says() -> None:
    assert summed(ONE, OTHER) == {
        'popgate_messages_sent_total{topic="a b}"}': 7.0,
        'popgate_messages_sent_total{topic="new"}': 1.0,
        'popgate_group_lag{topic="t",group="g"}': 7.0,
        "popgate_clients": 7.0,
        'popgate_send_duration_seconds_bucket{topic="t",le="0.1"}': 3.0,
        'popgate_send_duration_seconds_bucket{topic="t",le="+Inf"}': 4.0,
        'popgate_send_duration_seconds_sum{topic="t"}': 0.75,
        'popgate_send_duration_seconds_count{topic="t"}': 4.0,
        "popgate_broker_host_connected": 0.0,
    }


def test_each_metric_is_introduced_once() -> None:
    total = Sum()
    total.add(ONE)
    total.add(OTHER)
    heads = [line for line in total.text().splitlines() if line.startswith("#")]
    assert heads == [line for line in ONE.splitlines() if line.startswith("#")] + [
        "# TYPE popgate_broker_host_connected gauge"
    ]


def test_only_what_must_not_go_back_lasts() -> None:
    kept = lasting(ONE)
    assert "popgate_messages_sent_total{" in kept
    assert "popgate_send_duration_seconds_bucket{" in kept
    assert "popgate_clients" not in kept
    assert "popgate_group_lag" not in kept
    # Each process tells the same of these: what one of them told is not added to what others tell.
    text = "# TYPE popgate_group_redeliveries_total counter\npopgate_group_redeliveries_total 5\n"
    assert lasting(text) == ""
    assert summed(text, text) == {"popgate_group_redeliveries_total": 5.0}


def test_the_sum_of_one_scrape_says_what_the_scrape_said() -> None:
    metrics = Metrics()
    metrics.figures = lambda: {"clients": 3, "of_another_broker": 2, "broker_store_writes_total": 9}
    metrics.counters.sent("orders", 5, 500, 0.01)
    metrics.counters.received("orders", "g", 2, 200, 0.02)
    metrics.counters.failed("send", Fault.INTERNAL)
    metrics.counters.answered("SendMessage", "OK", 0.01)
    text = metrics.text().decode()
    total = Sum()
    total.add(text)

    def parsed(told: str) -> dict[str, float]:
        lines = [line for line in told.splitlines() if line and not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    # The process itself is looked at anew by each scrape.
    assert parsed(total.text()) == parsed(text)
    assert [line for line in total.text().splitlines() if line.startswith("# TYPE popgate")] == [
        line
        for line in text.splitlines()
        if line.startswith("# TYPE popgate") and f"\n{line.split()[2]}" in text
    ]


def test_gauges_that_nobody_declared_are_of_the_broker_and_not_added() -> None:
    text = "# TYPE popgate_broker_something gauge\npopgate_broker_something 4\n"
    assert summed(text, text) == {"popgate_broker_something": 4.0}


def test_of_processes_the_first_start_and_the_sum_of_memory_are_told() -> None:
    texts = [
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n"
        f"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {size}\n"
        "# TYPE python_info gauge\npython_info 1\n"
        for start, size in ((20, 100), (10, 50))
    ]
    assert summed(*texts) == {
        "process_start_time_seconds": 10.0,
        "process_resident_memory_bytes": 150.0,
        "python_info": 1.0,
    }


def test_what_is_no_sample_is_passed_over_and_odd_numbers_stay() -> None:
    found = summed("nonsense\n\n# odd\n# HELP\nx y z\na +Inf\nb NaN\nc -Inf\n 5\n")
    assert found["a"] == math.inf
    assert math.isnan(found["b"])
    assert found["c"] == -math.inf
    assert len(found) == 3


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_histograms_are_always_added(spec) -> None:
    assert spec.kind != "histogram" or spec.over == "sum"
