"""proxy.workers.membership and working: what one of several processes is handed, told and set to."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from popgate.testing import frames
from popgate.testing.papers import Papers
from protocols import entrances
from protocols.adapter import parse_listen
from protocols.grpc.servers.http2_server import Http2Server
from protocols.tls import Certificate
from proxy.app import build
from proxy.config.settings import Settings
from proxy.lifetime.end_signals import EndSignals
from proxy.supervision.work import settings_at
from proxy.workers.channel import REST_S, Channel
from proxy.workers.crew import Door, Post, Role
from proxy.workers.membership import Membership
from tests.support.memory_shortage import ShortOfMemory
from tests.support.waiting import PATIENCE_S, until


class Desk:
    """The supervisor's side of a post."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.channel, theirs = Channel.pair()
        door = Door(3, "grpc://127.0.0.1:0", parse_listen("grpc://127.0.0.1:4321?advertised=x:1"))
        usual: dict[str, Any] = {
            "number": 7,
            "role": Role.WORKER,
            "channel": theirs,
            "folder": folder,
            "doors": (door,),
            "listens": (door.listen,),
            "admin": "http://127.0.0.1:99",
            "broker": "",
            "share": "",
            "secret": b"s" * 32,
        }
        self.post = Post(**{**usual, **changes})

    async def heard(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while (came := self.channel.receive()) is None:
                await asyncio.sleep(0.005)
        return came[0]

    def hand(self, door: int, number: int = 1) -> socket.socket:
        """A connection; this is its client's end."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            with server.accept()[0] as accepted:
                assert self.channel.offer(b'{"door": %d, "number": %d}' % (door, number), accepted.fileno())
        return client


@pytest.fixture
def desk_with(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(**changes: Any) -> Desk:
        made.append(Desk(tmp_path, **changes))
        return made[-1]

    yield make
    for desk in made:
        desk.channel.close()
        desk.post.channel.close()


@pytest.fixture
def desk(desk_with: Callable[..., Desk]) -> Desk:
    return desk_with()


@asynccontextmanager
async def attached(desk: Desk) -> AsyncIterator[tuple[Membership, EndSignals]]:
    loop = asyncio.get_running_loop()
    membership, ending = Membership(desk.post), EndSignals(loop)
    membership.attach(loop, ending)
    try:
        yield membership, ending
    finally:
        membership.detach()


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def adopt(connection: socket.socket) -> Coroutine[Any, Any, Any]:
    return asyncio.get_running_loop().connect_accepted_socket(Echo, connection)


def scene(
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None, work: Coroutine[Any, Any, None]
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(work)


def loops() -> list[Any]:
    import uvloop

    return [pytest.param(None, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]


@pytest.mark.parametrize("loop_factory", loops())
def test_a_handed_connection_is_served_and_its_end_is_told(desk: Desk, loop_factory: Any) -> None:
    async def play() -> None:
        async with attached(desk) as (membership, _):
            listener = membership.accepting(parse_listen("grpc://127.0.0.1:4321"))
            assert await listener.start(adopt) == 4321
            clients = [desk.hand(3) for _ in range(2)]
            for client in clients:
                client.settimeout(PATIENCE_S)
                client.sendall(b"x")
                assert await asyncio.to_thread(client.recv, 1) == b"x"
            closed = 0
            for client in clients:
                client.close()
            while closed < 2:
                closed += (await desk.heard()).get("closed", 0)
            assert closed == 2

    scene(loop_factory, play())


async def test_what_comes_before_the_start_or_after_the_end_is_closed(desk: Desk) -> None:
    async with attached(desk) as (membership, _):
        listener = membership.accepting(parse_listen("grpc://127.0.0.1:4321"))
        for _ in range(2):
            with desk.hand(3) as client:
                client.settimeout(PATIENCE_S)
                assert await asyncio.to_thread(client.recv, 1) == b""
            assert await desk.heard() == {"took": 1}
            assert await desk.heard() == {"closed": 1}
            await listener.start(adopt)
            listener.stop()


async def test_who_was_handed_over_and_is_still_opening_is_served_by_a_drain(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handshake begins a round trip later, and nobody else has its connection."""
    monkeypatch.setattr(entrances, "_MOMENT_S", 100 * PATIENCE_S)
    papers = Papers(tmp_path_factory.mktemp("papers"))
    context = ssl.create_default_context(cafile=papers.authority)
    context.set_alpn_protocols(["h2"])
    async with attached(desk) as (membership, _):
        listener = membership.accepting(parse_listen("grpc://127.0.0.1:4321"))
        server = Http2Server(
            object(),  # type: ignore[arg-type]
            "127.0.0.1",
            0,
            tls=Certificate(*papers.pair("gateway")).current,
            listener=listener,
        )
        await server.start()

        async def end() -> None:
            await server.drain(1000 * PATIENCE_S)
            await server.stop()

        client = desk.hand(3)
        client.setblocking(False)
        await until(lambda: server.admission.count == 1)
        ending = asyncio.ensure_future(end())
        await until(lambda: listener._adopt is None)  # type: ignore[attr-defined]
        reader, writer = await asyncio.open_connection(sock=client, ssl=context, server_hostname="localhost")
        writer.write(frames.PREFACE + frames.settings())
        assert (await reader.readexactly(9))[3] == 4  # its SETTINGS
        assert not ending.done()
        writer.close()
        await ending


async def test_a_door_of_somebody_else_is_none(desk: Desk) -> None:
    async with attached(desk) as (membership, _):
        with pytest.raises(ValueError, match="no door of this process"):
            membership.accepting(parse_listen("grpc://127.0.0.1:4322"))


async def test_who_has_no_room_for_a_descriptor_says_so_and_is_not_confused(desk: Desk) -> None:
    async with attached(desk) as (membership, _):
        desk.channel.send({"door": 3, "number": 8})
        # Whoever counts connections has counted this one.
        assert await desk.heard() == {"full": 8, "closed": 1}
        desk.channel.send({"door": -1, "number": 9})
        assert await desk.heard() == {"full": 9}
        desk.channel.send({"crew": {"state": "ready", "restarts": 4, "members": [], "renewing": True}})
        async with asyncio.timeout(PATIENCE_S):
            while membership.roster.restarts != 4:
                await asyncio.sleep(0.005)
        assert membership.roster.state == "ready"
        assert membership.roster.renewing


async def test_what_was_taken_is_told_once_for_all_that_came_together(desk: Desk) -> None:
    clients = [desk.hand(3, number) for number in (11, 12, 13)]
    async with attached(desk):
        assert await desk.heard() == {"took": 13}
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("told", "broker", "alone"),
    [
        ({"drain": True}, "", False),
        ({"drain": True, "alone": False}, "popgate+unix:/b", False),
        ({"drain": True, "alone": True}, "popgate+unix:/b", True),
        (None, "popgate+unix:/b", True),
        (None, "", False),
    ],
)
async def test_who_drains_is_alone_when_the_broker_ends_with_the_gateway(
    desk_with: Callable[..., Desk], told: dict[str, Any] | None, broker: str, alone: bool
) -> None:
    """Without a word the supervisor is gone, and with it all the others."""
    desk = desk_with(broker=broker)
    async with attached(desk) as (membership, ending):
        assert not membership.is_alone
        assert not membership.draining
        if told is None:
            desk.channel.close()
        else:
            desk.channel.send(told)
        await asyncio.wait_for(ending.wait(), PATIENCE_S)
        assert membership.is_alone is alone
        assert membership.draining is (told is not None)


async def test_who_is_asked_whether_it_lives_says_so(desk: Desk) -> None:
    async with attached(desk):
        desk.channel.send({"alive": True})
        assert await desk.heard() == {"alive": True}


async def test_orders_to_drain_and_to_stop(desk: Desk) -> None:
    async with attached(desk) as (membership, ending):
        desk.channel.send({"drain": True})
        await asyncio.wait_for(ending.wait(), PATIENCE_S)
        endless = asyncio.Event()

        async def work() -> None:
            await endless.wait()

        working = asyncio.ensure_future(ending.second_of(work()))
        await asyncio.sleep(0)
        desk.channel.send({"stop": True})
        assert await asyncio.wait_for(working, PATIENCE_S) is False
        assert not membership.orphaned


async def test_who_leaves_the_operators_takes_those_that_were_on_the_way(desk: Desk) -> None:
    async with attached(desk) as (membership, _):
        came: list[socket.socket] = []
        membership.serves_admin(came.append)
        assert await desk.heard() == {"admin": True}
        leaving = asyncio.ensure_future(membership.leave_admin())
        assert await desk.heard() == {"admin": False}
        client = desk.hand(-1)
        desk.channel.send({"admin": False})
        await asyncio.wait_for(leaving, PATIENCE_S)
        # The word comes after the connection; who is slow to say it is not waited for for ever.
        async with asyncio.timeout(PATIENCE_S):
            while not came:
                await asyncio.sleep(0.005)
        came[0].close()
        client.close()


async def test_who_has_no_supervisor_any_more_leaves_the_operators_at_once(desk: Desk) -> None:
    async with attached(desk) as (membership, ending):
        membership.serves_admin(lambda connection: connection.close())
        desk.channel.close()
        await asyncio.wait_for(ending.wait(), PATIENCE_S)
        await asyncio.wait_for(membership.leave_admin(), PATIENCE_S)
        assert membership.orphaned


async def test_the_end_of_the_supervisor_is_an_order_to_drain(desk: Desk) -> None:
    async with attached(desk) as (membership, ending):
        desk.channel.close()
        await asyncio.wait_for(ending.wait(), PATIENCE_S)
        assert membership.orphaned
        membership.tell({"nobody": "hears"})


async def test_much_is_told_in_order_to_who_does_not_listen_at_once(desk: Desk) -> None:
    async with attached(desk) as (membership, _):
        for number in range(2_000):
            membership.tell({"number": number})
        assert desk.post.channel.kept
        for number in range(2_000):
            assert await desk.heard() == {"number": number}


async def test_what_there_was_no_memory_for_is_told_when_there_is(desk: Desk) -> None:
    async with attached(desk) as (membership, _):
        end = ShortOfMemory(desk.post.channel._end)
        desk.post.channel._end = end  # type: ignore[assignment]
        membership.tell({"number": 0})
        membership.tell({"number": 1})
        told = len(end.failed)
        await until(lambda: len(end.failed) >= told + 3)
        pauses = [later - earlier for earlier, later in itertools.pairwise(end.failed[told - 1 :])]
        assert min(pauses) > REST_S / 2, "it was tried without a pause"
        end.short = False
        assert [await desk.heard() for _ in range(2)] == [{"number": 0}, {"number": 1}]
        assert desk.post.channel.kept == 0


async def test_operators_are_served_when_the_pages_are_there(desk: Desk) -> None:
    async with attached(desk) as (membership, _):
        came: list[socket.socket] = []
        membership.serves_admin(came.append)
        assert await desk.heard() == {"admin": True}
        with desk.hand(-1):
            async with asyncio.timeout(PATIENCE_S):
                while not came:
                    await asyncio.sleep(0.005)
        came[0].close()


def test_all_processes_make_transaction_ids_with_one_key(
    desk: Desk, settings_for: Callable[..., Settings]
) -> None:
    settings = settings_for(broker="rocketmq://127.0.0.1:9")
    broker: Any = build(settings, membership=Membership(desk.post)).broker
    assert broker.settings.transaction_keys == (b"s" * 32,)
    own = settings_for(broker="rocketmq://127.0.0.1:9", remote={"transaction_key": "a key of sixteen"})
    broker = build(own, membership=Membership(desk.post)).broker
    assert broker.settings.transaction_keys == (b"a key of sixteen",)


def test_a_worker_waits_for_the_next_process_of_the_broker_as_long_as_for_an_answer(
    desk_with: Callable[..., Desk], settings_for: Callable[..., Settings]
) -> None:
    """Its supervisor brings that back, however slow the machine is; a guest of others waits shortly."""
    desk = desk_with(broker="popgate+unix:/b")
    own = settings_at(settings_for(shared={"request_timeout_s": 7}), desk.post)
    broker: Any = build(own, membership=Membership(desk.post)).broker
    assert broker._settings.reconnect_wait_s == 7
    guest: Any = build(own).broker
    assert guest._settings.reconnect_wait_s == 2


def test_the_process_of_the_broker_has_no_doors_and_tells_those_of_the_gateway(
    desk_with: Callable[..., Desk], settings_for: Callable[..., Settings]
) -> None:
    desk = desk_with(role=Role.HOST, doors=(), share="unix:/tmp/b")
    membership = Membership(desk.post)
    app = build(settings_at(settings_for(), desk.post), membership=membership)
    assert app.doors == []
    assert app.host is not None
    assert app.addresses == ["grpc://127.0.0.1:4321"]
    # What probes are told is how the gateway is.
    assert app.condition() == "starting"
    membership.roster.hear({"state": "draining", "restarts": 0, "members": []})
    assert app.condition() == "draining"


def test_settings_at_a_post_have_what_was_chosen_and_the_rest_as_it_was(
    desk_with: Callable[..., Desk], settings_for: Callable[..., Settings]
) -> None:
    settings = settings_for(share_broker="tcp://127.0.0.1:0", admin="off")
    own = settings_at(settings, desk_with(broker="popgate+unix:/b", admin="").post)
    assert own.listen == ("grpc://127.0.0.1:4321?advertised=x%3A1",)
    assert (own.broker, own.share_broker, own.admin) == ("popgate+unix:/b", "", "off")
    assert own.limits is settings.limits
    assert settings.share_broker == "tcp://127.0.0.1:0"
    assert os.fspath(settings.data)
