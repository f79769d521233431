"""Streaming queries in the metrics, as their drivers report them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from popgate.wire.bodies.query_reports import QueryReport, SourceLag
from proxy.metrics import Metrics
from proxy.metrics.merged_scrapes import Sum
from proxy.metrics.names import SPECS

REPORT = QueryReport(
    'the "orders"',
    (SourceLag(0, ("t",), 0, 7, 3.5), SourceLag(2, ("u",), 1, 2, 1.5)),
    {"batch_id": 3, "input_rows_total": 40},
)


def told(text: str) -> dict[tuple[str, str, str], float]:
    return {
        (sample.name, sample.labels["query"], sample.labels.get("source", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("popgate_spark_")
    }


def test_a_report_is_told_with_its_age() -> None:
    metrics = Metrics()
    metrics.queries = lambda: [(REPORT, 12.5)]
    name = REPORT.query
    text = metrics.text().decode()
    assert told(text) == {
        ("popgate_spark_lag_min", name, "0"): 0,
        ("popgate_spark_lag_max", name, "0"): 7,
        ("popgate_spark_lag_avg", name, "0"): 3.5,
        ("popgate_spark_lag_min", name, "2"): 1,
        ("popgate_spark_lag_max", name, "2"): 2,
        ("popgate_spark_lag_avg", name, "2"): 1.5,
        ("popgate_spark_batch_id", name, ""): 3,
        ("popgate_spark_input_rows_total", name, ""): 40,
        ("popgate_spark_trigger_age_seconds", name, ""): 12.5,
    }
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    for spec in SPECS.values():
        if spec.name.startswith("popgate_spark_"):
            assert kinds[spec.name.removesuffix("_total")] == spec.kind


def test_of_several_processes_the_larger_figure_is_told() -> None:
    """One of them may know what was reported before the driver's connection went to another one."""
    whole = Sum()
    for lag in (7, 5):
        metrics = Metrics()
        metrics.queries = lambda lag=lag: [(QueryReport("q", (SourceLag(0, ("t",), 0, lag, lag),)), 1)]
        whole.add(metrics.text().decode())
    assert told(whole.text())["popgate_spark_lag_max", "q", "0"] == 7
