"""brokers.channel: signs of life, and who is given up."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from brokers.keepalive import keep_alive
from brokers.remote.rpc.connection_pool import ConnectionPool
from popgate.errors import BrokerTimeout
from popgate.testing.clock import MovableClock
from popgate.testing.peers import PeerConnection, ScriptedPeer
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command

ASK = int(RequestCode.GET_MAX_OFFSET)
BEAT = int(RequestCode.HEART_BEAT)
BROKERS_CUT_AFTER_S = 120.0


class ImpatientPeer(ScriptedPeer):
    """Cuts connections on which it heard nothing for 120 s by the test's clock (protocol facts 5.11)."""

    def __init__(self, clock: MovableClock) -> None:
        super().__init__()
        self.clock = clock
        self.heard = self.note
        self.heard_at = clock.monotonic()
        self.cuts = 0
        self.look()

    def note(self, _: PeerConnection) -> None:
        self.heard_at = self.clock.monotonic()

    def look(self) -> None:
        if self.connections and self.clock.monotonic() - self.heard_at >= BROKERS_CUT_AFTER_S:
            self.cuts += 1
            self.cut()
        self.clock.call_later(10.0, self.look)


async def test_scenario_27_a_request_after_quiet_hours_finds_its_connection_open(
    make_links: Callable[..., ConnectionPool], clock: MovableClock, signs_of: Callable[[ConnectionPool], Any]
) -> None:
    links = make_links(link_idle_s=86_400.0)
    async with ImpatientPeer(clock) as peer:
        peer.on(ASK, lambda request: request.answer(0))
        await links.call(peer.address, ASK, {}, timeout_s=3.0)
        await clock.run(2 * 3600.0, signs_of(links))
        await links.call(peer.address, ASK, {}, timeout_s=3.0)
        assert (peer.joined, peer.cuts) == (1, 0)
        # One for every half a minute of silence, and no more.
        assert 200 <= len(peer.of(BEAT)) <= 241


async def test_a_connection_that_nobody_keeps_alive_is_cut_by_such_a_broker(
    make_links: Callable[..., ConnectionPool], clock: MovableClock, signs_of: Callable[[ConnectionPool], Any]
) -> None:
    """The counterpart: what the heartbeats are for."""
    links = make_links(heartbeat_s=1000.0, link_idle_s=86_400.0)
    async with ImpatientPeer(clock) as peer:
        peer.on(ASK, lambda request: request.answer(0))
        await links.call(peer.address, ASK, {}, timeout_s=3.0)
        await clock.run(200.0, signs_of(links))
        assert peer.cuts >= 1


async def test_a_sign_of_life_is_a_heartbeat_without_clients(
    make_links: Callable[..., ConnectionPool], peer: ScriptedPeer, clock: MovableClock
) -> None:
    links = make_links(client_id="me")
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {}, timeout_s=3.0)
    clock.advance(30.1)
    await peer.until(lambda: bool(peer.of(BEAT)))
    (beat,) = peer.of(BEAT)
    assert not beat.is_oneway
    told = json.loads(beat.body)
    assert (told["clientID"], told["producerDataSet"], told["consumerDataSet"]) == ("me", [], [])
    assert links.figures()["late_answers_total"] == 0


async def test_a_broker_that_is_silent_while_it_owes_an_answer_is_given_up_in_seconds(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock, loop_turns: Callable[[], Any]
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {}, timeout_s=3.0)
    peer.silent = True
    began = clock.monotonic()
    asking = asyncio.create_task(links.call(peer.address, ASK, {}, timeout_s=60.0))
    await peer.until(lambda: len(peer.of(ASK)) == 2)
    while not asking.done():
        await clock.run(0.5, loop_turns)
    with pytest.raises(BrokerTimeout, match=r"silent for .* also when asked for a sign of life"):
        await asking
    assert clock.monotonic() - began <= 7.0
    assert links.figures()["connections_lost_total"] == 1


async def test_a_broker_that_lets_a_poll_wait_and_shows_that_it_lives_is_not_given_up(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock, signs_of: Callable[[ConnectionPool], Any]
) -> None:
    held: list[Command] = []
    peer.on(ASK, lambda request: held.append(request))
    asking = asyncio.create_task(links.call(peer.address, ASK, {}, timeout_s=60.0))
    await peer.until(lambda: bool(held))
    await clock.run(50.0, signs_of(links))
    assert not asking.done()
    peer.connections[0].send(held[0].answer(0))
    assert (await asking).code == 0
    assert 10 <= len(peer.of(BEAT)) <= 17


async def test_short_requests_that_all_time_out_end_the_connection_too(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock, loop_turns: Callable[[], Any]
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {}, timeout_s=1.0)
    peer.silent = True
    count = 0
    began = clock.monotonic()
    while not links.figures()["connections_lost_total"]:
        count += 1
        assert count < 20
        asking = asyncio.create_task(links.call(peer.address, ASK, {}, timeout_s=1.0))
        while not asking.done():
            await clock.run(0.25, loop_turns)
        assert isinstance(asking.exception(), BrokerTimeout)
    assert clock.monotonic() - began <= 7.0


async def test_a_link_that_nobody_uses_is_closed_and_forgotten(
    make_links: Callable[..., ConnectionPool],
    peer: ScriptedPeer,
    clock: MovableClock,
    signs_of: Callable[[ConnectionPool], Any],
) -> None:
    links = make_links(link_idle_s=100.0)
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {}, timeout_s=3.0)
    await clock.run(140.0, signs_of(links))
    await peer.until(lambda: not peer.connections)
    assert links.figures()["links"] == 0
    assert links.figures()["probes_total"] >= 3
    await links.call(peer.address, ASK, {}, timeout_s=3.0)
    assert peer.joined == 2


def test_the_kernel_looks_after_connections_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = socket.create_connection(server.getsockname())
        keep_alive(link.fileno(), 3.0)
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 9000
        link.close()
    one, other = socket.socketpair()
    keep_alive(one.fileno(), 3.0)
    one.close()
    other.close()
