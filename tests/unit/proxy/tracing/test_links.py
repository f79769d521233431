"""Spans of what follows a send, and their links to the message: at this replica, at another one, later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from popgate.context import Context
from popgate.errors import NotFound
from popgate.filters.compiled import compile_filter
from popgate.model import (
    EndTransaction,
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    Resolution,
    Sent,
    StoredMessage,
    TopicConfig,
    TransactionCheck,
)
from popgate.wire.messages.properties import LONGEST_BLOCK, decode_properties, encode_properties
from processors.produce.message_checks import finish_message
from processors.requests import Pull, Receive
from proxy.app import App, build
from proxy.config.settings import Settings
from proxy.tracing import exporter as exporter_module
from proxy.tracing.processor import TracedProcessor

CREATED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LINK = (CREATED[3:35], CREATED[36:52])
CLIENT = Context(client_id="c1", door="test", peer="127.0.0.1:1")
EVERYTHING = compile_filter(FilterKind.TAG, "*")


class House:
    """A gateway with tracing, and the spans that came out; the messages of one topic and one group."""

    def __init__(self, app: App, exporter: InMemorySpanExporter) -> None:
        self.app = app
        self.exporter = exporter
        assert isinstance(app.processor, TracedProcessor)
        self.processor = app.processor

    async def send(self, number: int = 1, **more: Any) -> Sent:
        fields = {"trace_context": CREATED, **more}
        message = Message("orders", b"%d" % number, message_id=f"id-{number}", **fields)
        (sent,) = await self.processor.send(CLIENT, [message])
        assert isinstance(sent, Sent)
        return sent

    async def receive(self, **more: Any) -> StoredMessage:
        request = Receive("orders", "billing", **{"invisible_ms": 60_000, "wait_s": 60.0, **more})
        (message,) = await self.processor.receive(CLIENT, request)
        return message

    async def ack(self, message: StoredMessage) -> None:
        assert await self.processor.ack(CLIENT, "orders", "billing", [message.receipt]) == [None]

    def forget(self) -> None:
        """From here on this process knows as little as another replica."""
        self.processor._spans._contexts.clear()
        self.processor._spans._held.clear()

    async def linked(self, name: str) -> list[tuple[str, str]]:
        """`links` of a span whose messages are looked up after its request."""
        await self.processor._spans.linked()
        return self.links(name)

    def span(self, name: str) -> ReadableSpan:
        """The last one of this name."""
        assert self.app.tracing is not None
        self.app.tracing.provider.force_flush()
        found = [one for one in self.exporter.get_finished_spans() if one.name == name]
        assert found, (name, [one.name for one in self.exporter.get_finished_spans()])
        return found[-1]

    def links(self, name: str) -> list[tuple[str, str]]:
        links = self.span(name).links
        return [(f"{one.context.trace_id:032x}", f"{one.context.span_id:016x}") for one in links]


@pytest.fixture
def opened(settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(exporter_module, "make_exporter", lambda _endpoint, _timeout_s: exporter)

    @asynccontextmanager
    async def opened(**more: Any) -> AsyncIterator[House]:
        exporter._stopped = False  # another process has another one
        app = build(settings_for(tracing={"enabled": True}, **more))
        await app.start()
        try:
            yield House(app, exporter)
        finally:
            await app.stop()

    return opened


@pytest.fixture
async def house(opened: Callable[..., Any]) -> AsyncIterator[House]:
    async with opened() as house:
        await house.app.broker.create_topic(TopicConfig("orders", read_queues=1, write_queues=1))
        await house.app.broker.create_group(GroupConfig("billing", max_attempts=1))
        yield house


async def test_an_acknowledgement_after_a_restart_keeps_its_link(opened: Callable[..., Any]) -> None:
    async with opened() as house:
        await house.send()
        message = await house.receive()
    async with opened() as house:
        await house.ack(message)
        assert await house.linked("ack orders") == [LINK]


@pytest.mark.parametrize("what", ["ack", "change_invisible", "dead_letter"])
async def test_what_comes_at_another_replica_keeps_its_link(house: House, what: str) -> None:
    await house.send()
    message = await house.receive()
    house.forget()
    where = (CLIENT, "orders", "billing")
    if what == "ack":
        await house.ack(message)
    elif what == "change_invisible":
        await house.processor.change_invisible(*where, message.receipt, 30_000)
    else:
        await house.processor.dead_letter(*where, message.receipt)
    assert await house.linked(f"{what} orders") == [LINK]


@pytest.mark.parametrize("error", [NotFound("no such topic"), ValueError("a bug")])
async def test_what_succeeded_stays_so_when_its_message_cannot_be_looked_up(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    await house.send()
    message = await house.receive()
    house.forget()
    monkeypatch.setattr(house.app.broker, "pull", fail)
    await house.ack(message)
    assert await house.linked("ack orders") == []


async def test_no_client_waits_for_a_look_up_and_its_span_is_as_long_as_its_request(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull, answered = house.app.broker.pull, asyncio.Event()

    async def pull_later(*where: Any, **how: Any) -> Any:
        await answered.wait()
        return await pull(*where, **how)

    await house.send()
    message = await house.receive()
    house.forget()
    monkeypatch.setattr(house.app.broker, "pull", pull_later)
    await house.ack(message)
    over_ns = time.time_ns()
    answered.set()
    assert await house.linked("ack orders") == [LINK]
    assert (house.span("ack orders").end_time or over_ns) < over_ns


async def test_a_gateway_that_stops_looks_up_what_is_left(opened: Callable[..., Any]) -> None:
    async with opened() as house:
        await house.send()
        message = await house.receive()
        house.forget()
        await house.ack(message)
    (acked,) = [one for one in house.exporter.get_finished_spans() if one.name == "ack orders"]
    assert [f"{link.context.span_id:016x}" for link in acked.links] == [LINK[1]]


async def test_a_receipt_that_is_none_has_no_link(house: House) -> None:
    await house.send()
    for receipt in ("nonsense", "0 1 2 3 2 popgate 0 9 9", "0 1 2 3 0 elsewhere 0 0 0"):
        (error,) = await house.processor.ack(CLIENT, "orders", "billing", [receipt])
        assert error is not None
        assert await house.linked("ack orders") == []


async def test_a_traceparent_of_the_client_is_honoured_and_kept(house: House) -> None:
    """OpenTelemetry's propagators write the context into a user property."""
    own = {"traceparent": CREATED, "color": "blue"}
    await house.send(trace_context="", user_properties=own)
    sent = house.span("send orders")
    assert sent.parent is not None
    assert (f"{sent.parent.trace_id:032x}", f"{sent.parent.span_id:016x}") == LINK
    message = await house.receive()
    found = decode_properties(message.properties)
    assert {name: found.get(name) for name in own} == own
    assert "TRACE_CONTEXT" not in found
    house.forget()
    await house.ack(message)
    assert house.links("receive orders") == await house.linked("ack orders") == [LINK]


async def test_a_traceparent_in_the_block_of_a_classic_message_is_honoured(house: House) -> None:
    block = encode_properties({"UNIQ_KEY": "id-1", "traceparent": CREATED})
    await house.send(trace_context="", properties=block)
    message = await house.receive()
    assert message.properties == block
    assert house.links("receive orders") == [LINK]


async def test_tracing_makes_no_message_too_large(house: House) -> None:
    spans = house.processor._spans
    small = Message("orders", b"1", message_id="a", user_properties={"k": "v"})
    large = Message("orders", b"1", message_id="b", user_properties={"k": "v" * (LONGEST_BLOCK - 80)})
    with spans.sending(CLIENT, [small, large]):
        pass
    assert (bool(small.trace_context), large.trace_context) == (True, "")
    finish_message(large)


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
async def test_the_end_of_a_transaction_is_linked_to_its_message(
    house: House, resolution: Resolution
) -> None:
    sent = await house.send(type=MessageType.TRANSACTION)
    end = EndTransaction("orders", sent.transaction_id, "id-1", resolution)
    await house.processor.end_transaction(CLIENT, end)
    assert house.links(f"{resolution.value} orders") == [LINK]
    assert house.processor._spans._held == {}


async def test_a_commit_at_another_replica_is_linked(house: House) -> None:
    sent = await house.send(type=MessageType.TRANSACTION)
    house.forget()
    end = EndTransaction("orders", sent.transaction_id, "id-1", Resolution.COMMIT)
    await house.processor.end_transaction(CLIENT, end)
    assert await house.linked("commit orders") == [LINK]


async def test_a_recall_is_linked_and_names_its_message(house: House) -> None:
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    sent = await house.send(deliver_at_ms=due_ms)
    assert await house.processor.recall(CLIENT, "orders", sent.recall_handle) == "id-1"
    assert house.links("recall orders") == [LINK]
    assert dict(house.span("recall orders").attributes or {})["messaging.message.id"] == "id-1"


async def test_a_pull_that_found_messages_has_a_span(house: House) -> None:
    pull = Pull("orders", house.app.broker.name, 0, 0, group="billing")
    await house.processor.pull(CLIENT, pull)
    await house.send()
    assert not [one for one in house.exporter.get_finished_spans() if one.name.startswith("pull")]
    assert len((await house.processor.pull(CLIENT, pull)).messages) == 1
    assert house.links("pull orders") == [LINK]
    assert dict(house.span("pull orders").attributes or {})["messaging.consumer.group.name"] == "billing"


async def test_a_renewal_by_the_gateway_has_a_span(house: House) -> None:
    await house.send()
    message = await house.receive(auto_renew=True)
    renewing = house.processor.auto_renewal
    delivery = renewing.holdings.find("orders", "billing", message.receipt)
    assert delivery is not None
    await renewing._renew_one(delivery, 1_000_000)
    assert house.links("renew orders") == [LINK]
    told = dict(house.span("renew orders").attributes or {})
    assert (told["popgate.door"], told["popgate.invisible_ms"]) == ("gateway", 1_000_000)
    house.forget()
    await house.ack(message)
    assert await house.linked("ack orders") == [LINK]


async def test_a_transaction_check_has_a_span(house: House) -> None:
    await house.send()
    stored = replace(await house.receive(), receipt="")
    state = house.app.broker._engine  # type: ignore[attr-defined]
    assert state.check_handler(TransactionCheck("orders", "orders", "t", stored, 3)) is False
    assert house.links("check_transaction orders") == [LINK]
    told = dict(house.span("check_transaction orders").attributes or {})
    assert told["messaging.message.id"] == "id-1"
    assert (told["popgate.transaction.checks"], told["popgate.transaction.asked"]) == (3, False)


async def test_a_message_that_dies_of_its_last_attempt_and_is_redriven(house: House) -> None:
    await house.send()
    message = await house.receive()
    await house.app.broker.change_invisible(CLIENT, "orders", "billing", message.receipt, 0)
    assert house.links("dead_letter orders") == [LINK]
    told = dict(house.span("dead_letter orders").attributes or {})
    assert told["messaging.message.id"] == "id-1"
    assert told["messaging.consumer.group.name"] == "billing"
    moved = await house.processor.dead_letters.redrive(CLIENT, "billing")
    assert [one.message_id for one in moved.moved] == ["id-1"]
    assert house.links("redrive %DLQ%billing") == [LINK]
    # Its copy lies in the group's retry topic, from which another replica finds its context as well.
    again = await house.receive()
    house.forget()
    await house.ack(again)
    assert await house.linked("ack orders") == [LINK]


async def test_what_a_client_gives_up_is_told_once(house: House) -> None:
    await house.send()
    message = await house.receive()
    await house.processor.dead_letter(CLIENT, "orders", "billing", message.receipt)
    house.span("dead_letter orders")
    names = [one.name for one in house.exporter.get_finished_spans()]
    assert names.count("dead_letter orders") == 1


async def test_a_refused_redrive_is_told(house: House) -> None:
    with pytest.raises(NotFound):
        await house.processor.dead_letters.redrive(CLIENT, "billing", message_ids=["none"])
    assert not [one for one in house.exporter.get_finished_spans() if one.name.startswith("redrive")]
