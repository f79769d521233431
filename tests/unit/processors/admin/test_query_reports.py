"""processors.admin.query_reports: who may report, how many queries there are, and when they are forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from popgate.context import Context, Principal
from popgate.errors import BadRequest, Forbidden, IllegalTopic, TooManyRequests
from popgate.kinds import Action
from popgate.testing.clock import MovableClock
from popgate.wire.bodies.query_reports import QueryReport, SourceLag
from processors.admin import query_reports
from processors.admin.query_reports import EXPIRY_S, QueryReports

ANN, BOB = (replace(Context(), principal=Principal(name)) for name in ("ann", "bob"))


class Admitting:
    def __init__(self, *forbidden: str) -> None:
        self.forbidden = forbidden
        self.asked: list[tuple[Action, str]] = []

    def __call__(self, context: Context, action: Action, *, topic: str) -> None:
        self.asked.append((action, topic))
        if topic in self.forbidden:
            raise Forbidden(topic)


def report(query: str = "orders", *topics: str, **more: float) -> QueryReport:
    return QueryReport(query, (SourceLag(0, topics or ("t",), 0, 7, 3.5),), more)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def reports(clock: MovableClock) -> QueryReports:
    return QueryReports(clock, Admitting())


def names(reports: QueryReports) -> list[str]:
    return [each.query for each, _ in reports.current()]


def test_the_last_report_of_a_query_counts_and_grows_older(
    reports: QueryReports, clock: MovableClock
) -> None:
    reports.note(ANN, report(batch_id=1))
    last = replace(report(batch_id=2), age_s=1.5)
    reports.note(ANN, last)
    clock.advance(10)
    assert reports.current() == [(last, 11.5)]


def test_a_query_that_nobody_reports_any_more_is_forgotten(
    reports: QueryReports, clock: MovableClock
) -> None:
    reports.note(ANN, report("a"))
    clock.advance(EXPIRY_S / 2)
    reports.note(ANN, report("b"))
    clock.advance(EXPIRY_S / 2 + 1)
    assert names(reports) == ["b"]


def test_a_query_that_ended_is_forgotten_at_once(reports: QueryReports) -> None:
    reports.note(ANN, report("a"))
    for _ in range(2):
        reports.note(ANN, replace(report("a"), ended=True))
    assert names(reports) == []


def test_so_many_queries_are_told_of(
    reports: QueryReports, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_reports, "MOST_QUERIES", 2)
    reports.note(ANN, report("a"))
    reports.note(ANN, report("b"))
    with pytest.raises(TooManyRequests, match="2 queries are reported already"):
        reports.note(ANN, report("c"))
    reports.note(ANN, report("b"))
    clock.advance(EXPIRY_S + 1)
    reports.note(ANN, report("c"))
    assert names(reports) == ["c"]


def test_who_may_read_the_topics_of_a_query_may_report_it(clock: MovableClock) -> None:
    admitting = Admitting("secret")
    reports = QueryReports(clock, admitting)
    reports.note(ANN, report("a", "u", "t"))
    assert admitting.asked == [(Action.SUBSCRIBE, "t"), (Action.SUBSCRIBE, "u")]
    with pytest.raises(Forbidden, match="secret"):
        reports.note(ANN, report("b", "t", "secret"))
    assert names(reports) == ["a"]


def test_a_query_without_topics_or_with_names_that_are_none_is_refused(reports: QueryReports) -> None:
    with pytest.raises(BadRequest, match="the query 'a' reads no topic"):
        reports.note(ANN, QueryReport("a", ()))
    with pytest.raises(IllegalTopic):
        reports.note(ANN, report("a", "a b"))
    assert names(reports) == []


def test_a_query_belongs_to_the_account_that_reports_it(reports: QueryReports, clock: MovableClock) -> None:
    reports.note(ANN, report("a"))
    for told in (report("a", batch_id=9), replace(report("a"), ended=True)):
        with pytest.raises(Forbidden, match="another account reports a query of the name 'a'"):
            reports.note(BOB, told)
    assert reports.current() == [(report("a"), 0)]
    clock.advance(EXPIRY_S + 1)
    reports.note(BOB, report("a"))
    assert names(reports) == ["a"]
