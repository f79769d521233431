"""/api/faults: the injected faults. It exists only if the setting `faults` is on."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from popgate.faults import Faults


def fault_routes(faults: Faults | None) -> list[web.RouteDef]:
    """No route without faults: a gateway in earnest answers 404 there."""
    if faults is None:
        return []

    async def show_faults(_request: web.Request) -> web.Response:
        """The plan, the calls of each step, and the faults that happened, by number (the latest 10,000)."""
        happened = [asdict(fault) for fault in faults.happened]
        return web.json_response(
            {"faults": faults.text, "calls": faults.calls, "count": faults.count, "happened": happened}
        )

    return [web.get("/api/faults", show_faults)]
