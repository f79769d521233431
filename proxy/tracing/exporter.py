"""Exports spans in batches, from a thread, to a collector that accepts OTLP over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from brokers.port import Broker
from popgate import __version__
from popgate.clock import Clock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.observer import Observer
from processors.policies.registry import Policies
from proxy.tracing.processor import TracedProcessor
from proxy.tracing.spans import Spans

_LONGEST_VALUE = 256
"""Characters of an attribute: unchecked names may be of any length."""


class Tracing:
    """The spans of one gateway, and their way out."""

    def __init__(self, endpoint: str, *, timeout_s: float, share: float, most: int) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self.provider = TracerProvider(
            resource=Resource.create(
                {
                    "service.name": "popgate",
                    "service.version": __version__,
                    "service.instance.id": str(uuid.uuid4()),
                }
            ),
            sampler=ParentBased(TraceIdRatioBased(share)),
            span_limits=SpanLimits(max_attribute_length=_LONGEST_VALUE),
            shutdown_on_exit=False,
        )
        self.spans = Spans(self.provider, most=most)

    def __repr__(self) -> str:
        return f"<Tracing {self.spans!r}>"

    def make_processor(
        self, broker: Broker, *, clock: Clock, limits: Limits, policies: Policies, observer: Observer
    ) -> MessagingProcessor:
        """The processor with spans around its operations."""
        return TracedProcessor(
            broker, spans=self.spans, clock=clock, limits=limits, policies=policies, observer=observer
        )

    def start(self) -> None:
        """Spans of before go nowhere. Starts the thread that sends them."""
        self.provider.add_span_processor(BatchSpanProcessor(make_exporter(self._endpoint, self._timeout_s)))

    async def stop(self) -> None:
        """Export the remaining spans; not on the loop, because the collector may be slow or unreachable."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def tell(failure: Exception | None) -> None:
            if over.done():
                return
            if failure is not None:
                over.set_exception(failure)
            else:
                over.set_result(None)

        def shut_down() -> None:
            failure = None
            try:
                self.provider.shutdown()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # nobody waits any more, and the loop is closed
                loop.call_soon_threadsafe(tell, failure)

        # In a thread that keeps no process from ending.
        threading.Thread(target=shut_down, name="popgate-last-spans", daemon=True).start()
        await over


def make_exporter(endpoint: str, timeout_s: float) -> SpanExporter:
    """To the collector at `endpoint` (http or https, without the path), which has so long for a batch."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=timeout_s)
