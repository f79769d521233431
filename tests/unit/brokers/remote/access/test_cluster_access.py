"""brokers.remote.access.cluster_access: what is kept of the places of queues."""

from __future__ import annotations

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.testing.peers import scripted_cluster
from popgate.wire.bodies.routes import BrokerData, QueueData, QueueMapping, TopicRoute


async def test_places_are_kept_by_the_names_of_brokers_and_not_of_who_asks() -> None:
    async with scripted_cluster("a", "b", topics=["t"]) as (servers, masters):
        brokers = tuple(BrokerData("c", name, {0: masters[name].address}) for name in ("a", "b"))
        queues = (QueueData("a", 1, 1), QueueData("b", 1, 1))
        mapping = QueueMapping("S", "__global__", 2, "a", 1, current={0: 0, 1: 1})
        servers.topics["S"] = TopicRoute(queues, brokers, mappings={"a": mapping})
        cluster = ClusterAccess(RemoteSettings(name_servers=(servers.address,)), SystemClock())
        await cluster.start()
        try:
            place = await cluster.place("t", "b", 0)
            assert place.broker == "b"
            assert await cluster.place("t", "b", 0) is place
            static = await cluster.place("S", "a", 1)
            for name in ("", "x" * 1000, "y" * 1000):
                assert await cluster.place("S", name, 1) == static
            assert set(cluster._places) == {("t", "b", 0), ("S", "a", 1)}
        finally:
            await cluster.stop()
