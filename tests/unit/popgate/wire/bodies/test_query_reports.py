"""popgate.wire.bodies.query_reports: what a driver tells, and what is none of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.query_reports import LONGEST_QUERY, MOST_SOURCES, MOST_TOPICS, QueryReport, SourceLag

REPORT = QueryReport(
    "orders — heute",
    (SourceLag(0, ("a", "b"), 0, 7, 3.5), SourceLag(2, ("c",), 1, 1, 1)),
    {"batch_id": 3, "input_rows_total": 1e12, "processed_rows_per_second": 0.25},
    age_s=2.5,
)


def changed(**told: Any) -> bytes:
    return json.dumps({**json.loads(REPORT.encode()), **told}).encode()


def of_source(**told: Any) -> bytes:
    return changed(sources=[{"number": 0, "topics": ["t"], "min": 0, "max": 1, "mean": 0.5, **told}])


def test_a_report_is_what_it_was() -> None:
    assert QueryReport.decode(REPORT.encode()) == REPORT
    assert QueryReport.decode(QueryReport("q", (), ended=True).encode()) == QueryReport("q", (), ended=True)


def test_figures_that_are_not_known_are_left_out() -> None:
    assert QueryReport.decode(changed(figures={"batch_id": 1, "new": [], "also_new": 4})).figures == {
        "batch_id": 1
    }


def test_what_is_too_much_is_not_told() -> None:
    many = SourceLag(0, tuple(f"t{number:03}" for number in range(MOST_TOPICS + 9)), 0, 0, 0)
    sources = tuple(many._replace(number=number) for number in range(MOST_SOURCES + 1))
    told = QueryReport.decode(QueryReport("q" * 999, sources).encode())
    assert (told.query, len(told.sources)) == ("q" * LONGEST_QUERY, MOST_SOURCES)
    assert told.sources[0].topics == many.topics[:MOST_TOPICS]


def test_names_of_topics_that_are_too_long_together_are_told_in_part() -> None:
    names = tuple(f"{number:03}" + "n" * 120 for number in range(MOST_TOPICS))
    report = QueryReport("q", tuple(SourceLag(number, names, 0, 1, 1) for number in range(MOST_SOURCES)))
    told = QueryReport.decode(report.encode())
    assert [source.topics for source in told.sources] == [names[:25]] * MOST_SOURCES


def test_figures_that_are_no_numbers_are_not_told() -> None:
    odd = SourceLag(1, ("t",), 0, math.inf, 1)
    report = QueryReport("q", (odd, REPORT.sources[0]), {"batch_id": 3, "batch_seconds": -1.0}, age_s=-0.5)
    figures = {**report.figures, "input_rows_per_second": math.inf, "processed_rows_per_second": math.nan}
    told = QueryReport.decode(replace(report, figures=figures).encode())
    assert told == QueryReport("q", (REPORT.sources[0],), {"batch_id": 3})


def test_two_sources_have_two_numbers() -> None:
    with pytest.raises(PeerWireError, match="the same number"):
        QueryReport.decode(QueryReport("q", REPORT.sources[:1] * 2).encode())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON"),
        (b"[]", "an object of version 1"),
        (changed(v=2), "an object of version 1"),
        (changed(query=""), "1 to 255 printable characters"),
        (changed(query="a\nb"), "1 to 255 printable characters"),
        (changed(query="q" * (LONGEST_QUERY + 1)), "1 to 255 printable characters"),
        (changed(query=7), "1 to 255 printable characters"),
        (changed(ended="no"), "ended as a truth value"),
        (changed(figures=[]), "figures as an object"),
        (changed(figures={"batch_id": "3"}), "batch_id of a query is a number"),
        (changed(figures={"batch_id": True}), "batch_id of a query is a number"),
        (changed(figures={"batch_id": -1}), "too large, or below 0"),
        (changed(figures={"batch_id": 10**400}), "too large, or below 0"),
        (changed(age_s=-1), "age_s of a query is '-1'"),
        (changed(sources={}), "up to 16 sources"),
        (changed(sources=[{}] * (MOST_SOURCES + 1)), "up to 16 sources"),
        (changed(sources=[1]), "a source of a query is an object"),
        (of_source(number=True), "a number below 1000"),
        (of_source(number=1000), "a number below 1000"),
        (of_source(topics=[]), "1 to 100 topics"),
        (of_source(topics=["t"] * (MOST_TOPICS + 1)), "1 to 100 topics"),
        (of_source(topics=[1]), "a topic of a query is a text"),
        (of_source(max=None), "max of a query is a number"),
        (b" " * 70_000, "70000 bytes, the limit is 65536"),
    ],
)
def test_what_is_no_report_is_refused_with_why(body: bytes, says: str) -> None:
    with pytest.raises(PeerWireError, match=says):
        QueryReport.decode(body)
