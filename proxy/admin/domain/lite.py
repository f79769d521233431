"""/api/topics/{topic}/lite: the lite topics of a topic, page by page, and deleting one."""

from __future__ import annotations

from aiohttp import web

from popgate.lite import LiteTopicState
from processors.consume.lite import MOST_LISTED
from processors.messaging import MessagingProcessor
from proxy.admin.web.fields import query_number
from proxy.admin.web.server import context_of

_PAGE = 100


class LiteTopics:
    def __init__(self, processor: MessagingProcessor) -> None:
        self._processor = processor

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/topics/{topic}/lite", self._list),
            web.delete("/api/topics/{topic}/lite/{lite_topic}", self._delete),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        """`?after=NAME&limit=N`: by name, starting after `after`; `next` is the value for the next page."""
        limit = query_number(request, "limit")
        limit = _PAGE if limit is None else min(max(limit, 1), MOST_LISTED)
        after = request.query.get("after", "")
        topic = request.match_info["topic"]
        lite_topics = await self._processor.lite.listed(context_of(request), topic, after, limit)
        last = lite_topics[-1].name if len(lite_topics) >= limit else None
        return web.json_response(
            {"lite_topics": [_out(lite_topic) for lite_topic in lite_topics], "next": last}
        )

    async def _delete(self, request: web.Request) -> web.Response:
        topic, lite_topic = request.match_info["topic"], request.match_info["lite_topic"]
        await self._processor.lite.delete(context_of(request), topic, lite_topic)
        return web.Response(status=204)


def _out(state: LiteTopicState) -> dict[str, object]:
    return {
        "name": state.name,
        "minimum": state.minimum,
        "maximum": state.maximum,
        "last_ms": state.last_ms,
        "subscribers": state.subscribers,
    }
