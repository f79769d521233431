"""Two replicas before a real RocketMQ: what one of them sent or delivered has its link at the other one."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from popgate.context import Context
from popgate.model import (
    EndTransaction,
    GroupConfig,
    Message,
    MessageType,
    Resolution,
    Sent,
    StoredMessage,
    TopicConfig,
)
from popgate.testing.rocketmq import SharedRocketMQ
from processors.messaging import MessagingProcessor
from processors.requests import Receive
from proxy.app import App, build
from proxy.config.loader import load_settings
from proxy.tracing import exporter as exporter_module
from proxy.tracing.processor import TracedProcessor
from tests.support.needed import needed_rocketmq
from tests.support.waiting import PATIENCE_S

CREATED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LINK = CREATED[36:52]
CLIENT = Context(client_id="c1", door="test", peer="127.0.0.1:1")


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[SharedRocketMQ]:
    with needed_rocketmq() as cluster:
        yield cluster


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(exporter_module, "make_exporter", lambda _endpoint, _timeout_s: exporter)
    return exporter


@pytest.fixture
async def replicas(
    rocketmq: SharedRocketMQ, tmp_path: Path, exporter: InMemorySpanExporter
) -> AsyncIterator[tuple[App, App]]:
    flags = {
        "broker": rocketmq.url,
        "listen": ["grpc://127.0.0.1:0"],
        "admin": "off",
        "tracing": {"enabled": True},
        "remote": dict.fromkeys(("connect_timeout_s", "request_timeout_s", "probe_s"), 30),
        "limits": {"max_wait_s": 300},
    }
    async with AsyncExitStack() as stack:
        apps = []
        for name in ("one", "other"):
            app = build(load_settings(environment={}, flags={**flags, "data": tmp_path / name}))
            await app.start()
            stack.push_async_callback(app.stop)
            apps.append(app)
        yield apps[0], apps[1]


@pytest.fixture
async def names(replicas: tuple[App, App]) -> AsyncIterator[tuple[str, str]]:
    """A topic and a group, gone in the end."""
    tail, broker = uuid.uuid4().hex[:12], replicas[0].broker
    topic, group = f"links-{tail}", f"links-g-{tail}"
    await broker.create_topic(TopicConfig(topic, read_queues=1, write_queues=1))
    await broker.create_group(GroupConfig(group))
    yield topic, group
    await broker.delete_group(group)
    await broker.delete_topic(topic)


async def send(processor: MessagingProcessor, topic: str, kind: MessageType = MessageType.NORMAL) -> Sent:
    message_id = uuid.uuid4().hex
    message = Message(topic, b"body", message_id=message_id, type=kind, trace_context=CREATED)
    (sent,) = await processor.send(CLIENT, [message])
    assert isinstance(sent, Sent)
    return sent


async def receive(processor: MessagingProcessor, topic: str, group: str) -> StoredMessage:
    end = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < end:
        found = await processor.receive(CLIENT, Receive(topic, group, invisible_ms=60_000, wait_s=10.0))
        if found:
            return found[0]
    raise AssertionError("nothing came")


async def test_spans_at_another_replica_are_linked_to_the_message(
    replicas: tuple[App, App], names: tuple[str, str], exporter: InMemorySpanExporter
) -> None:
    one, other = replicas[0].processor, replicas[1].processor
    topic, group = names

    async def links(name: str) -> list[str]:
        for app in replicas:
            assert app.tracing is not None
            assert isinstance(app.processor, TracedProcessor)
            await app.processor._spans.linked()
            app.tracing.provider.force_flush()
        span = [span for span in exporter.get_finished_spans() if span.name == name][-1]
        return [f"{link.context.span_id:016x}" for link in span.links]

    await send(one, topic)
    message = await receive(one, topic, group)
    assert await links(f"receive {topic}") == [LINK]
    assert await other.ack(CLIENT, topic, group, [message.receipt]) == [None]
    assert await links(f"ack {topic}") == [LINK]

    half = await send(one, topic, MessageType.TRANSACTION)
    end = EndTransaction(topic, half.transaction_id, half.message_id, Resolution.ROLLBACK)
    await one.end_transaction(CLIENT, end)
    assert await links(f"rollback {topic}") == [LINK]
