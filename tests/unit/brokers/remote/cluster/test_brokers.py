"""brokers.remote.cluster.brokers: where brokers are, and who stands in for a master."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from brokers.remote.cluster.brokers import MOST_BROKERS, KnownBrokers
from brokers.remote.cluster.name_servers import NameServers
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.errors import BrokerUnavailable
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.frames.codes import RequestCode
from tests.support.waiting import until

MASTER, SLAVE = "127.0.0.1:1", "127.0.0.1:2"
CLUSTER = int(RequestCode.GET_BROKER_CLUSTER_INFO)
Calm = Callable[[ConnectionPool], Callable[[], Any]]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedNameServer]:
    one = ScriptedNameServer()
    await one.start()
    one.add_broker("a", MASTER, SLAVE)
    yield one
    await one.stop()


@pytest.fixture
async def clusters(
    server: ScriptedNameServer, links: ConnectionPool, clock: MovableClock
) -> AsyncIterator[KnownBrokers]:
    settings = RemoteSettings(name_servers=(server.address,))
    servers = NameServers(links, settings, clock)
    await servers.start()
    one = KnownBrokers(servers, links, settings, clock)
    await one.start()
    yield one
    await one.stop()
    await servers.stop()


async def test_requests_go_to_the_master_and_reads_too_while_it_is_well(
    clusters: KnownBrokers, links: ConnectionPool
) -> None:
    assert clusters.address("a") == clusters.address("a", reading=True) == MASTER
    assert not clusters.is_acting("a")
    with pytest.raises(BrokerUnavailable):
        await links.call(MASTER, CLUSTER, {}, timeout_s=1.0)
    assert clusters.address("a") == MASTER
    assert clusters.address("a", reading=True) == SLAVE
    assert clusters.at(MASTER) == "a"


async def test_a_broker_without_a_master_is_read_from_its_slave_only(
    clusters: KnownBrokers, server: ScriptedNameServer
) -> None:
    server.brokers["a"] = BrokerData("c", "a", {1: SLAVE})
    await clusters.refresh()
    assert clusters.address("a", reading=True) == SLAVE
    with pytest.raises(BrokerUnavailable, match="broker 'a' has no master now"):
        clusters.address("a")


async def test_a_broker_that_nobody_knows_cannot_be_asked(clusters: KnownBrokers) -> None:
    with pytest.raises(BrokerUnavailable, match="no name server knows a broker 'b'"):
        clusters.address("b")


async def test_a_slave_that_stands_in_for_the_master_is_found(
    clusters: KnownBrokers, server: ScriptedNameServer
) -> None:
    """Lists of brokers tell it as a slave, routes of topics that cannot be written as id 0 (6.2)."""
    server.brokers["a"] = BrokerData("c", "a", {1: SLAVE}, acting_master=True)
    moved = BrokerData("c", "a", {0: SLAVE}, acting_master=True)
    server.topics["a"] = TopicRoute((QueueData("a", 1, 1, perm=4),), (moved,))
    await clusters.refresh()
    assert clusters.address("a") == SLAVE
    assert clusters.is_acting("a")
    # The master is back.
    server.add_broker("a", MASTER, SLAVE)
    await clusters.refresh()
    assert clusters.address("a") == MASTER
    assert not clusters.is_acting("a")


class Pair:
    """A master of `a` that was asked and answered, its slave, and what name servers tell of them."""

    def __init__(self, clusters: KnownBrokers, server: ScriptedNameServer, links: ConnectionPool) -> None:
        self.clusters = clusters
        self.server = server
        self.links = links
        self.master = ScriptedPeer()

    async def start(self) -> None:
        await self.master.start()
        self.server.add_broker("a", self.master.address, SLAVE)
        await self.clusters.refresh()
        await self.ask()

    async def ask(self) -> None:
        await self.links.call(self.master.address, RequestCode.HEART_BEAT, {}, timeout_s=3.0)

    async def forget_master(self, *, acting: bool) -> BrokerData:
        """The name server has heard of the slave only; what routes tell of the broker."""
        self.server.brokers["a"] = BrokerData("c", "a", {1: SLAVE}, acting_master=acting)
        told = BrokerData("c", "a", {0 if acting else 1: SLAVE}, acting_master=acting)
        self.server.topics["a"] = TopicRoute((QueueData("a", 1, 1, perm=4),), (told,))
        await self.clusters.refresh()
        return told


@pytest.fixture
async def pair(
    clusters: KnownBrokers, server: ScriptedNameServer, links: ConnectionPool
) -> AsyncIterator[Pair]:
    one = Pair(clusters, server, links)
    await one.start()
    yield one
    await one.master.stop()


@pytest.mark.parametrize("acting", [True, False])
async def test_scenario_11_a_master_that_answers_is_asked_on_while_only_its_slave_is_told(
    pair: Pair, acting: bool
) -> None:
    """A name server that was started anew may hear of the slave first, and it knows positions late."""
    told = await pair.forget_master(acting=acting)
    for _ in range(3):
        assert pair.clusters.address("a") == pair.clusters.address("a", reading=True) == pair.master.address
        assert pair.clusters.is_held("a")
        assert not pair.clusters.is_acting("a")
        pair.clusters.learn([told])
        await pair.clusters.refresh()
    # The master has registered, too.
    pair.server.add_broker("a", pair.master.address, SLAVE)
    await pair.clusters.refresh()
    assert pair.clusters.address("a") == pair.master.address
    assert not pair.clusters.is_held("a")


async def test_a_route_that_tells_a_slave_as_the_master_does_not_take_away_one_that_answers(
    pair: Pair, clock: MovableClock, loop_turns: Callable[[], Any]
) -> None:
    pair.clusters.learn([BrokerData("c", "a", {0: SLAVE}, acting_master=True)])
    assert pair.clusters.address("a") == pair.master.address
    # Lists of all brokers are asked for soon, and say whether the slave was made the master.
    pair.server.brokers["a"] = BrokerData("c", "a", {0: SLAVE}, acting_master=True)
    await clock.run(1.5, loop_turns)
    await until(lambda: pair.clusters.address("a") == SLAVE, pause_s=0.0)
    assert not pair.clusters.is_acting("a")


@pytest.mark.parametrize("acting", [True, False])
async def test_scenario_11_a_master_that_is_not_told_and_breaks_its_link_is_left(
    pair: Pair, clock: MovableClock, loop_turns: Callable[[], Any], acting: bool
) -> None:
    await pair.forget_master(acting=acting)
    await pair.master.stop()
    await until(lambda: not pair.links.is_open(pair.master.address), pause_s=0.0)
    await clock.run(2.0, loop_turns)
    await pair.clusters.refresh()
    assert pair.clusters.address("a", reading=True) == SLAVE
    assert pair.clusters.is_acting("a") is acting
    assert not pair.clusters.is_held("a")


async def test_a_master_that_hangs_is_no_better_when_it_is_reached_again(
    pair: Pair, clock: MovableClock, loop_turns: Callable[[], Any]
) -> None:
    """The system takes connections for a process that is stopped."""
    pair.master.silent = True
    pair.master.cut()
    await until(lambda: not pair.links.is_open(pair.master.address), pause_s=0.0)
    pair.links.connect(pair.master.address)
    await until(lambda: pair.links.is_open(pair.master.address), pause_s=0.0)
    await pair.forget_master(acting=True)
    assert pair.clusters.address("a") == SLAVE
    assert pair.clusters.is_acting("a")


async def test_who_is_told_as_the_master_is_followed_at_once(pair: Pair) -> None:
    """A controller changed them: the old one is a slave now, or is told no more."""
    for addresses in ({0: SLAVE, 2: pair.master.address}, {0: SLAVE, 1: "127.0.0.1:3"}):
        pair.server.add_broker("a", pair.master.address, SLAVE)
        await pair.clusters.refresh()
        pair.server.brokers["a"] = BrokerData("c", "a", addresses, acting_master=True)
        await pair.clusters.refresh()
        assert pair.clusters.address("a") == SLAVE
        assert not pair.clusters.is_acting("a")
        pair.server.add_broker("a", pair.master.address, SLAVE)
        await pair.clusters.refresh()
        pair.clusters.learn([BrokerData("c", "a", addresses)])
        assert pair.clusters.address("a") == SLAVE


async def test_a_master_that_says_that_it_is_none_is_left_when_its_slave_is_told(pair: Pair) -> None:
    pair.clusters.refused("a", SLAVE)
    pair.clusters.refused("nobody", SLAVE)
    await pair.forget_master(acting=True)
    assert pair.clusters.address("a") == pair.master.address
    pair.clusters.refused("a", pair.master.address)
    assert pair.clusters.address("a") == pair.master.address
    await pair.clusters.refresh()
    assert pair.clusters.address("a") == SLAVE


async def test_what_a_route_says_of_a_broker_is_known_at_once(
    clusters: KnownBrokers, clock: MovableClock
) -> None:
    clusters.learn([BrokerData("c", "a", {0: SLAVE}, acting_master=True), BrokerData("c", "b", {0: "x:1"})])
    assert clusters.address("a") == SLAVE
    assert clusters.address("b") == "x:1"
    assert clusters.changed_at == clock.monotonic()


async def test_as_many_brokers_as_the_bound_are_known(clusters: KnownBrokers) -> None:
    clusters.learn(BrokerData("c", f"b{one}", {0: "x:1"}) for one in range(MOST_BROKERS + 10))
    assert len(clusters) == MOST_BROKERS
    assert clusters.address("a") == MASTER


async def test_an_answer_that_cannot_be_read_changes_nothing(
    clusters: KnownBrokers, server: ScriptedNameServer
) -> None:
    for answer in (
        lambda request: request.answer(0, body=b"nonsense"),
        lambda request: request.answer(1, "\x1b[2J not now"),
    ):
        server.on(CLUSTER, answer)
        with pytest.raises(BrokerUnavailable, match="brokers") as caught:
            await clusters.refresh()
        assert str(caught.value).isprintable()
    assert clusters.address("a") == MASTER


async def test_brokers_are_asked_for_regularly_and_suspects_more_often(
    clusters: KnownBrokers,
    server: ScriptedNameServer,
    clock: MovableClock,
    links: ConnectionPool,
    calm_of: Calm,
) -> None:
    calm = calm_of(links)
    before = len(server.of(CLUSTER))
    await clock.run(61.0, calm)
    assert len(server.of(CLUSTER)) - before == 3
    clusters.suspect("a")
    clusters.suspect("nobody")
    before = len(server.of(CLUSTER))
    await clock.run(10.5, calm)
    assert 10 <= len(server.of(CLUSTER)) - before <= 12
    await clock.run(60.0, calm)
    before = len(server.of(CLUSTER))
    await clock.run(60.0, calm)
    assert len(server.of(CLUSTER)) - before <= 4


async def test_a_broker_that_left_is_forgotten_after_a_while(
    clusters: KnownBrokers,
    server: ScriptedNameServer,
    clock: MovableClock,
    links: ConnectionPool,
    calm_of: Calm,
) -> None:
    server.add_broker("b", "127.0.0.1:3")
    await clusters.refresh()
    del server.brokers["a"]
    await clusters.refresh()
    assert [one.name for one in await clusters.brokers()] == ["b"]
    assert clusters.address("a") == MASTER
    await clock.run(150.0, calm_of(links))
    with pytest.raises(BrokerUnavailable, match="no name server knows"):
        clusters.address("a")


async def test_a_broker_that_no_name_server_names_and_a_link_reaches_is_there(
    clusters: KnownBrokers, server: ScriptedNameServer, links: ConnectionPool
) -> None:
    async with ScriptedPeer() as broker:
        server.brokers["a"] = dataclasses.replace(server.brokers["a"], addresses={0: broker.address})
        await clusters.refresh()
        await links.call(broker.address, RequestCode.HEART_BEAT, {}, timeout_s=3.0)
        server.brokers.clear()
        await clusters.refresh()
        assert clusters.is_forgotten("a")
        assert [one.name for one in await clusters.brokers()] == ["a"]
