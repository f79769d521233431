"""/api/groups/{group}/stuck and /free: why a group makes no progress, and releasing what it holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from popgate.errors import BadRequest, shown
from popgate.model import GroupStatus
from processors.admin.held_messages import Explanation, HeldMessage
from processors.messaging import MessagingProcessor
from proxy.admin.web.fields import read_object
from proxy.admin.web.server import context_of

_SHOWN = 20
_ALWAYS_TOLD = frozenset({"group", "topic", "lag", "unread", "free"})
"""Values that are known even if a broker does not report held messages."""


class Stuck:
    def __init__(self, processor: MessagingProcessor) -> None:
        self._processor = processor

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/groups/{group}/stuck", self._explain),
            web.post("/api/groups/{group}/free", self._free),
        ]

    async def _explain(self, request: web.Request) -> web.Response:
        explanation = await self._processor.stuck.explain(
            context_of(request),
            request.match_info["group"],
            request.query.get("topic", ""),
            client=request.query.get("client", ""),
            limit=_limit(request.query.get("limit")),
        )
        return web.json_response(explanation_out(explanation))

    async def _free(self, request: web.Request) -> web.Response:
        """`which`: a receipt or a message id; without it the only message that is held.

        `client`: of a broadcast group only what this one holds.
        """
        fields = await read_object(request)
        topic, which, client = fields.text("topic"), fields.text("which"), fields.text("client")
        fields.end()
        freed = await self._processor.stuck.free(
            context_of(request), request.match_info["group"], topic, which=which, client=client
        )
        return web.json_response({**grasp_out(freed.grasp), "dead_lettered": freed.dead_lettered})


def explanation_out(explanation: Explanation) -> dict[str, Any]:
    return {
        "group": explanation.group,
        "now_ms": explanation.now_ms,
        "enabled": explanation.enabled,
        "ordered": explanation.ordered,
        "consumers": explanation.consumers,
        "reasons": list(explanation.reasons),
        "topics": [standing_out(standing, whole=explanation.whole) for standing in explanation.standings],
        "members": [asdict(member) for member in explanation.members],
        "held": [grasp_out(grasp) for grasp in explanation.grasps],
    }


def standing_out(standing: GroupStatus, *, whole: bool) -> dict[str, Any]:
    """Values that the broker does not report are null, never 0."""
    fields = asdict(standing)
    return fields if whole else {name: fields[name] if name in _ALWAYS_TOLD else None for name in fields}


def grasp_out(grasp: HeldMessage) -> dict[str, Any]:
    return {"state": grasp.grip.value, "client": grasp.client, **asdict(grasp.held)}


def _limit(text: str | None) -> int:
    if text is None:
        return _SHOWN
    if len(text) > 9 or not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 256:
        raise BadRequest(f"the limit {shown(text)} is no number from 1 to 256")
    return int(text)
