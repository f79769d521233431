"""brokers.remote.cluster.routes: what is known serves, and is asked again in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from brokers.remote.cluster.name_servers import NameServers
from brokers.remote.cluster.routes import Routes
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.errors import BrokerUnavailable, TopicNotFound
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
CLUSTER = int(RequestCode.GET_BROKER_CLUSTER_INFO)
ASK = int(RequestCode.GET_MAX_OFFSET)
Turns = Callable[[], Any]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedNameServer]:
    one = ScriptedNameServer()
    await one.start()
    one.add_broker("a", "127.0.0.1:1")
    one.add_broker("b", "127.0.0.1:2", "127.0.0.1:3")
    one.add_topic("t")
    yield one
    await one.stop()


class House:
    """Routes and what they stand on."""

    def __init__(self, clock: MovableClock, *servers: str, **settings: Any) -> None:
        self.settings = RemoteSettings(name_servers=servers, **settings)
        self.links = ConnectionPool(self.settings, clock)
        self.routes = Routes(NameServers(self.links, self.settings, clock), self.links, self.settings, clock)

    async def stop(self) -> None:
        await self.routes.stop()
        await self.links.close()


@pytest.fixture
async def build(clock: MovableClock) -> AsyncIterator[Callable[..., Any]]:
    made: list[House] = []

    async def build_one(*servers: str, start: bool = True, **settings: Any) -> House:
        made.append(House(clock, *servers, **settings))
        if start:
            await made[-1].routes.start()
        return made[-1]

    yield build_one
    for one in made:
        await one.stop()


@pytest.fixture
async def routes(build: Callable[..., Any], server: ScriptedNameServer) -> Routes:
    house = await build(server.address)
    found: Routes = house.routes
    return found


def asked(server: ScriptedNameServer, topic: str = "t") -> int:
    return sum(one.fields["topic"] == topic for one in server.of(ROUTE))


async def test_a_route_is_asked_for_once_by_all(routes: Routes, server: ScriptedNameServer) -> None:
    told = await asyncio.gather(*(routes.of("t") for _ in range(100)))
    assert all(one is told[0] for one in told)
    assert [(one.broker, one.read_queues) for one in told[0].queues] == [("a", 4), ("b", 4)]
    await routes.of("t")
    assert asked(server) == 1
    assert server.of(ROUTE)[0].fields["acceptStandardJsonOnly"] == "true"


async def test_an_old_route_serves_while_a_new_one_is_asked_for(
    routes: Routes, server: ScriptedNameServer, clock: MovableClock, loop_turns: Turns
) -> None:
    old = await routes.of("t")
    server.add_topic("t", queues=9)
    await clock.run(25.0, loop_turns)
    assert await routes.of("t") is old
    await server.until(lambda: asked(server) == 2)
    while (new := await routes.of("t")) is old:
        await asyncio.sleep(0)
    assert new.queues[0].read_queues == 9
    assert asked(server) == 2


async def test_a_newer_route_is_waited_for_while_it_is_asked_for(
    routes: Routes, server: ScriptedNameServer, clock: MovableClock, loop_turns: Turns
) -> None:
    old = await routes.of("t")
    assert await routes.newer("t", old) is old
    server.add_topic("t", queues=9)
    await clock.run(25.0, loop_turns)
    assert await routes.of("t") is old  # and a newer one is asked for
    new = await routes.newer("t", old)
    assert new.queues[0].read_queues == 9
    assert await routes.newer("t", old) is new
    assert asked(server) == 2


async def test_a_refresh_that_fails_keeps_what_is_known(
    routes: Routes, server: ScriptedNameServer, clock: MovableClock, loop_turns: Turns
) -> None:
    old = await routes.of("t")
    for answer in (
        lambda request: request.answer(1, "name server not ready"),
        lambda request: request.answer(0, body=b"{nonsense"),
        lambda request: request.answer(0, body=b"[]"),
    ):
        server.on(ROUTE, answer)
        await clock.run(25.0, loop_turns)
        assert await routes.of("t") is old
        await loop_turns()
        assert await routes.of("t") is old
        assert await routes.now("t") is old
    assert routes.figures()["route_failures_total"] >= 3


async def test_a_change_of_brokers_has_routes_asked_for_once_also_when_nobody_can_tell(
    routes: Routes, server: ScriptedNameServer, clock: MovableClock, loop_turns: Turns
) -> None:
    await routes.of("t")
    clock.advance(0.1)
    routes.clusters.learn([BrokerData("c", "new", {0: "127.0.0.1:9"})])
    server.on(ROUTE, lambda request: request.answer(1, "name server not ready"))
    for _ in range(20):
        await routes.of("t")
        await loop_turns()
    assert asked(server) == 2
    await clock.run(2.5, loop_turns)
    await routes.of("t")
    await loop_turns()
    assert asked(server) == 3


async def test_a_topic_that_is_missing_is_not_asked_for_all_the_time(
    routes: Routes, server: ScriptedNameServer, clock: MovableClock
) -> None:
    for _ in range(10):
        with pytest.raises(TopicNotFound):
            await routes.of("new")
    assert asked(server, "new") == 1
    clock.advance(1.1)
    with pytest.raises(TopicNotFound):
        await routes.of("new")
    assert asked(server, "new") == 2


@pytest.mark.parametrize("name", ["", "with space", "ä", "x" * 513])
async def test_what_can_be_no_topic_is_not_asked_for(
    routes: Routes, server: ScriptedNameServer, name: str
) -> None:
    with pytest.raises(TopicNotFound):
        await routes.of(name)
    assert asked(server, name) == 0


async def test_a_topic_that_was_just_made_is_visible_at_once(
    routes: Routes, server: ScriptedNameServer
) -> None:
    with pytest.raises(TopicNotFound):
        await routes.of("new")
    server.add_topic("new")
    with pytest.raises(TopicNotFound):
        await routes.of("new")
    routes.forget("new")
    assert len((await routes.of("new")).queues) == 2


async def test_what_was_asked_before_a_topic_was_made_does_not_count_after(
    routes: Routes, server: ScriptedNameServer
) -> None:
    held: list[Command] = []
    server.on(ROUTE, lambda request: held.append(request))
    before = asyncio.create_task(routes.of("new"))
    await server.until(lambda: len(held) == 1)
    server.add_topic("new")
    server.on(ROUTE, server._route)
    routes.forget("new")
    assert len((await routes.of("new")).queues) == 2
    server.connections[0].send(held[0].answer(17, "none"))
    with pytest.raises(TopicNotFound):
        await before
    assert len((await routes.of("new")).queues) == 2


async def while_there(routes: Routes, topic: str) -> None:
    """Ask for it until that fails. Raises TimeoutError when it never does."""
    async with asyncio.timeout(60):
        while await routes.of(topic):
            await asyncio.sleep(0.001)


async def test_a_topic_that_was_deleted_is_gone_after_the_refresh(
    routes: Routes, server: ScriptedNameServer, clock: MovableClock, loop_turns: Turns
) -> None:
    await routes.of("t")
    del server.topics["t"]
    await clock.run(21.0, loop_turns)
    await routes.of("t")
    await server.until(lambda: asked(server) == 2)
    with pytest.raises(TopicNotFound):
        await while_there(routes, "t")
    assert asked(server) == 2


async def test_a_forgotten_route_is_asked_for_first_and_serves_when_nobody_can_tell(
    routes: Routes, server: ScriptedNameServer
) -> None:
    old = await routes.of("t")
    routes.forget("t")
    assert await routes.of("t") == old
    assert asked(server) == 2
    await server.stop()
    routes.forget("t")
    assert await routes.of("t") == old


async def test_what_is_told_by_halves_is_used_by_the_whole_parts(
    routes: Routes, server: ScriptedNameServer
) -> None:
    """Queues without their broker, brokers without an address (protocol facts 6.3, 9.7)."""
    a, gone = server.brokers["a"], BrokerData("c", "gone", {})
    server.topics["t"] = TopicRoute(
        (QueueData("a", 4, 4), QueueData("left", 4, 4), QueueData("gone", 4, 4)), (a, gone)
    )
    route = await routes.of("t")
    assert [one.broker for one in route.queues] == ["a"]
    assert [one.name for one in route.brokers] == ["a"]
    server.topics["none"] = TopicRoute((QueueData("left", 4, 4),), ())
    with pytest.raises(BrokerUnavailable, match="has no broker now"):
        await routes.of("none")


async def test_routes_are_bounded_and_unused_ones_forgotten(
    build: Callable[..., Any], server: ScriptedNameServer, clock: MovableClock, loop_turns: Turns
) -> None:
    routes = (await build(server.address, max_routes=3)).routes
    for one in range(5):
        server.add_topic(f"t{one}")
        await routes.of(f"t{one}")
    assert routes.figures()["routes"] == 3
    for _ in range(20):
        await clock.run(19.0, loop_turns)
        await routes.of("t4")
    assert routes.figures()["routes"] == 1
    for one in range(5000):
        routes._missing[f"x{one}"] = clock.monotonic() + 1.0
    with pytest.raises(TopicNotFound):
        await routes.of("y")
    assert len(routes._missing) <= 5000


async def test_zones_are_told_where_only_the_own_one_counts(
    build: Callable[..., Any], server: ScriptedNameServer
) -> None:
    for only, told in ((False, None), (True, "z1")):
        routes = (await build(server.address, zone="z1", zone_only=only)).routes
        await routes.of("t")
        assert server.of(ROUTE)[-1].fields.get("__ZONE_NAME") == told


async def test_a_start_without_any_name_server_fails_with_a_sentence(
    build: Callable[..., Any], server: ScriptedNameServer
) -> None:
    await server.stop()
    house = await build(server.address, start=False)
    with pytest.raises(BrokerUnavailable, match=f"{server.address} cannot be reached: Connection refused"):
        await house.routes.start()


async def test_a_static_topic_keeps_its_map(routes: Routes, server: ScriptedNameServer) -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:1"},"brokerName":"a","cluster":"c"}],'
        b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":2,"writeQueueNums":2}],'
        b'"topicQueueMappingByBroker":{"a":{"topic":"s","scope":"__global__","totalQueues":2,'
        b'"bname":"a","epoch":7,"dirty":false,"currIdMap":{0:0,1:1}}}}'
    )
    server.on(ROUTE, lambda request: request.answer(0, body=body))
    route = await routes.of("s")
    assert route.mappings["a"].epoch == 7


class Cluster:
    """Two brokers that answer, and the name servers that know them."""

    def __init__(self) -> None:
        self.servers = [ScriptedNameServer(), ScriptedNameServer()]
        self.brokers = {"a": ScriptedPeer(), "b": ScriptedPeer()}

    async def start(self) -> None:
        for peer in (*self.servers, *self.brokers.values()):
            await peer.start()
        for broker in self.brokers.values():
            broker.on(ASK, lambda request: request.answer(0))
        self.tell()

    def tell(self) -> None:
        for one in self.servers:
            for name, broker in self.brokers.items():
                one.add_broker(name, broker.address)
            one.add_topic("t")

    async def stop(self) -> None:
        for peer in (*self.servers, *self.brokers.values()):
            await peer.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    one = Cluster()
    await one.start()
    yield one
    await one.stop()


async def reach(house: House, broker: str) -> int:
    address = house.routes.clusters.address(broker)
    return (await house.links.call(address, ASK, {}, timeout_s=3.0)).code


async def test_scenario_11_when_all_name_servers_are_gone_the_last_routes_serve(
    build: Callable[..., Any], cluster: Cluster, clock: MovableClock, loop_turns: Turns
) -> None:
    house = await build(*(one.address for one in cluster.servers))
    route = await house.routes.of("t")
    for one in cluster.servers:
        await one.stop()
    for _ in range(30):
        await clock.run(20.0, loop_turns)
        assert await house.routes.of("t") is route
        assert await reach(house, "a") == await reach(house, "b") == 0
    figures = house.routes.figures()
    assert 590 <= figures["name_servers_silent_s"] <= 600
    assert 590 <= figures["oldest_route_s"] <= 600
    assert "answered 6" in repr(house.routes)
    assert house.routes.age("t") == figures["oldest_route_s"]
    # One of them comes back, and all is as it was.
    cluster.servers[0].add_topic("t", queues=8)
    await cluster.servers[0].start()
    for _ in range(20):
        await clock.run(2.0, loop_turns)
        if (await house.routes.of("t")).queues[0].read_queues == 8:
            break
    assert house.routes.figures()["oldest_route_s"] <= 40


async def test_scenario_11_a_dead_broker_of_a_topic_stops_neither_its_route_nor_the_other_broker(
    build: Callable[..., Any], cluster: Cluster, clock: MovableClock, loop_turns: Turns
) -> None:
    house = await build(*(one.address for one in cluster.servers))
    await house.routes.of("t")
    assert await reach(house, "b") == 0
    await cluster.brokers["b"].stop()
    for step in range(12):
        await clock.run(5.0, loop_turns)
        if step == 6:
            # The name servers notice, too: half of the route has no broker any more.
            for one in cluster.servers:
                del one.brokers["b"]
                one.topics["t"] = TopicRoute(
                    (QueueData("a", 4, 4), QueueData("b", 4, 4)), (one.brokers["a"],)
                )
        assert "a" in [one.broker for one in (await house.routes.of("t")).queues]
        assert await reach(house, "a") == 0
        with pytest.raises(BrokerUnavailable):
            await reach(house, "b")
    assert [one.broker for one in (await house.routes.of("t")).queues] == ["a"]
    await clock.run(130.0, loop_turns)
    assert [one.name for one in await house.routes.brokers()] == ["a"]


async def test_scenario_11_a_name_server_that_was_started_anew_and_knows_nothing_yet_stops_nothing(
    build: Callable[..., Any], cluster: Cluster, clock: MovableClock, loop_turns: Turns
) -> None:
    await cluster.servers.pop().stop()
    (server,) = cluster.servers
    house = await build(server.address)
    route = await house.routes.of("t")
    assert await reach(house, "a") == await reach(house, "b") == 0
    await server.stop()
    server.brokers.clear()
    server.topics.clear()
    await server.start()
    for _ in range(15):
        await clock.run(2.0, loop_turns)
        house.routes.forget("t")
        assert {one.broker for one in (await house.routes.of("t")).queues} == {"a", "b"}
        assert await reach(house, "a") == await reach(house, "b") == 0
    # Only one broker has registered so far.
    server.add_broker("a", cluster.brokers["a"].address)
    server.add_topic("t", "a")
    house.routes.forget("t")
    assert {one.broker for one in (await house.routes.of("t")).queues} == {"a", "b"}
    cluster.tell()
    house.routes.forget("t")
    assert await house.routes.of("t") == route


async def test_scenario_11_a_name_server_that_hears_of_slaves_first_takes_no_queue_away(
    build: Callable[..., Any], cluster: Cluster
) -> None:
    """Queues of a slave that stands in are told as not writable, a plain slave is no master at all."""
    server = cluster.servers[0]
    slaves = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
    for name, slave in slaves.items():
        server.add_broker(name, cluster.brokers[name].address, slave)
    server.add_topic("t")
    house = await build(server.address)
    route = await house.routes.of("t")
    assert await reach(house, "a") == await reach(house, "b") == 0
    for name, slave in slaves.items():
        server.brokers[name] = BrokerData("c", name, {1: slave}, acting_master=name == "b")
    stands_in = BrokerData("c", "b", {0: slaves["b"]}, acting_master=True)
    queues = (QueueData("a", 4, 4), QueueData("b", 4, 4, perm=4))
    server.topics["t"] = TopicRoute(queues, (server.brokers["a"], stands_in))
    server.topics["new"] = server.topics["b"] = TopicRoute(queues[1:], (stands_in,))
    for _ in range(3):
        house.routes.forget("t")
        assert await house.routes.of("t") == route
        assert await reach(house, "a") == await reach(house, "b") == 0
    # Of a topic that was not known before nobody can say whether it may be written to.
    new = await house.routes.of("new")
    assert new.queues == queues[1:]
    assert new.brokers[0].master == cluster.brokers["b"].address
    # One of them dies.
    await cluster.brokers["b"].stop()
    with pytest.raises(BrokerUnavailable):
        await reach(house, "b")
    house.routes.forget("t")
    left = await house.routes.of("t")
    assert left.queues == queues
    assert [one.master for one in left.brokers] == [cluster.brokers["a"].address, slaves["b"]]


async def test_scenario_11_the_new_master_of_a_broker_is_found_within_seconds(
    build: Callable[..., Any], cluster: Cluster, clock: MovableClock, loop_turns: Turns
) -> None:
    house = await build(*(one.address for one in cluster.servers))
    assert await reach(house, "a") == 0
    async with ScriptedPeer() as successor:
        successor.on(ASK, lambda request: request.answer(0, "new"))
        await cluster.brokers["a"].stop()
        await clock.run(2.0, loop_turns)
        for one in cluster.servers:
            one.add_broker("a", successor.address)
        began = clock.monotonic()
        while house.routes.master("a") != successor.address:
            await clock.run(0.5, loop_turns)
            assert clock.monotonic() - began <= 3.0
        assert await reach(house, "a") == 0
        # And then nobody is in a hurry any more.
        await clock.run(5.0, loop_turns)
        before = sum(len(one.of(CLUSTER)) for one in cluster.servers)
        await clock.run(60.0, loop_turns)
        assert sum(len(one.of(CLUSTER)) for one in cluster.servers) - before <= 4
