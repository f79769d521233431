"""proxy.reload: new settings for a gateway in this process, taken as a whole or not at all."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing import frames
from popgate.testing.papers import Papers
from processors.adjust import adjust
from protocols import schemes
from protocols.grpc.adapter import GrpcAdapter
from protocols.grpc.http2.hpack.decoder import encode_fields
from protocols.grpc.rpcs import health
from proxy.app import App, build
from proxy.config.error import SettingsWrong
from proxy.config.handover import Settled, settle
from proxy.config.settings import Settings
from proxy.config.tables import Log
from proxy.logs import set_up_logs
from proxy.reload import listeners as listeners_module
from proxy.reload import reloader as reloader_module
from proxy.reload.reloader import Reloader
from tests.support.waiting import PATIENCE_S, until, wait_until

Change = Callable[..., Any]
ANY = "grpc://127.0.0.1:0"


@pytest.fixture
def reload(app: App, settings_for: Callable[..., Settings]) -> Change:
    """Reload with these settings in the place of those that the app was built with; the outcome."""
    reloader = app.reloader
    assert reloader is not None

    async def change(**flags: Any) -> Any:
        async def read() -> Settled:
            return settle(settings_for(**flags))

        reloader.read = read
        return await reloader.reload()

    return change


@pytest.fixture
async def taken_port() -> AsyncIterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def reloader_of(app: App) -> Reloader:
    assert app.reloader is not None
    return app.reloader


async def test_limits_count_in_every_part_that_has_them(app: App, reload: Change) -> None:
    budgets = {"process_bytes": 1 << 17, "group_bytes": 1 << 18, "connection_bytes": 1 << 19}
    await reload(
        limits={"max_body_bytes": 3, "max_wait_s": 300},
        budgets=budgets,
        holding={
            "max_clients": 5,
            "max_held": 6,
            "max_topics_per_client": 7,
            "client_expiry_s": 8,
            "release_grace_s": 9,
        },
        broadcast={"expiry_s": 61, "max_members": 62},
        topics={"queues": 3},
        groups={"max_attempts": 4},
    )
    processor = app.processor
    assert processor.limits.max_body_bytes == 3
    assert {name: getattr(processor.budgets, name) for name in budgets} == budgets
    clients = processor.clients
    assert (clients.max_clients, clients.max_topics, clients.expiry_s) == (5, 7, 8)
    holdings = processor.auto_renewal.holdings
    assert (holdings.max_clients, holdings.max_held) == (5, 6)
    assert processor.auto_renewal.releasing.grace_s == 9
    assert (processor.broadcast_groups.expiry_s, processor.broadcast_groups.max_members) == (61, 62)
    assert (processor.limits.new_topic_queues, processor.limits.new_group.max_attempts) == (3, 4)


async def test_what_the_admin_port_makes_goes_by_new_defaults(app: App, reload: Change, api: Any) -> None:
    await reload(topics={"queues": 3}, groups={"max_attempts": 4})
    assert (await api.post("/api/topics", {"name": "orders"}))[1]["queues"] == 3
    assert (await api.post("/api/groups", {"name": "billing"}))[1]["max_attempts"] == 4
    told = (await api.get("/api/settings"))[1]
    assert (told["topics"]["queues"], told["groups"]["max_attempts"]) == (3, 4)


async def test_the_log_the_end_and_hosts_of_the_admin_port_are_live(
    app: App, reload: Change, settings_for: Callable[..., Settings]
) -> None:
    try:
        await reload(
            log={"level": "error"}, stopping={"drain_s": 33, "lame_duck_s": 3}, api={"hosts": ["a.b"]}
        )
        assert logging.getLogger().level == logging.ERROR
        assert (app.drain_s, app.lame_duck_s) == (33, 3)
        assert app.admin is not None
        assert app.admin._hosts == {"a.b"}
    finally:
        set_up_logs(settings_for().log)


async def test_what_needs_a_restart_is_named_and_keeps_its_value(app: App, reload: Change, api: Any) -> None:
    outcome = await reload(retention={"age_s": 3600}, limits={"max_delay_s": 5, "max_found": 9})
    assert outcome.waiting == ["limits.max_delay_s", "retention.age_s"]
    assert app.processor.limits.max_found == 9
    assert app.processor.limits.max_delay_ms == 86_400_000
    assert (await api.get("/api/settings"))[1]["retention"]["age_s"] == 259_200
    assert reloader_of(app).standing().figures()["config_restart_pending"] == 2


async def test_a_listener_that_stays_is_the_same_one(app: App, reload: Change) -> None:
    (door,) = app.doors
    await reload(listen=[ANY, ANY])
    assert app.doors[0] is door
    assert len(set(app.addresses)) == 2
    await reload(listen=[ANY])
    assert list(app.doors) == [door]


async def test_a_listener_that_is_opened_anew_keeps_its_port(app: App, reload: Change) -> None:
    (door,), addresses = app.doors, app.addresses
    for number in (31, 32, 33):
        await reload(connections={"ping_s": number})
        assert app.addresses == addresses
        assert app.doors[0] is not door
        (door,) = app.doors
        host, _, port = addresses[0].partition("://")[2].rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()


@pytest.mark.parametrize("wrong", ["port", "protocol", "limits", "certificate"])
async def test_after_a_fault_all_is_as_it_was(
    app: App, reload: Change, taken_port: int, wrong: str, api: Any
) -> None:
    before, doors = (await api.get("/api/settings"))[1], list(app.doors)
    cases: dict[str, dict[str, Any]] = {
        "port": {"listen": [ANY, ANY, f"grpc://127.0.0.1:{taken_port}"], "limits": {"max_found": 3}},
        "protocol": {"listen": [ANY, "odd://127.0.0.1:0"], "limits": {"max_found": 3}},
        "limits": {"limits": {"min_invisible_s": 5, "max_invisible_s": 4}},
        "certificate": {"tls": {"certificate": "/nowhere"}, "limits": {"max_found": 3}},
    }
    with pytest.raises(SettingsWrong):
        await reload(**cases[wrong])
    assert (await api.get("/api/settings"))[1] == before
    assert list(app.doors) == doors
    assert app.processor.limits.max_found == 1024
    standing = reloader_of(app).standing()
    assert (standing.successful, bool(standing.reason)) == (False, True)
    assert (await api.get("/api/reload"))[1]["reason"] == standing.reason
    assert standing.figures()["config_last_reload_successful"] == 0
    await reload()
    assert reloader_of(app).standing().successful


class Odd(Exception):
    """Nobody expects it."""


@pytest.mark.parametrize("place", ["set_up_logs", "allow_hosts", "start"])
async def test_after_a_fault_that_nobody_expects_all_is_as_it_was(
    app: App, reload: Change, place: str, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_once(*_: object, **__: object) -> Any:
        monkeypatch.undo()
        raise Odd("once")

    before, doors = (await api.get("/api/settings"))[1], list(app.doors)
    assert app.admin is not None
    hosts, files = app.admin._hosts, len(os.listdir("/proc/self/fd"))
    at: Any = {
        "set_up_logs": reloader_module,
        "allow_hosts": app.admin,
        "start": GrpcAdapter,
    }[place]
    monkeypatch.setattr(at, place, fails_once)
    try:
        with pytest.raises(SettingsWrong, match="internal error of the gateway"):
            await reload(
                listen=[ANY, ANY],
                connections={"ping_s": 31},
                log={"level": "error"},
                limits={"max_found": 3},
                api={"hosts": ["a.b"]},
                stopping={"drain_s": 33},
            )
        assert logging.getLogger().level != logging.ERROR
        assert (await api.get("/api/settings"))[1] == before
        assert list(app.doors) == doors
        assert (app.processor.limits.max_found, app.drain_s, app.admin._hosts) == (1024, 60, hosts)
        assert not reloader_of(app).standing().successful
        await until(lambda: len(os.listdir("/proc/self/fd")) == files)
    finally:
        set_up_logs(Log())


async def test_a_reload_that_is_cut_short_leaves_all_as_it_was(
    app: App, reload: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller goes, or the gateway ends, while listeners are opened."""
    doors, files = list(app.doors), len(os.listdir("/proc/self/fd"))
    starts, stops = GrpcAdapter.start, GrpcAdapter.stop
    opening, undoing, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def start(adapter: GrpcAdapter) -> None:
        await starts(adapter)
        opening.set()
        await asyncio.Event().wait()

    async def stop(adapter: GrpcAdapter, ends: float | None = None) -> None:
        undoing.set()
        await go.wait()
        await stops(adapter, ends)

    monkeypatch.setattr(GrpcAdapter, "start", start)
    monkeypatch.setattr(GrpcAdapter, "stop", stop)
    reloading = asyncio.ensure_future(reload(listen=[ANY, ANY], connections={"ping_s": 31}))
    await opening.wait()
    reloading.cancel()
    await asyncio.wait_for(undoing.wait(), PATIENCE_S)
    reloading.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await reloading
    monkeypatch.undo()
    assert list(app.doors) == doors
    await until(lambda: len(os.listdir("/proc/self/fd")) == files)
    await reload(limits={"max_found": 3})


async def test_a_gateway_that_drains_or_starts_takes_no_settings(app: App, reload: Change) -> None:
    doors = list(app.doors)
    for state in ("starting", "draining"):
        app.state = state
        with pytest.raises(SettingsWrong, match=f"the gateway is {state}"):
            await reload(listen=[ANY, ANY], limits={"max_found": 3})
        assert (list(app.doors), app.processor.limits.max_found) == (doors, 1024)
    app.state = "ready"


async def test_reloads_at_once_come_one_after_the_other(
    app: App, settings_for: Callable[..., Settings]
) -> None:
    reloader, reading, most, numbers = reloader_of(app), 0, 0, iter(range(3, 8))
    go = asyncio.Event()

    async def read() -> Settled:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await go.wait()
        reading -= 1
        return settle(settings_for(limits={"max_found": next(numbers)}))

    reloader.read = read
    reloader.ask()
    four = asyncio.gather(reloader.look(), reloader.reload(), reloader.look(), reloader.reload())
    # One reads, and the others have come as far as they do without it.
    await until(lambda: reading and len(reloader._lock._waiters or ()) == 4)  # type: ignore[attr-defined]
    go.set()
    await four
    await until(lambda: reloader._asked is not None and reloader._asked.done())
    assert most == 1
    assert app.processor.limits.max_found == 7


async def test_no_descriptor_stays_after_many_reloads(app: App, reload: Change) -> None:
    url = "grpc+remoting://127.0.0.1:0"
    await reload(listen=[ANY, url])
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        await reload(
            listen=[ANY, url],
            connections={"ping_s": 31 + number},
            tls={"mode": ("off", "optional")[number % 2]},
        )
    await reload(listen=[ANY, url])
    assert app.listeners is not None
    await until(lambda: not app.listeners or not app.listeners._leaving)
    await until(lambda: len(os.listdir("/proc/self/fd")) == before)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""With empty SETTINGS: RFC 9113 section 3.4."""
PROXIED = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"


async def test_nobody_who_dials_is_refused_while_a_listener_is_opened_anew(app: App, reload: Change) -> None:
    """Protocols, TLS and the PROXY protocol change at one port; the door before may still take who comes."""
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        port = link.getsockname()[1]
    url, dialled, over = f"//127.0.0.1:{port}", 0, False

    async def dial() -> None:
        nonlocal dialled
        while not over:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PREFACE)
            assert await reader.read(9)
            dialled += 1
            writer.close()

    async def changed(*listen: str, **more: Any) -> None:
        before = dialled
        await reload(listen=listen, **more)
        await until(lambda: dialled > before + 3 or dialling.done())

    await reload(listen=[f"grpc:{url}"])
    dialling = asyncio.ensure_future(dial())
    try:
        for _ in range(3):
            await changed(f"grpc+remoting:{url}")
            await changed(f"grpc+remoting:{url}", tls={"mode": "optional"})
            await changed(f"grpc:{url}", tls={"mode": "optional"})
            await changed(f"grpc:{url}?tls=false")
            await changed(f"grpc:{url}", connections={"ping_s": 31})
            await changed(f"grpc:{url}")
    finally:
        over = True
        await dialling
    await reload(listen=[f"grpc+remoting:{url}?proxy_protocol=true"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PROXIED + PREFACE)
    assert await reader.read(9)
    writer.close()
    assert app.addresses == [f"grpc+remoting:{url}"]


async def test_an_address_that_was_taken_out_can_be_put_back_while_it_serves_on(
    app: App, reload: Change
) -> None:
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        port = link.getsockname()[1]
    stopping = {"drain_s": 600, "lame_duck_s": 300}
    url = f"grpc://127.0.0.1:{port}"
    await reload(listen=[ANY, url], stopping=stopping)
    await reload(listen=[ANY], stopping=stopping)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await reload(listen=[ANY, url], stopping=stopping)
    assert app.addresses[1] == url
    listeners = app.listeners
    assert listeners is not None
    await until(lambda: not listeners._leaving)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        return int(link.getsockname()[1])


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


LEAVING_LATE = {"drain_s": 600, "lame_duck_s": 300}


async def test_an_address_that_is_put_back_as_its_listener_ends_is_opened(
    app: App, reload: Change, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, listeners = f"grpc://127.0.0.1:{free_port}", app.listeners
    assert listeners is not None
    await reload(listen=[ANY, url], stopping=LEAVING_LATE)
    await reload(listen=[ANY], stopping=LEAVING_LATE)
    loop, load = asyncio.get_running_loop(), schemes.load_for

    def load_late(listen: Any) -> None:
        for one in list(listeners._leaving.values()):
            loop.call_soon_threadsafe(one.at_once.set)
        wait_until(lambda: not listeners._leaving)
        load(listen)

    monkeypatch.setattr(listeners_module, "load_for", load_late)
    outcome = await reload(listen=[ANY, url], stopping=LEAVING_LATE)
    assert (outcome.waiting, app.addresses[1]) == ([], url)
    assert await accepts(free_port)


async def test_an_address_that_was_opened_anew_and_taken_out_can_be_put_back(
    app: App, reload: Change, free_port: int
) -> None:
    """Two listeners leave it, and the first of them accepts no more."""
    url, anew = f"grpc://127.0.0.1:{free_port}", {"connections": {"ping_s": 31}}
    await reload(listen=[ANY, url], stopping=LEAVING_LATE)
    reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
    writer.write(PREFACE)
    assert await reader.read(9)
    await reload(listen=[ANY, url], stopping=LEAVING_LATE, **anew)
    await reload(listen=[ANY], stopping=LEAVING_LATE, **anew)
    assert app.listeners is not None
    assert [one.door.url for one in app.listeners._leaving.values()].count(url) == 2
    outcome = await reload(listen=[ANY, url], stopping=LEAVING_LATE, **anew)
    assert (outcome.waiting, app.addresses[1]) == ([], url)
    assert await accepts(free_port)
    writer.close()


def health_check(number: int) -> bytes:
    """A call on a stream of HTTP/2."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{health.SERVICE}/Check"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    return frames.headers(number, encode_fields(fields)) + frames.data(number, frames.framed(b""), end=True)


@pytest.mark.parametrize("fails", ["listener", "settings"])
async def test_who_was_accepted_by_a_listener_that_is_taken_back_is_served_on(
    app: App, reload: Change, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Another listener fails to open after it, or the settings cannot be taken."""
    await reload(listen=[ANY, "remoting://127.0.0.1:0"])
    doors = list(app.doors)
    made: list[Any] = []
    dialled: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    host, _, port = app.addresses[0].partition("://")[2].rpartition(":")
    make = schemes.make_adapter

    def noted(listen: Any, house: Any) -> Any:
        made.append(make(listen, house))
        return made[-1]

    async def dial_and_fail(*_: object) -> Any:
        """Both listeners accept: dial until the new one has a connection."""

        async def has_one() -> bool:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(PREFACE)
            dialled.append((reader, writer))
            await reader.readexactly(6 + int.from_bytes(await reader.readexactly(3)))  # its SETTINGS
            return bool(made[0]._server.connections)

        await until(has_one)
        if fails == "listener":
            raise OSError("the broker is away")

    monkeypatch.setattr(listeners_module, "make_adapter", noted)
    monkeypatch.setattr(type(app.processor.queue_numbering), "prime", dial_and_fail)
    if fails == "settings":

        def adjust_fails_once(*_: object) -> None:
            monkeypatch.setattr(reloader_module, "adjust", adjust)
            raise Odd

        monkeypatch.setattr(reloader_module, "adjust", adjust_fails_once)
    with pytest.raises(SettingsWrong):
        await reload(listen=[ANY, "remoting://127.0.0.1:0"], connections={"ping_s": 31})
    assert list(app.doors) == doors
    for reader, writer in dialled:
        writer.write(health_check(1))
        heard, kinds = b"", set[str]()
        while "DATA" not in kinds:
            more = await reader.read(1 << 16)
            assert more, heard
            heard += more
            kinds = {kind for kind, *_ in frames.split(frames.whole_and_rest(heard)[0])}
        writer.close()


@pytest.mark.parametrize("fails", ["drain", "stop"])
async def test_of_a_listener_that_fails_as_it_closes_nothing_stays(
    app: App, reload: Change, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    url, processor, listeners = "remoting://127.0.0.1:0", app.processor, app.listeners
    assert listeners is not None
    await reload(listen=[ANY, url])
    registered = len(processor.clients.on_members._here)
    server = app.doors[1]._server  # type: ignore[attr-defined]

    async def fail(_s: float) -> None:
        raise Odd("in the end")

    monkeypatch.setattr(server, fails, fail)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: server.connections)
    await reload(listen=[ANY, url], connections={"ping_s": 31})
    if fails == "stop":
        writer.close()
    await until(lambda: not listeners._leaving)
    assert len(processor.clients.on_members._here) == registered
    if fails == "drain":
        await until(lambda: not server.connections)
    writer.close()


async def test_a_drain_waits_for_listeners_that_a_reload_closes(
    app: App, reload: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = {"drain_s": 600, "lame_duck_s": 300}
    await reload(listen=[ANY, ANY], stopping=stopping)
    gone, begun, finish, ended = app.doors[1], asyncio.Event(), asyncio.Event(), False
    drains = gone.drain

    async def drain(deadline: float, ends: float | None = None) -> None:
        nonlocal ended
        begun.set()
        await finish.wait()
        await drains(deadline, ends)
        ended = True

    monkeypatch.setattr(gone, "drain", drain)
    await reload(listen=[ANY], stopping=stopping)
    app.lame_duck_s = 0.0
    draining = asyncio.ensure_future(app.drain())
    await until(lambda: begun.is_set() or draining.done())
    assert not draining.done()
    finish.set()
    await draining
    assert ended


@pytest.mark.parametrize(
    "url",
    [ANY, "grpc://127.0.0.1:0?transport=grpcio", "grpc+remoting://127.0.0.1:0"],
    ids=["http2", "grpcio", "shared"],
)
async def test_a_drain_ends_the_streams_of_listeners_that_a_reload_closes(
    app: App, reload: Change, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """They were left alone as long as clients had another listener; now they have none."""
    await reload(listen=[ANY, url], stopping={"drain_s": 3600, "lame_duck_s": 0})
    place, listeners = app.addresses[1].partition("://")[2], app.listeners
    assert listeners is not None
    gone, begun = app.doors[1], asyncio.Event()
    drains = gone.drain

    async def drain(deadline: float, ends: float | None = None) -> None:
        begun.set()
        await drains(deadline, ends)

    monkeypatch.setattr(gone, "drain", drain)
    async with grpc.aio.insecure_channel(place) as channel:
        telemetry: Any = channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )
        stream = telemetry(metadata=(("x-mq-client-id", "one"), ("x-mq-language", "JAVA")))
        settings = pb.Settings(
            client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name="orders")])
        )
        await stream.write(rpc.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == pb.OK
        await reload(listen=[ANY], stopping={"drain_s": 3600, "lame_duck_s": 0})
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        assert len(listeners._leaving) == 1
        draining = asyncio.ensure_future(app.drain())
        async with asyncio.timeout(PATIENCE_S):
            while await stream.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass  # told to connect anew
        await asyncio.wait_for(draining, PATIENCE_S)
    assert not listeners._leaving


async def test_a_certificate_comes_with_a_reload(app: App, reload: Change, tmp_path: Path) -> None:
    certificate, key = Papers(tmp_path).pair("one")
    addresses = app.addresses
    await reload(tls={"mode": "required", "certificate": str(certificate), "key": str(key)})
    assert app.addresses == addresses
    assert app.certificate is not None
    watched = app.certificate
    # Another setting leaves it, and the sessions that it knows, alone.
    await reload(
        tls={"mode": "required", "certificate": str(certificate), "key": str(key)}, connections={"ping_s": 30}
    )
    assert app.certificate is watched


async def test_a_socket_in_the_file_system_keeps_its_options_and_is_named(
    settings_for: Callable[..., Settings], socket_folder: Path
) -> None:
    url = f"grpc+unix:{socket_folder}/s"
    app = build(settings_for(listen=[url]))
    await app.start()
    try:
        reloader, (door,) = reloader_of(app), app.doors

        async def read() -> Settled:
            return settle(settings_for(listen=[f"{url}?mode=666"]))

        reloader.read = read
        outcome = await reloader.reload()
        assert outcome.waiting == [f"listen: {url}?mode=666"]
        assert list(app.doors) == [door]
        # It is named until the restart, also after settings that it should have been opened anew for.
        connections: dict[str, Any] = {"ping_s": 31}

        async def read_other() -> Settled:
            return settle(settings_for(listen=[url], connections=connections))

        reloader.read = read_other
        for _ in range(2):
            assert (await reloader.reload()).waiting == [f"listen: {url}"]
            assert reloader.standing().figures()["config_restart_pending"] == 1
        # With the settings that it was opened for it is named no more.
        connections = {}
        assert (await reloader.reload()).waiting == []
        assert reloader.standing().figures()["config_restart_pending"] == 0
    finally:
        await app.stop()


async def test_reloads_that_are_asked_for_meanwhile_are_one_more(app: App) -> None:
    reloader, reads, go = reloader_of(app), 0, asyncio.Event()

    async def read() -> Settled:
        nonlocal reads
        reads += 1
        await go.wait()
        return reloader._running

    reloader.read = read
    reloader.ask()
    await until(lambda: reads == 1)
    for _ in range(4):
        reloader.ask()
    go.set()
    await until(lambda: reloader._asked is not None and reloader._asked.done())
    assert reads == 2


async def test_a_reload_goes_on_when_its_caller_goes_away(
    app: App, api: Any, settings_for: Callable[..., Settings]
) -> None:
    """What is cut short in the moment in which a listener opens leaves one that nobody owns."""
    reading, go = asyncio.Event(), asyncio.Event()

    async def read() -> Settled:
        reading.set()
        await go.wait()
        return settle(settings_for(topics={"queues": 3}))

    reloader_of(app).read = read
    assert app.admin is not None
    server = app.admin._runner.server
    assert server is not None
    asking = asyncio.ensure_future(api.post("/api/reload", {}))
    await reading.wait()
    asking.cancel()
    await until(lambda: not server.connections)  # with them go their handlers
    go.set()
    await until(lambda: app.processor.limits.new_topic_queues == 3)


async def test_the_admin_port_reloads_and_looks(
    app: App, api: Any, settings_for: Callable[..., Settings]
) -> None:
    async def read() -> Settled:
        return settle(settings_for(topics={"queues": 3}))

    reloader_of(app).read = read
    change = {"name": "topics.queues", "running": 8, "new": 3, "effect": "live"}
    assert await api.post("/api/reload", {"dry_run": True}) == (200, {"changes": [change]})
    assert app.processor.limits.new_topic_queues == 8
    status, told = await api.post("/api/reload", {})
    assert (status, told["changes"], told["needs_restart"]) == (200, [change], [])
    assert app.processor.limits.new_topic_queues == 3
    assert (await api.post("/api/reload", {"dry": True}))[0] == 400
