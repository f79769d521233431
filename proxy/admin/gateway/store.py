"""/api/store: the state of the store, and its free disk space."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from aiohttp import web


class StoreFacts:
    """`state`: of the gateway; `figures`: of the broker; `folder`: where the store lies; None: not here."""

    def __init__(
        self, state: Callable[[], str], figures: Callable[[], Mapping[str, float]], folder: Path | None
    ) -> None:
        self._state = state
        self._figures = figures
        self._folder = folder

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/store", self._show)]

    async def _show(self, _request: web.Request) -> web.Response:
        """Bytes are null if unknown: the disk cannot be queried, or the broker stores nothing here."""
        figures = self._figures()
        try:
            usage = shutil.disk_usage(self._folder) if self._folder is not None else None
        except OSError:
            usage = None
        return web.json_response(
            {
                "state": self._state(),
                "bytes": int(figures["store_bytes"]) if "store_bytes" in figures else None,
                "free_bytes": usage.free if usage is not None else None,
                "total_bytes": usage.total if usage is not None else None,
                "repeat_window_s": figures.get("repeat_window_seconds"),
                "repeat_window_configured_s": figures.get("repeat_window_configured_seconds"),
            }
        )
