"""/api/version and /api/settings: the running version, and its effective settings."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from popgate import __version__
from popgate.build import is_compiled

if TYPE_CHECKING:
    from proxy.config.settings import Settings


class HouseFacts:
    def __init__(
        self,
        settings: Settings,
        addresses: Callable[[], list[str]],
        tls_warnings: Callable[[], list[str]],
    ) -> None:
        self._settings = settings
        self._addresses = addresses
        self._tls_warnings = tls_warnings

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/version", self._version), web.get("/api/settings", self._effective)]

    async def _version(self, _request: web.Request) -> web.Response:
        body = {
            "version": __version__,
            "compiled": is_compiled(),
            "python": platform.python_version(),
            "listening": self._addresses(),
            "broker": self._settings.broker,
            "tls_warnings": self._tls_warnings(),
        }
        return web.json_response(body)

    async def _effective(self, _request: web.Request) -> web.Response:
        """All settings as they hold; secrets are masked by their type."""
        return web.json_response(self._settings.model_dump(mode="json"))
