"""Receives reports of streaming queries from their drivers, by a request code of popgate (`frames.codes`)."""

from __future__ import annotations

from collections.abc import Mapping

from popgate.errors import BadRequest, PeerWireError
from popgate.wire.bodies.query_reports import QueryReport
from popgate.wire.frames.codes import REPORT_QUERY
from popgate.wire.frames.remoting import Command
from protocols.remoting.requests import DoorContext, Handler, Request


class QueryReportHandler:
    """Serves reports."""

    def __init__(self, door_context: DoorContext) -> None:
        self._reports = door_context.processor.query_reports

    def handlers(self) -> Mapping[int, Handler]:
        return {REPORT_QUERY: self.report}

    def drain(self) -> None:
        """Nothing waits here."""

    async def report(self, request: Request) -> Command:
        try:
            report = QueryReport.decode(request.command.body)
        except PeerWireError as error:
            raise BadRequest(str(error)) from None
        self._reports.note(request.context, report)
        return request.answer()
