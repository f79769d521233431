"""/health, /ready and /metrics: for machines that watch."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from proxy.metrics import CONTENT_TYPE, Metrics


class Health:
    """`state` tells how the gateway is: "starting", "ready", "failing", "draining"."""

    def __init__(self, metrics: Metrics, state: Callable[[], str]) -> None:
        self._metrics = metrics
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/ready", self._ready),
            web.get("/metrics", self._scrape),
        ]

    async def _health(self, _request: web.Request) -> web.Response:
        """200 as long as the event loop turns."""
        return web.json_response({"status": "ok", "state": self._state()})

    async def _ready(self, _request: web.Request) -> web.Response:
        """200 while clients are served, 503 before and after."""
        state = self._state()
        return web.json_response({"state": state}, status=200 if state == "ready" else 503)

    async def _scrape(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._metrics.scrape(), headers={"Content-Type": CONTENT_TYPE})
