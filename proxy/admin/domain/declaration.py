"""/api/apply: creates and changes topics and groups to match a declaration, in one request.

A declaration describes the desired state; a field that it does not name keeps its value, or has the
default for something new. Everything is checked first: after one error nothing is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from popgate.context import Context
from popgate.errors import BadRequest, GatewayError
from popgate.model import GroupConfig, StartFrom, TopicConfig
from popgate.naming import check_group, check_topic, is_derived_topic, is_system_topic
from processors.members.broadcast import is_member
from processors.messaging import MessagingProcessor
from proxy.admin.domain.groups import retry_in, start_in
from proxy.admin.domain.topics import permission_in, type_in
from proxy.admin.web.fields import Fields, read_object
from proxy.admin.web.json_forms import error_out, group_out, topic_out
from proxy.admin.web.server import context_of

_MOST = 20_000
_AT_ONCE = 256
_SYSTEM_GROUPS = "CID_RMQ_SYS_"

Config = TopicConfig | GroupConfig


@dataclass(slots=True)
class Change:
    """One thing that is to be made, changed or deleted; `error` when that went wrong."""

    before: Config | None
    after: Config | None
    error: GatewayError | None = None

    @property
    def subject(self) -> Config:
        config = self.after or self.before
        assert config is not None  # noqa: S101 - one of them is there
        return config

    @property
    def action(self) -> str:
        return "create" if self.before is None else "delete" if self.after is None else "change"


class Declared:
    """Compares declarations with the current state, and applies them."""

    def __init__(self, processor: MessagingProcessor) -> None:
        self._processor = processor

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/declared", self._export), web.post("/api/apply", self._apply)]

    async def _export(self, request: web.Request) -> web.Response:
        """All topics and groups of users, in the form of `/api/topics` and `/api/groups`."""
        topics, groups = await self._all(context_of(request))
        return web.json_response(
            {
                "topics": [_config_out(config) for config in sorted(topics.values(), key=_name)],
                "groups": [_config_out(config) for config in sorted(groups.values(), key=_name)],
            }
        )

    async def _apply(self, request: web.Request) -> web.Response:
        context, fields = context_of(request), await read_object(request)
        wanted_topics, wanted_groups = _things(fields, "topics"), _things(fields, "groups")
        prune, dry_run = fields.flag("prune", False), fields.flag("dry_run", False)
        doomed = _doomed(fields)
        fields.end()
        topics, groups = await self._all(context)
        changes: list[Change] = []
        errors: list[dict[str, object]] = []
        for kind, things, there in (("topic", wanted_topics, topics), ("group", wanted_groups, groups)):
            for name, thing in things.items():
                try:
                    before = there.get(name)
                    after = self._wanted(kind, name, Fields(thing, f"{kind} {name}"), before)
                    self._processor.metadata.check_config(after)
                    _check_change(before, after)
                    if after != before:
                        changes.append(Change(before, after))
                except GatewayError as error:
                    errors.append({"kind": kind, "name": name, **error_out(error)})
            if prune:
                changes += [
                    Change(config, None)
                    for name, config in there.items()
                    if name not in things and (doomed is None or name in doomed[kind])
                ]
        done = not errors and not dry_run
        if done:
            # Topics first, since nothing is gained by a group whose topic could not be made.
            for begin in range(0, len(changes), _AT_ONCE):
                # All of a turn of the loop share one write.
                some = changes[begin : begin + _AT_ONCE]
                await asyncio.gather(*(self._make(context, change) for change in some))
        change_forms = [_out(change) for change in changes]
        same = len(wanted_topics) + len(wanted_groups) - sum(change.after is not None for change in changes)
        return web.json_response(
            {"done": done, "changes": change_forms, "errors": errors, "same": same - len(errors)}
        )

    # -- inside -------------------------------------------------------------------------------

    async def _all(self, context: Context) -> tuple[dict[str, Config], dict[str, Config]]:
        """Topics and groups of users: no system ones, dead letters, retries, or members of broadcasts."""
        topics: dict[str, Config] = {
            config.name: config
            for config in await self._processor.metadata.topics(context)
            if not is_derived_topic(config.name) and not is_system_topic(config.name)
        }
        groups: dict[str, Config] = {
            config.name: config
            for config in await self._processor.metadata.groups(context)
            if not is_member(config) and not config.name.startswith(_SYSTEM_GROUPS)
        }
        return topics, groups

    def _wanted(self, kind: str, name: str, fields: Fields, before: Config | None) -> Config:
        config: Config
        if kind == "topic":
            check_topic(name)
            if is_derived_topic(name):
                raise BadRequest(f"{name} belongs to a group: it is made and removed with that")
            assert before is None or isinstance(before, TopicConfig)  # noqa: S101
            queues = self._processor.limits.new_topic_queues
            base = before or TopicConfig(name, read_queues=queues, write_queues=queues)
            config = _topic(fields, base)
        else:
            check_group(name)
            assert before is None or isinstance(before, GroupConfig)  # noqa: S101
            defaults = self._processor.limits.new_group
            config = _group(fields, before or replace(defaults, name=name), new=before is None)
        fields.end()
        return config

    async def _make(self, context: Context, change: Change) -> None:
        processor, before, after = self._processor, change.before, change.after
        try:
            match after, before:
                case TopicConfig(), None:
                    await processor.metadata.create_topic(context, after)
                case TopicConfig(), _:
                    await processor.metadata.update_topic(context, after)
                case GroupConfig(), None:
                    await processor.metadata.create_group(context, after)
                case GroupConfig(), _:
                    await processor.metadata.update_group(context, after)
                case None, TopicConfig():
                    await processor.metadata.delete_topic(context, before.name)
                case None, GroupConfig():
                    await processor.metadata.delete_group(context, before.name)
        except GatewayError as error:
            change.error = error


def _topic(fields: Fields, base: TopicConfig) -> TopicConfig:
    given: dict[str, Any] = {}
    if fields.has("types"):
        given["message_types"] = tuple(dict.fromkeys(map(type_in, fields.texts("types"))))
    queues = fields.number("queues")
    if queues is not None:
        given["read_queues"] = given["write_queues"] = queues
    if fields.has("permission"):
        given["permission"] = permission_in(fields.text("permission"))
    for name in ("retention_ms", "retention_bytes"):
        if fields.has(name):
            given[name] = fields.number(name)
    if fields.has("attributes"):
        given["attributes"] = fields.pairs("attributes")
    return replace(base, **given)


def _group(fields: Fields, base: GroupConfig, *, new: bool) -> GroupConfig:
    given: dict[str, Any] = {}
    for name in ("ordered", "broadcast", "consume_enabled"):
        if fields.has(name):
            given[name] = fields.flag(name, False)
    for name in ("max_attempts", "consume_timeout_ms"):
        number = fields.number(name)
        if number is not None:
            given[name] = number
    retry = fields.inner("retry")
    if retry is not None:
        given["retry"] = retry_in(retry)
    if fields.has("start_from"):
        given["start_from"] = start_in(fields.text("start_from"))
    elif new and given.get("broadcast"):
        given["start_from"] = StartFrom.LAST
    if fields.has("attributes"):
        given["attributes"] = fields.pairs("attributes")
    return replace(base, **given)


def _check_change(before: Config | None, after: Config) -> None:
    """Raises BadRequest for a field that cannot be changed after creation."""
    if isinstance(before, TopicConfig) and isinstance(after, TopicConfig) and after.queues < before.queues:
        raise BadRequest(
            f"the topic has {before.queues} queues, they cannot become {after.queues}: only more"
        )


def _things(fields: Fields, name: str) -> Mapping[str, object]:
    value = fields.raw(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRequest(f"{name} in the request must be an object")
    if len(value) > _MOST:
        raise BadRequest(f"{name} in the request has {len(value)} items, the limit is {_MOST}")
    return value


def _doomed(fields: Fields) -> Mapping[str, frozenset[str]] | None:
    """The names that a person has confirmed: `prune` deletes nothing else. None: everything undeclared."""
    inner = fields.inner("doomed")
    if inner is None:
        return None
    doomed = {"topic": frozenset(inner.texts("topics")), "group": frozenset(inner.texts("groups"))}
    inner.end()
    return doomed


def _out(change: Change) -> dict[str, object]:
    return {
        "kind": "topic" if isinstance(change.subject, TopicConfig) else "group",
        "name": change.subject.name,
        "action": change.action,
        "before": _config_out(change.before),
        "after": _config_out(change.after),
        "error": None if change.error is None else error_out(change.error),
    }


def _config_out(config: Config | None) -> dict[str, Any] | None:
    if config is None:
        return None
    return topic_out(config) if isinstance(config, TopicConfig) else group_out(config)


def _name(config: Config) -> str:
    return config.name
