"""brokers.remote.rpc.connection: connecting, resting, connecting again."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from brokers.remote.rpc.connection_pool import ConnectionPool
from popgate.errors import BrokerTimeout, BrokerUnavailable
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedPeer
from popgate.wire.frames.codes import RequestCode

ASK = int(RequestCode.GET_MAX_OFFSET)


async def test_a_link_that_was_good_is_made_anew_by_the_next_request(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    for joined in (1, 2, 3):
        await links.call(peer.address, ASK, {}, timeout_s=3.0)
        assert peer.joined == joined
        peer.cut()
        while links.is_open(peer.address):
            await asyncio.sleep(0)


async def test_a_link_that_was_good_is_made_anew_without_a_request_too(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {}, timeout_s=3.0)
    peer.cut()
    while links.is_open(peer.address):
        await asyncio.sleep(0)
    clock.advance(0.2)
    await peer.until(lambda: peer.joined == 2)


async def test_an_address_where_nobody_listens_is_tried_less_and_less_often_but_never_given_up(
    links: ConnectionPool,
    peer: ScriptedPeer,
    clock: MovableClock,
    calm_of: Callable[[ConnectionPool], Callable[[], Any]],
) -> None:
    calm = calm_of(links)
    await peer.stop()
    with pytest.raises(BrokerUnavailable, match="Connection refused"):
        await links.call(peer.address, ASK, {}, timeout_s=3.0)
    with pytest.raises(BrokerUnavailable, match=r"Connection refused \(tried again in 0\.[01] s\)"):
        await links.call(peer.address, ASK, {}, timeout_s=3.0)
    lost = []
    for _ in range(6):
        await clock.run(10.0, calm)
        lost.append(links.figures()["connections_lost_total"])
    tries = [after - before for before, after in pairwise(lost)]
    assert all(4 <= each <= 11 for each in tries)
    await peer.start()
    await clock.run(2.2, calm)
    await peer.until(lambda: peer.joined >= 1)
    peer.on(ASK, lambda request: request.answer(0))
    await links.call(peer.address, ASK, {}, timeout_s=3.0)


async def test_links_that_were_lost_together_are_not_made_anew_together(
    make_links: Callable[..., ConnectionPool], peer: ScriptedPeer
) -> None:
    """Each rests for between half of its time and all of it, by chance."""
    links = make_links(reconnect_first_s=10.0, reconnect_longest_s=10.0)
    await peer.stop()
    rests = set()
    for link in range(12):
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            await links.call(peer.address, ASK, {}, timeout_s=3.0, link=link)
        with pytest.raises(BrokerUnavailable) as refused:
            await links.call(peer.address, ASK, {}, timeout_s=3.0, link=link)
        told = re.search(r"tried again in ([0-9.]+) s", refused.value.sentence)
        assert told is not None
        rests.add(float(told[1]))
    assert len(rests) >= 6
    assert 5.0 <= min(rests) < max(rests) <= 10.0


async def test_one_that_accepts_connections_and_drops_them_is_not_hammered(
    links: ConnectionPool, peer: ScriptedPeer, clock: MovableClock, loop_turns: Callable[[], Any]
) -> None:
    peer.on(ASK, lambda request: peer.cut())
    asked = 0
    for _ in range(100):
        try:
            await links.call(peer.address, ASK, {}, timeout_s=3.0)
        except (BrokerUnavailable, BrokerTimeout):
            asked += 1
        await clock.run(0.1, loop_turns)
    assert asked == 100
    # Ten seconds of requests, with rests of up to two seconds.
    assert peer.joined <= 20


@pytest.mark.parametrize("port", ["99999", "-5", "port", ""])
async def test_what_is_no_address_fails_at_once(links: ConnectionPool, port: str) -> None:
    """A name server may tell anything."""
    async with asyncio.timeout(60):
        with pytest.raises(BrokerUnavailable, match="cannot be reached"):
            await links.call(f"127.0.0.1:{port}", ASK, {}, timeout_s=3.0)


async def test_a_connection_that_does_not_come_about_in_time_is_given_up(
    make_links: Callable[..., ConnectionPool], clock: MovableClock
) -> None:
    links = make_links(connect_timeout_s=2.0)
    # A full backlog: the system answers nothing to further attempts.
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
            fillers.append(filler)
        asking = asyncio.create_task(links.call(address, ASK, {}, timeout_s=30.0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asking.done()
        clock.advance(2.1)
        with pytest.raises(BrokerUnavailable, match="no connection within 2 s"):
            await asking
        for filler in fillers:
            filler.close()


async def test_requests_while_it_connects_wait_together_and_share_the_connection(
    links: ConnectionPool, peer: ScriptedPeer
) -> None:
    peer.on(ASK, lambda request: request.answer(0))
    await asyncio.gather(*(links.call(peer.address, ASK, {}, timeout_s=3.0) for _ in range(50)))
    assert peer.joined == 1


async def test_closing_while_it_connects_leaves_nothing(links: ConnectionPool, peer: ScriptedPeer) -> None:
    asking = asyncio.create_task(links.call(peer.address, ASK, {}, timeout_s=3.0))
    await asyncio.sleep(0)
    await links.close()
    with pytest.raises(BrokerUnavailable, match="the gateway stops"):
        await asking


async def test_an_address_that_is_none_is_told(links: ConnectionPool) -> None:
    for address in ("nowhere", "host:port", "host:", ":1", "host:99999"):
        with pytest.raises(BrokerUnavailable, match="cannot be reached"):
            await links.call(address, ASK, {}, timeout_s=3.0)
