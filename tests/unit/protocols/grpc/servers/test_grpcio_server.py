"""grpc.aio as the carrier: ports, sizes, pings, draining."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import grpc
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from protocols.grpc.rpcs.dispatcher import SERVICE
from protocols.grpc.servers import grpcio_server
from protocols.grpc.servers.grpcio_calls import GrpcioStream, peer_text
from protocols.grpc.servers.grpcio_server import OPTIONS
from protocols.grpc.transport import BrokenStream

Code = pb.Code


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ipv4:10.0.0.1:5", "10.0.0.1:5"),
        ("ipv6:%5B::1%5D:5", "[::1]:5"),
        ("ipv6:[::1]:5", "[::1]:5"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_the_peers_address_is_told_as_everywhere(theirs: str, ours: str) -> None:
    assert peer_text(theirs) == ours


def test_a_unix_socket_has_no_local_address(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(grpcio_server, "route_towards", looked_up.append)
    server = grpcio_server.GrpcioServer(None, "", 0, path="/run/popgate.sock")  # type: ignore[arg-type]
    assert server.local_towards("unix:") == ""
    assert looked_up == [], "a name server is asked for it, and the loop waits"


async def test_port_0_is_chosen_by_the_system_and_told(gateway: Any) -> None:
    assert gateway.port > 0
    assert gateway.adapter.addresses == [f"grpc://127.0.0.1:{gateway.port}"]


async def test_a_port_that_is_taken_is_refused_with_a_sentence(town: Any, gateway: Any) -> None:
    with pytest.raises(OSError, match=f"cannot listen at grpc://127.0.0.1:{gateway.port}"):
        await town.gateway(listen=f"grpc://127.0.0.1:{gateway.port}")


def test_an_option_that_nobody_knows_is_refused(tmp_path: Any) -> None:
    from protocols.adapter import AdapterContext, parse_listen
    from protocols.schemes import make_adapter

    adapter_context: Any = AdapterContext(processor=None, clock=None)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="no option 'advertized'; there are: advertised, mode, tls, transport"
    ):
        make_adapter(parse_listen("grpc://127.0.0.1:0?advertized=x"), adapter_context)
    with pytest.raises(ValueError, match=r"no protocol 'gprc'; these are: .*grpc"):
        make_adapter(parse_listen("gprc://127.0.0.1:0"), adapter_context)


async def test_ipv6_is_served(town: Any) -> None:
    gateway = await town.gateway(listen="grpc://[::1]:0")
    client = town.client(gateway)
    assert (await client.route()).status.code == Code.OK


async def test_a_request_far_above_grpcs_own_limit_is_read(client: Any) -> None:
    answer = await client.send(*(client.message(body=bytes(4 * 1024 * 1024)) for _ in range(4)))
    assert [entry.status.code for entry in answer.entries] == [Code.OK] * 4


async def test_scenario_09_pings_without_calls_do_not_cost_the_connection(gateway: Any) -> None:
    # Frame by frame: a server with gRPC's own limits says GOAWAY (too_many_pings) to the third ping.
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4))
    kinds = []
    for n in range(50):
        writer.write(frame(6, n.to_bytes(8, "big")))
        while True:
            header = await asyncio.wait_for(reader.readexactly(9), 60)
            payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
            kinds.append(header[3])
            assert header[3] != GOAWAY, payload
            if header[3] == 6 and header[4] & 1 and payload == n.to_bytes(8, "big"):
                break
    writer.close()
    await writer.wait_closed()
    assert kinds.count(6) >= 50


GOAWAY = 7


def frame(kind: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + bytes(4) + payload


CALL = b"".join(
    bytes([0, len(name)]) + name + bytes([len(value)]) + value
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"/{SERVICE}/Telemetry".encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
TELEMETRY = len(CALL).to_bytes(3, "big") + bytes([1, 4]) + (1).to_bytes(4, "big") + CALL
"""A frame that opens stream 1."""


def test_no_connection_is_sent_away_for_its_age_or_its_idleness() -> None:
    names = {name for name, _ in OPTIONS}
    assert not {name for name in names if "connection_age" in name or "connection_idle" in name}


async def test_draining_answers_long_polls_empty_and_ends_the_streams_well(town: Any) -> None:
    gateway = await town.gateway(real_time=True, limits=town.for_long)
    client = town.client(gateway)
    stream = await client.introduce(client.subscribing())
    polls = [asyncio.ensure_future(client.frames(wait_ms=town.long_ms, timeout=None)) for _ in range(5)]
    await town.until(lambda: gateway.processor.figures()["waiting_receives"] == 5)
    await gateway.adapter.drain(time.monotonic() + 60)
    for poll in polls:
        frames = await poll
        assert frames[0].status.code == Code.MESSAGE_NOT_FOUND
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_draining_lets_a_request_finish_and_takes_no_new_one(
    town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await town.gateway(real_time=True)
    client = town.client(gateway)
    go_on = asyncio.Event()
    begun = asyncio.Event()
    send = gateway.processor.send

    async def slowly(*arguments: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await send(*arguments)

    monkeypatch.setattr(gateway.processor, "send", slowly)
    sending = asyncio.ensure_future(client.send(client.message()))
    await begun.wait()
    draining = asyncio.ensure_future(gateway.adapter.drain(time.monotonic() + 60))
    await asyncio.sleep(0)
    late = town.client(gateway)

    async def refused() -> bool:
        try:
            await late.call("QueryRoute", rpc.QueryRouteRequest(), timeout=1)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
        return False

    await town.until(refused)
    go_on.set()
    assert (await sending).status.code == Code.OK
    await draining


async def test_draining_ends_answers_with_messages_before_clients_are_told_to_go(
    town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go's client drops the messages of an answer that has not ended when a call of its connection fails."""
    monkeypatch.setattr(grpcio_server, "_GATHER_S", 3600)
    gateway = await town.gateway(real_time=True, listen="grpc://127.0.0.1:0?transport=grpcio")
    server = gateway.adapter._server
    client = town.client(gateway)
    await client.introduce(client.subscribing())
    await client.send(client.message())
    begun = asyncio.Event()
    write = GrpcioStream.write

    async def during_the_drain(stream: GrpcioStream, answer: Any) -> None:
        begun.set()
        await town.until(lambda: server._told is not None)
        await write(stream, answer)

    monkeypatch.setattr(GrpcioStream, "write", during_the_drain)
    receiving = asyncio.ensure_future(client.frames())
    await begun.wait()
    draining = asyncio.ensure_future(gateway.adapter.drain(time.monotonic() + 7200))
    try:
        frames = await asyncio.wait_for(receiving, 60)
        assert frames[0].status.code == Code.OK
        assert not server._told.is_set()
    finally:
        draining.cancel()


async def test_a_drain_that_is_cut_short_lets_out_what_it_kept_back(
    town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a second signal: a send that is stored and not answered is sent again."""
    monkeypatch.setattr(grpcio_server, "_GATHER_S", 3600)
    gateway = await town.gateway(real_time=True, listen="grpc://127.0.0.1:0?transport=grpcio")
    server = gateway.adapter._server
    client = town.client(gateway)
    begun, answered = asyncio.Event(), asyncio.Event()
    unary = server._door.unary

    async def during_the_drain(*arguments: Any) -> Any:
        begun.set()
        await town.until(lambda: server._told is not None)
        answer = await unary(*arguments)
        answered.set()
        return answer

    monkeypatch.setattr(server._door, "unary", during_the_drain)
    sending = asyncio.ensure_future(client.send(client.message()))
    await begun.wait()
    draining = asyncio.ensure_future(gateway.adapter.drain(time.monotonic() + 7200))
    await answered.wait()
    draining.cancel()
    await asyncio.wait([draining])
    await gateway.adapter.stop()
    assert (await sending).status.code == Code.OK
    assert gateway.adapter.farewell().finished == 1


async def test_draining_ends_at_its_deadline(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await town.gateway(real_time=True)
    client = town.client(gateway)
    begun = asyncio.Event()

    async def never(*_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway.processor, "send", never)
    sending = asyncio.ensure_future(client.send(client.message()))
    await begun.wait()
    await gateway.adapter.drain(time.monotonic() + 0.05)
    with pytest.raises(grpc.aio.AioRpcError):
        await sending


async def test_a_drain_waits_for_streams_whose_client_has_just_gone(town: Any) -> None:
    """gRPC's own end does not: of what was still about to end it would be told that it was cut off."""
    gateway = await town.gateway(leaves_streams=lambda: True, listen="grpc://127.0.0.1:0?transport=grpcio")
    server = gateway.adapter._server
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow:
        async def telemetry(self, commands: Any, _call: Any) -> None:
            begun.set()
            with suppress(BrokenStream, asyncio.CancelledError):
                await commands.read()
            while not go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await go_on.wait()

    server._door = Slow()
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4) + TELEMETRY)
    await asyncio.wait_for(begun.wait(), 60)
    draining = asyncio.ensure_future(gateway.adapter.drain(gateway.clock.monotonic() + 3600))
    await town.until(lambda: server._closing is not None)
    writer.transport.abort()
    try:
        await town.until(lambda: server._closing.done())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not draining.done()
    finally:
        go_on.set()
    await asyncio.wait_for(draining, 60)
    assert gateway.adapter.farewell().streams == 1


async def test_a_stopped_adapter_leaves_nothing_behind(town: Any) -> None:
    gateway = await town.gateway()
    client = town.client(gateway)
    await client.introduce(client.producing())
    before = asyncio.all_tasks()
    await gateway.stop()
    await client.channel.close(None)

    def left() -> bool:
        return not [t for t in asyncio.all_tasks() - {asyncio.current_task()} if t in before and not t.done()]

    await town.until(left)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", gateway.port)
