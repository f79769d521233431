"""A listener for streaming queries: `spark.streams.addListener(RocketMQListener())`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from popgate.spark.query_metrics import QueryMetrics
from popgate.spark.query_reports import QueryReporter

_log: Final = logging.getLogger(__name__)


class RocketMQListener(StreamingQueryListener):
    """Writes lag and throughput of each trigger to the log, at INFO, and keeps them in `metrics`.

    A query is known by its name, or else by its id. With `report_to`, the options by which a source reaches a
    gateway (`endpoints`, …), the gateway's metrics have those of the queries that read its topics, too.
    """

    def __init__(self, report_to: Mapping[str, str] | None = None) -> None:
        """Raises SparkSourceError for options that are none."""
        self.metrics = QueryMetrics()
        self._reporter = None if report_to is None else QueryReporter(report_to)
        self._names: dict[UUID, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        query = self._names[event.id] = str(event.name or event.id)
        _log.info("query %s started", query)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        query = self._names[progress.id] = str(progress.name or progress.id)
        for lag in self.metrics.note(query, progress):
            _log.info(
                "query %s: batch %d of %d rows in %d ms, queues are behind by %d to %d, %.1f on average",
                query,
                progress.batchId,
                progress.numInputRows,
                progress.batchDuration,
                lag.least,
                lag.most,
                lag.mean,
            )
        report = self.metrics.report(query)
        if self._reporter is not None and report is not None:
            self._reporter.put(report)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        query = self._names.pop(event.id, str(event.id))
        self.metrics.forget(query)
        if self._reporter is not None:
            self._reporter.end(query)
        if event.exception is None:
            _log.info("query %s ended", query)
        else:
            _log.warning("query %s failed: %s", query, event.exception)

    def close(self) -> None:
        """Send the pending reports and stop, for programs that outlive their queries."""
        if self._reporter is not None:
            self._reporter.close()
