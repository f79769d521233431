"""Spans through a message's whole way, over gRPC, into OpenTelemetry's exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from brokers.capabilities import LiteTopics, RedrivesDeadLetters, TellsCluster
from brokers.embedded.broker import EmbeddedBroker
from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.observer import NullObserver
from processors.policies.registry import Policies
from protocols.grpc.codec import request_reader
from proxy.app import App, build
from proxy.config.error import SettingsWrong
from proxy.config.settings import Settings
from proxy.tracing import exporter as exporter_module
from proxy.tracing.processor import TracedProcessor
from proxy.tracing.spans import Spans
from tests.unit.processors.produce.test_batch_forwarder import Forwarder

ROOT = Path(__file__).parents[4]
SERVICE = "/apache.rocketmq.v2.MessagingService/"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"
CREATED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOPIC, GROUP = pb.Resource(name="orders"), pb.Resource(name="billing")


class House:
    """A gateway with tracing, a client of its gRPC door, and the spans that came out."""

    def __init__(self, app: App, exporter: InMemorySpanExporter, channel: grpc.aio.Channel) -> None:
        self.app = app
        self.exporter = exporter
        self.channel = channel

    async def unary(self, name: str, request: Any, answer: Any, traceparent: str = "") -> Any:
        call = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request, metadata=metadata(traceparent), timeout=60)

    async def send(self, *bodies: bytes, traceparent: str = "", trace_context: str = "") -> Any:
        messages = []
        for body in bodies:
            system = pb.SystemProperties(message_id=make_message_id(), message_type=pb.NORMAL)
            if trace_context:
                system.trace_context = trace_context
            messages.append(pb.Message(topic=TOPIC, body=body, system_properties=system))
        request = rpc.SendMessageRequest(messages=messages)
        return await self.unary("SendMessage", request, rpc.SendMessageResponse, traceparent)

    async def receive(self, count: int = 1, traceparent: str = "") -> list[pb.Message]:
        call = self.channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        request = rpc.ReceiveMessageRequest(
            group=GROUP,
            message_queue=pb.MessageQueue(topic=TOPIC, id=-1),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=count,
            invisible_duration=Duration(seconds=60),
            long_polling_timeout=Duration(nanos=100_000_000),
        )
        answers = [one async for one in call(request, metadata=metadata(traceparent), timeout=60)]
        return [one.message for one in answers if one.WhichOneof("content") == "message"]

    async def ack(self, *messages: pb.Message) -> Any:
        entries = [
            rpc.AckMessageEntry(
                message_id=one.system_properties.message_id,
                receipt_handle=one.system_properties.receipt_handle,
            )
            for one in messages
        ]
        request = rpc.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
        return await self.unary("AckMessage", request, rpc.AckMessageResponse)

    def spans(self) -> dict[str, ReadableSpan]:
        assert self.app.tracing is not None
        self.app.tracing.provider.force_flush()
        return {one.name: one for one in self.exporter.get_finished_spans()}


def metadata(traceparent: str) -> tuple[tuple[str, str], ...]:
    more = (("traceparent", traceparent),) if traceparent else ()
    return (("x-mq-client-id", "c1"), ("x-mq-language", "JAVA"), *more)


def context_of(span: ReadableSpan) -> tuple[str, str]:
    found = span.get_span_context()
    assert found is not None
    return f"{found.trace_id:032x}", f"{found.span_id:016x}"


def links_of(span: ReadableSpan) -> list[tuple[str, str]]:
    return [(f"{one.context.trace_id:032x}", f"{one.context.span_id:016x}") for one in span.links]


def parent_of(span: ReadableSpan) -> tuple[str, str]:
    assert span.parent is not None
    return f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}"


@pytest.fixture(params=[False, True], ids=["by the library", "plain"])
async def house(
    request: pytest.FixtureRequest, settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    monkeypatch.setattr(request_reader, "READS_PLAIN", request.param)
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(exporter_module, "make_exporter", lambda _endpoint, _timeout_s: exporter)
    app = build(settings_for(tracing={"enabled": True}))
    await app.start()
    try:
        async with grpc.aio.insecure_channel(app.addresses[0].removeprefix("grpc://")) as channel:
            yield House(app, exporter, channel)
    finally:
        await app.stop()


async def test_a_callers_trace_is_continued_through_send_and_store(house: House) -> None:
    answer = await house.send(b"one", traceparent=CALLER)
    spans = house.spans()
    send, store = spans["send orders"], spans["store orders"]
    assert parent_of(send) == (TRACE, "00f067aa0ba902b7")
    assert parent_of(store) == context_of(send)
    assert send.kind is SpanKind.PRODUCER
    assert send.attributes is not None
    told = dict(send.attributes)
    assert told.pop("network.peer.address")
    assert told == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.client.id": "c1",
        "messaging.message.id": answer.entries[0].message_id,
        "messaging.message.body.size": 3,
        "messaging.rocketmq.message.type": "normal",
        "popgate.door": "grpc",
    }


async def test_scenario_31_a_message_carries_its_trace_to_its_consumers_and_their_spans_are_linked(
    house: House,
) -> None:
    """send → store → receive → change → ack: the later ones are linked to the message's context."""
    await house.send(b"one", traceparent=CALLER)
    (message,) = await house.receive()
    sent = context_of(house.spans()["send orders"])
    assert message.system_properties.trace_context == f"00-{sent[0]}-{sent[1]}-01"
    change = rpc.ChangeInvisibleDurationRequest(
        group=GROUP,
        topic=TOPIC,
        receipt_handle=message.system_properties.receipt_handle,
        invisible_duration=Duration(seconds=30),
        message_id=message.system_properties.message_id,
    )
    changed = await house.unary("ChangeInvisibleDuration", change, rpc.ChangeInvisibleDurationResponse)
    message.system_properties.receipt_handle = changed.receipt_handle
    assert (await house.ack(message)).status.code == pb.OK
    spans = house.spans()
    for name in ("receive orders", "change_invisible orders", "ack orders"):
        assert links_of(spans[name]) == [sent], name
        assert spans[name].attributes is not None
        assert spans[name].attributes["messaging.consumer.group.name"] == "billing"
        assert spans[name].attributes[
            "messaging.batch.message_count" if "ch" not in name else "messaging.system"
        ]
    receive = spans["receive orders"]
    assert receive.kind is SpanKind.CONSUMER
    assert receive.attributes is not None
    assert receive.attributes["messaging.message.id"] == message.system_properties.message_id
    assert receive.attributes["popgate.message.attempt"] == 1


async def test_the_context_that_a_message_brings_is_its_own_and_stays(house: House) -> None:
    await house.send(b"one", trace_context=CREATED)
    (message,) = await house.receive(traceparent=CALLER)
    assert message.system_properties.trace_context == CREATED
    created = tuple(CREATED.split("-")[1:3])
    spans = house.spans()
    assert parent_of(spans["send orders"]) == created
    assert links_of(spans["receive orders"]) == [created]
    assert parent_of(spans["receive orders"])[0] == TRACE


async def test_sends_to_a_broker_that_takes_them_packed_have_spans_too(house: House) -> None:
    broker = house.app.broker
    broker.traits = replace(broker.traits, chooses_queues=True)
    assert (await house.send(b"body", traceparent=CALLER)).status.code == pb.Code.OK
    assert {"send orders", "store orders"} <= house.spans().keys()


async def test_batches_are_not_forwarded_in_one_piece() -> None:
    """They could not carry on the context of a span."""
    clock = MovableClock()
    processor = TracedProcessor(
        Forwarder(clock),
        spans=cast(Spans, None),
        clock=clock,
        limits=Limits(),
        policies=Policies(),
        observer=NullObserver(),
    )
    assert not processor.batches.supported


async def test_a_batch_is_one_span_with_a_count_and_links(house: House) -> None:
    await house.send(b"one", b"two", b"three", trace_context=CREATED)
    taken: list[pb.Message] = []
    while len(taken) < 3:
        taken += await house.receive(count=3)
    await house.ack(*taken)
    spans = house.spans()
    send, ack = spans["send orders"], spans["ack orders"]
    assert send.attributes is not None
    assert ack.attributes is not None
    assert send.attributes["messaging.batch.message_count"] == 3
    assert ack.attributes["messaging.batch.message_count"] == 3
    assert len(links_of(send)) == len(links_of(ack)) == 3


async def test_a_dead_letter_is_linked_and_its_copy_keeps_the_context(house: House) -> None:
    await house.send(b"one", trace_context=CREATED)
    (message,) = await house.receive()
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=message.system_properties.receipt_handle
    )
    await house.unary("ForwardMessageToDeadLetterQueue", request, rpc.ForwardMessageToDeadLetterQueueResponse)
    assert links_of(house.spans()["dead_letter orders"]) == [tuple(CREATED.split("-")[1:3])]


async def test_what_is_refused_is_told_by_name_and_never_by_what_it_held(house: House) -> None:
    await house.send(b"one")
    (message,) = await house.receive()
    await house.ack(message)
    message.system_properties.receipt_handle = "SECRET no handle"
    await house.ack(message)
    ack = [one for one in house.exporter.get_finished_spans() if one.name == "ack orders"]
    house.spans()
    ack = [one for one in house.exporter.get_finished_spans() if one.name == "ack orders"]
    assert ack[-1].status.status_code is StatusCode.ERROR
    assert ack[-1].attributes is not None
    assert ack[-1].attributes["error.type"] == "ILLEGAL_RECEIPT"
    assert all("SECRET" not in one.to_json() for one in house.exporter.get_finished_spans())


async def test_an_empty_receive_makes_no_span(house: House) -> None:
    assert await house.receive() == []
    assert house.spans() == {}


async def test_remembered_deliveries_are_bounded(house: House) -> None:
    assert isinstance(house.app.processor, TracedProcessor)
    spans = house.app.processor._spans
    spans._most = 5
    for number in range(50):
        spans._remember(f"receipt-{number}", CREATED)
    assert len(spans._contexts) == 5
    spans.finished(f"receipt-{number}" for number in range(50))
    assert spans._contexts == {}


async def test_of_what_is_no_context_nothing_is_remembered(house: House) -> None:
    """A client may send some 30 KB of it with each message: with 100,000 deliveries that were 3 GB."""
    assert isinstance(house.app.processor, TracedProcessor)
    spans = house.app.processor._spans
    await house.send(b"x", trace_context="long" * 1_000)
    (message,) = await house.receive()
    assert list(spans._contexts.values()) == [""]
    spans._hold("orders", "id", "long" * 1_000)
    assert spans.held("orders", "id") == ""
    assert (await house.ack(message)).status.code == pb.OK


async def test_a_broker_with_spans_is_still_what_it_is(house: House) -> None:
    stored = house.app.processor._broker
    assert isinstance(house.app.broker, EmbeddedBroker)
    assert cast(object, stored.capability(RedrivesDeadLetters)) is stored
    assert cast(object, stored.capability(LiteTopics)) is house.app.broker
    assert stored.capability(TellsCluster) is None
    assert stored.name == house.app.broker.name
    assert stored.traits is house.app.broker.traits


@pytest.mark.parametrize("caller", ["", CALLER], ids=["alone", "beside that of its call"])
async def test_the_trace_of_the_end_of_a_transaction_is_continued_or_linked(
    house: House, caller: str
) -> None:
    request = rpc.EndTransactionRequest(
        topic=TOPIC,
        message_id="m",
        transaction_id="none",
        resolution=pb.COMMIT,
        source=pb.SOURCE_CLIENT,
        trace_context=CREATED,
    )
    await house.unary("EndTransaction", request, rpc.EndTransactionResponse, caller)
    span = house.spans()["commit orders"]
    created = (CREATED[3:35], CREATED[36:52])
    if caller:
        assert (parent_of(span)[0], links_of(span)) == (TRACE, [created])
    else:
        assert (parent_of(span), links_of(span)) == (created, [])


async def test_what_a_client_says_of_a_delivery_is_told_by_the_span(house: House) -> None:
    await house.send(b"one")
    (message,) = await house.receive()
    # Without its mark, so that nothing is compared.
    receipt = message.system_properties.receipt_handle.rpartition(" ")[0]
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP,
        topic=TOPIC,
        receipt_handle=receipt,
        message_id=message.system_properties.message_id,
        delivery_attempt=4,
        max_delivery_attempts=3,
        lite_topic="room",
    )
    answer = await house.unary(
        "ForwardMessageToDeadLetterQueue", request, rpc.ForwardMessageToDeadLetterQueueResponse
    )
    assert answer.status.code == pb.OK
    told = house.spans()["dead_letter orders"].attributes
    assert told is not None
    assert told["messaging.message.id"] == message.system_properties.message_id
    assert told["popgate.message.lite_topic"] == "room"
    assert (told["popgate.message.attempt"], told["popgate.message.max_attempts"]) == (4, 3)


async def test_off_means_that_nothing_is_there(app: App) -> None:
    assert type(app.processor) is MessagingProcessor
    assert app.tracing is None


def test_off_means_that_nothing_is_imported() -> None:
    program = (
        "import sys\n"
        "from proxy.app import build\n"
        "from proxy.config.loader import load_settings\n"
        "build(load_settings(environment={}, flags={}))\n"
        "found = [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.exit(repr(found) if found else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_packages_it_is_said_what_to_install(
    settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("proxy.tracing.", "opentelemetry"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsWrong, match=r"install popgate\[tracing\]"):
        build(settings_for(tracing={"enabled": True}))
