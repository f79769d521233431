"""brokers.remote.register: brokers know the clients of this replica, as long as they are here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from brokers.capabilities import ConnectedClient
from brokers.remote.registering import Registering
from popgate.model import FilterKind
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.codes import RequestCode, ResponseCode
from popgate.wire.heartbeats import HeartbeatData

BEAT, GOODBYE = int(RequestCode.HEART_BEAT), int(RequestCode.UNREGISTER_CLIENT)
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


@pytest.fixture
async def register(make_facet: Any, asking_cluster: Cluster) -> Any:
    for master in asking_cluster[1].values():
        master.on(GOODBYE, lambda request: request.answer(0))
    return await make_facet(Registering, max_links=2)


@pytest.fixture
def masters(asking_cluster: Cluster) -> dict[str, ScriptedPeer]:
    return asking_cluster[1]


def beats(peer: ScriptedPeer) -> list[HeartbeatData]:
    """Heartbeats with clients, not those that only ask for a sign of life."""
    told = [HeartbeatData.decode(one.body) for one in peer.of(BEAT)]
    return [one for one in told if one.producer_groups or one.consumers]


def known(peer: ScriptedPeer) -> set[tuple[str, str]]:
    return {(one.client_id, group) for one in beats(peer) for group in one.producer_groups} | {
        (one.client_id, each.group) for one in beats(peer) for each in one.consumers
    }


def producer(name: str, *topics: str, **more: Any) -> ConnectedClient:
    return ConnectedClient(name, topics=frozenset(topics), **more)


async def until(peer: ScriptedPeer, holds: Callable[[], bool]) -> None:
    await peer.until(holds)


async def registered(register: Registering, count: int) -> None:
    async with asyncio.timeout(10):
        while register.figures()["clients_registered"] != count:
            await asyncio.sleep(0)


async def test_every_master_is_told_of_a_client_at_once(
    register: Registering, masters: dict[str, ScriptedPeer]
) -> None:
    register.client_is_here(producer("p", "T", "U", language="JAVA", version="5.0.7"))
    for master in masters.values():
        await until(master, lambda: known(master) == {("p", "T"), ("p", "U")})  # noqa: B023
        told = next(one for one in master.of(BEAT) if HeartbeatData.decode(one.body).producer_groups)
        assert (told.language, told.version) == ("JAVA", 427)


async def test_members_of_a_group_are_told_on_links_of_their_own_and_the_rest_is_merged(
    register: Registering, masters: dict[str, ScriptedPeer]
) -> None:
    master = masters["broker-a"]
    for name in ("one", "two", "three"):
        register.client_is_here(ConnectedClient(name, group="g"))
    register.client_is_here(ConnectedClient("other", group="h"))
    await until(master, lambda: known(master) >= {("one", "g"), ("two", "g"), ("other", "h")})
    assert ("three", "g") not in known(master)
    assert register.figures()["clients_merged"] == 1
    assert register.figures()["client_links"] == 2
    register.client_left("one")
    await until(master, lambda: ("three", "g") in known(master))
    (goodbye,) = master.of(GOODBYE)
    assert goodbye.fields == {"clientID": "one", "consumerGroup": "g"}
    assert register.figures()["clients_merged"] == 0


async def test_a_seat_is_not_taken_before_the_broker_answered_that_it_is_free(
    register: Registering, masters: dict[str, ScriptedPeer]
) -> None:
    """Brokers handle heartbeats and good-byes in different threads: the one could overtake the other."""
    master = masters["broker-a"]
    for name in ("one", "two", "three"):
        register.client_is_here(ConnectedClient(name, group="g"))
    await until(master, lambda: ("two", "g") in known(master))
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await gate.wait()
        return request.answer(0)

    master.on(GOODBYE, slow)
    register.client_left("one")
    await until(master, lambda: len(master.of(GOODBYE)) == 1)
    assert ("three", "g") not in known(master)
    gate.set()
    await until(master, lambda: ("three", "g") in known(master))


async def test_heartbeats_come_again_and_stop_when_the_client_goes(
    register: Registering, masters: dict[str, ScriptedPeer], clock: MovableClock
) -> None:
    master = masters["broker-a"]
    register.client_is_here(producer("p", "T"))
    register.client_is_here(producer("q", "T"))
    await until(master, lambda: len(known(master)) == 2)
    for _ in range(3):
        before = len(beats(master))
        clock.advance(26)
        await until(master, lambda: len(beats(master)) >= before + 2)  # noqa: B023
    register.client_left("p")
    register.client_left("p")
    await until(master, lambda: len(master.of(GOODBYE)) == 1)
    before = len(beats(master))
    clock.advance(26)
    await until(master, lambda: len(beats(master)) > before)
    assert {one.client_id for one in beats(master)[before:]} == {"q"}


async def test_a_change_is_told_at_once_and_what_is_the_same_is_not(
    register: Registering, masters: dict[str, ScriptedPeer]
) -> None:
    master = masters["broker-a"]
    for filters in ({"T": (FilterKind.TAG, "a")}, {"T": (FilterKind.TAG, "b")}):
        register.client_is_here(ConnectedClient("c", group="g", subscriptions=filters))
        wanted = filters["T"][1]
        await until(
            master,
            lambda: any(
                one.consumers[0].subscriptions[0].expression == wanted  # noqa: B023
                for one in beats(master)
            ),
        )
    register.client_is_here(producer("p", "T", "U"))
    await until(master, lambda: ("p", "U") in known(master))
    register.client_is_here(producer("p", "T"))
    await until(master, lambda: len(master.of(GOODBYE)) == 1)
    assert master.of(GOODBYE)[0].fields == {"clientID": "p", "producerGroup": "U"}


async def test_a_broker_that_was_away_is_told_again(
    register: Registering, masters: dict[str, ScriptedPeer], clock: MovableClock
) -> None:
    master = masters["broker-a"]
    register.client_is_here(producer("p", "T"))
    await until(master, lambda: known(master) == {("p", "T")})
    before = len(beats(master))
    master.cut()
    async with asyncio.timeout(10):
        while len(beats(master)) == before:
            clock.advance(0.5)
            await asyncio.sleep(0)


async def test_a_broker_that_comes_is_told_before_the_next_heartbeat_is_due(
    register: Registering, asking_cluster: Cluster, masters: dict[str, ScriptedPeer], clock: MovableClock
) -> None:
    register.client_is_here(producer("p", "T"))
    await until(masters["broker-a"], lambda: known(masters["broker-a"]) == {("p", "T")})
    async with ScriptedPeer() as third:
        asking_cluster[0].add_broker("broker-c", third.address)
        async with asyncio.timeout(10):
            while not known(third):
                clock.advance(0.25)
                await asyncio.sleep(0)
        assert known(third) == {("p", "T")}


async def test_clients_are_told_to_the_clusters_of_their_topics(
    asking_cluster: Cluster, make_facet: Any, masters: dict[str, ScriptedPeer]
) -> None:
    servers = asking_cluster[0]
    async with ScriptedPeer() as far:
        servers.add_broker("far", far.address, cluster="Other")
        servers.add_topic("T", "broker-a")
        servers.add_topic("far-topic", "far")
        register = await make_facet(Registering)
        register.client_is_here(producer("near", "T"))
        register.client_is_here(producer("far", "far-topic", "missing"))
        register.client_is_here(producer("unknown", "missing"))
        await until(
            far, lambda: known(far) == {("far", "far-topic"), ("far", "missing"), ("unknown", "missing")}
        )
        near = masters["broker-b"]
        await until(near, lambda: known(near) == {("near", "T"), ("unknown", "missing")})


async def test_a_half_message_of_nobody_known_makes_the_gateway_a_producer(
    register: Registering, masters: dict[str, ScriptedPeer], clock: MovableClock
) -> None:
    master = masters["broker-a"]
    name = register.settings.name
    register.register.expect_checks("T", "G")
    register.register.expect_checks("T", "G")
    await until(master, lambda: known(master) == {(name, "G")})
    register.register.nobody_asked("T", "G")
    register.register.nobody_asked("T", "G")
    await until(master, lambda: len(master.of(GOODBYE)) == 1)
    assert register.figures()["clients_registered"] == 0
    register.register.expect_checks("T", "G")
    await registered(register, 1)
    clock.advance(7_201)
    await registered(register, 0)


async def test_a_half_message_of_a_known_producer_needs_nobody_else(
    register: Registering, masters: dict[str, ScriptedPeer]
) -> None:
    register.client_is_here(producer("p", "T"))
    register.register.expect_checks("T", "T")
    await until(masters["broker-a"], lambda: ("p", "T") in known(masters["broker-a"]))
    assert register.figures()["clients_registered"] == 1
    for number in range(2_000):
        register.register.expect_checks("T", f"group-{number}")
    await registered(register, 2)
    found = register.register.find(register.settings.name)
    assert found is not None
    assert len(found[0].producer_groups) == 1_024


async def test_a_broker_that_refuses_clients_is_told_of_once(
    register: Registering, masters: dict[str, ScriptedPeer], clock: MovableClock, caplog: Any
) -> None:
    master = masters["broker-a"]
    master.on(BEAT, lambda request: request.answer(ResponseCode.NO_PERMISSION, "no right to that"))
    register.client_is_here(producer("p", "T"))
    async with asyncio.timeout(10):
        while not register.figures()["registrations_refused"]:
            await asyncio.sleep(0)
    master.on(BEAT, lambda request: request.answer(0))
    clock.advance(26)
    async with asyncio.timeout(10):
        while register.figures()["registrations_refused"]:
            await asyncio.sleep(0)
    assert [one.message for one in caplog.records] == [
        f"broker {master.address} does not take heartbeats of clients (code 16): no right to that"
    ]
