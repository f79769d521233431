"""The processor and the broker with spans around their operations."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, cast

from opentelemetry.trace import Span

from brokers.capabilities import Redriven, RedrivesDeadLetters
from brokers.dead_letters import ReportsDeadLetters
from brokers.port import Broker, Capability, CheckHandler
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.model import (
    EndTransaction,
    Message,
    Pulled,
    Resolution,
    Sent,
    StoredMessage,
    TransactionCheck,
)
from popgate.naming import dead_letter_topic
from processors.deliveries.release import OURS
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.observer import Observer
from processors.policies.registry import Policies
from processors.produce.batch_forwarder import BatchForwarder
from processors.requests import NOTHING_SAID, Pull, Receive, Said
from proxy.tracing.lookup import contexts_of_id, contexts_of_places, contexts_of_receipts
from proxy.tracing.spans import Spans, fail


class TracedProcessor(MessagingProcessor):
    """Takes the place of a `MessagingProcessor` when tracing is on."""

    def __init__(
        self,
        broker: Broker,
        *,
        spans: Spans,
        clock: Clock,
        limits: Limits,
        policies: Policies,
        observer: Observer,
    ) -> None:
        stored = cast(Broker, _TracedStore(broker, spans))
        super().__init__(stored, clock=clock, limits=limits, policies=policies, observer=observer)
        # What is forwarded in one piece cannot carry on the context of a span.
        self.batches = BatchForwarder(None, self._routing, clock, limits, observer, self._admit)
        self._spans = spans

    async def start(self) -> None:
        await super().start()
        reports = self._broker.capability(ReportsDeadLetters)
        if reports is not None:
            reports.on_dead_letter(self._spans.died)

    async def stop(self) -> None:
        await super().stop()
        await self._spans.linked()

    def takes_packed(self, _count: int) -> bool:
        """No: packed messages cannot carry the context of a span."""
        return False

    @property
    def takes_blocks(self) -> bool:
        """No, for the same reason."""
        return False

    async def send(
        self, context: Context, messages: Sequence[Message], *, system: bool = False
    ) -> list[Sent | GatewayError]:
        with self._spans.sending(context, messages) as span:
            results = await super().send(context, messages, system=system)
            for result in results:
                if isinstance(result, GatewayError):
                    fail(span, result)
            self._spans.sent(messages, results)
            return results

    async def receive(self, context: Context, request: Receive) -> list[StoredMessage]:
        began_ns = time.time_ns()
        try:
            messages = await super().receive(context, request)
        except GatewayError as error:
            self._spans.refused(context, request.topic, request.group, error, began_ns)
            raise
        if messages:
            self._spans.received(context, request.topic, request.group, messages, began_ns)
        return messages

    async def pull(self, context: Context, request: Pull) -> Pulled:
        began_ns = time.time_ns()
        topic, group = request.topic, request.group or ""
        try:
            pulled = await super().pull(context, request)
        except GatewayError as error:
            self._spans.refused(context, topic, group, error, began_ns, "pull")
            raise
        if pulled.messages:
            self._spans.received(context, topic, group, pulled.messages, began_ns, "pull")
        return pulled

    async def ack(
        self,
        context: Context,
        topic: str,
        group: str,
        receipts: Sequence[str],
        *,
        said: Said = NOTHING_SAID,
    ) -> list[GatewayError | None]:
        with self._spans.settling("ack", context, topic, group, receipts, said) as span:
            results = await super().ack(context, topic, group, receipts, said=said)
            for result in results:
                if result is not None:
                    fail(span, result)
            done = [receipt for receipt, result in zip(receipts, results, strict=True) if result is None]
            self._link(span, context, topic, group, done)
        self._spans.finished(done)
        return results

    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        said: Said = NOTHING_SAID,
        suspend: bool = False,
    ) -> str:
        with self._spans.settling("change_invisible", context, topic, group, (receipt,), said) as span:
            span.set_attribute("popgate.invisible_ms", invisible_ms)
            newer = await super().change_invisible(
                context, topic, group, receipt, invisible_ms, said=said, suspend=suspend
            )
            self._link(span, context, topic, group, [receipt])
        self._spans.renamed(receipt, newer)
        return newer

    async def dead_letter(
        self, context: Context, topic: str, group: str, receipt: str, *, said: Said = NOTHING_SAID
    ) -> None:
        with self._spans.settling("dead_letter", context, topic, group, (receipt,), said) as span:
            await super().dead_letter(context, topic, group, receipt, said=said)
            self._link(span, context, topic, group, [receipt])
        self._spans.finished((receipt,))

    async def give_back(
        self,
        context: Context,
        topic: str,
        group: str,
        messages: Sequence[StoredMessage],
        written: Sequence[StoredMessage] = (),
    ) -> None:
        receipts = [message.receipt for message in messages if message.receipt]
        with self._spans.settling("give_back", context, topic, group, receipts):
            await super().give_back(context, topic, group, messages, written)
        self._spans.finished(receipts)

    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        with self._spans.asking("recall", context, topic) as span:
            message_id = await super().recall(context, topic, recall_handle)
            span.set_attribute("messaging.message.id", message_id)
            self._spans.link(span, (self._spans.held(topic, message_id) or "",))
        self._spans.let_go(topic, message_id)
        return message_id

    async def end_transaction(
        self, context: Context, end: EndTransaction, *, trace_context: str = ""
    ) -> None:
        topic, message_id = end.topic, end.message_id
        with self._spans.asking(end.resolution.value, context, topic, message_id, trace_context) as span:
            await super().end_transaction(context, end)
            text = self._spans.held(topic, message_id)
            if text is not None:
                self._spans.link(span, (text,))
            elif end.resolution is Resolution.COMMIT and topic and message_id:
                # Sent through another replica, or before a restart: what was committed lies in its topic.
                find = partial(contexts_of_id, self._broker, context, topic, message_id)
                self._spans.link_later(span, find)
        self._spans.let_go(topic, message_id)

    def _link(self, span: Span, context: Context, topic: str, group: str, receipts: Sequence[str]) -> None:
        """Link a span to messages that another replica delivered: they carry their contexts themselves."""
        if unknown := self._spans.unknown(receipts):
            find = partial(contexts_of_receipts, self._broker, context, topic, group, unknown)
            self._spans.link_later(span, find)


class _TracedStore:
    """A broker with a span around each send; everything else is delegated, also what `capability` returns."""

    def __init__(self, broker: Broker, spans: Spans) -> None:
        self._broker = broker
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def capability(self, kind: type[Capability]) -> Capability | None:
        """The capability of the wrapped broker, with spans for the operations that have them here."""
        part = self._broker.capability(kind)
        return cast(Capability, self) if part is not None and kind is RedrivesDeadLetters else part

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        with self._spans.storing(messages[0].topic, len(messages), self._broker.name):
            return await self._broker.send(context, messages)

    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> str:
        """Changes by the gateway itself have a span here: a client's request has one already."""
        if context is not OURS:
            return await self._broker.change_invisible(
                context, topic, group, receipt, invisible_ms, suspend=suspend
            )
        operation = "renew" if invisible_ms else "release"
        with self._spans.settling(operation, context, topic, group, (receipt,)) as span:
            span.set_attribute("popgate.invisible_ms", invisible_ms)
            newer = await self._broker.change_invisible(
                context, topic, group, receipt, invisible_ms, suspend=suspend
            )
        self._spans.renamed(receipt, newer)
        return newer

    def on_check(self, handler: CheckHandler) -> None:
        def ask(check: TransactionCheck) -> bool | Awaitable[bool]:
            with self._spans.checking(check) as span:
                asked = handler(check)
                if isinstance(asked, bool):
                    span.set_attribute("popgate.transaction.asked", asked)
            return asked

        self._broker.on_check(ask)

    async def redrive(
        self, context: Context, group: str, broker: str, queue_id: int, offsets: Sequence[int]
    ) -> list[Redriven | GatewayError]:
        """`brokers.capabilities.RedrivesDeadLetters`, where the broker behind is one."""
        topic = dead_letter_topic(group)
        places = [(topic, broker, queue_id, offset) for offset in offsets]
        with self._spans.redriving(context, topic, group, len(offsets)) as span:
            if span.is_recording():
                self._spans.link(span, await contexts_of_places(self._broker, context, places))
            redrives = self._broker.capability(RedrivesDeadLetters)
            assert redrives is not None  # noqa: S101 - else nobody was told that this redrives
            results = await redrives.redrive(context, group, broker, queue_id, offsets)
            for result in results:
                if isinstance(result, GatewayError):
                    fail(span, result)
            return results
