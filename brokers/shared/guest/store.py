"""The port's `Store` at a guest. It returns messages that a pop took for a caller that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from brokers.shared.codec.calls import (
    ACK,
    CHANGE_INVISIBLE,
    DEAD_LETTER,
    DONE,
    GIVE_BACK,
    POP,
    RECALL,
    SEND,
    SEND_BACK,
    Call,
)
from brokers.shared.codec.kinds import Source
from brokers.shared.guest.facet import Facet
from brokers.shared.guest.host_link import HostStopped
from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, GatewayError, TooManyRequests
from popgate.model import Message, Pop, SendBack, Sent, StoredMessage
from popgate.wire.frames.remoting import Command

Taking = Call[[Context, Pop], list[StoredMessage]]


class Under:
    """A pop that the host may still answer."""

    __slots__ = ("call", "context", "number", "request")

    def __init__(self, call: Taking, context: Context, request: Pop) -> None:
        self.call = call
        self.context = context
        self.request = request
        self.number = -1


_ENVELOPE = 1024
"""Bytes that a message may need beside its body and properties, so that parts of a send fit."""


class SharedStore(Facet):
    _taking: dict[int, Under]
    """By the number of the request, of this connection."""
    _all_came: asyncio.Future[None] | None = None
    """Done when no pop is left that the host may still answer."""

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        parts = _parts(messages, self._settings.max_answer_bytes)
        if len(parts) == 1:
            return await self._link.ask(SEND, context, messages)
        results: list[Sent | GatewayError] = []
        for part in parts:
            try:
                stored = await self._link.ask(SEND, context, part)
            except GatewayError as error:
                if not results:
                    raise
                results += [error] * len(part)
                rest = len(messages) - len(results)
                results += [BrokerUnavailable("not sent, because messages before it were not")] * rest
                break
            results += stored
        return results

    async def pop(self, context: Context, request: Pop) -> list[StoredMessage]:
        return await self._take(POP, context, request)

    async def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        return await self._link.ask(ACK, context, topic, group, receipts)

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
        return await self._link.ask(
            CHANGE_INVISIBLE, context, topic, group, receipt, invisible_ms, suspend=suspend
        )

    async def give_back(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> int:
        return await self._link.ask(GIVE_BACK, context, topic, group, receipts)

    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        return await self._link.ask(DEAD_LETTER, context, topic, group, receipt)

    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        return await self._link.ask(RECALL, context, topic, recall_handle)

    async def send_back(self, context: Context, request: SendBack) -> None:
        return await self._link.ask(SEND_BACK, context, request)

    # -- inside -------------------------------------------------------------------------------

    async def _take(self, call: Taking, context: Context, request: Pop) -> list[StoredMessage]:
        """A pop. How much room there is here is asked before, and again when its messages are there.

        Where the host stops while it waits, the next one is asked, if it is there in a moment.
        """
        while True:
            try:
                return await self._take_once(call, context, request)
            except HostStopped:
                if request.wait_until is None or request.wait_until <= self._clock.monotonic():
                    return []

    async def _take_once(self, call: Taking, context: Context, request: Pop) -> list[StoredMessage]:
        allowance = context.allowance
        max_bytes = min(request.max_bytes, self._settings.max_answer_bytes)
        if allowance is not None:
            max_bytes = min(max_bytes, allowance.room())
        asked = request if max_bytes == request.max_bytes else replace(request, max_bytes=max_bytes)
        until = request.wait_until
        wait_s = 0.0 if until is None else max(until - self._clock.monotonic(), 0.0)
        under = Under(call, context, asked)
        try:
            messages = await self._link.take(call, wait_s, partial(self._note, under), context, asked)
        except BrokerTimeout:
            raise  # it may come late
        except GatewayError:
            self._came(under.number)
            raise
        self._came(under.number)
        if allowance is None or not messages:
            return messages
        return self._fitting(context, request, messages)

    def _fitting(self, context: Context, request: Pop, messages: list[StoredMessage]) -> list[StoredMessage]:
        """What there is room for now, the first in any case; the rest is given back."""
        allowance = context.allowance
        assert allowance is not None  # noqa: S101
        try:
            room = allowance.room()
        except TooManyRequests:
            self._return(context, request, messages)
            raise
        taken = count = 0
        for message in messages:
            size = len(message.body) + len(message.properties)
            if count and taken + size > room:
                break
            taken += size
            count += 1
        allowance.add(taken)
        if count < len(messages):
            self._return(context, request, messages[count:])
            return messages[:count]
        return messages

    def _note(self, under: Under, number: int) -> None:
        under.number = number
        self._taking[number] = under

    def _came(self, number: int) -> Under | None:
        under = self._taking.pop(number, None)
        if not self._taking and self._all_came is not None and not self._all_came.done():
            self._all_came.set_result(None)
        return under

    def _forget_taking(self) -> None:
        for number in list(self._taking):
            self._came(number)

    def _came_late(self, answer: Command) -> None:
        """An answer that nobody waits for: what was taken is given back. Raises PeerWireError."""
        under = self._came(answer.opaque)
        if under is None or answer.code != DONE:
            return
        messages = under.call.read_result(Source(answer.body))
        if messages:
            self._return(under.context, under.request, messages)

    def _return(self, context: Context, request: Pop, messages: Sequence[StoredMessage]) -> None:
        """The host frees them before it looks at what is asked afterwards."""
        receipts = [message.receipt for message in messages]
        # The time of who asked is no bound for this.
        self._link.hand(GIVE_BACK, replace(context, deadline=None), request.topic, request.group, receipts)


def _parts(messages: Sequence[Message], most: int) -> list[Sequence[Message]]:
    """The messages in parts that fit into a request each; mostly one."""
    size = sum([len(message.body) + len(message.properties) for message in messages])
    if size + len(messages) * _ENVELOPE <= most:
        return [messages]
    parts: list[Sequence[Message]] = []
    part: list[Message] = []
    size = 0
    for message in messages:
        message_size = len(message.body) + len(message.properties) + _ENVELOPE
        if part and size + message_size > most:
            parts.append(part)
            part, size = [], 0
        part.append(message)
        size += message_size
    return [*parts, part] if part else parts
