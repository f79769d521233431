"""Spans of a real gateway are at a collector that speaks OTLP over HTTP by the time the gateway has ended."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from popgate.testing import GatewayProcess
from tests.e2e.clients import Client

PATIENT = ("tracing.timeout_s=200", "stopping.drain_s=200")
"""The collector is in this process, and answers when it has its turn on a busy machine."""
BODY = b"a body that is nobody's business"


class Collector(ThreadingHTTPServer):
    """Keeps what it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.told: list[bytes] = []
        self.paths: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(data) for data in self.told]
        resources = [one for request in requests for one in request.resource_spans]
        return [span for one in resources for scope in one.scope_spans for span in scope.spans]


class Asked(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        self.server.told.append(gzip.decompress(data) if self.headers["content-encoding"] == "gzip" else data)
        self.server.paths.add(self.path)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        serving = threading.Thread(target=collector.serve_forever)
        serving.start()
        yield collector
        collector.shutdown()
        serving.join()


@pytest.mark.parametrize("workers", [1, 2])
async def test_scenario_31_a_messages_whole_way_is_told_to_a_collector(
    collector: Collector, workers: int
) -> None:
    told = ("tracing.enabled=true", f"tracing.endpoint={collector.url}", f"workers={workers}", *PATIENT)
    options = [word for setting in told for word in ("--set", setting)]
    with GatewayProcess(options=options) as gateway:
        client = Client(gateway.endpoint, "traced")
        await client.send("orders", BODY)
        _, messages = await client.receive("orders", "billing", 20)
        await client.ack("orders", "billing", messages)
        await client.channel.close(None)
        assert gateway.terminate() == 0
    assert collector.paths == {"/v1/traces"}
    spans = {span.name: span for span in collector.spans()}
    assert spans.keys() >= {"send orders", "store orders", "receive orders", "ack orders"}
    send, store = spans["send orders"], spans["store orders"]
    assert (store.trace_id, store.parent_span_id) == (send.trace_id, send.span_id)
    for name in ("receive orders", "ack orders"):
        assert [link.trace_id for link in spans[name].links] == [send.trace_id], name
    assert not any(BODY in data for data in collector.told)
