"""/api/groups/{group}/dead-letters: count, show and redrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from brokers.capabilities import Redriven
from processors.admin.redrive import Letter, Place
from processors.messaging import MessagingProcessor
from proxy.admin.web.fields import Fields, query_number, read_object
from proxy.admin.web.json_forms import error_out, message_out
from proxy.admin.web.server import context_of

_MOST_BODY_BYTES = 16 << 20


class DeadLetterRoutes:
    def __init__(self, processor: MessagingProcessor) -> None:
        self._letters = processor.dead_letters

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/groups/{group}/dead-letters", self._heaps),
            web.get("/api/groups/{group}/dead-letters/messages", self._find),
            web.post("/api/groups/{group}/dead-letters/redrive", self._redrive),
        ]

    async def _heaps(self, request: web.Request) -> web.Response:
        """How many, and since when, by the topic that they come from."""
        heaps = await self._letters.heaps(context_of(request), request.match_info["group"])
        topics = [
            {"topic": topic, "count": heap.count, "oldest_ms": heap.oldest_ms, "newest_ms": heap.newest_ms}
            for topic, heap in sorted(heaps.items())
        ]
        return web.json_response({"count": sum(heap.count for heap in heaps.values()), "topics": topics})

    async def _find(self, request: web.Request) -> web.Response:
        """`?message_id=…&topic=…&limit=…`, oldest first; bodies until there are too many of them."""
        limit = query_number(request, "limit")
        letters = await self._letters.find(
            context_of(request),
            request.match_info["group"],
            message_id=request.query.get("message_id", ""),
            topic=request.query.get("topic", ""),
            limit=20 if limit is None else limit,
        )
        return web.json_response({"messages": _letters_out(letters)})

    async def _redrive(self, request: web.Request) -> web.Response:
        """One step. `next` and `until` of the answer are those of the next step; no `next`: that was all."""
        fields = await read_object(request)
        limit, start = fields.number("limit"), fields.inner("next")
        arguments: dict[str, Any] = {
            "message_ids": fields.texts("messages"),
            "topic": fields.text("topic"),
            "start": _place_in(start) if start is not None else None,
            "until": fields.numbers("until"),
            "dry_run": fields.flag("dry_run", False),
            **({} if limit is None else {"limit": limit}),
        }
        fields.end()
        result = await self._letters.redrive(context_of(request), request.match_info["group"], **arguments)
        place = result.next
        return web.json_response(
            {
                "moved": [_moved_out(moved_letter) for moved_letter in result.moved],
                "refused": [
                    {"message_id": letter.message_id, "topic": letter.origin, **error_out(error)}
                    for letter, error in result.refused
                ],
                "next": None if place is None else {"queue": place.queue, "offset": place.offset},
                "until": result.until,
            }
        )


def _place_in(fields: Fields) -> Place:
    place = Place(fields.number("queue") or 0, fields.number("offset") or 0)
    fields.end()
    return place


def _moved_out(moved: Redriven) -> dict[str, object]:
    return {"message_id": moved.message_id, "topic": moved.topic, "offset": moved.offset}


def _letters_out(letters: Sequence[Letter]) -> list[dict[str, object]]:
    letter_forms = []
    left = _MOST_BODY_BYTES
    for letter in letters:
        left -= len(letter.message.body)
        letter_forms.append({**message_out(letter.message, with_body=left >= 0), "origin": letter.origin})
    return letter_forms
