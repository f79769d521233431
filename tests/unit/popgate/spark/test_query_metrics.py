"""popgate.spark.query_metrics and listener: figures of queries, from what Spark tells of their triggers."""

from __future__ import annotations

import json
import logging
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import UUID

import pytest
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from popgate.spark.listener import RocketMQListener
from popgate.spark.query_metrics import Lag, QueryMetrics, lag_of, serve_text
from popgate.wire.bodies.query_reports import QueryReport, SourceLag
from tests.support.waiting import PATIENCE_S

ID = UUID(int=7)


def offset(*ends: int) -> str:
    """Of queues from 0 on."""
    told = {str(number): end for number, end in enumerate(ends)}
    return json.dumps({"v": 1, "q": {"t": {"broker-a": told}}})


def progress(**told: Any) -> StreamingQueryProgress:
    """Of one trigger, as Spark makes it."""
    source = {
        "description": "rocketmq",
        "startOffset": offset(0),
        "endOffset": offset(10, 5),
        "latestOffset": offset(14, 5),
        "numInputRows": 15,
        "inputRowsPerSecond": 3.5,
        "processedRowsPerSecond": 7.0,
    }
    return StreamingQueryProgress.fromJson(
        {
            "id": str(ID),
            "runId": str(UUID(int=8)),
            "name": "orders",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "batchId": 3,
            "batchDuration": 1500,
            "stateOperators": [],
            "sources": [source],
            "sink": {"description": "sink", "numOutputRows": -1},
            "numInputRows": 15,
            "inputRowsPerSecond": 3.5,
            "processedRowsPerSecond": 7.0,
            **told,
        }
    )


def values(metrics: QueryMetrics) -> dict[str, float]:
    """By name and labels, as a Prometheus reads them."""
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_lag_is_what_queues_have_and_the_query_has_not_read() -> None:
    assert lag_of(offset(10, 5), offset(14, 5)) == Lag(0, 4, 2.0, ("t",))
    # A queue that appeared since has nothing to be behind of yet; one that was read beyond is not ahead.
    assert lag_of(offset(10), offset(9, 7)) == Lag(0, 0, 0.0, ("t",))


@pytest.mark.parametrize("text", ["null", "None", "{}", '{"logOffset":3}', '{"v":1,"q":{}}', "7"])
def test_offsets_of_other_sources_have_no_lag(text: str) -> None:
    assert lag_of(offset(1), text) is None
    assert lag_of(text, text) is None


def test_a_trigger_is_figures() -> None:
    metrics = QueryMetrics()
    assert metrics.note("orders", progress()) == [Lag(0, 4, 2.0, ("t",))]
    assert values(metrics) == {
        'popgate_spark_lag_min{query="orders",source="0"}': 0,
        'popgate_spark_lag_max{query="orders",source="0"}': 4,
        'popgate_spark_lag_avg{query="orders",source="0"}': 2,
        'popgate_spark_input_rows_total{query="orders"}': 15,
        'popgate_spark_input_rows_per_second{query="orders"}': 3.5,
        'popgate_spark_processed_rows_per_second{query="orders"}': 7,
        'popgate_spark_batch_id{query="orders"}': 3,
        'popgate_spark_batch_seconds{query="orders"}': 1.5,
        'popgate_spark_state_rows{query="orders"}': 0,
        'popgate_spark_late_rows_total{query="orders"}': 0,
    }
    assert "# TYPE popgate_spark_input_rows_total counter\n" in metrics.text()


def test_rows_add_up_and_what_spark_does_not_tell_stays_as_it_was() -> None:
    metrics = QueryMetrics()
    states = [{"numRowsTotal": 9, "numRowsDroppedByWatermark": late} for late in (2, 3)]
    metrics.note("orders", {**progress(), "stateOperators": states})
    assert values(metrics)['popgate_spark_state_rows{query="orders"}'] == 18
    metrics.note(
        "orders", progress(numInputRows=None, inputRowsPerSecond=None, processedRowsPerSecond=float("nan"))
    )
    metrics.note("orders", progress())
    found = values(metrics)
    assert found['popgate_spark_input_rows_total{query="orders"}'] == 30
    assert found['popgate_spark_late_rows_total{query="orders"}'] == 5
    assert found['popgate_spark_processed_rows_per_second{query="orders"}'] == 7


def test_what_a_query_observes_of_itself_is_told() -> None:
    metrics = QueryMetrics()
    metrics.note("orders", progress(observedMetrics={"checks": {"bad": 3, "who": "nobody"}}))
    found = values(metrics)
    assert found['popgate_spark_observed{query="orders",name="checks",column="bad"}'] == 3
    assert not any("nobody" in name or "who" in name for name in found)


def test_names_are_escaped() -> None:
    metrics = QueryMetrics()
    metrics.note('a"b\\c\nd', progress())
    assert 'popgate_spark_batch_id{query="a\\"b\\\\c\\nd"} 3' in metrics.text()


def test_a_query_that_is_over_has_no_figures(caplog: pytest.LogCaptureFixture) -> None:
    listener = RocketMQListener()
    with caplog.at_level(logging.INFO):
        listener.onQueryStarted(QueryStartedEvent(ID, UUID(int=8), "orders", "now", set()))
        listener.onQueryProgress(QueryProgressEvent(progress()))
        assert values(listener.metrics)
        listener.onQueryTerminated(QueryTerminatedEvent(ID, UUID(int=8), "it broke", None))
    assert listener.metrics.text() == ""
    assert [record.getMessage() for record in caplog.records] == [
        "query orders started",
        "query orders: batch 3 of 15 rows in 1500 ms, queues are behind by 0 to 4, 2.0 on average",
        "query orders failed: it broke",
    ]


def test_a_query_that_fails_before_its_first_trigger_is_known_by_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = RocketMQListener()
    listener.onQueryStarted(QueryStartedEvent(ID, UUID(int=8), "orders", "now", set()))
    listener.onQueryTerminated(QueryTerminatedEvent(ID, UUID(int=8), "it broke", None))
    assert [record.getMessage() for record in caplog.records] == ["query orders failed: it broke"]


def test_a_query_without_a_name_is_known_by_its_id() -> None:
    listener = RocketMQListener()
    listener.onQueryProgress(QueryProgressEvent(progress(name=None)))
    assert f'popgate_spark_batch_id{{query="{ID}"}} 3' in listener.metrics.text()
    listener.onQueryTerminated(QueryTerminatedEvent(ID, UUID(int=8), None, None))
    assert listener.metrics.text() == ""


def test_a_gateway_is_told_of_queries_that_read_topics() -> None:
    metrics = QueryMetrics()
    metrics.note("orders", progress(observedMetrics={"checks": {"bad": 3}}))
    report = metrics.report("orders")
    assert report is not None
    assert (report.query, report.sources) == ("orders", (SourceLag(0, ("t",), 0, 4, 2.0),))
    assert report.figures == {
        "input_rows_total": 15,
        "input_rows_per_second": 3.5,
        "processed_rows_per_second": 7,
        "batch_id": 3,
        "batch_seconds": 1.5,
        "state_rows": 0,
        "late_rows_total": 0,
    }
    metrics.forget("orders")
    assert metrics.report("orders") is None
    metrics.note("other", {**progress(), "sources": []})
    assert metrics.report("other") is None


def test_a_listener_reports_what_it_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Reporter:
        def __init__(self, given: dict[str, str]) -> None:
            told.append(given)

        def put(self, report: QueryReport) -> None:
            told.append((report.query, report.figures["batch_id"]))

        def end(self, query: str) -> None:
            told.append(query)

        def close(self) -> None:
            told.append("closed")

    monkeypatch.setattr("popgate.spark.listener.QueryReporter", Reporter)
    listener = RocketMQListener({"endpoints": "a:1"})
    listener.onQueryProgress(QueryProgressEvent(progress()))
    listener.onQueryProgress(QueryProgressEvent(progress(sources=[])))
    listener.onQueryTerminated(QueryTerminatedEvent(ID, UUID(int=8), None, None))
    listener.close()
    assert told == [{"endpoints": "a:1"}, ("orders", 3), "orders", "closed"]
    RocketMQListener().close()


def test_figures_are_served() -> None:
    server = serve_text(lambda: "figures é\n", port=0)
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        with urlopen(f"{address}/metrics", timeout=PATIENCE_S) as answer:
            assert answer.read().decode() == "figures é\n"
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(HTTPError, match="404") as refused:
            urlopen(f"{address}/other", timeout=PATIENCE_S)
        refused.value.close()
    finally:
        server.shutdown()
        server.server_close()
