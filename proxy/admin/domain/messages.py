"""/api/topics/…/messages, receive and ack: the requests of `popgate send`, `receive` and `message`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from aiohttp import web

from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import BadRequest, NotFound, shown
from popgate.ids.message_id import make_message_id
from popgate.model import FilterKind, Message, MessageType, StoredMessage
from processors.messaging import MessagingProcessor
from processors.requests import Receive
from protocols.drain import LongPolls
from proxy.admin.web.fields import Fields, query_number, read_object
from proxy.admin.web.json_forms import error_out, message_out, sent_out
from proxy.admin.web.server import context_of

_LATEST_MS = (1 << 63) - 1
_MOST_FOUND_BYTES = 16 << 20


class Messages:
    """`waits`: the receives that a drain answers at once, with nothing."""

    def __init__(
        self, processor: MessagingProcessor, clock: Clock, *, max_wait_s: float, waits: LongPolls
    ) -> None:
        self._processor = processor
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._waits = waits

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/topics/{topic}/messages", self._send),
            web.post("/api/topics/{topic}/receive", self._receive),
            web.post("/api/topics/{topic}/ack", self._ack),
            web.get("/api/topics/{topic}/messages", self._find),
            web.get("/api/topics/{topic}/messages/{message_id}", self._show),
        ]

    async def _send(self, request: web.Request) -> web.Response:
        """`{"messages": [{"body": …, "tag": …}]}`; one result each, in order."""
        fields = await read_object(request)
        context, topic = context_of(request), request.match_info["topic"]
        items = fields.items("messages")
        fields.end()
        messages = [self._message_in(topic, context.peer, Fields(part, "a message")) for part in items]
        with self._processor.budgets.allowance(context.peer) as held:
            held.take(sum(len(message.body) for message in messages))
            results = await self._processor.send(context, messages)
        return web.json_response({"results": [sent_out(result) for result in results]})

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        """Messages whose answer cannot be written are given back: they were never received."""
        context, fields = context_of(request), await read_object(request)
        wanted = self._receive_in(request.match_info["topic"], fields)
        with self._processor.budgets.allowance(context.peer) as context.allowance:
            messages = await self._waits.wait(self._processor.receive(context, wanted)) or []
            try:
                return await self._answer(request, messages)
            except BaseException:
                await self._processor.give_back(context, wanted.topic, wanted.group, messages)
                raise

    async def _answer(self, request: web.Request, messages: Sequence[StoredMessage]) -> web.StreamResponse:
        body = json.dumps({"messages": [message_out(message) for message in messages]}, ensure_ascii=False)
        response = web.Response(text=body, content_type="application/json")
        await response.prepare(request)
        await response.write_eof()
        if request.transport is None:
            raise ConnectionResetError("the caller has gone")
        return response

    async def _ack(self, request: web.Request) -> web.Response:
        """One result each: null, or why not."""
        fields = await read_object(request)
        group, receipts = fields.required("group"), fields.texts("receipts")
        fields.end()
        results = await self._processor.ack(context_of(request), request.match_info["topic"], group, receipts)
        return web.json_response(
            {"results": [None if error is None else error_out(error) for error in results]}
        )

    async def _show(self, request: web.Request) -> web.Response:
        topic, message_id = request.match_info["topic"], request.match_info["message_id"]
        messages = await self._found_by_id(context_of(request), topic, message_id)
        return web.json_response({"messages": [message_out(message) for message in messages]})

    async def _found_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        await self._processor.metadata.topic(context, topic)
        messages = await self._processor.lookup.find_by_id(context, topic, message_id)
        if not messages:
            raise NotFound(f"no message {shown(message_id)} on topic {topic}")
        return messages

    async def _find(self, request: web.Request) -> web.Response:
        """`?key=…&from=…&to=…&limit=…`; times in milliseconds since the epoch."""
        context, topic = context_of(request), request.match_info["topic"]
        key = request.query.get("key", "")
        begin, end, limit = (query_number(request, name) for name in ("from", "to", "limit"))
        await self._processor.metadata.topic(context, topic)
        messages = await self._processor.lookup.find_by_key(
            context,
            topic,
            key,
            begin_ms=0 if begin is None else begin,
            end_ms=_LATEST_MS if end is None else end,
            limit=64 if limit is None else limit,
        )
        return web.json_response({"messages": _bounded(messages)})

    def _message_in(self, topic: str, peer: str, fields: Fields) -> Message:
        delay_ms, at_ms = fields.number("delay_ms"), fields.number("deliver_at_ms")
        if delay_ms is not None and at_ms is not None:
            raise BadRequest("a message has delay_ms and deliver_at_ms: give one of them")
        now_ms = self._clock.now_ms()
        message = Message(
            topic,
            fields.body(),
            message_id=fields.text("message_id") or make_message_id(),
            tag=fields.text("tag"),
            keys=fields.texts("keys"),
            message_group=fields.text("message_group"),
            lite_topic=fields.text("lite_topic"),
            priority=fields.number("priority"),
            deliver_at_ms=now_ms + delay_ms if delay_ms else at_ms or 0,
            user_properties=fields.pairs("properties"),
            born_ms=now_ms,
            born_host=peer,
        )
        fields.end()
        if message.deliver_at_ms:
            message.type = MessageType.DELAY
        elif message.message_group:
            message.type = MessageType.FIFO
        return message

    def _receive_in(self, topic: str, fields: Fields) -> Receive:
        tag, sql = fields.text("tag"), fields.text("sql")
        if tag and sql:
            raise BadRequest("the request has tag and sql: give one of them")
        wait_ms, most = fields.number("wait_ms"), fields.number("max_messages")
        wanted = Receive(
            topic,
            fields.required("group"),
            filter_kind=FilterKind.SQL92 if sql else FilterKind.TAG,
            filter_expression=sql or tag or "*",
            max_messages=1 if most is None else most,
            invisible_ms=fields.number("invisible_ms"),
            wait_s=min((wait_ms or 0) / 1000, self._max_wait_s),
            attempt_id=fields.text("attempt_id"),
        )
        fields.end()
        return wanted


def _bounded(messages: Sequence[StoredMessage]) -> list[dict[str, object]]:
    """Messages with their bodies, until these are too much for one answer; then without."""
    message_forms = []
    left = _MOST_FOUND_BYTES
    for message in messages:
        left -= len(message.body)
        message_forms.append(message_out(message, with_body=left >= 0))
    return message_forms
