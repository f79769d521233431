"""Listens to streaming queries: `spark.streams.addListener(RocketMQListener())`."""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from popgate.spark.query_metrics import QueryMetrics

_log: Final = logging.getLogger(__name__)


class RocketMQListener(StreamingQueryListener):
    """Writes lag and throughput of each trigger to the log, at INFO, and keeps them in `metrics`.

    A query is known by its name, or else by its id.
    """

    def __init__(self) -> None:
        self.metrics = QueryMetrics()
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

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        query = self._names.pop(event.id, str(event.id))
        self.metrics.forget(query)
        if event.exception is None:
            _log.info("query %s ended", query)
        else:
            _log.warning("query %s failed: %s", query, event.exception)
