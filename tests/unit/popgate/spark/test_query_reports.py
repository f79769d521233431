"""popgate.spark.query_reports: what a gateway is told of queries, by a thread that never holds Spark up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from popgate.errors import BrokerUnavailable, Forbidden, GatewayError
from popgate.queue_client import QueueClient
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.query_reports import QueryReporter
from popgate.wire.bodies.query_reports import QueryReport, SourceLag
from tests.support.waiting import PATIENCE_S, wait_until

GIVEN = {"endpoints": "a:1"}


class Gateway:
    """Keeps what it is told, or refuses it."""

    def __init__(self) -> None:
        self.told: list[QueryReport] = []
        self.refuses: Callable[[QueryReport], GatewayError | None] = lambda _: None
        self.free = threading.Event()
        self.free.set()

    @contextmanager
    def connect(self, way: Any) -> Iterator[QueueClient]:
        assert (way.gateway.endpoints, way.group) == (("a:1",), "")
        assert self.free.wait(PATIENCE_S)
        try:
            yield cast("QueueClient", self)
        except GatewayError as error:
            raise SparkSourceError(Code.GATEWAY, error.sentence) from error

    def report(self, report: QueryReport) -> None:
        refused = self.refuses(report)
        if refused is not None:
            raise refused
        self.told.append(report)

    def has(self, *queries: str) -> None:
        wait_until(lambda: [each.query for each in self.told] == list(queries), seen=lambda: self.told)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def reporter(gateway: Gateway) -> Iterator[QueryReporter]:
    """Repeats nothing within the time of a test."""
    made = QueryReporter(GIVEN, connect=gateway.connect, repeat_s=100 * PATIENCE_S, now=lambda: 5.0)
    yield made
    gateway.free.set()
    made.close()


def report(query: str, **figures: float) -> QueryReport:
    return QueryReport(query, (SourceLag(0, ("t",), 0, 7, 3.5),), figures)


def test_each_query_is_reported_and_its_end(gateway: Gateway, reporter: QueryReporter) -> None:
    reporter.put(report("a"))
    gateway.has("a")
    reporter.put(report("b"))
    gateway.has("a", "b")
    reporter.end("a")
    gateway.has("a", "b", "a")
    assert gateway.told == [report("a"), report("b"), replace(report("a"), ended=True)]
    reporter.end("never told of")
    reporter.close()
    assert len(gateway.told) == 3


def test_a_gateway_that_is_slow_gets_the_last_report(gateway: Gateway, reporter: QueryReporter) -> None:
    """And nobody waits for it."""
    reporter.put(report("a", batch_id=0))
    gateway.has("a")
    gateway.free.clear()
    reporter.put(report("z"))
    wait_until(lambda: not reporter._due)
    for number in range(1, 9):
        reporter.put(report("a", batch_id=number))
        reporter.put(report("b", batch_id=number))
    reporter.end("b")
    gateway.free.set()
    gateway.has("a", "z", "a", "b")
    assert [each.figures.get("batch_id") for each in gateway.told] == [0, None, 8, 8]
    assert [each.ended for each in gateway.told] == [False, False, False, True]


def test_a_query_that_is_started_again_at_once_has_not_ended(
    gateway: Gateway, reporter: QueryReporter
) -> None:
    reporter.put(report("a", batch_id=1))
    gateway.has("a")
    gateway.free.clear()
    reporter.put(report("z"))
    wait_until(lambda: not reporter._due)
    reporter.end("a")
    reporter.put(report("a", batch_id=2))
    gateway.free.set()
    gateway.has("a", "z", "a")
    assert gateway.told[-1] == report("a", batch_id=2)


def test_what_does_not_change_is_reported_again_and_says_how_old_it_is(gateway: Gateway) -> None:
    now = [5.0]
    made = QueryReporter(GIVEN, connect=gateway.connect, repeat_s=0.001, now=lambda: now[0])
    try:
        made.put(report("a"))
        wait_until(lambda: gateway.told)
        now[0] = 12.5
        wait_until(lambda: gateway.told[-1].age_s == 7.5)
        made.end("a")
        wait_until(lambda: gateway.told[-1].ended)
        count = len(gateway.told)
    finally:
        made.close()
    assert len(gateway.told) == count


def test_what_is_due_is_told_before_it_is_closed(gateway: Gateway, reporter: QueryReporter) -> None:
    gateway.free.clear()
    reporter.put(report("a"))
    wait_until(lambda: not reporter._due)
    reporter.end("a")
    closing = threading.Thread(target=reporter.close)
    closing.start()
    gateway.free.set()
    closing.join(PATIENCE_S)
    assert [each.ended for each in gateway.told] == [False, True]
    reporter.put(report("late"))
    assert len(gateway.told) == 2


def test_a_query_that_ends_while_it_is_closed_is_told_like_the_others(
    gateway: Gateway, reporter: QueryReporter
) -> None:
    """Spark tells of the end later than it stops a query."""
    gateway.free.clear()
    reporter.put(report("z"))
    wait_until(lambda: not reporter._due)
    reporter.put(report("a"))
    reporter.put(report("b"))
    closing = threading.Thread(target=reporter.close)
    closing.start()
    wait_until(lambda: reporter._closed)
    reporter.end("a")
    gateway.free.set()
    closing.join(PATIENCE_S)
    assert gateway.told == [report("z"), replace(report("a"), ended=True), report("b")]


def test_a_refusal_is_logged_once_and_others_are_told_all_the_same(
    gateway: Gateway, reporter: QueryReporter, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.refuses = lambda each: Forbidden("no") if each.query == "bad" else None
    for number in range(3):
        reporter.put(report("bad"))
        reporter.put(report(f"good {number}"))
        wait_until(lambda number=number: f"good {number}" in [each.query for each in gateway.told])
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING] == [
        "the gateway takes no reports of query bad: no"
    ]
    gateway.refuses = lambda _: None
    reporter.put(report("bad"))
    wait_until(lambda: gateway.told[-1].query == "bad")


def test_a_gateway_that_is_not_there_is_asked_for_one_query_only(
    gateway: Gateway, reporter: QueryReporter, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def gone(each: QueryReport) -> GatewayError:
        asked.append(each.query)
        return BrokerUnavailable("gone")

    gateway.refuses = gone
    gateway.free.clear()
    reporter.put(report("first"))
    wait_until(lambda: not reporter._due)
    reporter.put(report("a"))
    reporter.put(report("b"))
    gateway.free.set()
    wait_until(lambda: asked == ["first", "a"] and not reporter._due)
    gateway.refuses = lambda _: None
    reporter.put(report("b"))
    wait_until(lambda: gateway.told == [report("b")])
    assert [each.getMessage() for each in caplog.records] == [
        "the gateway takes no reports of query first: gone",
        "the gateway takes no reports of query a: gone",
    ]


def test_options_that_are_none_are_refused() -> None:
    with pytest.raises(SparkSourceError, match="endpoints is missing"):
        QueryReporter({})
    with pytest.raises(SparkSourceError, match="option 'endpoint' is not known: did you mean endpoints"):
        QueryReporter({"endpoint": "a:1"})


def test_reports_do_not_go_over_grpc() -> None:
    with pytest.raises(
        SparkSourceError, match=r"transport = 'GRPC'.*no gateway takes reports of queries"
    ) as refused:
        QueryReporter({**GIVEN, "Transport": "GRPC"})
    assert refused.value.code is Code.ILLEGAL_OPTION
    QueryReporter({**GIVEN, "transport": "remoting"}).close()


def test_a_query_with_many_triggers_holds_up_no_other(gateway: Gateway) -> None:
    reporter = QueryReporter(GIVEN, connect=gateway.connect, repeat_s=0.02)
    reporter.put(report("long"))

    def is_told_again() -> bool:
        reporter.put(report("busy"))
        return [each.query for each in gateway.told].count("long") > 2

    wait_until(is_told_again, seen=lambda: len(gateway.told))
    reporter.close()
    reporter.put(report("late"))
    assert "late" not in {each.query for each in gateway.told}


def test_a_failure_that_nobody_expects_ends_no_reports(
    gateway: Gateway, reporter: QueryReporter, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(told: QueryReport) -> None:
        if told.query == "odd":
            raise ZeroDivisionError("as it were")

    gateway.refuses = breaks
    reporter.put(report("odd"))
    reporter.put(report("even"))
    gateway.has("even")
    assert "ZeroDivisionError" in caplog.text
