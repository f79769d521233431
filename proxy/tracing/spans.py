"""The spans of a message's way, according to OpenTelemetry's semantic conventions for messaging.

A producer's context is continued: that of its call (`traceparent` in the metadata), or that of the
message itself: `trace_context`, or the user property `traceparent` that OpenTelemetry's propagators write.
A message without one gets that of the span that stored it. Receives, acknowledgements and moves to
the dead letters have traces of their own, linked to those of the messages; so have the gateway's own actions.

Attributes are ids, names, counts and sizes; never bodies, properties or keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, TracerProvider

from popgate import __version__
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.model import Message, Sent, StoredMessage, TransactionCheck
from processors.deliveries.release import OURS
from processors.requests import NOTHING_SAID, Said
from proxy.tracing.contexts import carried, context_of, has_room, id_in, id_of, parsed
from proxy.tracing.traceparent import LONGEST, encode_traceparent, parse_traceparent

_MOST_LINKS = 128
_MOST_LATE = 256
"""Spans that may wait for their links at the same time; further ones end without."""

Value = str | int
Told = dict[str, Value]
Finding = Callable[[], Coroutine[None, None, list[str]]]
"""Looks up the contexts of messages."""


class Spans:
    """Makes spans, and remembers softly of which context delivered messages are: at most `most` of them."""

    def __init__(self, provider: TracerProvider, *, most: int) -> None:
        self._tracer: Tracer = provider.get_tracer("popgate", __version__)
        self._most = most
        self._contexts: dict[str, str] = {}
        self._held: dict[tuple[str, str], str] = {}
        """By topic and id, the contexts of delayed and half messages; empty: it is known to have none."""
        self._late: dict[Span, Finding] = {}
        self._linking: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Spans remembering {len(self._contexts)}>"

    @contextmanager
    def sending(self, context: Context, messages: Sequence[Message]) -> Iterator[Span]:
        """The send of a producer; its messages carry on its context, or that of this span."""
        texts = [carried(message) for message in messages]
        sent_contexts = parsed(texts[:_MOST_LINKS])
        caller = parse_traceparent(context.traceparent)
        parent, links = caller, sent_contexts
        if parent is None and len(messages) == 1 and sent_contexts:
            parent, links = sent_contexts[0], []
        topic = messages[0].topic if messages else ""
        attributes = _attributes("send", "send", topic, context)
        if len(messages) == 1:
            message = messages[0]
            attributes["messaging.message.id"] = message.message_id
            attributes["messaging.message.body.size"] = len(message.body)
            attributes["messaging.rocketmq.message.type"] = message.type.value.lower()
            if message.message_group:
                attributes["messaging.rocketmq.message.group"] = message.message_group
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        with self._span(f"send {topic}", SpanKind.PRODUCER, attributes, parent, links) as span:
            own = span.get_span_context()
            if own.trace_flags.sampled:
                text = encode_traceparent(own)
                for message, context_text in zip(messages, texts, strict=True):
                    if not context_text and not message.properties and has_room(message):
                        message.trace_context = text
            yield span

    def sent(self, messages: Sequence[Message], results: Sequence[Sent | GatewayError]) -> None:
        """Remember the contexts of messages that are held back: they may be recalled, or committed."""
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, Sent) and (result.transaction_id or result.recall_handle):
                self._hold(message.topic, message.message_id, carried(message))

    @contextmanager
    def storing(self, topic: str, count: int, broker: str) -> Iterator[Span]:
        """The broker's part of a send; a child of the span around it."""
        attributes: Told = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": "store",
            "messaging.destination.name": topic,
            "messaging.batch.message_count": count,
            "popgate.broker": broker,
        }
        with self._span(f"store {topic}", SpanKind.INTERNAL, attributes, None, []) as span:
            yield span

    def received(
        self,
        context: Context,
        topic: str,
        group: str,
        messages: Sequence[StoredMessage],
        began_ns: int,
        operation: str = "receive",
    ) -> None:
        """A receive that returned messages, recorded afterwards: most receives wait and return none.

        `operation`: `receive`, or `pull` by position.
        """
        texts = []
        for message in messages:
            text = context_of(message.properties)
            if text:
                texts.append(text)
            if message.receipt:
                self._remember(message.receipt, text)
        attributes = _attributes(operation, "receive", topic, context, group)
        attributes["messaging.batch.message_count"] = len(messages)
        if len(messages) == 1:
            (message,) = messages
            attributes["messaging.message.id"] = id_of(message)
            attributes["messaging.message.body.size"] = len(message.body)
            attributes["popgate.message.attempt"] = message.attempt
        span = self._start(
            f"{operation} {topic}",
            SpanKind.CONSUMER,
            attributes,
            parse_traceparent(context.traceparent),
            parsed(texts[:_MOST_LINKS]),
            began_ns,
        )
        span.end()

    @contextmanager
    def settling(
        self,
        operation: str,
        context: Context,
        topic: str,
        group: str,
        receipts: Sequence[str],
        said: Said = NOTHING_SAID,
    ) -> Iterator[Span]:
        """A span for the end or change of deliveries.

        `operation` is ack, change_invisible, dead_letter or give_back, or renew or release by the gateway
        itself. `said`: what the client reported of the only delivery, or of the last one.
        """
        known = (self._contexts.get(receipt, "") for receipt in receipts[:_MOST_LINKS])
        attributes = _attributes(operation, "settle", topic, context, group)
        attributes["messaging.batch.message_count"] = len(receipts)
        attributes |= _said(said)
        parent = parse_traceparent(context.traceparent)
        with self._span(f"{operation} {topic}", SpanKind.CLIENT, attributes, parent, parsed(known)) as span:
            yield span

    def unknown(self, receipts: Iterable[str]) -> list[str]:
        """Those whose contexts are not remembered: delivered by another replica, or long ago."""
        return [receipt for receipt in receipts if receipt not in self._contexts][:_MOST_LINKS]

    def link(self, span: Span, texts: Iterable[str]) -> None:
        """Link a span to contexts that were found out while it lasted."""
        for span_context in parsed(texts):
            span.add_link(span_context)

    def link_later(self, span: Span, find: Finding) -> None:
        """Link a finished span of this class to the result of `find`, without delaying its request.

        The span is exported as it was, with the time at which it ended.
        """
        if span.is_recording() and len(self._linking) + len(self._late) < _MOST_LATE:
            self._late[span] = find

    async def linked(self) -> None:
        """Wait for all spans that are over and not yet linked."""
        while self._linking:
            await asyncio.wait(self._linking)

    def held(self, topic: str, message_id: str) -> str | None:
        """The context of a delayed or half message; empty: it has none, None: it is not remembered."""
        return self._held.get((topic, message_id))

    def let_go(self, topic: str, message_id: str) -> None:
        """A delayed or half message is one no more."""
        self._held.pop((topic, message_id), None)

    @contextmanager
    def checking(self, check: TransactionCheck) -> Iterator[Span]:
        """A producer is asked for the state of the transaction of a half message."""
        block = check.message.properties
        text, message_id = context_of(block), id_of(check.message)
        if message_id:
            self._hold(check.topic, message_id, text)
        attributes = _attributes("check_transaction", "settle", check.topic, OURS)
        attributes["messaging.message.id"] = message_id
        attributes["popgate.transaction.checks"] = check.checks
        name = f"check_transaction {check.topic}"
        with self._span(name, SpanKind.INTERNAL, attributes, None, parsed((text,))) as span:
            yield span

    @contextmanager
    def redriving(self, context: Context, topic: str, group: str, count: int) -> Iterator[Span]:
        """Dead letters are given to their group again; `topic` is theirs."""
        attributes = _attributes("redrive", "settle", topic, context, group)
        attributes["messaging.batch.message_count"] = count
        parent = parse_traceparent(context.traceparent)
        with self._span(f"redrive {topic}", SpanKind.INTERNAL, attributes, parent, []) as span:
            yield span

    def died(self, group: str, topic: str, properties: bytes) -> None:
        """A message became a dead letter because its attempts were used up. A `DeadLetterHandler`."""
        attributes = _attributes("dead_letter", "settle", topic, OURS, group)
        attributes["messaging.message.id"] = id_in(properties)
        links = parsed((context_of(properties),))
        self._start(f"dead_letter {topic}", SpanKind.INTERNAL, attributes, None, links, None).end()

    @contextmanager
    def asking(
        self, operation: str, context: Context, topic: str, message_id: str = "", trace_context: str = ""
    ) -> Iterator[Span]:
        """Another request about a message: commit, rollback, recall, a receive that is refused.

        `trace_context`: as the request itself has it; continued like that of its call, or linked beside it.
        """
        attributes = _attributes(operation, "settle", topic, context)
        if message_id:
            attributes["messaging.message.id"] = message_id
        parent, links = parse_traceparent(context.traceparent), parsed((trace_context,))
        if parent is None and links:
            parent = links.pop()
        with self._span(f"{operation} {topic}", SpanKind.CLIENT, attributes, parent, links) as span:
            yield span

    def refused(
        self,
        context: Context,
        topic: str,
        group: str,
        error: GatewayError,
        began_ns: int,
        operation: str = "receive",
    ) -> None:
        """A receive or a pull that failed."""
        attributes = _attributes(operation, "receive", topic, context, group)
        parent = parse_traceparent(context.traceparent)
        span = self._start(f"{operation} {topic}", SpanKind.CONSUMER, attributes, parent, [], began_ns)
        fail(span, error)
        span.end()

    def renamed(self, receipt: str, newer: str) -> None:
        """A delivery has another handle from here on; the older one may still come."""
        text = self._contexts.get(receipt)
        if text is not None and newer != receipt:
            self._remember(newer, text)

    def finished(self, receipts: Iterable[str]) -> None:
        for receipt in receipts:
            self._contexts.pop(receipt, None)

    # -- inside -------------------------------------------------------------------------------

    def _remember(self, receipt: str, text: str) -> None:
        contexts = self._contexts
        if receipt not in contexts and len(contexts) >= self._most:
            del contexts[next(iter(contexts))]
        contexts[receipt] = _bounded(text)

    def _hold(self, topic: str, message_id: str, text: str) -> None:
        held, key = self._held, (topic, message_id)
        if key not in held and len(held) >= self._most:
            del held[next(iter(held))]
        held[key] = _bounded(text)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Told,
        parent: SpanContext | None,
        links: Sequence[SpanContext],
    ) -> Iterator[Span]:
        span = self._start(name, kind, attributes, parent, links, None)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except GatewayError as error:
            fail(span, error)
            raise
        finally:
            find = self._late.pop(span, None)
            if find is None:
                span.end()
            else:
                task = asyncio.get_running_loop().create_task(self._end_linked(span, find, time.time_ns()))
                self._linking.add(task)
                task.add_done_callback(self._linking.discard)

    async def _end_linked(self, span: Span, find: Finding, over_ns: int) -> None:
        try:
            self.link(span, await find())
        finally:
            span.end(over_ns)

    def _start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Told,
        parent: SpanContext | None,
        links: Sequence[SpanContext],
        began_ns: int | None,
    ) -> Span:
        above: TraceContext | None = None
        if parent is not None:
            above = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        return self._tracer.start_span(
            name,
            context=above,
            kind=kind,
            attributes=attributes,
            links=[Link(span_context) for span_context in links],
            start_time=time.time_ns() if began_ns is None else began_ns,
        )


def fail(span: Span, error: GatewayError) -> None:
    """Record the failure by its name; the sentence may contain data of a client."""
    span.set_attribute("error.type", error.fault.name)
    span.set_status(Status(StatusCode.ERROR, error.fault.name))


def _bounded(text: str) -> str:
    """What is too long for a context is none: it was written by a client, and would be kept for long."""
    return text if len(text) <= LONGEST else ""


def _attributes(name: str, kind: str, topic: str, context: Context, group: str = "") -> Told:
    attributes: Told = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.client.id": context.client_id,
        "network.peer.address": context.peer,
        "popgate.door": context.door,
    }
    if group:
        attributes["messaging.consumer.group.name"] = group
    return attributes


def _said(said: Said) -> Told:
    said = said.bounded()
    attributes: Told = {
        "messaging.message.id": said.message_id,
        "popgate.message.lite_topic": said.lite_topic,
        "popgate.message.attempt": said.attempt,
        "popgate.message.max_attempts": said.max_attempts,
    }
    return {name: value for name, value in attributes.items() if value}
