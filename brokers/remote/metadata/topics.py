"""Topics of a cluster: listed, created, updated. A topic has a number of queues on each of its brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.keyed_lock import KeyedLock
from brokers.remote.access.queries import object_in, of_each, worst
from brokers.remote.access.refreshing_cache import RefreshingCache
from brokers.remote.cluster.queues import queues_of
from brokers.remote.metadata.config_codec import check_topic_settings, refusal, topic_fields, topic_in
from popgate.answers import error_of
from popgate.errors import (
    AlreadyExists,
    BadRequest,
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    NotFound,
    TopicNotFound,
    shown,
)
from popgate.model import Permission, Route, TopicConfig
from popgate.naming import could_be_a_name, is_system_topic
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.parts import as_object, table

_SHOWN_WITHIN_S = 5.0
"""How long a change may take on its way from the brokers to the name servers, or as long as a request."""
_LOOK_AGAIN_S = 0.02
_LOOK_AGAIN_LONGEST_S = 0.5
_REPLY_TOPIC = "_REPLY_TOPIC"
_SYSTEM_PREFIX = "rmq_sys_"


class Topics:
    """The part of the port's `Directory` that shows topics, makes and changes them."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._routes = access.routes
        self._clock = access.clock
        self._settings = access.settings
        self._client = access.client
        self._connections = access.connections
        self.topic_settings = RefreshingCache.of_settings(
            self._fetch_topic, access.clock, access.settings, missing=TopicNotFound
        )
        self.topic_turns = KeyedLock()

    async def stop(self) -> None:
        await self.topic_settings.close()

    async def route(self, topic: str) -> Route:
        """The message types from any broker of the topic; raises if none responds."""
        route = await self._access.routes.of(topic)
        queues = queues_of(topic, route)
        try:
            types = (await self.topic_settings.of(topic)).message_types
        except BrokerUnavailable:
            if any(queue.permission & Permission.WRITE for queue in queues):
                raise
            types = ()  # who only reads needs none, and slaves are there for readers
        return Route(topic, types, queues)

    async def topic(self, name: str) -> TopicConfig:
        return await self.topic_settings.of(name)

    async def topics(self) -> list[TopicConfig]:
        """Those of all brokers that answer, without the system's. Raises BrokerUnavailable: none does."""
        by_broker, failures = await of_each(await self._access.brokers(), self._topics_at)
        if not by_broker:
            raise worst(failures)
        pseudo = set()
        for broker in await self._routes.brokers():
            # Every broker and every cluster has a topic that is called like it (6.2).
            pseudo |= {broker.name, broker.cluster, broker.cluster + _REPLY_TOPIC}
        by_name: dict[str, TopicConfig] = {}
        for configs in by_broker.values():
            for config in configs:
                if config.name not in pseudo and not _belongs_to_the_system(config.name):
                    by_name[config.name] = _widest(by_name.get(config.name), config)
        return [by_name[name] for name in sorted(by_name)]

    async def create_topic(
        self,
        config: TopicConfig,
        first: asyncio.Future[Any] | None = None,
        made: Callable[[Collection[str]], Awaitable[None]] | None = None,
    ) -> None:
        """On every broker that has a master. Unreachable brokers are skipped, unless all are.

        A topic that a broker has and no name server lists yet, as after a restart of all name servers, stays
        as it is: otherwise its settings would be lost, and messages in queues that a new one does not have.

        `first` is done while the topic is not there, and before a broker is told to make it. `made` is called
        with those that have made it, or may have, before name servers are asked for it, and also where this
        fails then: the topic is there.
        """
        check_topic_settings(config)
        async with self.topic_turns.of(config.name):
            try:
                await self._routes.now(config.name)
            except TopicNotFound:
                pass
            else:
                raise AlreadyExists("topic", config.name)
            fields = topic_fields(config, None)
            there, failures = await of_each(
                await self._access.masters(), lambda broker: self._has_topic(broker, config.name)
            )
            if first is not None and not any(there.values()):
                late = not first.done()
                await first
                if late:
                    there, silent = await of_each(there, lambda broker: self._has_topic(broker, config.name))
                    failures = {**failures, **silent}
            if any(there.values()):
                await self.until_shown(config.name, lambda route: route is not None)
                raise AlreadyExists("topic", config.name)
            done, refusals = await of_each(there, lambda broker: self._change_topic(broker, fields))
            # Without an answer it may be done, too.
            unsure = [name for name, error in refusals.items() if isinstance(error, BrokerTimeout)]
            if made is not None and (done or unsure):
                await made([*done, *unsure])
            failures = {**failures, **refusals}
            self.topic_settings.forget(config.name)
            refused = [error for error in failures.values() if not error.retryable]
            if refused or not done:
                raise refused[0] if refused else worst(failures)
            await self.until_shown(config.name, lambda route: _has_queues(route, done, config))

    async def update_topic(self, config: TopicConfig) -> None:
        if not could_be_a_name(config.name):
            raise TopicNotFound(shown(config.name))
        check_topic_settings(config)
        async with self.topic_turns.of(config.name):
            route = await self._routes.now(config.name)
            if route.mappings:
                raise BadRequest(f"topic {config.name} is static: an operator maps its queues")
            brokers = [data.name for data in route.brokers if data.master is not None]
            if not brokers:
                raise BrokerUnavailable(f"no broker of topic {config.name} has a master now")
            by_broker, failures = await of_each(brokers, lambda broker: self._told(broker, config.name))
            if failures:
                raise worst(failures)
            changes = {}
            for broker, before in by_broker.items():
                there = topic_in(before)
                if config.read_queues < there.read_queues or config.write_queues < there.write_queues:
                    raise BadRequest(
                        f"topic {config.name} has {there.queues} queues at broker {broker}:"
                        " queues are not taken away"
                    )
                changes[broker] = topic_fields(config, before)
            done, failures = await of_each(
                changes, lambda broker: self._change_topic(broker, changes[broker])
            )
            self.topic_settings.forget(config.name)
            if failures:
                raise worst(failures)
            await self.until_shown(config.name, lambda route: _has_queues(route, done, config))

    async def until_shown(self, topic: str, fits: Callable[[TopicRoute | None], bool]) -> None:
        """Wait until the name servers return a change that the brokers have made. Raises BrokerTimeout."""
        until = self._clock.monotonic() + max(_SHOWN_WITHIN_S, self._settings.request_timeout_s)
        rest = _LOOK_AGAIN_S
        while True:
            self._routes.forget(topic)
            try:
                if fits(await self._routes.now(topic)):
                    return
            except TopicNotFound:
                if fits(None):
                    return
            except BrokerUnavailable:
                pass  # it may be there a moment later
            if self._clock.monotonic() >= until:
                raise BrokerTimeout(
                    f"the brokers have changed topic {topic}, the name servers do not tell it yet"
                )
            await self._access.rest(rest)
            rest = min(2 * rest, _LOOK_AGAIN_LONGEST_S)

    # -- inside -------------------------------------------------------------------------------

    async def _fetch_topic(self, name: str) -> TopicConfig:
        """The settings as the first broker that answers has them, with the queues that the route tells of."""
        route = await self._routes.of(name)
        failures: dict[str, GatewayError] = {}
        brokers = [data.name for data in route.brokers]
        brokers.sort(key=lambda broker: not self._is_reached(broker))
        for broker in brokers:
            try:
                config = topic_in(await self._told(broker, name))
            except GatewayError as error:
                failures[broker] = error if self._access.knows_best(broker) else _not_told(error)
                continue
            here = [queues for queues in route.queues if queues.broker in brokers]
            return replace(
                config,
                read_queues=max([queues.read_queues for queues in here] + [config.read_queues]),
                write_queues=max([queues.write_queues for queues in here] + [config.write_queues]),
            )
        silent = [failure for failure in failures.values() if not isinstance(failure, NotFound)]
        raise silent[0] if silent else TopicNotFound(name)

    def _is_reached(self, broker: str) -> bool:
        data = self._routes.clusters.get(broker)
        return data is not None and any(
            self._connections.is_open(address) for address in data.addresses.values()
        )

    async def _told(self, broker: str, name: str) -> Mapping[str, Any]:
        """The settings from one broker. Those before 5.0 have none: then nothing is declared (6.4)."""
        answer = await self._access.read_from(
            broker, RequestCode.GET_TOPIC_CONFIG, {"topic": name, "lo": "true"}
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            queues = next(
                (queue for queue in (await self._routes.of(name)).queues if queue.broker == broker), None
            )
            if queues is None:
                raise TopicNotFound(name)
            return {
                "topicName": name,
                "readQueueNums": queues.read_queues,
                "writeQueueNums": queues.write_queues,
                "perm": queues.perm,
            }
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker, topic=name)

        def read(body: Mapping[str, Any]) -> Mapping[str, Any]:
            topic_in(body)
            return body

        return object_in(answer, broker, f"topic {name}", read)

    async def _has_topic(self, broker: str, name: str) -> bool:
        try:
            await self._told(broker, name)
        except TopicNotFound:
            return False
        return True

    async def _topics_at(self, broker: str) -> list[TopicConfig]:
        answer = await self._access.read_from(
            broker, RequestCode.GET_ALL_TOPIC_CONFIG, {}, timeout_s=self._settings.slow_s
        )
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker)

        def read(body: Mapping[str, Any]) -> list[TopicConfig]:
            configs = table(body, "topicConfigTable").values()
            return [topic_in(as_object(config, "topicConfigTable")) for config in configs]

        return object_in(answer, broker, "the list of topics", read)

    async def _change_topic(self, broker: str, fields: Mapping[str, str]) -> None:
        answer = await self._client.call(
            broker,
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            fields,
            timeout_s=self._settings.slow_s,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, broker, fields.get("attributes", ""))


def _not_told(error: GatewayError) -> GatewayError:
    return BrokerUnavailable(error.sentence) if isinstance(error, NotFound) else error


def _widest(widest: TopicConfig | None, other: TopicConfig) -> TopicConfig:
    """What two brokers have of the same topic: the settings of the first, the queues of the larger."""
    if widest is None:
        return other
    return replace(
        widest,
        read_queues=max(widest.read_queues, other.read_queues),
        write_queues=max(widest.write_queues, other.write_queues),
    )


def _belongs_to_the_system(name: str) -> bool:
    return is_system_topic(name) or name.lower().startswith(_SYSTEM_PREFIX)


def _has_queues(route: TopicRoute | None, brokers: Mapping[str, object], config: TopicConfig) -> bool:
    """Whether the route tells what those brokers were told: so many queues, this permission."""
    if route is None:
        return False
    by_broker = {data.broker: data for data in route.queues}
    for broker in brokers:
        queues = by_broker.get(broker)
        if (
            queues is None
            or queues.read_queues != config.read_queues
            or queues.write_queues != config.write_queues
            or queues.perm & 6 != int(config.permission)
        ):
            return False
    return True
