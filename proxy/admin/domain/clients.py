"""/api/clients: list, request a stack, have one consume a message, have them reconnect."""

from __future__ import annotations

from aiohttp import web

from popgate.errors import BadRequest, shown
from processors.messaging import MessagingProcessor
from proxy.admin.web.fields import read_object
from proxy.admin.web.json_forms import client_out
from proxy.admin.web.server import context_of

_MOST_SHOWN = 10_000


class Clients:
    """Requests that change nothing in the gateway, but something in a client, are POST."""

    def __init__(self, processor: MessagingProcessor) -> None:
        self._processor = processor

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/clients", self._list),
            web.post("/api/clients", self._all),
            web.post("/api/clients/{client}/stack", self._stack),
            web.post("/api/clients/{client}/verify", self._verify),
            web.post("/api/clients/{client}/reconnect", self._reconnect),
        ]

    async def _list(self, _request: web.Request) -> web.Response:
        clients = sorted(self._processor.clients.all(), key=lambda client: client.client_id)
        shown_ones = [
            client_out(
                client,
                self._processor.lite.subscriptions(client.key),
                self._processor.clients.last_settled(client.key),
            )
            for client in clients[:_MOST_SHOWN]
        ]
        return web.json_response({"clients": shown_ones, "count": len(clients)})

    async def _stack(self, request: web.Request) -> web.Response:
        client = request.match_info["client"]
        (await read_object(request)).end()
        stack = await self._processor.client_queries.stack(context_of(request), client)
        return web.json_response({"client_id": client, "stack": stack})

    async def _verify(self, request: web.Request) -> web.Response:
        client, fields = request.match_info["client"], await read_object(request)
        group, topic = fields.required("group"), fields.required("topic")
        message_id = fields.required("message_id")
        fields.end()
        verdict = await self._processor.client_queries.verify(
            context_of(request), client, group, topic, message_id
        )
        return web.json_response({"client_id": client, "message_id": message_id, "result": verdict.value})

    async def _reconnect(self, request: web.Request) -> web.Response:
        client = request.match_info["client"]
        (await read_object(request)).end()
        self._processor.client_queries.reconnect(context_of(request), client)
        return web.json_response({"told": 1, "not_told": 0})

    async def _all(self, request: web.Request) -> web.Response:
        """`{"reconnect": "all"}`: on the list itself, for every name after it is a client's."""
        fields = await read_object(request)
        whom = fields.required("reconnect")
        fields.end()
        if whom != "all":
            raise BadRequest(f"reconnect is {shown(whom)}, it must be all")
        reached, unreached = self._processor.client_queries.reconnect_all(context_of(request))
        return web.json_response({"told": reached, "not_told": unreached})
