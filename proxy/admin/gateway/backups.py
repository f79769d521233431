"""/api/backups: create and list backups, always in the configured folder."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from brokers.capabilities import TakesBackups
from brokers.port import Broker
from popgate.clock import Clock
from popgate.errors import BadRequest, GatewayError, Unsupported, shown
from proxy.admin.web.fields import read_object
from proxy.admin.web.json_forms import error_out

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class Backups:
    """Backups of the broker's store in `folder`."""

    def __init__(self, broker: Broker, folder: Path, clock: Clock) -> None:
        self._broker = broker
        self._folder = folder
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/backups", self._list), web.post("/api/backups", self._take)]

    async def _take(self, request: web.Request) -> web.Response:
        """Answers when it is complete. A caller that goes away does not end it."""
        fields = await read_object(request)
        name = fields.text("name") or self._fresh_name()
        fields.end()
        if not _NAME.match(name):
            raise BadRequest(
                f"{shown(name)} is no name of a backup: letters, digits, dots, - and _, at most 100, and no"
                " folder; where backups lie is the setting embedded.backup_folder"
            )
        store = self._broker.capability(TakesBackups)
        if store is None:
            raise Unsupported(
                "a backup of this broker",
                "its messages are not kept by this gateway; back up where they are (those of a RocketMQ"
                " cluster by slaves, or by copies of its brokers' store folders)",
            )
        backup = await store.take_backup(self._folder / name)
        body = _out(backup.path, backup.facts, backup.files, backup.size)
        return web.json_response(body, status=201)

    async def _list(self, _request: web.Request) -> web.Response:
        """The files are not read; `popgate backup --verify` does that."""
        backup_forms = await asyncio.to_thread(_listed, self._folder)
        return web.json_response({"folder": str(self._folder), "backups": backup_forms})

    def _fresh_name(self) -> str:
        now_ms = self._clock.now_ms()
        return f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%dT%H%M%S}.{now_ms % 1000:03}Z"


def _listed(folder: Path) -> list[dict[str, object]]:
    from brokers.embedded.storage.backup_files import list_backups

    return [
        error_out(backup)
        if isinstance(backup, GatewayError)
        else _out(backup.path, backup.facts, len(backup.files), backup.size)
        for backup in list_backups(folder)
    ]


def _out(path: Path, facts: Mapping[str, object], files: int, size: int) -> dict[str, object]:
    return {"name": path.name, "path": str(path), **facts, "files": files, "bytes": size}
