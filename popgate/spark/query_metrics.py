"""Metrics of streaming queries, lag and throughput, in the text format of Prometheus.

They are computed from the progress events of Spark (`popgate.spark.listener`).
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from popgate.spark.errors import SparkSourceError
from popgate.spark.offsets import StreamOffset
from popgate.wire.bodies.query_reports import FIGURES, LAGS, QueryReport, SourceLag

_PREFIX: Final = "popgate_spark_"
_METRICS: Final = {
    **{name: ("gauge", help_text) for name, help_text in LAGS.items()},
    **FIGURES,
    "observed": ("gauge", "What the query observes of itself, by the name and the column of observe()."),
}
"""Type and help, by name."""
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Lag:
    """Offsets between where a query is and where queues end."""

    least: int
    most: int
    mean: float
    topics: tuple[str, ...] = ()
    """Of these queues, by name."""


def lag_of(end: str, latest: str) -> Lag | None:
    """The lag between two offsets of a source, from Spark's progress; None: missing, or of another source.

    Queues that vanished have no lag.
    """
    try:
        reached, there = (StreamOffset.decode(json.loads(text)).queues for text in (end, latest))
    except (ValueError, SparkSourceError):
        return None
    behind = [max(offset - reached.get(queue, offset), 0) for queue, offset in there.items()]
    if not behind:
        return None
    topics = tuple(sorted({queue.topic for queue in there}))
    return Lag(min(behind), max(behind), sum(behind) / len(behind), topics)


class QueryMetrics:
    """The figures of all queries of a driver. It may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, dict[str, dict[_Labels, float]]] = {}
        """By query, metric and labels."""
        self._sources: dict[str, tuple[SourceLag, ...]] = {}
        """By query, those that are of this connector."""

    def note(self, query: str, progress: Mapping[str, Any]) -> list[Lag]:
        """Record Spark's progress of a trigger; returns the lags of the sources of this connector."""
        lags = []
        sources = []
        with self._lock:
            samples = self._queries.setdefault(query, {})

            def tell(name: str, value: float | None, labels: _Labels = ()) -> None:
                # Spark has no rate of a first trigger.
                if value is not None and not math.isnan(value):
                    samples.setdefault(name, {})[labels] = value

            def add(name: str, value: float | None) -> None:
                tell(name, samples.get(name, {}).get((), 0.0) + (value or 0))

            for number, source in enumerate(progress["sources"]):
                lag = lag_of(source["endOffset"], source["latestOffset"])
                if lag is None:
                    continue
                lags.append(lag)
                sources.append(SourceLag(number, lag.topics, lag.least, lag.most, lag.mean))
                labels = (("source", str(number)),)
                for name, value in (("lag_min", lag.least), ("lag_max", lag.most), ("lag_avg", lag.mean)):
                    tell(name, value, labels)
            add("input_rows_total", progress["numInputRows"])
            for name, key in (
                ("input_rows_per_second", "inputRowsPerSecond"),
                ("processed_rows_per_second", "processedRowsPerSecond"),
                ("batch_id", "batchId"),
            ):
                tell(name, progress[key])
            tell("batch_seconds", progress["batchDuration"] / 1000)
            operators = progress["stateOperators"]
            tell("state_rows", sum(each["numRowsTotal"] for each in operators))
            add("late_rows_total", sum(each["numRowsDroppedByWatermark"] for each in operators))
            for name, row in progress["observedMetrics"].items():
                for column, value in row.asDict().items():
                    if isinstance(value, int | float):
                        tell("observed", value, (("name", name), ("column", column)))
            self._sources[query] = tuple(sources)
        return lags

    def report(self, query: str) -> QueryReport | None:
        """The report of a query for a gateway; None for a query that reads nothing by this connector."""
        with self._lock:
            sources, samples = self._sources.get(query), self._queries.get(query, {})
            figures = {name: values[()] for name, values in samples.items() if name in FIGURES}
        return QueryReport(query, sources, figures) if sources else None

    def forget(self, query: str) -> None:
        """A query that is over has no figures."""
        with self._lock:
            self._queries.pop(query, None)
            self._sources.pop(query, None)

    def text(self) -> str:
        """All figures, for Prometheus."""
        lines = []
        with self._lock:
            for name, (kind, help_text) in _METRICS.items():
                rows = [
                    (query, labels, value)
                    for query, samples in sorted(self._queries.items())
                    for labels, value in samples.get(name, {}).items()
                ]
                if not rows:
                    continue
                lines += [f"# HELP {_PREFIX}{name} {help_text}", f"# TYPE {_PREFIX}{name} {kind}"]
                for query, labels, value in rows:
                    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in (("query", query), *labels))
                    lines.append(f"{_PREFIX}{name}{{{pairs}}} {float(value):.15g}")
        return "".join(f"{line}\n" for line in lines)


def serve_text(text: Callable[[], str], *, port: int, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Answer GET /metrics with a text until `shutdown()` and `server_close()`; port 0 is any free one.

    Raises OSError: the port is taken.
    """

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_metrics_path = self.path.partition("?")[0] == "/metrics"
            body = text().encode() if is_metrics_path else b"there is /metrics\n"
            self.send_response(200 if is_metrics_path else 404)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Suppress the access log."""

    server = ThreadingHTTPServer((host, port), Answer)
    threading.Thread(target=server.serve_forever, name="popgate-spark-metrics", daemon=True).start()
    return server


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
