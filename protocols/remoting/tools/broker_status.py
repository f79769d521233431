"""Requests of tools about a broker as a whole: its state, settings, readers, producers, and lag.

Sources: protocol facts 5.5 and 5.14; the handlers of the same codes in RocketMQ 5.5.0's AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from brokers.capabilities import BrokerPlace
from popgate.context import Context
from popgate.errors import BadRequest, NotFound, shown
from popgate.filters.tags import tag_code
from popgate.model import MessageType
from popgate.naming import check_group, is_system_topic
from popgate.wire.bodies.broker_stats import IndexEntry, encode_all_standings, encode_index, encode_producers
from popgate.wire.bodies.offset_stats import ConsumeStats
from popgate.wire.bodies.small_bodies import MessageQueue, TopicList, encode_group_list, encode_kv_table
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import VERSION, Command
from popgate.wire.json_syntax.fastjson import dumps
from popgate.wire.messages.properties import find_property
from processors.requests import Pull
from protocols.remoting.clients.connected import all_producers
from protocols.remoting.clients.remoting_client import RemotingClient
from protocols.remoting.codec.fields import flag, long_number, number, text
from protocols.remoting.codec.merged_responses import producers_of
from protocols.remoting.codec.offset_stats import standing_of
from protocols.remoting.codec.records import encode_stored
from protocols.remoting.queue_cache import Places
from protocols.remoting.requests import DoorContext, Handler, Request
from protocols.remoting.routing import TEMPLATE_TOPIC, Brokers
from protocols.remoting.tools.refused import refused
from protocols.remoting.tools.relay import BrokersBehind

_VERSION_NAME: Final = "V5_3_3"
"""That of `VERSION`."""
_MOST_GROUPS: Final = 10_000
_ORDERED: Final = (MessageType.FIFO,)
_MOST_ENTRIES: Final = 1_000
"""Of the index of a queue, in one answer."""


class BrokerStatusHandler:
    """Serves questions about everything."""

    def __init__(self, door_context: DoorContext) -> None:
        self._door_context = door_context
        self._processor = door_context.processor
        self._clients = door_context.processor.clients
        self._clock = door_context.clock
        self._brokers = Brokers(door_context)
        self._places = Places(door_context)
        self._behind = BrokersBehind(door_context)
        self._started_ms = door_context.clock.now_ms()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime,
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.readers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_read,
            RequestCode.GET_BROKER_CONSUME_STATS: self.standings,
            RequestCode.GET_ALL_PRODUCER_INFO: self.producers,
            RequestCode.QUERY_CONSUME_QUEUE: self.index,
            RequestCode.VIEW_BROKER_STATS_DATA: self.rates,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.clean,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    # -- the broker ---------------------------------------------------------------------------

    async def runtime(self, request: Request) -> Command:
        """The figures that tools show of a broker; unknown ones are left out. No thread pools have queues.

        Before a cluster these are the brokers' figures, of several the mean, since a tool adds them up.
        """
        brokers = await self._brokers.shown(request.context)  # who may not look at brokers is refused
        now_ms = self._clock.now_ms()
        figures = {
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": _VERSION_NAME,
            "bootTimestamp": str(self._started_ms),
            "runtime": _duration(now_ms - self._started_ms),
            "pageCacheLockTimeMills": "0",
        }
        for pool in ("send", "pull", "ack", "query"):
            figures[f"{pool}ThreadPoolQueueSize"] = figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        if self._behind.there:
            figures = await self._behind.figures(request.context, _one_of(brokers, request))
        for name, value in self._processor.figures().items():
            figures[f"popgate.{name}"] = f"{value:g}"
        return request.answer(body=encode_kv_table(figures))

    async def config(self, request: Request) -> Command:
        """Settings that RocketMQ has too, by its names; the gateway's own file has all.

        Before a cluster those that are the same for all brokers, with the gateway's address for theirs.
        """
        context, limits = request.context, self._processor.limits
        brokers = await self._brokers.shown(context)
        named = request.fields.get("bname", "")
        place = next((broker for broker in brokers if named in ("", broker.name)), None)
        host, _, port = self._door_context.address(context).rpartition(":")
        properties = {
            "brokerClusterName": place.cluster if place is not None else "",
            "brokerId": "0",
            "brokerIP1": host,
            "brokerName": place.name if place is not None else self._processor.broker_name,
            "listenPort": port,
        }
        if self._behind.there:
            settings = await self._behind.settings(context, _one_of(brokers, request))
            properties = settings | properties | {"brokerIP2": host, "namesrvAddr": f"{host}:{port}"}
        else:
            properties |= {
                "autoCreateSubscriptionGroup": _truth(limits.auto_create_groups),
                "autoCreateTopicEnable": _truth(limits.auto_create_topics),
                "defaultTopicQueueNums": str(limits.new_topic_queues),
                "maxMessageSize": str(limits.max_body_bytes),
            }
        body = "".join([f"{name}={value}\n" for name, value in sorted(properties.items())]).encode()
        version = dumps({"counter": 1, "stateVersion": 0, "timestamp": self._started_ms}).decode()
        return request.answer({"version": version}, body)

    async def rates(self, request: Request) -> Command:
        """How much went through a topic, or from a topic to a group, as brokers count it."""
        if not self._behind.there:
            return refused(request)
        name, key = text(request.fields, "statsName"), text(request.fields, "statsKey")
        topic = key.partition("@")[0] if name.startswith(("TOPIC_", "GROUP_")) else ""
        rates = await self._behind.rates(request.context, name, key, topic)
        return request.answer(body=rates.encode())

    async def clean(self, request: Request) -> Command:
        """What brokers do by themselves at their time they do now; here nothing is left to do."""
        if not self._behind.there:
            return refused(request)
        await self._behind.everywhere(request.context, request.command.code)
        return request.answer()

    # -- topics and groups --------------------------------------------------------------------

    async def topics_by_cluster(self, request: Request) -> Command:
        """Every topic is in every listed cluster: a gateway is in front of one."""
        cluster = text(request.fields, "cluster")
        if all(cluster != broker.cluster for broker in await self._brokers.shown(request.context)):
            return request.refusal(ResponseCode.SYSTEM_ERROR, f"there is no cluster {shown(cluster)}")
        names = tuple(topic.name for topic in await self._processor.metadata.topics(request.context))
        return request.answer(body=TopicList(names).encode())

    async def system_topics(self, request: Request) -> Command:
        """Includes the topics named after brokers and clusters, as name servers list them."""
        context = request.context
        brokers = await self._brokers.shown(context)
        pseudo = [
            TEMPLATE_TOPIC,
            *[broker.cluster for broker in brokers],
            *[broker.name for broker in brokers],
        ]
        names = [
            topic.name
            for topic in await self._processor.metadata.topics(context)
            if is_system_topic(topic.name)
        ]
        topics = TopicList(tuple(dict.fromkeys((*pseudo, *names))), self._door_context.address(context))
        return request.answer(body=topics.encode())

    async def readers(self, request: Request) -> Command:
        """The groups that read a topic."""
        groups = await self._processor.group_members.readers_of(
            request.context, text(request.fields, "topic")
        )
        return request.answer(body=encode_group_list(groups))

    async def topics_read(self, request: Request) -> Command:
        """The topics that a group reads."""
        context, group = request.context, check_group(text(request.fields, "group"))
        topics = tuple(await self._processor.metadata.topics_of(context, group))
        return request.answer(body=TopicList(topics, self._door_context.address(context)).encode())

    async def standings(self, request: Request) -> Command:
        """The positions of every group on all its topics; with `isOrder` on topics of ordered messages."""
        context, broker = request.context, request.fields.get("bname", "")
        ordered = flag(request.fields, "isOrder")
        left = in_flight = 0
        groups: dict[str, list[ConsumeStats]] = {}
        for group in (await self._processor.metadata.groups(context))[:_MOST_GROUPS]:
            groups[group.name] = []
            try:
                topics = await self._processor.metadata.topics_of(context, group.name)
                for topic in topics:
                    await asyncio.sleep(0)  # there may be many, and the broker may answer at once
                    if (
                        ordered
                        and (await self._processor.metadata.topic(context, topic)).message_types != _ORDERED
                    ):
                        continue
                    stats = await self._standing(context, group.name, topic, broker)
                    groups[group.name].append(stats)
                    for standing in stats.standings.values():
                        left += standing.broker_offset - standing.consumer_offset
                        in_flight += max(standing.pull_offset - standing.consumer_offset, 0)
            except NotFound:  # deleted meanwhile
                continue
        body = encode_all_standings(
            groups, self._door_context.address(context), left=left, in_flight=in_flight
        )
        return request.answer(body=body)

    async def _standing(self, context: Context, group: str, topic: str, broker: str) -> ConsumeStats:
        return ConsumeStats(
            {
                MessageQueue(topic, progress.broker, progress.queue_id): await standing_of(
                    self._processor, context, topic, progress
                )
                for progress in await self._processor.metadata.progress(context, group, topic)
                if not progress.retry and broker in ("", progress.broker)
            }
        )

    # -- clients ------------------------------------------------------------------------------

    async def producers(self, request: Request) -> Command:
        """Those of this replica by group; over gRPC the group of a producer is each of its topics.

        Also those of other replicas; before a cluster its brokers know them, and their own clients.
        """
        await self._brokers.shown(request.context)  # who may not look at brokers is refused
        producers = all_producers(self._clients, self._clock)
        elsewhere = await self._behind.producers(request.context) if self._behind.know_clients else []
        return request.answer(
            body=encode_producers(producers_of((producers, *elsewhere), newest=not self._behind.there))
        )

    # -- queues -------------------------------------------------------------------------------

    async def index(self, request: Request) -> Command:
        """Entries of a queue from an offset on, derived from the messages."""
        context, fields = request.context, request.fields
        topic, broker, queue_id = await self._places.queue_in(request)
        start = long_number(fields, "index")
        count = min(max(number(fields, "count", 10), 1), _MOST_ENTRIES)
        bounds = await self._processor.offsets.bounds(context, topic, broker, queue_id)
        origin = await self._brokers.origin(context)
        entries: list[IndexEntry] = []
        at = max(start, bounds.minimum)
        while len(entries) < count and at < bounds.maximum:
            try:
                pulled = await self._processor.pull(
                    context, Pull(topic, broker, queue_id, at, max_messages=count - len(entries))
                )
            except (BadRequest, NotFound):  # it was deleted this very moment
                break
            for message in pulled.messages:
                tag = (find_property(message.properties, b"TAGS") or b"").decode(errors="replace")
                size = len(encode_stored(message, origin))
                entries.append(IndexEntry(message.commit_offset, size, tag_code(tag)))
            if pulled.next_offset <= at:
                break
            at = pulled.next_offset
        group = fields.get("consumerGroup", "")
        member = next(
            (
                client
                for client in (self._clients.consumers_of(group) if group else ())
                if isinstance(client, RemotingClient) and topic in client.told
            ),
            None,
        )
        note = f"{shown(group)}@{topic} is not online!" if group and member is None else ""
        subscription = member.told[topic] if member is not None else None
        body = encode_index(entries, bounds.minimum, bounds.maximum, subscription=subscription, note=note)
        return request.answer(body=body)


def _one_of(brokers: Sequence[BrokerPlace], request: Request) -> str:
    """The broker that a request names; "" stands for all of them."""
    named = request.fields.get("bname", "")
    return named if any(named == broker.name for broker in brokers) else ""


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _duration(ms: int) -> str:
    minutes, seconds = divmod(max(ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
