"""Creates, changes and deletes topics and groups, and answers the requests that RocketMQ's tools send first.

A tool sends its request to each broker of a route, which all are this door: one request is applied to all
brokers, and repeating it changes nothing. Sources: protocol facts 5.5, 5.14, 6.4; real-rocketmq.md, section
4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from popgate.context import Context
from popgate.errors import (
    AlreadyExists,
    BadRequest,
    GroupNotFound,
    PeerWireError,
    TopicNotFound,
    shown,
)
from popgate.naming import check_group, check_topic, retry_topic
from popgate.wire.bodies.broker_stats import decode_subscription_group_list, decode_topic_list
from popgate.wire.bodies.configs import (
    DataVersion,
    SubscriptionGroupConfig,
    encode_group_configs,
    encode_topic_configs,
)
from popgate.wire.bodies.offset_stats import ConsumeStats, QueueOffsets, QueueProgress, TopicStats
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from protocols.remoting.codec.configs import fields_of, group_in, group_out, topic_in, topic_out
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.fields import text
from protocols.remoting.codec.offset_stats import standing_of, stored_ms
from protocols.remoting.requests import DoorContext, Handler, Request

Made = TypeVar("Made")

_LARGEST_BODY: Final = 256 * 1024


class ConfigHandler:
    """Serves administration."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor
        self._clock = door_context.clock

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.put_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.forget_topic,
            RequestCode.GET_TOPIC_CONFIG: self.topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.topics,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.groups,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    # -- topics -------------------------------------------------------------------------------

    async def put_topic(self, request: Request) -> Command:
        await self._put_topic(request.context, request.fields)
        return request.answer()

    async def put_topics(self, request: Request) -> Command:
        """One after the other; topics before a refused one stay created."""
        for config in _read(decode_topic_list, request.command.body):
            await self._put_topic(request.context, fields_of(config))
        return request.answer()

    async def _put_topic(self, context: Context, fields: Mapping[str, str]) -> None:
        name = _name(check_topic, text(fields, "topic"))
        processor = self._processor
        try:
            there = await processor.metadata.topic(context, name)
        except TopicNotFound:
            with contextlib.suppress(AlreadyExists):
                await _legal(
                    processor.metadata.create_topic(context, _legal_now(lambda: topic_in(fields, None)))
                )
                return
            there = await processor.metadata.topic(context, name)
        wanted = _legal_now(lambda: topic_in(fields, there))
        if wanted != there:
            await _legal(processor.metadata.update_topic(context, wanted))

    async def delete_topic(self, request: Request) -> Command:
        """What is not there is deleted already: every broker of it is asked to."""
        with contextlib.suppress(TopicNotFound):
            await self._processor.metadata.delete_topic(request.context, text(request.fields, "topic"))
        return request.answer()

    async def forget_topic(self, request: Request) -> Command:
        """A route goes with its topic, which the tools delete before."""
        text(request.fields, "topic")
        return request.answer()

    async def topic(self, request: Request) -> Command:
        config = await self._processor.metadata.topic(request.context, text(request.fields, "topic"))
        return request.answer(body=topic_out(config).encode())

    async def topics(self, request: Request) -> Command:
        configs = await self._processor.metadata.topics(request.context)
        return request.answer(
            body=encode_topic_configs(
                {config.name: topic_out(config) for config in configs}, self._data_version()
            )
        )

    async def topic_stats(self, request: Request) -> Command:
        """The bounds of each queue, and when the last message came."""
        topic, context = text(request.fields, "topic"), request.context
        broker = request.fields.get("bname", "")
        offsets: dict[MessageQueue, QueueOffsets] = {}
        for queue in await self._processor.metadata.queues(context, topic):
            if broker not in ("", queue.broker):
                continue
            bounds = await self._processor.offsets.bounds(context, topic, queue.broker, queue.queue_id)
            last_ms = await stored_ms(
                self._processor, context, (topic, queue.broker, queue.queue_id), bounds, bounds.maximum - 1
            )
            offsets[MessageQueue(topic, queue.broker, queue.queue_id)] = QueueOffsets(
                bounds.minimum, bounds.maximum, last_ms
            )
        return request.answer(body=TopicStats(offsets).encode())

    # -- groups -------------------------------------------------------------------------------

    async def put_group(self, request: Request) -> Command:
        await self._put_group(request.context, _read(SubscriptionGroupConfig.decode, request.command.body))
        return request.answer()

    async def put_groups(self, request: Request) -> Command:
        """As `put_topics`."""
        for config in _read(decode_subscription_group_list, request.command.body):
            await self._put_group(request.context, config)
        return request.answer()

    async def _put_group(self, context: Context, config: SubscriptionGroupConfig) -> None:
        name = _name(check_group, config.group)
        processor = self._processor
        try:
            there = await processor.metadata.group(context, name)
        except GroupNotFound:
            with contextlib.suppress(AlreadyExists):
                await _legal(
                    processor.metadata.create_group(context, _legal_now(lambda: group_in(config, None)))
                )
                return
            there = await processor.metadata.group(context, name)
        wanted = _legal_now(lambda: group_in(config, there))
        if wanted != there:
            await _legal(processor.metadata.update_group(context, wanted))

    async def delete_group(self, request: Request) -> Command:
        """As `delete_topic`; its own topics stay, as with RocketMQ."""
        with contextlib.suppress(GroupNotFound):
            await self._processor.metadata.delete_group(request.context, text(request.fields, "groupName"))
        return request.answer()

    async def group(self, request: Request) -> Command:
        config = await self._processor.metadata.group(request.context, text(request.fields, "group"))
        return request.answer(body=group_out(config).encode())

    async def groups(self, request: Request) -> Command:
        configs = await self._processor.metadata.groups(request.context)
        return request.answer(
            body=encode_group_configs(
                {config.name: group_out(config) for config in configs}, self._data_version()
            )
        )

    async def consume_stats(self, request: Request) -> Command:
        """The positions of a group on a topic, or on all its topics, including its retries."""
        group, context = text(request.fields, "consumerGroup"), request.context
        topic, broker = request.fields.get("topic", ""), request.fields.get("bname", "")
        wanted = [topic] if topic else await self._processor.metadata.topics_of(context, group)
        standings: dict[MessageQueue, QueueProgress] = {}
        for name in dict.fromkeys((*wanted, retry_topic(group))):
            try:
                progress = await self._processor.metadata.progress(context, group, name)
            except TopicNotFound:
                if name == topic:
                    raise
                continue
            for queue_progress in progress:
                if not queue_progress.retry and broker in ("", queue_progress.broker):
                    queue = MessageQueue(name, queue_progress.broker, queue_progress.queue_id)
                    standings[queue] = await standing_of(self._processor, context, name, queue_progress)
        return request.answer(body=ConsumeStats(standings).encode())

    # -- inside -------------------------------------------------------------------------------

    def _data_version(self) -> DataVersion:
        """Always a new version, because changes are not counted here."""
        return DataVersion(1, self._clock.now_ms())


async def _legal(work: Awaitable[None]) -> None:
    """What is wrong with settings has a code of its own."""
    try:
        await work
    except BadRequest as error:
        raise _invalid(error) from error


def _legal_now(make: Callable[[], Made]) -> Made:
    try:
        return make()
    except BadRequest as error:
        raise _invalid(error) from error


def _name(check: Callable[[str], str], name: str) -> str:
    return _legal_now(lambda: check(name))


def _invalid(error: BadRequest) -> BadRequest:
    return Refused(ResponseCode.INVALID_PARAMETER, error.sentence)


def _read(decode: Callable[[bytes], Made], body: bytes) -> Made:
    if len(body) > _LARGEST_BODY:
        raise BadRequest(f"the settings have {len(body)} bytes, the limit is {_LARGEST_BODY}")
    try:
        return decode(body)
    except PeerWireError as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"the settings cannot be read: {shown(str(error), 200)}"
        ) from error
