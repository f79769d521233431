"""Reports of streaming queries."""

from __future__ import annotations

from popgate.wire.bodies.query_reports import QueryReport, SourceLag
from popgate.wire.frames.codes import REPORT_QUERY, ResponseCode
from protocols.remoting.tools.query_reports import QueryReportHandler
from tests.unit.protocols.remoting.conftest import Caller, Stage

REPORT = QueryReport("orders", (SourceLag(0, ("t",), 0, 7, 3.5),), {"batch_id": 3})


async def test_a_report_is_taken(stage: Stage) -> None:
    answer = await Caller(QueryReportHandler(stage.door_context)).ok(REPORT_QUERY, body=REPORT.encode())
    assert (dict(answer.fields), answer.body) == ({}, b"")
    assert stage.processor.query_reports.current() == [(REPORT, 0)]


async def test_what_is_no_report_is_refused(stage: Stage) -> None:
    caller = Caller(QueryReportHandler(stage.door_context))
    answer = await caller.ask(REPORT_QUERY, body=b"[]")
    assert (answer.code, "of version 1" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    answer = await caller.ask(REPORT_QUERY, body=QueryReport("q", ()).encode())
    assert "the query 'q' reads no topic" in (answer.remark or "")
    assert stage.processor.query_reports.current() == []
