"""The state of clients' streaming queries, as their drivers report it, for the metrics of the gateway.

A driver reports repeatedly while its query runs; a query without reports is removed after a while.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import BadRequest, Forbidden, TooManyRequests, shown
from popgate.kinds import Action
from popgate.naming import check_topic
from popgate.wire.bodies.query_reports import QueryReport

MOST_QUERIES: Final = 200
"""That are told of at a time: each is a label of the metrics."""
EXPIRY_S: Final = 90.0
"""Drivers report at least each 20 s (`popgate.spark.query_reports`)."""


@dataclass(slots=True)
class _Kept:
    report: QueryReport
    account: str
    """Who reports it."""
    at: float


class QueryReports:
    """The last report of each query."""

    def __init__(self, clock: Clock, admit: Callable[..., None]) -> None:
        self._clock, self._admit = clock, admit
        self._kept: dict[str, _Kept] = {}

    def __repr__(self) -> str:
        return f"<QueryReports {len(self._kept)} of {MOST_QUERIES}>"

    def note(self, context: Context, report: QueryReport) -> None:
        """Replace the last report of the query. A caller that may read its topics may report it.

        Raises BadRequest (it reads none), IllegalTopic, Forbidden (also where another account reports a
        query of that name), TooManyRequests (there are too many queries).
        """
        topics = sorted({topic for source in report.sources for topic in source.topics})
        if not topics:
            raise BadRequest(f"the query {shown(report.query)} reads no topic")
        for topic in topics:
            self._admit(context, Action.SUBSCRIBE, topic=check_topic(topic))
        self._forget_old()
        account, there = context.principal.name, self._kept.get(report.query)
        if there is not None and there.account != account:
            raise Forbidden(f"another account reports a query of the name {shown(report.query)}")
        if report.ended:
            self._kept.pop(report.query, None)
            return
        if there is None and len(self._kept) >= MOST_QUERIES:
            raise TooManyRequests(f"{MOST_QUERIES} queries are reported already", EXPIRY_S)
        self._kept[report.query] = _Kept(report, account, self._clock.monotonic())

    def current(self) -> list[tuple[QueryReport, float]]:
        """Of queries that are reported, and how many seconds ago their last trigger ended."""
        self._forget_old()
        now = self._clock.monotonic()
        return [(each.report, each.report.age_s + now - each.at) for each in self._kept.values()]

    def _forget_old(self) -> None:
        oldest = self._clock.monotonic() - EXPIRY_S
        for query in [query for query, each in self._kept.items() if each.at < oldest]:
            del self._kept[query]
