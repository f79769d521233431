"""The members of a consumer group: read from the cluster, which knows the clients of all gateways.

Source: protocol facts 5.5 (38, 40, 203) and 7.5.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from brokers.capabilities import GroupMember, TellsConsumers
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import object_in, of_each, worst
from brokers.remote.clients.heartbeats import reading_in
from brokers.remote.clients.registration import ClientRegistration
from popgate.answers import error_of
from popgate.errors import BrokerTimeout, BrokerUnavailable, PeerWireError
from popgate.model import Reading
from popgate.naming import could_be_a_name
from popgate.wire.bodies.heartbeats import Connection, ConsumerConnection
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.parts import texts

_NOBODY = "no consumer for this group"
"""What a broker says, in small letters, of a group that it knows no consumer of."""


class GroupMembers(TellsConsumers):
    """`brokers.capabilities.TellsConsumers`."""

    def __init__(self, access: ClusterAccess, registration: ClientRegistration) -> None:
        self._routes = access.routes
        self._client = access.client
        self._registration = registration

    async def consumers(self, group: str) -> list[str]:
        """Ask one broker of each cluster, and another one if it fails: clients register at all of them."""
        if not could_be_a_name(group):
            return []
        clusters = await self._clusters()
        by_cluster, failures = await of_each(clusters, lambda cluster: self._asked(group, clusters[cluster]))
        if failures:
            raise worst(failures)
        return sorted({client_id for ids in by_cluster.values() for client_id in ids})

    async def members(self, group: str) -> list[GroupMember]:
        """Ask all brokers; one response from each cluster is enough.

        A client that is connected to the brokers directly registers first at those that have its topic.
        """
        if not could_be_a_name(group):
            return []
        clusters = await self._clusters()
        by_cluster, failures = await of_each(
            clusters, lambda cluster: self._gathered(group, clusters[cluster])
        )
        if failures:
            raise worst(failures)
        readings = {
            (connection.client_id, reading_in(connection.version))
            for each in by_cluster.values()
            for connection in each
        }
        return [
            GroupMember(client_id, reading is not None, reading or Reading.UNKNOWN)
            for client_id, reading in readings
        ]

    def on_members(self, handler: Callable[[str], None]) -> None:
        self._registration.requests.on_members = handler

    async def _clusters(self) -> dict[str, list[str]]:
        """The brokers of each that have a master. Raises BrokerUnavailable: there is none."""
        clusters: dict[str, list[str]] = {}
        for broker in await self._routes.brokers():
            if self._routes.master(broker.name) is not None:
                clusters.setdefault(broker.cluster, []).append(broker.name)
        if not clusters:
            raise BrokerUnavailable("no broker of the cluster has a master now")
        return clusters

    async def _gathered(self, group: str, brokers: Sequence[str]) -> list[Connection]:
        by_broker, failures = await of_each(brokers, lambda broker: self._connected(group, broker))
        unreached = (BrokerUnavailable, BrokerTimeout)
        if not by_broker or any(not isinstance(error, unreached) for error in failures.values()):
            raise worst(failures)
        return [connection for connections in by_broker.values() for connection in connections]

    async def _connected(self, group: str, broker: str) -> Sequence[Connection]:
        answer = await self._client.call(
            broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
        )
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return ()
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker, group=group)
        try:
            return ConsumerConnection.decode(answer.body).connections
        except PeerWireError as error:
            raise BrokerUnavailable(
                f"the consumers of {group} as broker {broker} tells them make no sense: {error}"
            ) from None

    async def _asked(self, group: str, brokers: Sequence[str]) -> Sequence[str]:
        failure: BrokerUnavailable | BrokerTimeout | None = None
        for broker in random.sample(brokers, len(brokers)):
            try:
                answer = await self._client.call(
                    broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}
                )
            except (BrokerUnavailable, BrokerTimeout) as error:
                failure = failure or error
                continue
            if answer.code == ResponseCode.SYSTEM_ERROR and _NOBODY in answer.remark.lower():
                return ()
            if answer.code != ResponseCode.SUCCESS:
                raise error_of(answer, broker=broker, group=group)
            return object_in(
                answer, broker, f"the consumers of {group}", lambda body: texts(body, "consumerIdList")
            )
        assert failure is not None  # noqa: S101 - there is a broker in each cluster
        raise failure
