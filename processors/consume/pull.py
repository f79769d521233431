"""Reads by offset, without taking messages."""

from __future__ import annotations

from popgate.context import Context
from popgate.errors import (
    TopicNotFound,
)
from popgate.filters.compiled import compile_filter
from popgate.kinds import Action
from popgate.messages.stored_records import body_bytes
from popgate.model import (
    Pulled,
)
from popgate.naming import check_group, retry_topic
from processors.consume.receive_rules import check_enabled, wait_until
from processors.core import ProcessorCore, check_queue_id, readable
from processors.members.broadcast import member_of, own_retries
from processors.observer import Watch
from processors.requests import Pull


class Puller:
    """The processor's `pull`."""

    def __init__(self, core: ProcessorCore) -> None:
        self._broker = core.broker
        self._clock = core.clock
        self._limits = core.limits
        self._observer = core.observer
        self._admit = core.admit
        self._routing = core.routing
        self._polls = core.polls
        self._watch_pull = Watch(core.observer, "pull")

    async def pull(self, context: Context, request: Pull) -> Pulled:
        """Read by offset, without taking. The group and the topic are made on first use, as by a receive.

        Raises IllegalOffset, IllegalFilter, BadRequest (no such queue, ILLEGAL_POLLING_TIME), Forbidden,
        IllegalTopic, IllegalGroup, TopicNotFound, GroupNotFound, TooManyRequests.
        """
        began = self._clock.monotonic()
        with self._watch_pull:
            topic = readable(request.topic)
            group = None if request.group is None else check_group(request.group)
            self._admit(context, Action.SUBSCRIBE, topic=topic, group=group or "")
            check_queue_id(request.queue_id)
            passing = compile_filter(request.filter_kind, request.filter_expression)
            wait_s = request.wait_s
            until = None if wait_s is None else wait_until(context, wait_s, self._limits, began)
            if group is not None:
                config = await self._routing.group(group)
                check_enabled(config)
                member = member_of(context, config)
                if member and topic == retry_topic(group):
                    passing = own_retries(member)
            await self._routing.route(topic)
            max_bytes = min(max(request.max_bytes, 1), self._limits.max_pull_bytes)
            if context.allowance is not None:
                context.allowance.for_group(group or "")
                max_bytes = min(max_bytes, context.allowance.room())
            self._polls.enter()
            try:
                pulled = await self._broker.pull(
                    context,
                    topic,
                    request.broker,
                    request.queue_id,
                    request.offset,
                    max_messages=min(max(request.max_messages, 1), self._limits.max_pull_messages),
                    max_bytes=max_bytes,
                    passing=passing,
                    wait_until=until,
                )
            except TopicNotFound:
                self._routing.forget_topic(topic)
                raise
            finally:
                self._polls.leave()
        took, size = self._clock.monotonic() - began, body_bytes(pulled.messages)
        self._observer.pulled(topic, group or "", len(pulled.messages), size, took)
        return pulled
