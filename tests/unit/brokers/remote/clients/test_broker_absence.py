"""No broker can be reached: who runs the gateway is told once, with what is missing."""

from __future__ import annotations

import logging

import pytest

from brokers.remote.settings import RemoteSettings
from tests.support.open_broker import OpenBroker


@pytest.fixture
def pass_by(clock, loop_turns):
    """Let so many seconds pass, and what they bring about happen."""

    async def go(seconds):
        for _ in range(seconds * 4):
            clock.advance(0.25)
            await loop_turns()

    return go


def told(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "brokers.remote.clients.broker_absence"
    ]


async def test_brokers_that_answer_are_not_away_though_nobody_asks_them(make_broker, pass_by, caplog):
    broker = await make_broker()
    await pass_by(30)
    assert (broker.missing(), told(caplog)) == ("", [])
    assert broker.figures()["brokers_away_s"] == 0


async def test_one_that_answers_is_enough(make_broker, asking_cluster, pass_by, caplog):
    broker = await make_broker()
    await asking_cluster[1]["broker-a"].stop()
    await pass_by(30)
    assert (broker.missing(), told(caplog)) == ("", [])


@pytest.mark.parametrize("how", ["gone", "silent"])
async def test_when_none_can_be_reached_for_ten_seconds_it_is_told_once(
    make_broker, asking_cluster, pass_by, caplog, how
):
    caplog.set_level(logging.WARNING)
    broker = await make_broker()
    peers = asking_cluster[1]
    for peer in peers.values():
        if how == "gone":
            await peer.stop()
        else:
            peer.silent = True
    await pass_by(9)
    assert (broker.missing(), told(caplog)) == ("", [])
    await pass_by(60)
    missing = broker.missing()
    assert missing.startswith("no broker can be reached for ")
    for name, peer in peers.items():
        assert f"broker {name} at {peer.address}: " in missing
    assert len(told(caplog)) == 1
    assert broker.figures()["brokers_away_s"] >= 10
    assert broker.figures()["needed_brokers_away"] == 0

    for peer in peers.values():
        if how == "gone":
            await peer.start()
        else:
            peer.silent = False
    await pass_by(20)
    assert broker.missing() == ""
    assert len(told(caplog)) == 2
    assert "can be reached again" in told(caplog)[1]


async def test_connections_that_nobody_uses_again_do_not_count(make_broker, asking_cluster, pass_by, caplog):
    """Each client of a group has its own, on which its heartbeats are not answered."""
    caplog.set_level(logging.WARNING)
    broker = await make_broker(ready_needs_brokers=True)
    peers = asking_cluster[1].values()
    for peer in peers:
        for link in range(3):
            broker.connections.connect(peer.address, link)
    await pass_by(5)
    for peer in peers:
        await peer.stop()
    await pass_by(3)
    for peer in peers:
        await peer.start()
    await pass_by(20)
    assert [broker.connections.is_open(peer.address, link) for peer in peers for link in range(3)] == [
        True
    ] * 6
    assert (broker.missing(), told(caplog)) == ("", [])
    assert broker.figures()["needed_brokers_away"] == 0


async def test_a_setting_makes_brokers_needed(make_broker, asking_cluster, pass_by):
    broker = await make_broker(ready_needs_brokers=True)
    for peer in asking_cluster[1].values():
        await peer.stop()
    await pass_by(5)
    assert broker.figures()["needed_brokers_away"] == 0
    await pass_by(20)
    assert broker.figures()["needed_brokers_away"] == 1


async def test_a_cluster_without_brokers_is_told_as_that(make_broker, asking_cluster, clock, pass_by):
    asking_cluster[0].brokers.clear()
    asking_cluster[0].topics.clear()
    broker = OpenBroker(RemoteSettings(name_servers=(asking_cluster[0].address,)), clock=clock)
    await broker.start()
    await pass_by(15)
    assert "the name servers know none" in broker.missing()
    await broker.stop()
