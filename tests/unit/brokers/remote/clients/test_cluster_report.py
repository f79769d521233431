"""A look at a cluster: every name server and broker says how it is, or why nothing is known of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from brokers.remote.clients.cluster_report import version_text
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command

Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]

CONFIG = "\n".join(
    [
        "brokerPermission=6",
        "enablePropertyFilter=true",
        "timerMaxDelaySec=259200",
        "secretOfSomebody=never told",
        "brokerRole=\x1b[31mred",
        "no setting",
    ]
)


def tells(peer: ScriptedPeer, *, counts: object = None, config: str = CONFIG, version: int = 513) -> None:
    """Have a broker answer as one of this version does."""
    body = json.dumps({"table": {} if counts is None else counts}).encode()

    def answer(request: Command, body: bytes) -> Command:
        told = request.answer(ResponseCode.SUCCESS, body=body)
        told.version = version
        return told

    peer.on(RequestCode.GET_BROKER_CONFIG, lambda request: answer(request, config.encode()))
    peer.on(RequestCode.GET_BROKER_RUNTIME_INFO, lambda request: answer(request, body))


@pytest.fixture
async def surveying(make_broker: Callable[..., Any]) -> Any:
    made: Any = await make_broker()
    return made


async def test_each_broker_tells_its_version_its_settings_and_what_it_counts(
    surveying: Any, asking_cluster: Cluster
) -> None:
    servers, peers = asking_cluster
    counts = {"brokerVersionDesc": "V5_5_0", "commitLogDiskRatio": "0.42", "elsewhere": "x", "putTps": 3}
    tells(peers["broker-a"], counts=counts)
    tells(peers["broker-b"], version=479)
    view = await surveying.cluster()
    (server,) = view.name_servers
    assert (server.address, server.trouble, server.in_use) == (servers.address, "", True)
    assert server.brokers == {name: peer.address for name, peer in peers.items()}
    first, second = view.brokers
    assert (first.cluster, first.name, first.role) == ("DefaultCluster", "broker-a", "master")
    assert (first.version, first.trouble, first.figures) == ("5.5.0", "", {"commitLogDiskRatio": "0.42"})
    assert first.settings == {
        "brokerPermission": "6",
        "enablePropertyFilter": "true",
        "timerMaxDelaySec": "259200",
        "brokerRole": "'\\x1b[31mred'",
    }
    assert (second.version, second.clock_ahead_ms) == ("5.3.3", None)
    assert (view.not_asked, view.refusals) == (0, {})


@pytest.mark.parametrize("ahead_ms", [0, 95_000, -7_000])
async def test_a_broker_tells_its_clock_by_its_start_and_how_long_it_runs(
    surveying: Any, asking_cluster: Cluster, clock: MovableClock, ahead_ms: int
) -> None:
    now_ms = clock.now_ms() + ahead_ms
    running_ms = (((2 * 24 + 3) * 60 + 4) * 60 + 5) * 1000
    counts = {
        "bootTimestamp": str(now_ms - running_ms - 400),
        "runtime": "[ 2 days, 3 hours, 4 minutes, 5 seconds ]",
    }
    tells(asking_cluster[1]["broker-a"], counts=counts)
    ahead = (await surveying.cluster()).brokers[0].clock_ahead_ms
    assert ahead is not None
    low, high = ahead
    assert low <= ahead_ms <= high
    assert high - low == 1000


async def test_what_makes_no_sense_is_as_if_it_was_not_told(surveying: Any, asking_cluster: Cluster) -> None:
    peer = asking_cluster[1]["broker-a"]
    tells(peer, counts={"bootTimestamp": "soon", "runtime": "[ 1 days ]", "brokerVersionDesc": "nonsense"})
    broker = (await surveying.cluster()).brokers[0]
    assert (broker.clock_ahead_ms, broker.version, broker.trouble) == (None, "5.5.0", "")
    peer.on(RequestCode.GET_BROKER_RUNTIME_INFO, lambda request: request.answer(0, body=b"{no json"))
    broker = (await surveying.cluster()).brokers[0]
    assert (broker.figures, broker.trouble) == ({}, "")


async def test_a_broker_that_shows_its_settings_to_nobody_is_there_all_the_same(
    surveying: Any, asking_cluster: Cluster
) -> None:
    peer = asking_cluster[1]["broker-a"]
    tells(peer, counts={"brokerVersionDesc": "V5_3_3"})
    peer.on(
        RequestCode.GET_BROKER_CONFIG,
        lambda request: request.answer(ResponseCode.NO_PERMISSION, "no right"),
    )
    broker = (await surveying.cluster()).brokers[0]
    assert (broker.trouble, broker.settings, broker.version) == ("", {}, "5.3.3")
    assert "no right" in broker.settings_trouble


async def test_who_is_gone_is_told_with_the_reason(surveying: Any, asking_cluster: Cluster) -> None:
    servers, peers = asking_cluster
    for peer in peers.values():
        tells(peer)
    await surveying.cluster()
    await peers["broker-b"].stop()
    await servers.stop()
    view = await surveying.cluster()
    assert view.name_servers[0].trouble
    assert [(one.name, one.links, bool(one.trouble)) for one in view.brokers] == [
        ("broker-a", 1, False),
        ("broker-b", 0, True),
    ]


async def test_a_name_server_whose_name_stands_for_nothing_is_told_too(
    make_broker: Callable[..., Any], asking_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveying = await make_broker()
    nameless = {"nowhere.invalid:9876": "the name nowhere.invalid cannot be looked up"}
    monkeypatch.setattr(type(surveying.routes.servers), "nameless", property(lambda _: nameless))
    servers = (await surveying.cluster()).name_servers
    assert [(one.address, one.trouble) for one in servers] == [
        (asking_cluster[0].address, ""),
        *nameless.items(),
    ]


@pytest.mark.parametrize(
    ("description", "number", "text"),
    [
        ("V5_5_0", 0, "5.5.0"),
        ("V5_3_0_SNAPSHOT", 0, "5.3.0-snapshot"),
        ("", 479, "5.3.3"),
        ("", 399, "4.9.3"),
        ("", 513, "5.5.0"),
        ("", 0, ""),
        ("\x1b[2J", 1 << 30, ""),
    ],
)
def test_versions_are_told_as_people_write_them(description: str, number: int, text: str) -> None:
    assert version_text(description, number) == text


async def test_the_brokers_are_told_by_their_names(surveying: Any) -> None:
    told = {one.name: one.numbers for one in await surveying.known_brokers()}
    assert told == {"broker-a": (0,), "broker-b": (0,)}
