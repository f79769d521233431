"""/api/reload: reload the settings, or report the fault or the changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from popgate.errors import BadRequest, Unsupported
from proxy.admin.web.fields import Fields, read_object
from proxy.config.error import SettingsWrong

if TYPE_CHECKING:
    from proxy.reload.reloader import Outcome, Reloads


class ReloadRoutes:
    def __init__(self, reloads: Reloads | None) -> None:
        self._reloads = reloads
        self._reloading: set[asyncio.Task[Outcome]] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/reload", self._standing), web.post("/api/reload", self._reload)]

    async def _standing(self, _request: web.Request) -> web.Response:
        """How the last reload ended."""
        return web.json_response(self._known().standing().facts())

    async def _reload(self, request: web.Request) -> web.Response:
        """400 with the reason where the settings are wrong or cannot be taken: nothing has changed."""
        fields = await read_object(request) if request.can_read_body else Fields({}, "the request")
        only_look = fields.flag("dry_run", False)
        fields.end()
        reloads = self._known()
        try:
            if only_look:
                return web.json_response({"changes": [change.facts() for change in await reloads.look()]})
            return web.json_response((await self._whole(reloads)).facts())
        except SettingsWrong as error:
            raise BadRequest(str(error)) from None

    async def _whole(self, reloads: Reloads) -> Outcome:
        """To the end also when the caller goes away: a listener that is just opening must have an owner."""
        task = asyncio.get_running_loop().create_task(reloads.reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)
        return await asyncio.shield(task)

    def _known(self) -> Reloads:
        if self._reloads is None:
            raise Unsupported("this process takes no settings")
        return self._reloads
