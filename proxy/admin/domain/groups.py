"""/api/groups: list, create, show with progress, reset, delete."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from aiohttp import web

from popgate.context import Context
from popgate.errors import BadRequest, IllegalGroup, shown
from popgate.kinds import Action
from popgate.model import CustomizedRetry, ExponentialRetry, GroupConfig, StartFrom
from processors.messaging import MessagingProcessor
from proxy.admin.web.fields import Fields, read_object
from proxy.admin.web.json_forms import group_out, progress_out
from proxy.admin.web.server import context_of

_MOST_MEMBERS_SHOWN = 10_000
_MEMBERS_AT_ONCE = 32


class Groups:
    def __init__(self, processor: MessagingProcessor) -> None:
        self._processor = processor

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/groups", self._list),
            web.post("/api/groups", self._create),
            web.get("/api/groups/{group}", self._show),
            web.delete("/api/groups/{group}", self._delete),
            web.get("/api/groups/{group}/progress", self._progress),
            web.post("/api/groups/{group}/reset", self._reset),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        groups = await self._processor.metadata.groups(context_of(request))
        group_forms = [group_out(group) for group in sorted(groups, key=lambda group: group.name)]
        return web.json_response({"groups": group_forms})

    async def _create(self, request: web.Request) -> web.Response:
        config = self._config(await read_object(request))
        await self._processor.metadata.create_group(context_of(request), config)
        return web.json_response(group_out(config), status=201)

    async def _show(self, request: web.Request) -> web.Response:
        context, name = context_of(request), request.match_info["group"]
        config = await self._processor.metadata.group(context, name)
        try:
            choice = await self._processor.mapped_groups.judge(context, name, action=Action.GET)
        except IllegalGroup:  # it is there all the same: a group of the cluster's own
            choice = self._processor.mapped_groups.choice(name)
        body = {
            **group_out(config),
            "clients": len(self._processor.clients.consumers_of(name)),
            "mapping": {"mapped": choice.mapped, "why": choice.why},
            "progress": await self._all_progress(context, name, await self._topics_of(context, name)),
        }
        if config.broadcast:
            body["members"] = await self._members(context, name)
        return web.json_response(body)

    async def _progress(self, request: web.Request) -> web.Response:
        """Of every topic that the group has read, or of `?topic=` only."""
        context, name = context_of(request), request.match_info["group"]
        topic = request.query.get("topic")
        topics = [topic] if topic is not None else await self._topics_of(context, name)
        return web.json_response({"progress": await self._all_progress(context, name, topics)})

    async def _delete(self, request: web.Request) -> web.Response:
        await self._processor.metadata.delete_group(context_of(request), request.match_info["group"])
        return web.Response(status=204)

    async def _reset(self, request: web.Request) -> web.Response:
        context, name = context_of(request), request.match_info["group"]
        fields = await read_object(request)
        to, topics = _target(fields), list(fields.texts("topics"))
        fields.end()
        await self._processor.metadata.group(context, name)
        topics = topics or await self._topics_of(context, name)
        for topic in topics:
            await self._processor.metadata.topic(context, topic)
        for topic in topics:
            await self._processor.offsets.reset(context, name, topic, to)
        target = to.value if isinstance(to, StartFrom) else to
        return web.json_response({"group": name, "to": target, "topics": topics})

    async def _members(self, context: Context, group: str) -> list[dict[str, object]]:
        """The clients of a broadcast group, and how far each one is."""
        members = await self._processor.metadata.members(context, group)
        member_forms: list[dict[str, object]] = []
        for at, member in enumerate(members[:_MOST_MEMBERS_SHOWN]):
            if at % _MEMBERS_AT_ONCE == 0:
                # Others want the loop, too; nothing below needs to wait.
                await asyncio.sleep(0)
            reader = member.member_group
            progress = await self._all_progress(context, reader, await self._topics_of(context, reader))
            member_forms.append(
                {"client_id": member.client_id, "seen_ms": member.seen_ms, "progress": progress}
            )
        return member_forms

    async def _topics_of(self, context: Context, group: str) -> list[str]:
        return sorted(await self._processor.metadata.topics_of(context, group))

    async def _all_progress(self, context: Context, group: str, topics: list[str]) -> list[dict[str, object]]:
        whole = self._processor.tells_deliveries
        return [
            progress_out(topic, await self._processor.metadata.progress(context, group, topic), whole=whole)
            for topic in topics
        ]

    def _config(self, fields: Fields) -> GroupConfig:
        defaults = self._processor.limits.new_group
        attempts, timeout = fields.number("max_attempts"), fields.number("consume_timeout_ms")
        retry = fields.inner("retry")
        broadcast = fields.flag("broadcast", defaults.broadcast)
        # Who joins a broadcast is told what is said from now on, unless somebody wants it otherwise.
        start = StartFrom.LAST if broadcast else defaults.start_from
        config = replace(
            defaults,
            name=fields.required("name"),
            ordered=fields.flag("ordered", defaults.ordered),
            broadcast=broadcast,
            max_attempts=defaults.max_attempts if attempts is None else attempts,
            retry=defaults.retry if retry is None else retry_in(retry),
            consume_timeout_ms=defaults.consume_timeout_ms if timeout is None else timeout,
            start_from=start_in(fields.text("start_from", start.value)),
            consume_enabled=fields.flag("consume_enabled", defaults.consume_enabled),
            attributes=fields.pairs("attributes"),
        )
        fields.end()
        return config


def _target(fields: Fields) -> StartFrom | int:
    to = fields.raw("to")
    if to in ("first", "last"):
        return StartFrom(to)
    if isinstance(to, int) and not isinstance(to, bool):
        return to
    raise BadRequest("to must be first, last, or a time in milliseconds since the epoch")


def start_in(name: str) -> StartFrom:
    try:
        return StartFrom(name)
    except ValueError:
        raise BadRequest(f"{shown(name)} is no start; there are first and last") from None


def retry_in(fields: Fields) -> CustomizedRetry | ExponentialRetry:
    kind = fields.text("kind")
    retry: CustomizedRetry | ExponentialRetry
    if kind == "exponential":
        first, longest, factor = (
            fields.number("initial_ms"),
            fields.number("max_ms"),
            fields.factor("multiplier"),
        )
        if factor is not None and not (math.isfinite(factor) and factor <= 1000):
            raise BadRequest("multiplier in retry must be at least 1 and at most 1000")
        usual = ExponentialRetry()
        retry = ExponentialRetry(
            usual.initial_ms if first is None else first,
            usual.max_ms if longest is None else longest,
            usual.multiplier if factor is None else factor,
        )
    elif kind == "customized":
        delays = fields.numbers("delays_ms")
        step = fields.number("first_step")
        if len(delays) > 256:
            raise BadRequest(f"delays_ms in retry has {len(delays)} items, the limit is 256")
        retry = CustomizedRetry(delays, 0 if step is None else step)
    else:
        raise BadRequest(f"{shown(kind)} is no kind of retry; there are customized and exponential")
    fields.end()
    return retry
