"""brokers.remote.clients.registry: brokers know the clients of this replica, as long as they are here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokers.client_registration import ConnectedClient
from brokers.remote.clients.departures import AGAIN_S
from brokers.remote.clients.heartbeats import MEMBER_VERSION
from brokers.remote.rpc.connection_pool import ConnectionPool
from popgate.model import FilterKind, Reading
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.bodies.heartbeats import Connection, ConsumerConnection, HeartbeatData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from tests.support.waiting import until

BEAT, GOODBYE = int(RequestCode.HEART_BEAT), int(RequestCode.UNREGISTER_CLIENT)
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]
Turns = Callable[[], Any]


@pytest.fixture
async def register(make_broker: Any, asking_cluster: Cluster) -> Any:
    for master in asking_cluster[1].values():
        master.on(GOODBYE, lambda request: request.answer(0))
    return await make_broker(max_links=2)


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


async def registered(register: Any, count: int) -> None:
    await until(lambda: register.figures()["clients_registered"] == count, pause_s=0.0)


async def test_every_master_is_told_of_a_client_at_once(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    register.client_is_here(producer("p", "T", "U", language="JAVA", version="5.0.7"))
    for master in masters.values():
        await master.until(lambda: known(master) == {("p", "T"), ("p", "U")})  # noqa: B023
        told = next(one for one in master.of(BEAT) if HeartbeatData.decode(one.body).producer_groups)
        assert (told.language, told.version) == ("JAVA", 427)


async def test_members_of_a_group_are_told_on_links_of_their_own_and_the_rest_is_merged(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    master = masters["broker-a"]
    for name in ("one", "two", "three"):
        register.client_is_here(ConnectedClient(name, group="g"))
    register.client_is_here(ConnectedClient("other", group="h"))
    await master.until(lambda: known(master) >= {("one", "g"), ("two", "g"), ("other", "h")})
    assert ("three", "g") not in known(master)
    assert register.figures()["clients_merged"] == 1
    assert register.figures()["client_links"] == 2
    register.client_left("one")
    await master.until(lambda: ("three", "g") in known(master))
    (goodbye,) = master.of(GOODBYE)
    assert goodbye.fields == {"clientID": "one", "consumerGroup": "g"}
    assert register.figures()["clients_merged"] == 0


async def test_one_client_is_a_member_of_several_groups_each_by_its_own_key(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    master = masters["broker-a"]
    for group in ("g", "h"):
        register.client_is_here(
            ConnectedClient("c", key=f"c {group}", group=group, broadcast=group == "h", version="493")
        )
    register.client_is_here(ConnectedClient("c", key="c p", producer_groups=frozenset({"g"})))
    await master.until(lambda: known(master) >= {("c", "g"), ("c", "h")})
    await master.until(lambda: any("g" in one.producer_groups for one in beats(master)))
    models = {each.group: each.model for one in beats(master) for each in one.consumers}
    assert models == {"g": "CLUSTERING", "h": "BROADCASTING"}
    found = register.registry.find("c", "h")
    assert found is not None
    assert found[0].key == "c h"
    register.client_left("c h")
    assert register.registry.find("c", "h") is None
    assert register.registry.find("c", "g") is not None
    await master.until(lambda: len(master.of(GOODBYE)) == 1)
    assert master.of(GOODBYE)[0].fields == {"clientID": "c", "consumerGroup": "h"}


def versions(peer: ScriptedPeer, group: str) -> list[int]:
    """Of the heartbeats of a group's consumers, in their order."""
    told = [(one.version, HeartbeatData.decode(one.body).consumers) for one in peer.of(BEAT)]
    return [version for version, consumers in told if any(each.group == group for each in consumers)]


def member(reading: Reading, **more: Any) -> ConnectedClient:
    return ConnectedClient("c", "g", True, reading=reading, may_map=True, version="493", **more)


async def test_how_a_member_reads_is_told_as_its_version(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    master = masters["broker-a"]
    register.client_is_here(member(Reading.UNKNOWN))
    register.client_is_here(ConnectedClient("d", "h", True, reading=Reading.TRUE_PULL, version="493"))
    await master.until(lambda: bool(versions(master, "g")) and bool(versions(master, "h")))
    assert set(versions(master, "g")) == {MEMBER_VERSION + 1}
    assert set(versions(master, "h")) == {493}  # of a group that is not mapped here


async def test_another_reading_is_told_after_the_broker_has_forgotten_the_old_one(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    """A broker keeps the version that it was told first on a connection, whatever heartbeats say later."""
    master = masters["broker-a"]
    register.client_is_here(member(Reading.UNKNOWN))
    await master.until(lambda: bool(versions(master, "g")))
    before: list[int] = []

    def forgets(request: Any) -> Any:
        before[:] = versions(master, "g")
        return request.answer(0)

    master.on(GOODBYE, forgets)
    register.client_is_here(member(Reading.CONCURRENT))
    await master.until(lambda: MEMBER_VERSION + 2 in versions(master, "g"))
    assert set(before) == {MEMBER_VERSION + 1}
    (goodbye,) = master.of(GOODBYE)
    assert goodbye.fields == {"clientID": "c", "consumerGroup": "g"}
    told = len(versions(master, "g"))
    register.client_is_here(member(Reading.CONCURRENT, topics=frozenset({"T"})))
    await master.until(lambda: len(versions(master, "g")) > told)
    assert len(master.of(GOODBYE)) == 1


@pytest.mark.parametrize("late", [1, 2])
async def test_a_heartbeat_of_before_that_comes_after_the_good_bye_is_noticed(
    register: Any, masters: dict[str, ScriptedPeer], late: int
) -> None:
    """A broker handles the two in different threads: the old version is registered once more."""
    master = masters["broker-a"]
    goodbyes = 0

    def connections(request: Any) -> Any:
        version = MEMBER_VERSION + (1 if goodbyes <= late else 2)
        told = ConsumerConnection((Connection("c", "10.0.0.1:1", "JAVA", version),), {})
        return request.answer(0, body=told.encode())

    def forgets(request: Any) -> Any:
        nonlocal goodbyes
        goodbyes += 1
        return request.answer(0)

    register.client_is_here(member(Reading.UNKNOWN))
    await master.until(lambda: bool(versions(master, "g")))
    master.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, connections)
    master.on(GOODBYE, forgets)
    register.client_is_here(member(Reading.CONCURRENT))
    await master.until(lambda: goodbyes == late + 1)


async def test_a_broker_that_did_not_forget_is_asked_again_with_the_next_heartbeat(
    register: Any, masters: dict[str, ScriptedPeer], clock: MovableClock, loop_turns: Turns
) -> None:
    master, other = masters.values()
    register.client_is_here(member(Reading.UNKNOWN))
    for one in (master, other):
        await one.until(lambda: bool(versions(one, "g")))  # noqa: B023
    master.on(GOODBYE, lambda request: None)  # it does not answer
    register.client_is_here(member(Reading.TRUE_PULL))
    await master.until(lambda: len(master.of(GOODBYE)) == 1)
    clock.advance(5)
    await master.until(lambda: MEMBER_VERSION + 3 in versions(master, "g"))
    master.on(GOODBYE, lambda request: request.answer(0))
    async with asyncio.timeout(60):
        while len(master.of(GOODBYE)) == 1:
            clock.advance(1)
            await loop_turns()


async def test_no_broker_takes_a_member_for_gone_while_another_one_does_not_answer(
    register: Any, masters: dict[str, ScriptedPeer], clock: MovableClock, loop_turns: Turns
) -> None:
    hangs, well = masters.values()
    register.client_is_here(member(Reading.UNKNOWN))
    for one in (hangs, well):
        await one.until(lambda: bool(versions(one, "g")))  # noqa: B023
    hangs.on(GOODBYE, lambda request: None)
    register.client_is_here(member(Reading.TRUE_PULL))
    await well.until(lambda: MEMBER_VERSION + 3 in versions(well, "g"))  # no time passes
    assert len(well.of(GOODBYE)) == 1
    await well.until(lambda: bool(well.of(RequestCode.GET_CONSUMER_CONNECTION_LIST)))
    await loop_turns()
    clock.advance(5)
    await hangs.until(lambda: MEMBER_VERSION + 3 in versions(hangs, "g"))
    async with asyncio.timeout(60):
        while len(hangs.of(GOODBYE)) == 1:
            clock.advance(1)
            await loop_turns()
    assert len(well.of(GOODBYE)) == 1  # it knows already


async def test_what_a_member_shows_while_brokers_forget_others_is_told_then(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    master = masters["broker-a"]
    late = ConnectedClient("late", "h", True, reading=Reading.UNKNOWN, may_map=True)
    register.client_is_here(member(Reading.UNKNOWN))
    register.client_is_here(late)
    await master.until(lambda: bool(versions(master, "g")) and bool(versions(master, "h")))

    def forgets(request: Any) -> Any:
        if request.fields["clientID"] == "c":
            register.client_is_here(replace(late, reading=Reading.TRUE_PULL))
        return request.answer(0)

    master.on(GOODBYE, forgets)
    # It is told of as well, and shows how it reads only when that has begun.
    register.client_is_here(member(Reading.CONCURRENT))
    register.client_is_here(replace(late, topics=frozenset({"T"})))
    await master.until(lambda: any(one.fields["clientID"] == "late" for one in master.of(GOODBYE)))
    await master.until(lambda: MEMBER_VERSION + 3 in versions(master, "h"))


async def test_another_version_of_a_library_is_not_worth_a_good_bye(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    master = masters["broker-a"]
    for version in ("5.0.7", "5.0.8"):
        register.client_is_here(ConnectedClient("c", group="g", language="JAVA", version=version))
        told = {"5.0.7": 427, "5.0.8": 429}[version]
        await master.until(lambda: told in versions(master, "g"))  # noqa: B023
    assert master.of(GOODBYE) == []


async def test_brokers_are_told_twice_of_who_left_unless_the_seat_is_taken(
    register: Any, masters: dict[str, ScriptedPeer], clock: MovableClock, loop_turns: Turns
) -> None:
    """A heartbeat of before may come after the first time; a stale one makes them close the connection."""
    master = masters["broker-a"]
    gone, back = producer("gone", "T"), producer("back", "U")
    for client in (gone, back):
        register.client_is_here(client)
    await master.until(lambda: known(master) == {("gone", "T"), ("back", "U")})
    for client in (gone, back):
        register.client_left(client.client_id)
    await until(lambda: register.figures()["client_links"] == 0, pause_s=0.0)
    assert len(master.of(GOODBYE)) == 2
    register.client_is_here(producer("next", "U"))
    await master.until(lambda: ("next", "U") in known(master))
    passed = 0
    async with asyncio.timeout(60):
        while len(master.of(GOODBYE)) == 2:
            clock.advance(1)  # with connections that stay
            passed += 1
            await loop_turns()
    assert passed > AGAIN_S - 2
    assert master.of(GOODBYE)[2].fields == {"clientID": register.settings.name, "producerGroup": "T"}
    await until(lambda: register.figures()["client_links"] == 1, pause_s=0.0)
    register.client_is_here(producer("later", "T"))
    await master.until(lambda: ("later", "T") in known(master))
    for _ in range(int(AGAIN_S) + 2):
        clock.advance(1)
        await loop_turns()
    assert len(master.of(GOODBYE)) == 3


async def test_a_producer_that_is_back_is_still_found_for_replies(
    register: Any, masters: dict[str, ScriptedPeer], clock: MovableClock, loop_turns: Turns
) -> None:
    """A broker forgets the name that a good-bye tells, on whatever connection it knows it by now."""
    master = masters["broker-a"]
    found: set[str] = set()

    def registers(request: Any) -> Any:
        beat = HeartbeatData.decode(request.body)
        found.update({beat.client_id} if beat.producer_groups else set())
        return request.answer(0)

    def forgets(request: Any) -> Any:
        found.discard(request.fields["clientID"])
        return request.answer(0)

    master.on(BEAT, registers)
    master.on(GOODBYE, forgets)
    for client in (producer("other", "T"), producer("asker", "T"), ConnectedClient("reader", group="g")):
        register.client_is_here(client)
    await until(lambda: found == {"other", "asker"}, pause_s=0.0)
    for key in ("other", "asker", "reader"):
        register.client_left(key)
    await until(lambda: register.figures()["client_links"] == 0, pause_s=0.0)
    assert (found, len(master.of(GOODBYE))) == (set(), 3)
    register.client_is_here(producer("asker", "T"))  # in the seat of the other one
    await until(lambda: found == {"asker"}, pause_s=0.0)
    async with asyncio.timeout(60):
        while len(master.of(GOODBYE)) < 5:
            clock.advance(1)
            await loop_turns()
    assert found == {"asker"}
    assert {request.fields["clientID"] for request in master.of(GOODBYE)[3:]} == {
        register.settings.name,
        "reader",
    }


async def test_a_seat_is_not_taken_before_the_broker_answered_that_it_is_free(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    """Brokers handle heartbeats and good-byes in different threads: the one could overtake the other."""
    master = masters["broker-a"]
    for name in ("one", "two", "three"):
        register.client_is_here(ConnectedClient(name, group="g"))
    await master.until(lambda: ("two", "g") in known(master))
    gate = asyncio.Event()

    async def slow(request: Any) -> Any:
        await gate.wait()
        return request.answer(0)

    master.on(GOODBYE, slow)
    register.client_left("one")
    await master.until(lambda: len(master.of(GOODBYE)) == 1)
    assert ("three", "g") not in known(master)
    gate.set()
    await master.until(lambda: ("three", "g") in known(master))


async def test_heartbeats_come_again_and_stop_when_the_client_goes(
    register: Any,
    masters: dict[str, ScriptedPeer],
    clock: MovableClock,
    calm_of: Callable[[ConnectionPool], Callable[[], Any]],
) -> None:
    calm = calm_of(register.connections)  # the next heartbeat is due a while after the answer to the last one
    master = masters["broker-a"]
    register.client_is_here(producer("p", "T"))
    register.client_is_here(producer("q", "T"))
    await master.until(lambda: len(known(master)) == 2)
    for _ in range(3):
        await calm()
        before = len(beats(master))
        clock.advance(26)
        await master.until(lambda: len(beats(master)) >= before + 2)  # noqa: B023
    register.client_left("p")
    register.client_left("p")
    await master.until(lambda: len(master.of(GOODBYE)) == 1)
    await calm()
    before = len(beats(master))
    clock.advance(26)
    await master.until(lambda: len(beats(master)) > before)
    assert {one.client_id for one in beats(master)[before:]} == {"q"}


async def test_a_change_is_told_at_once_and_what_is_the_same_is_not(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    master = masters["broker-a"]
    for filters in ({"T": (FilterKind.TAG, "a")}, {"T": (FilterKind.TAG, "b")}):
        register.client_is_here(ConnectedClient("c", group="g", subscriptions=filters))
        wanted = filters["T"][1]
        await master.until(
            lambda: any(
                one.consumers[0].subscriptions[0].expression == wanted  # noqa: B023
                for one in beats(master)
            ),
        )
    register.client_is_here(producer("p", "T", "U"))
    await master.until(lambda: ("p", "U") in known(master))
    register.client_is_here(producer("p", "T"))
    await master.until(lambda: len(master.of(GOODBYE)) == 1)
    assert master.of(GOODBYE)[0].fields == {"clientID": "p", "producerGroup": "U"}


async def test_a_broker_that_was_away_is_told_again(
    register: Any, masters: dict[str, ScriptedPeer], clock: MovableClock, loop_turns: Turns
) -> None:
    master = masters["broker-a"]
    register.client_is_here(producer("p", "T"))
    await master.until(lambda: known(master) == {("p", "T")})
    before = len(beats(master))
    master.cut()
    async with asyncio.timeout(60):
        while len(beats(master)) == before:
            clock.advance(0.5)
            await loop_turns()


async def test_a_broker_that_comes_is_told_before_the_next_heartbeat_is_due(
    register: Any,
    asking_cluster: Cluster,
    masters: dict[str, ScriptedPeer],
    clock: MovableClock,
    loop_turns: Turns,
) -> None:
    register.client_is_here(producer("p", "T"))
    await masters["broker-a"].until(lambda: known(masters["broker-a"]) == {("p", "T")})
    async with ScriptedPeer() as third:
        asking_cluster[0].add_broker("broker-c", third.address)
        async with asyncio.timeout(60):
            while not known(third):
                clock.advance(0.25)
                await loop_turns()
        assert known(third) == {("p", "T")}


async def test_a_broker_that_is_listed_again_is_told_before_the_next_heartbeat_is_due(
    register: Any,
    asking_cluster: Cluster,
    masters: dict[str, ScriptedPeer],
    clock: MovableClock,
    loop_turns: Turns,
) -> None:
    """One that stops in order takes its name from the list, mostly for less than two minutes."""
    master, other = masters["broker-a"], masters["broker-b"]
    register.client_is_here(producer("p", "T"))
    await master.until(lambda: known(master) == {("p", "T")})
    listed = asking_cluster[0].brokers.pop("broker-a")
    await master.stop()
    told = len(beats(other))
    async with asyncio.timeout(60):
        for _ in range(2):
            while len(beats(other)) == told:
                clock.advance(0.5)
                await loop_turns()
            told = len(beats(other))
    before = len(beats(master))
    await master.start()
    asking_cluster[0].brokers["broker-a"] = listed
    for _ in range(20):
        clock.advance(0.5)
        await loop_turns()
    assert len(beats(master)) > before


async def test_clients_are_told_to_the_clusters_of_their_topics(
    asking_cluster: Cluster, make_broker: Any, masters: dict[str, ScriptedPeer]
) -> None:
    servers = asking_cluster[0]
    async with ScriptedPeer() as far:
        servers.add_broker("far", far.address, cluster="Other")
        servers.add_topic("T", "broker-a")
        servers.add_topic("far-topic", "far")
        register = await make_broker()
        register.client_is_here(producer("near", "T"))
        register.client_is_here(producer("far", "far-topic", "missing"))
        register.client_is_here(producer("unknown", "missing"))
        await far.until(
            lambda: known(far) == {("far", "far-topic"), ("far", "missing"), ("unknown", "missing")}
        )
        near = masters["broker-b"]
        await near.until(lambda: known(near) == {("near", "T"), ("unknown", "missing")})


async def test_a_cluster_that_was_told_of_a_client_hears_of_it_until_it_leaves(
    asking_cluster: Cluster, make_broker: Any, masters: dict[str, ScriptedPeer], clock: MovableClock
) -> None:
    """A broker closes the connection of a client that falls silent, and others ask over it, too."""
    servers, near = asking_cluster[0], masters["broker-a"]
    async with ScriptedPeer() as far:
        far.on(GOODBYE, lambda request: request.answer(0))
        servers.add_broker("far", far.address, cluster="Other")
        register = await make_broker()
        register.client_is_here(producer("p", "later"))
        for master in (near, far):
            await master.until(lambda: known(master) == {("p", "later")})  # noqa: B023
        servers.add_topic("later", "broker-a")
        for _ in range(2):
            before = len(beats(near)), len(beats(far))
            await until(
                lambda: len(beats(near)) > before[0],  # noqa: B023
                turn=lambda: clock.advance(1.0),
            )
            await far.until(lambda: len(beats(far)) > before[1])  # noqa: B023
        register.client_left("p")
        await far.until(lambda: bool(far.of(GOODBYE)))


async def test_a_half_message_of_nobody_known_makes_the_gateway_a_producer(
    register: Any, masters: dict[str, ScriptedPeer], clock: MovableClock
) -> None:
    master = masters["broker-a"]
    name = register.settings.name
    register.registry.expect_checks("T", "G")
    register.registry.expect_checks("T", "G")
    await master.until(lambda: known(master) == {(name, "G")})
    register.registry.nobody_asked("T", "G")
    register.registry.nobody_asked("T", "G")
    await master.until(lambda: len(master.of(GOODBYE)) == 1)
    assert register.figures()["clients_registered"] == 0
    register.registry.expect_checks("T", "G")
    await registered(register, 1)
    clock.advance(7_201)
    await registered(register, 0)


async def test_a_half_message_of_a_known_producer_needs_nobody_else(
    register: Any, masters: dict[str, ScriptedPeer]
) -> None:
    register.client_is_here(producer("p", "T"))
    register.registry.expect_checks("T", "T")
    await masters["broker-a"].until(lambda: ("p", "T") in known(masters["broker-a"]))
    assert register.figures()["clients_registered"] == 1
    for number in range(2_000):
        register.registry.expect_checks("T", f"group-{number}")
    await registered(register, 2)
    gateway = register.registry._here[register.settings.name].client
    assert len(gateway.producer_groups) == 1_024


async def test_a_broker_that_refuses_clients_is_told_of_once(
    register: Any, masters: dict[str, ScriptedPeer], clock: MovableClock, caplog: Any
) -> None:
    master = masters["broker-a"]
    master.on(BEAT, lambda request: request.answer(ResponseCode.NO_PERMISSION, "no right to that"))
    register.client_is_here(producer("p", "T"))
    async with asyncio.timeout(60):
        while not register.figures()["registrations_refused"]:
            await asyncio.sleep(0)
    master.on(BEAT, lambda request: request.answer(0))
    clock.advance(26)
    async with asyncio.timeout(60):
        while register.figures()["registrations_refused"]:
            await asyncio.sleep(0)
    assert [one.message for one in caplog.records] == [
        f"broker {master.address} does not take heartbeats of clients (code 16): no right to that"
    ]
