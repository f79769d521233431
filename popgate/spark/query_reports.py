"""Reports the streaming queries of a driver to a gateway (`popgate.wire.bodies.query_reports`).

A thread of its own sends them, so that Spark's events never wait for a gateway. A report that the gateway
does not accept is dropped; the next one supersedes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

from popgate.queue_client import QueueClient
from popgate.spark.connections import client_of, passes
from popgate.spark.errors import SparkSourceError
from popgate.spark.options.gateway_options import SHARED, TRANSPORT, Gateway, gateway_of, refuse_over_grpc
from popgate.spark.options.option_values import named
from popgate.wire.bodies.query_reports import QueryReport

REPEAT_S: Final = 20.0
"""A query whose trigger takes long, or that has nothing to do, is reported again so often."""
_TIMEOUT_S: Final = 10.0
"""For each answer."""
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Way:
    """How to reach the gateway, like `popgate.spark.connections.GatewayOptions`."""

    gateway: Gateway
    group: str = ""
    timeout_s: float = _TIMEOUT_S


Connect = Callable[[_Way], AbstractContextManager[QueueClient]]


class QueryReporter:
    """Reports queries to a gateway until it is closed."""

    def __init__(
        self,
        given: Mapping[str, str],
        *,
        connect: Connect = client_of,
        repeat_s: float = REPEAT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`given`: the options by which a source reaches the gateway. Raises SparkSourceError for others."""
        options = named(given, SHARED, others=(), side="source", not_yet=())
        self._way = _Way(gateway_of(options))
        if self._way.gateway.is_grpc:
            raise refuse_over_grpc(TRANSPORT, options[TRANSPORT], "no gateway takes reports of queries")
        self._connect, self._repeat_s, self._now = connect, repeat_s, now
        self._changed = threading.Condition()
        self._last: dict[str, tuple[QueryReport, float]] = {}
        """The last report of each query that runs, and when it was made."""
        self._told_at: dict[str, float] = {}
        """The time of the last report of each running query, on the real clock."""
        self._due: dict[str, None] = {}
        """Queries with a pending report, in order."""
        self._ended: dict[str, QueryReport] = {}
        self._closed = False
        self._thread: threading.Thread | None = None
        self._failing: set[str] = set()
        """Queries whose failing reports were logged already."""

    def put(self, report: QueryReport) -> None:
        """Send this report soon, and repeatedly, in place of the query's earlier one."""
        with self._changed:
            if self._closed:
                return
            self._last[report.query] = report, self._now()
            self._ended.pop(report.query, None)
            self._wake(report.query)

    def end(self, query: str) -> None:
        """Report the end of a query, if it was reported at all."""
        with self._changed:
            last = self._last.pop(query, None)
            self._told_at.pop(query, None)
            # Also while it is being closed: Spark tells of the end later than it stops a query.
            if last is not None:
                self._ended[query] = replace(last[0], ended=True)
                self._wake(query)

    def close(self) -> None:
        """Send the pending reports and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    # -- the thread -------------------------------------------------------------------------------

    def _wake(self, query: str) -> None:
        self._due[query] = None
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="popgate-spark-reports", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        while reports := self._next():
            self._tell(reports)

    def _next(self) -> list[QueryReport]:
        """Wait for the next reports to send. Empty: the reporter is closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                rests = {query: self._told_at.get(query, now) + self._repeat_s - now for query in self._last}
                self._due.update((query, None) for query, rest_s in rests.items() if rest_s <= 0)
                if self._due:
                    self._told_at.update((query, now) for query in self._due if query in self._last)
                    break
                self._changed.wait(min(rests.values(), default=None))
            reports = [self._report_of(query) for query in self._due]
            self._due.clear()
            return reports

    def _report_of(self, query: str) -> QueryReport:
        ended = self._ended.pop(query, None)
        if ended is not None:
            return ended
        report, made = self._last[query]
        return replace(report, age_s=self._now() - made)

    def _tell(self, reports: list[QueryReport]) -> None:
        for report in reports:
            try:
                with self._connect(self._way) as client:
                    client.report(report)
            except Exception as error:
                # Whatever it is: the thread goes on, for nobody starts it again.
                if report.query not in self._failing:
                    why = error.sentence if isinstance(error, SparkSourceError) else repr(error)
                    _log.warning("the gateway takes no reports of query %s: %s", report.query, why)
                self._failing.add(report.query)
                if isinstance(error, SparkSourceError) and passes(error):
                    # It would not take the others, either.
                    return
            else:
                self._failing.discard(report.query)
            if report.ended:
                self._failing.discard(report.query)
