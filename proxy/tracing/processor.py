"""The processor with a span around what it does, and its broker with one around each store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from brokers.port import Broker
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.model import EndTransaction, Message, Sent, StoredMessage
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.observing import Observer
from processors.policies.registry import Policies
from processors.requests import NOTHING_SAID, Receive, Said, Taken
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
        stored = cast(Broker, _Storing(broker, spans))
        super().__init__(stored, clock=clock, limits=limits, policies=policies, observer=observer)
        self._spans = spans

    def takes_packed(self, _count: int) -> bool:
        """No: what is packed already cannot carry on the context of a span."""
        return False

    async def send(
        self, context: Context, messages: Sequence[Message], *, system: bool = False
    ) -> list[Sent | GatewayError]:
        with self._spans.sending(context, messages) as span:
            results = await super().send(context, messages, system=system)
            for result in results:
                if isinstance(result, GatewayError):
                    fail(span, result)
            return results

    async def _receive(self, context: Context, request: Receive) -> Taken:
        began_ns = time.time_ns()
        try:
            taken = await super()._receive(context, request)
        except GatewayError as error:
            self._spans.refused(context, request.topic, request.group, error, began_ns)
            raise
        if taken.messages:
            self._spans.received(context, request.topic, request.group, taken.messages, began_ns)
        return taken

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
        self._spans.finished(
            receipt for receipt, result in zip(receipts, results, strict=True) if result is None
        )
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
        self._spans.renamed(receipt, newer)
        return newer

    async def dead_letter(
        self, context: Context, topic: str, group: str, receipt: str, *, said: Said = NOTHING_SAID
    ) -> None:
        with self._spans.settling("dead_letter", context, topic, group, (receipt,), said):
            await super().dead_letter(context, topic, group, receipt, said=said)
        self._spans.finished((receipt,))

    async def give_back(
        self, context: Context, topic: str, group: str, messages: Sequence[StoredMessage]
    ) -> None:
        receipts = [message.receipt for message in messages if message.receipt]
        with self._spans.settling("give_back", context, topic, group, receipts):
            await super().give_back(context, topic, group, messages)
        self._spans.finished(receipts)

    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        with self._spans.asking("recall", context, topic):
            return await super().recall(context, topic, recall_handle)

    async def end_transaction(
        self, context: Context, end: EndTransaction, *, trace_context: str = ""
    ) -> None:
        with self._spans.asking(end.resolution.value, context, end.topic, end.message_id, trace_context):
            await super().end_transaction(context, end)


class _Storing:
    """A broker with a span around each send; everything else is its own, also its class."""

    def __init__(self, broker: Broker, spans: Spans) -> None:
        self._broker = broker
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # Who asks what a broker is capable of is told of the one behind.
        return type(self._broker)

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        with self._spans.storing(messages[0].topic, len(messages), self._broker.name):
            return await self._broker.send(context, messages)
