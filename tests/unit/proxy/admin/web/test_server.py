"""The admin port itself: health, metrics, errors, and what keeps web pages out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from popgate import __version__
from popgate.errors import Fault
from proxy.admin.web import server
from proxy.admin.web.statuses import status_of
from proxy.app import App, build
from proxy.config.settings import Settings


async def test_health_readiness_and_version(app: App, api: Any) -> None:
    assert await api.get("/health") == (200, {"status": "ok", "state": "ready"})
    assert await api.get("/ready") == (200, {"state": "ready"})
    _, told = await api.get("/api/version")
    assert told["version"] == __version__
    assert told["listening"] == app.addresses


async def test_scenario_07_readiness_ends_before_the_doors_close(app: App, api: Any) -> None:
    await app.drain()
    assert await api.get("/ready") == (503, {"state": "draining"})
    assert (await api.get("/health"))[0] == 200


async def test_a_gateway_whose_store_cannot_be_written_is_not_ready(
    app: App, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = app.broker.figures()
    monkeypatch.setattr(type(app.broker), "figures", lambda _broker: {**figures, "store_failing": 1.0})
    assert await api.get("/ready") == (503, {"state": "failing"})
    assert b"popgate_ready 0.0" in app.metrics.text()


async def test_scenario_13_metrics_are_on_by_default(app: App, api: Any) -> None:
    await api.post("/api/topics/orders/messages", {"messages": [{"body": "x"}]})
    async with api.session.get(f"{api.address}/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await answer.text()
    assert 'popgate_messages_sent_total{topic="orders"} 1.0' in text
    assert "popgate_ready 1.0" in text
    assert "process_resident_memory_bytes" in text
    assert "popgate_broker_" in text


async def test_effective_settings_are_told(app: App, api: Any) -> None:
    _, told = await api.get("/api/settings")
    assert told["durability"] == "none"
    assert told["limits"]["max_body_bytes"] == 4 << 20


@pytest.mark.parametrize(
    ("method", "path", "status", "fault"),
    [
        ("GET", "/", 404, "NOT_FOUND"),
        ("GET", "/api/nothing", 404, "NOT_FOUND"),
        ("PUT", "/api/topics", 405, "METHOD_NOT_ALLOWED"),
    ],
)
async def test_errors_of_the_server_are_json_too(
    api: Any, method: str, path: str, status: int, fault: str
) -> None:
    async with api.session.request(method, api.address + path) as answer:
        assert answer.status == status
        assert (await answer.json())["fault"] == fault


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff", b'{"name": NaN'])
async def test_a_body_that_is_no_json_is_refused(api: Any, data: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with api.session.post(f"{api.address}/api/topics", data=data, headers=headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["fault"] == "BAD_REQUEST"


async def test_a_web_page_cannot_post_without_asking_first(api: Any) -> None:
    headers = {"Content-Type": "text/plain"}
    async with api.session.post(
        f"{api.address}/api/topics", data=b'{"name": "t"}', headers=headers
    ) as answer:
        assert answer.status == 400
        assert "application/json" in (await answer.json())["message"]
    async with api.session.options(f"{api.address}/api/topics") as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert answer.status == 405


async def test_a_name_that_points_at_loopback_is_not_answered(api: Any) -> None:
    for host, status in (("evil.example", 400), ("localhost", 200), ("127.0.0.1:1", 200), ("[::1]", 200)):
        async with api.session.get(f"{api.address}/api/version", headers={"Host": host}) as answer:
            assert answer.status == status, host


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://127.0.0.1:1", "http://["])
async def test_a_page_of_another_origin_changes_nothing(api: Any, origin: str) -> None:
    headers = {"Origin": origin}
    for method, path in (("POST", "/api/topics"), ("DELETE", "/api/topics/orders")):
        async with api.session.request(
            method, api.address + path, json={"name": "orders"}, headers=headers
        ) as answer:
            assert (answer.status, (await answer.json())["fault"]) == (403, "FORBIDDEN")
    assert await api.get("/api/topics") == (200, {"topics": []})


async def test_a_page_of_the_gateways_own_origin_may(api: Any) -> None:
    async with api.session.post(
        f"{api.address}/api/topics", json={"name": "orders"}, headers={"Origin": api.address}
    ) as answer:
        assert answer.status == 201


async def test_a_host_that_cannot_be_one_is_the_callers_fault(api: Any) -> None:
    for host in ("127.0.0.1:99999", "a b", "", "[::1", "[", "%"):
        async with api.session.get(f"{api.address}/api/version", headers={"Host": host}) as answer:
            assert answer.status in (200, 400), host
            assert answer.status == 200 or (await answer.json())["fault"] == "BAD_REQUEST"


async def test_names_of_the_settings_are_answered(settings_for: Callable[..., Settings]) -> None:
    app = build(settings_for(api={"hosts": "popgate.example"}))
    await app.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{app.admin_address}/api/version", headers={"Host": "Popgate.Example"}) as answer,
        ):
            assert answer.status == 200
    finally:
        await app.stop()


async def test_a_bug_is_an_internal_error_without_its_details(
    app: App, api: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_arguments: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(app.processor.metadata, "topics", broken)
    status, told = await api.get("/api/topics")
    assert (status, told["fault"]) == (500, "INTERNAL")
    assert "secret detail" not in told["message"]
    assert "secret detail" in caplog.text


def test_every_fault_has_a_status() -> None:
    assert {status_of(fault) for fault in Fault} <= {
        400,
        401,
        403,
        404,
        409,
        412,
        413,
        429,
        500,
        501,
        503,
        504,
    }
    assert [fault for fault in Fault if status_of(fault) == 500] == [Fault.INTERNAL]


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["long line", "long header", "no length"],
)
async def test_what_is_no_http_is_refused_with_one_line_in_the_log(
    app: App, caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    host, _, port = app.admin_address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert answer.split(b" ")[1] in (b"400", b"414")
    [line] = [record for record in caplog.records if record.name.startswith(("aiohttp", "popgate.admin"))]
    assert (line.levelname, line.exc_info) == ("WARNING", None)
    assert len(line.getMessage()) < 250


async def test_grpcs_health_check_follows_the_store_as_readiness_does(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = app.broker.figures()
    async with grpc.aio.insecure_channel(app.addresses[0].removeprefix("grpc://")) as channel:
        probe = health_pb2_grpc.HealthStub(channel)
        told = await probe.Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert told.status == health_pb2.HealthCheckResponse.SERVING
        monkeypatch.setattr(type(app.broker), "figures", lambda _broker: {**figures, "store_failing": 1.0})
        told = await probe.Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_who_was_handed_over_in_the_last_moment_is_answered_before_the_end(
    settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_UNASKED_S", 100.0)
    app = build(settings_for())
    await app.start()
    assert app.admin is not None
    admin = app.admin
    ours, operator = socket.socketpair()
    stopping: list[asyncio.Task[None]] = []

    async def hand_over() -> None:
        admin.adopt(ours)  # the supervisor had sent it; it comes before its word that there are no more

    admin.before_stop = hand_over
    reader, writer = await asyncio.open_connection(sock=operator)
    stopping.append(asyncio.ensure_future(app.stop()))
    async with asyncio.timeout(100):
        while "closed" not in repr(app.broker):
            await asyncio.sleep(0.005)
        writer.write(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await reader.read()
        await stopping[0]
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close" in answer
    writer.close()


async def test_who_was_handed_over_and_went_away_without_a_word_holds_nothing_up(
    settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_UNASKED_S", 1e9)
    monkeypatch.setattr(server, "_MANY_UNASKED", 4)
    app = build(settings_for())
    await app.start()
    assert app.admin is not None
    for _ in range(20):
        ours, operator = socket.socketpair()
        app.admin.adopt(ours)
        operator.close()
        async with asyncio.timeout(100):
            while app.admin._has_unasked():
                await asyncio.sleep(0)
    async with asyncio.timeout(100):
        await app.stop()
