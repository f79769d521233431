"""/health, /ready and /metrics, for monitoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from proxy.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from proxy.workers.membership import Membership


class Health:
    """`state` returns the state of the gateway: "starting", "ready", "failing", "draining".

    `missing`: the unreachable peers, in a sentence; empty if there are none.
    """

    def __init__(
        self,
        metrics: Metrics,
        state: Callable[[], str],
        membership: Membership | None = None,
        *,
        missing: Callable[[], str] | None = None,
    ) -> None:
        self._missing = missing
        self._metrics = metrics
        self._state = state
        self._membership = membership

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/ready", self._ready),
            web.get("/metrics", self._scrape),
        ]

    async def _health(self, _request: web.Request) -> web.Response:
        """200 as long as the event loop turns."""
        body: dict[str, object] = {"status": "ok", "state": self._state()}
        if self._membership is not None:
            body["processes"] = list(self._membership.roster.members)
        return web.json_response(body)

    async def _ready(self, _request: web.Request) -> web.Response:
        """200 while clients are served, 503 before and after."""
        state = self._state()
        body = {"state": state}
        if self._missing is not None and (missing := self._missing()):
            body["missing"] = missing
        return web.json_response(body, status=200 if state == "ready" else 503)

    async def _scrape(self, request: web.Request) -> web.Response:
        if self._membership is None:
            text = await self._metrics.scrape()
        else:
            text = await self._membership.scrape(request, self._metrics)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
