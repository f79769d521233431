"""/api/topics: list, create, show, delete."""

from __future__ import annotations

import asyncio

from aiohttp import web

from popgate.context import Context
from popgate.errors import BadRequest, shown
from popgate.model import MessageType, Permission, TopicConfig
from processors.messaging import MessagingProcessor
from proxy.admin.web.fields import Fields, read_object
from proxy.admin.web.json_forms import topic_out
from proxy.admin.web.server import context_of

_AT_ONCE = 32
"""Queues that are asked about at a time."""
_PERMISSIONS = {
    "read-write": Permission.READ_WRITE,
    "read": Permission.READ,
    "write": Permission.WRITE,
    "none": Permission.NONE,
}


class Topics:
    def __init__(self, processor: MessagingProcessor) -> None:
        self._processor = processor

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/topics", self._list),
            web.post("/api/topics", self._create),
            web.get("/api/topics/{topic}", self._show),
            web.delete("/api/topics/{topic}", self._delete),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        topics = await self._processor.metadata.topics(context_of(request))
        topic_forms = [topic_out(topic) for topic in sorted(topics, key=lambda topic: topic.name)]
        return web.json_response({"topics": topic_forms})

    async def _create(self, request: web.Request) -> web.Response:
        config = self._config(await read_object(request))
        await self._processor.metadata.create_topic(context_of(request), config)
        return web.json_response(topic_out(config), status=201)

    async def _show(self, request: web.Request) -> web.Response:
        context, name = context_of(request), request.match_info["topic"]
        config = await self._processor.metadata.topic(context, name)
        return web.json_response({**topic_out(config), "places": await self._places(context, config)})

    async def _delete(self, request: web.Request) -> web.Response:
        await self._processor.metadata.delete_topic(context_of(request), request.match_info["topic"])
        return web.Response(status=204)

    async def _places(self, context: Context, config: TopicConfig) -> list[dict[str, str | int]]:
        """Every queue with its broker, and its minimum and maximum offset."""
        queues = await self._processor.metadata.queues(context, config.name)
        places: list[dict[str, str | int]] = []
        for at in range(0, len(queues), _AT_ONCE):
            some = queues[at : at + _AT_ONCE]
            bounds = await asyncio.gather(
                *(
                    self._processor.offsets.bounds(context, config.name, queue.broker, queue.queue_id)
                    for queue in some
                )
            )
            places += [
                {
                    "broker": queue.broker,
                    "queue_id": queue.queue_id,
                    "minimum": queue_bounds.minimum,
                    "maximum": queue_bounds.maximum,
                }
                for queue, queue_bounds in zip(some, bounds, strict=True)
            ]
        return places

    def _config(self, fields: Fields) -> TopicConfig:
        queues = fields.number("queues")
        queues = self._processor.limits.new_topic_queues if queues is None else queues
        config = TopicConfig(
            fields.required("name"),
            message_types=tuple(dict.fromkeys(map(type_in, fields.texts("types")))),
            read_queues=queues,
            write_queues=queues,
            permission=permission_in(fields.text("permission", "read-write")),
            retention_ms=fields.number("retention_ms"),
            retention_bytes=fields.number("retention_bytes"),
            attributes=fields.pairs("attributes"),
        )
        fields.end()
        return config


def type_in(name: str) -> MessageType:
    try:
        return MessageType(name)
    except ValueError:
        known = ", ".join(message_type.value for message_type in MessageType)
        raise BadRequest(f"{shown(name)} is no message type; there are {known}") from None


def permission_in(name: str) -> Permission:
    try:
        return _PERMISSIONS[name]
    except KeyError:
        raise BadRequest(f"{shown(name)} is no permission; there are {', '.join(_PERMISSIONS)}") from None
