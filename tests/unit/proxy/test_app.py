"""proxy.app: what is built from settings, and that nothing stays open when a start fails."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from popgate.context import Context
from popgate.model import TopicConfig
from popgate.wire.bodies.heartbeats import ConsumerConnection
from popgate.wire.frames.codes import RequestCode, ResponseCode
from proxy.app import CannotStart, build
from proxy.config.error import SettingsWrong
from proxy.config.settings import Settings
from tests.unit.processors.conftest import FakeClient


async def test_an_app_starts_serves_drains_and_stops(settings_for: Callable[..., Settings]) -> None:
    app = build(settings_for(listen=["grpc://127.0.0.1:0", "grpc://127.0.0.1:0"]))
    assert (app.state, app.addresses, app.admin_address) == ("starting", [], "")
    await app.start()
    assert app.state == "ready"
    assert len(app.addresses) == 2
    assert all(address.startswith("grpc://127.0.0.1:") for address in [*app.addresses])
    assert not any(address.endswith(":0") for address in [*app.addresses, app.admin_address])
    await app.drain()
    assert app.state == "draining"
    await app.stop()
    assert app.state == "stopped"
    host, _, port = app.addresses[0].partition("://")[2].rpartition(":") if app.addresses else ("", "", "0")
    with socket.socket() as probe:
        assert not host or probe.connect_ex((host, int(port))) != 0


async def test_connections_and_calls_are_bounded_as_set_and_counted(
    settings_for: Callable[..., Settings],
) -> None:
    app = build(settings_for(connections={"max": 1, "max_streams": 77}))
    await app.start()
    host, _, port = app.addresses[0].partition("://")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    greeting = await reader.readexactly(27)
    assert greeting[9:15] == bytes((0, 3, 0, 0, 0, 77)), "MAX_CONCURRENT_STREAMS"
    refused, other = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionResetError):
        assert await refused.read() == b""
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    text = app.metrics.text().decode()
    assert "popgate_grpc_connections_refused_total 1.0" in text
    assert 'popgate_grpc_violations_total{kind="protocol"} 1.0' in text
    for one in (writer, other):
        one.close()
    await app.stop()
    assert "popgate_grpc_connections 0.0" in app.metrics.text().decode()


async def test_the_same_data_can_be_opened_again_after_a_stop(settings_for: Callable[..., Settings]) -> None:
    for _ in range(2):
        app = build(settings_for())
        await app.start()
        await app.stop()


async def test_without_an_admin_port_there_is_none(settings_for: Callable[..., Settings]) -> None:
    app = build(settings_for(admin="off"))
    await app.start()
    assert app.admin_address == ""
    await app.stop()


@pytest.fixture
def taken_port() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_port_in_use_is_a_sentence_and_leaves_nothing_open(
    settings_for: Callable[..., Settings], taken_port: int
) -> None:
    for flags in (
        {"listen": ["grpc://127.0.0.1:0", f"grpc://127.0.0.1:{taken_port}"]},
        {"admin": f"http://127.0.0.1:{taken_port}"},
    ):
        app = build(settings_for(**flags))
        with pytest.raises(CannotStart, match=rf"(?i){taken_port}.*in use|in use.*{taken_port}") as caught:
            await app.start()
        assert "\n" not in str(caught.value)
        assert app.state == "stopped"
    # The store of the failed ones is closed: it can be opened.
    app = build(settings_for())
    await app.start()
    await app.stop()


async def test_a_locked_data_folder_is_a_sentence(settings_for: Callable[..., Settings]) -> None:
    first, second = build(settings_for()), build(settings_for())
    await first.start()
    try:
        with pytest.raises(CannotStart, match="in use"):
            await second.start()
    finally:
        await first.stop()


async def test_a_data_folder_that_cannot_be_made_is_a_sentence(
    settings_for: Callable[..., Settings], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="file"):
        await build(settings_for(data=tmp_path / "file" / "data")).start()


async def test_a_data_folder_where_none_can_be_is_no_damage(settings_for: Callable[..., Settings]) -> None:
    with pytest.raises(CannotStart, match=r"folder /proc/popgate/store cannot be made: No such file"):
        await build(settings_for(data="/proc/popgate")).start()


async def test_an_embedded_broker_can_have_a_folder_of_its_own(
    settings_for: Callable[..., Settings], tmp_path: Path
) -> None:
    app = build(settings_for(broker=f"embedded:{tmp_path / 'elsewhere'}"))
    await app.start()
    await app.stop()
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"listen": ["nonsense"]}, "no address to listen at"),
        ({"listen": ["odd://127.0.0.1:1"]}, "odd"),
        ({"admin": "grpc://127.0.0.1:1"}, "no admin address"),
        ({"admin": "http://127.0.0.1:0?x=1"}, "no admin address"),
        ({"advertised": {"address": "a b:x"}}, "advertise"),
        ({"listen": ["grpc://127.0.0.1:0?advertised=:::"]}, "advertise"),
        ({"listen": ["grpc://127.0.0.1:0?colour=red"]}, "colour"),
        ({"broker": "rocketmq://"}, "needs name servers"),
        ({"broker": "popgate://"}, "is no address"),
        ({"broker": "kafka://x"}, "the scheme is embedded"),
        ({"broker": "nothing"}, "write embedded:"),
        ({"broker": "embedded://x"}, "without //"),
        ({"policies": {"rate": "unlimitd"}}, "did you mean 'unlimited'"),
        ({"policies": {"rate": "per-client"}}, "rate"),
        ({"policies": {"rate": "per-client?rate=-1"}}, "above 0"),
        ({"policies": {"rate": "per-client?rate=nan"}}, "above 0"),
        ({"limits": {"min_invisible_s": 61, "max_invisible_s": 60}}, r"61 s\) is above .* \(60 s\)"),
    ],
)
async def test_values_that_do_not_fit_are_refused_before_anything_is_opened(
    settings_for: Callable[..., Settings], tmp_path: Path, flags: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsWrong, match=sentence) as caught:
        build(settings_for(**flags))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


async def test_a_policy_takes_its_options_from_its_text(settings_for: Callable[..., Settings]) -> None:
    app = build(settings_for(policies={"rate": "per-client?rate=0.5&burst=20"}))
    assert "0.5/s burst 20" in repr(app.processor._policies.rate)


async def test_a_start_that_is_cancelled_leaves_nothing_open(settings_for: Callable[..., Settings]) -> None:
    app = build(settings_for())
    task = asyncio.create_task(app.start())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.state == "stopped"
    again = build(settings_for())
    await again.start()
    await again.stop()


def test_only_an_embedded_broker_is_shared(tmp_path: Path) -> None:
    for broker in ("popgate://127.0.0.1:1", "rocketmq://127.0.0.1:9876"):
        settings = Settings(data=tmp_path, broker=broker, share_broker="unix:/tmp/s")
        with pytest.raises(SettingsWrong, match="share_broker is for an embedded broker"):
            build(settings)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [("tcp://0.0.0.0:0", "only with a secret"), ("http://a:1", "no place to share"), ("unix:", "no socket")],
)
def test_a_broker_is_not_shared_where_it_cannot_be(tmp_path: Path, wanted: str, told: str) -> None:
    with pytest.raises(SettingsWrong, match=told):
        build(Settings(data=tmp_path, share_broker=wanted))


async def test_a_gateway_shares_its_broker_and_another_one_uses_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("s")
    doors = {"listen": ("grpc://127.0.0.1:0",), "admin": "off"}
    host = build(Settings(data=folder / "a", share_broker=f"unix:{folder}/s", **doors))
    await host.start()
    try:
        assert host.shared_at == f"unix:{folder}/s"
        guest = build(Settings(data=folder / "b", broker=f"popgate+unix:{folder}/s", **doors))
        await guest.start()
        try:
            assert guest.condition() == "ready"
            await guest.broker.create_topic(TopicConfig("t"))
            assert [topic.name for topic in await host.broker.topics()] == ["t"]
        finally:
            await guest.stop()
        await host.drain()
    finally:
        await host.stop()
    assert not (folder / "s").exists()


async def test_gateways_that_share_a_broker_ask_each_other_about_their_clients(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("s")
    doors = {"listen": ("grpc://127.0.0.1:0",), "admin": "off"}
    alone = build(Settings(data=folder / "c", **doors))
    assert not alone.processor.command_relay.shared
    host = build(Settings(data=folder / "a", share_broker=f"unix:{folder}/s", **doors))
    guest = build(Settings(data=folder / "b", broker=f"popgate+unix:{folder}/s", **doors))
    await host.start()
    try:
        await guest.start()
        for place, gateway in enumerate((host, guest)):
            gateway.processor.clients.register(FakeClient(f"c{place}", group="readers"))
        for gateway in (host, guest):
            relayed = await gateway.processor.command_relay.relay(
                Context(), RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"}
            )
            told = [ConsumerConnection.decode(one.body) for one in relayed.answers.values()]
            assert [one.client_id for each in told for one in each.connections] == ["c0", "c1"]
            assert not relayed.failures
        # The host knows by now whose client it is.
        running = {"consumerGroup": "readers", "clientId": "c1"}
        relayed = await host.processor.command_relay.relay(
            Context(), RequestCode.GET_CONSUMER_RUNNING_INFO, running
        )
        assert [one.code for one in relayed.answers.values()] == [
            ResponseCode.CONSUMER_NOT_ONLINE,
            ResponseCode.SUCCESS,
        ]
    finally:
        await guest.stop()
        await host.stop()
