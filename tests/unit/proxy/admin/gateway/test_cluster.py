"""/api/cluster, and what the other pages tell in front of a cluster that does not know everything."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from popgate.testing import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer, scripted_cluster
from popgate.wire.frames.codes import RequestCode, ResponseCode
from proxy.app import App, build
from proxy.config.settings import Settings

Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with scripted_cluster("broker-a", "broker-b", topics=["orders"]) as made:
        yield made


@pytest.fixture
async def before_cluster(
    cluster: Cluster, settings_for: Callable[..., Settings], api_of: Callable[[App], Any]
) -> AsyncIterator[Any]:
    """The admin port of a gateway in front of that cluster."""
    app = build(settings_for(broker=f"rocketmq://{cluster[0].address}"))
    await app.start()
    try:
        yield api_of(app)
    finally:
        await app.stop()


@pytest.mark.parametrize(("needed", "status"), [(False, 200), (True, 503)])
async def test_who_asks_whether_the_gateway_is_ready_is_told_that_no_broker_can_be_reached(
    cluster: Cluster,
    settings_for: Callable[..., Settings],
    api_of: Callable[[App], Any],
    needed: bool,
    status: int,
) -> None:
    clock = MovableClock()
    settings = settings_for(broker=f"rocketmq://{cluster[0].address}", remote={"ready_needs_brokers": needed})
    app = build(settings, clock=clock)
    await app.start()
    try:
        api = api_of(app)
        assert await api.get("/ready") == (200, {"state": "ready"})
        for peer in cluster[1].values():
            peer.silent = True
        for _ in range(12):
            clock.advance(1)
        found, told = await api.get("/ready")
        assert (found, told["state"]) == (status, "failing" if needed else "ready")
        assert told["missing"].startswith("no broker can be reached for ")
        assert "broker broker-a at " in told["missing"]
        assert b"popgate_broker_brokers_away_s 1" in app.metrics.text()
    finally:
        await app.stop()


async def test_a_gateway_with_a_broker_of_its_own_has_no_cluster(api: Any) -> None:
    status, told = await api.get("/api/cluster")
    assert (status, told["fault"]) == (501, "UNSUPPORTED")
    assert "/metrics" in told["message"]


async def test_name_servers_and_brokers_are_told(before_cluster: Any, cluster: Cluster) -> None:
    servers, peers = cluster
    for peer in peers.values():
        peer.on(
            RequestCode.GET_BROKER_CONFIG,
            lambda request: request.answer(ResponseCode.SUCCESS, body=b"brokerPermission=4\n"),
        )
        peer.on(
            RequestCode.GET_BROKER_RUNTIME_INFO,
            lambda request: request.answer(
                ResponseCode.SUCCESS, body=json.dumps({"table": {"brokerVersionDesc": "V5_5_0"}}).encode()
            ),
        )
    status, told = await before_cluster.get("/api/cluster")
    assert status == 200
    (server,) = told["name_servers"]
    assert (server["address"], server["in_use"], server["trouble"]) == (servers.address, True, "")
    assert server["brokers"] == {name: peer.address for name, peer in peers.items()}
    assert [(one["name"], one["version"], one["settings"]) for one in told["brokers"]] == [
        (name, "5.5.0", {"brokerPermission": "4"}) for name in peers
    ]
    gateway = told["gateway"]
    assert (gateway["transactions_bound"], gateway["clients_merged"]) == (True, 0)
    assert gateway["name_servers_silent_s"] >= 0
    assert gateway["numbers_unkept"] == 0
    version = (await before_cluster.get("/api/version"))[1]
    assert version["broker"] == f"rocketmq://{servers.address}"


async def test_who_is_gone_is_told_without_figures(before_cluster: Any, cluster: Cluster) -> None:
    servers, peers = cluster
    await peers["broker-a"].stop()
    await servers.stop()
    told = (await before_cluster.get("/api/cluster"))[1]
    (server,) = told["name_servers"]
    assert server["trouble"]
    assert (server["answer_ms"], server["brokers"]) == (None, None)
    broker = told["brokers"][0]
    assert broker["trouble"]
    assert (broker["answer_ms"], broker["version"], broker["clock_ahead_ms"]) == (None, None, None)


async def test_what_is_stored_elsewhere_is_not_told_as_nothing(before_cluster: Any) -> None:
    told = (await before_cluster.get("/api/store"))[1]
    assert (told["state"], told["bytes"]) == ("ready", None)


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("post", "/api/backups", {}, "back up where they are"),
        ("get", "/api/topics/orders/lite", None, "only the embedded one has them"),
        ("post", "/api/groups/g/dead-letters/redrive", {}, "consume %DLQ%g like any topic"),
        ("post", "/api/topics", {"name": "t", "retention_ms": 1000}, "fileReservedTime"),
        ("post", "/api/topics", {"name": "t", "types": ["FIFO", "NORMAL"]}, "takes every type"),
        ("post", "/api/groups", {"name": "g2", "broadcast": True}, "a group of its own"),
    ],
)
async def test_what_a_cluster_cannot_do_is_refused_with_what_to_do_instead(
    before_cluster: Any, method: str, path: str, body: object, words: str
) -> None:
    ask = getattr(before_cluster, method)
    status, told = await (ask(path) if body is None else ask(path, body))
    assert (status, told["fault"]) == (501, "UNSUPPORTED")
    assert words in told["message"]
