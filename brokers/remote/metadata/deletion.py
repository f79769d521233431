"""Deletes topics and groups on all brokers, with everything that belongs to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import of_each, worst
from brokers.remote.metadata.groups import Groups
from brokers.remote.metadata.topics import Topics
from popgate.answers import error_of
from popgate.errors import BrokerUnavailable, GatewayError, GroupNotFound, TopicNotFound, shown
from popgate.naming import could_be_a_name, pop_retry_topic_v1, pop_retry_topic_v2
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode


class _Found(NamedTuple):
    """A topic that exists. `unlisted`: brokers that have it and have not reported it to name servers yet."""

    name: str
    route: TopicRoute | None
    unlisted: tuple[str, ...]


class Deletion:
    """The part of the port's `Directory` that deletes.

    It is done everywhere or it raises, and may be asked for again: a broker that was not there would
    bring a topic back to the name servers, and they do not forget it by themselves.
    """

    def __init__(self, access: ClusterAccess, topics: Topics, groups: Groups) -> None:
        self._access = access
        self._routes = access.routes
        self._connections = access.connections
        self._client = access.client
        self._settings = access.settings
        self._topics = topics
        self._groups = groups

    async def delete_topic(self, name: str) -> None:
        if not could_be_a_name(name):
            raise TopicNotFound(shown(name))
        async with self._topics.topic_turns.of(name):
            route = await self._routes.now(name)
            groups = await self._readers_of(name, [broker.name for broker in route.brokers])
            # Found first: once the topic is gone, a repeated call would not come to them.
            retries = await self._found(_retry_topics(name, groups), {data.name for data in route.brokers})
            await self._delete(name, route)
            await self._delete_found(retries)

    async def delete_group(self, name: str) -> None:
        """With its positions and its retries; its dead letters stay, as with RocketMQ's own tools."""
        if not could_be_a_name(name):
            raise GroupNotFound(shown(name))
        async with self._groups.group_turns.of(name):
            await self._groups.group_now(name)
            read = await self._groups.topics_read_by(name)
            masters = await self._access.masters()
            retries = await self._found(
                (retry_topic for topic in read for retry_topic in _retry_topics(topic, [name])), set(masters)
            )
            _, failures = await of_each(masters, lambda broker: self._groups.delete_group_at(broker, name))
            self._groups.group_settings.forget(name)
            if failures:
                raise worst(failures)
            await self._delete_found(retries)
            await self._groups.drop_stale_positions(name, masters)

    # -- inside -------------------------------------------------------------------------------

    async def _found(self, topics: Iterable[str], brokers: set[str]) -> list[_Found]:
        """Those of the topics that exist, also at brokers that have not reported them to name servers yet."""
        existing = []
        for topic in topics:
            try:
                route = await self._routes.now(topic)
            except TopicNotFound:
                route = None
            listed = {data.name for data in route.brokers} if route is not None else set()
            unlisted = await self._access.unlisted(topic, sorted(brokers - listed))
            if route is not None or unlisted:
                existing.append(_Found(topic, route, tuple(unlisted)))
        return existing

    async def _delete_found(self, topics: Iterable[_Found]) -> None:
        """Delete all that can be deleted, then raise the first failure."""
        failure: GatewayError | None = None
        for topic in topics:
            try:
                await self._delete_everywhere(topic)
            except GatewayError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _delete_everywhere(self, topic: _Found) -> None:
        _, failures = await of_each(topic.unlisted, lambda broker: self._delete_at(broker, topic.name))
        if failures:
            raise worst(failures)
        if topic.route is not None:
            await self._delete(topic.name, topic.route)

    async def _delete_at(self, broker: str, topic: str) -> None:
        await self._client.done(
            broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, timeout_s=self._settings.slow_s
        )

    async def _delete(self, topic: str, route: TopicRoute) -> None:
        """At its brokers, then at all name servers, which the brokers do not notify."""
        gone = sorted(data.name for data in route.brokers if data.master is None)
        if gone:
            raise BrokerUnavailable(
                f"topic {topic} cannot be deleted while broker {', '.join(gone)} has no master"
            )
        names = [data.name for data in route.brokers]
        _, failures = await of_each(names, lambda broker: self._delete_at(broker, topic))
        self._topics.topic_settings.forget(topic)
        if failures:
            raise worst(failures)
        clusters = sorted({data.cluster for data in route.brokers})
        _, failures = await of_each(
            self._routes.servers.addresses, lambda server: self._unname(server, topic, clusters)
        )
        self._routes.forget(topic)
        if failures:
            raise worst(failures)
        await self._topics.until_shown(topic, lambda config: config is None)

    async def _unname(self, server: str, topic: str, clusters: Iterable[str]) -> None:
        """The name of the cluster is what 5.x name servers ask for; older ones do not look at it."""
        for cluster in clusters:
            answer = await self._connections.call(
                server,
                RequestCode.DELETE_TOPIC_IN_NAMESRV,
                {"topic": topic, "clusterName": cluster},
                timeout_s=self._settings.request_timeout_s,
            )
            if answer.code != ResponseCode.SUCCESS:
                raise error_of(answer, broker="(name server)")

    async def _readers_of(self, topic: str, brokers: Iterable[str]) -> list[str]:
        """The groups that have a position in the topic, from those of its brokers that respond."""
        readers, _ = await self._groups.readers_at(topic, brokers)
        return readers or []


def _retry_topics(topic: str, groups: Iterable[str]) -> list[str]:
    """Where pops of these groups put what was not finished of a topic (4.2)."""
    return [make(group, topic) for group in groups for make in (pop_retry_topic_v1, pop_retry_topic_v2)]
