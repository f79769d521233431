"""The remoting door of whole gateways, spoken to byte by byte: encodings, nonsense, TLS, workers, SIGTERM."""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.gateway import GatewayProcess, running_gateway
from popgate.testing.papers import Papers
from popgate.testing.remoting import ANSWER_S, RemotingClient
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import V5_3_1, Command, encode_command
from popgate.wire.messages.records import decode_records
from tests.e2e.clients import Client

DOORS = ("grpc://127.0.0.1:0", "remoting://127.0.0.1:0")
OLD, NEW = V5_3_1, V5_3_1 + 1


def port_of(gateway: GatewayProcess) -> int:
    address = next(one for one in gateway.addresses if one.startswith("remoting://"))
    return int(address.rpartition(":")[2])


async def client_of(gateway: GatewayProcess, **how: Any) -> RemotingClient:
    return await RemotingClient.connect("127.0.0.1", port_of(gateway), **how)


def sent(body: str) -> tuple[int, Mapping[str, str], bytes]:
    fields = {"a": "writers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return RequestCode.SEND_MESSAGE_V2, {**fields, "i": "TAGS\x01a\x02", "m": "false"}, body.encode()


def pulled(offset: int = 0, wait_ms: int = 0) -> tuple[int, Mapping[str, str]]:
    return RequestCode.PULL_MESSAGE, {
        "consumerGroup": "readers",
        "topic": "orders",
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6" if wait_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def bodies(answer: Command) -> list[bytes]:
    return [one.body for one in decode_records(answer.body)]


def told(gateway: GatewayProcess) -> dict[str, int]:
    """The summary that the gateway printed."""
    line = next(line for line in gateway.output.splitlines() if line.startswith("stopped "))
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line)}


@asynccontextmanager
async def running(*options: str, listen: tuple[str, ...] = DOORS) -> AsyncIterator[GatewayProcess]:
    async with running_gateway(listen=listen, options=options) as gateway:
        yield gateway


@pytest.mark.parametrize("serialization", list(Serialization))
async def test_a_message_goes_in_and_out_in_either_encoding_and_at_the_other_door(
    serialization: Serialization,
) -> None:
    async with running() as gateway:
        client = await client_of(gateway, serialization=serialization, version=OLD)

        answer = await client.call(*sent("hello"))

        assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "0", "0")
        assert answer.serialization is serialization
        assert bodies(await client.call(*pulled())) == [b"hello"]
        other = Client(gateway.endpoint, "other")
        _, messages = await other.receive("orders", "others", 5)
        assert [one.body for one in messages] == [b"hello"]
        await other.channel.close(None)
        await client.close()


async def test_requests_that_come_byte_by_byte_and_nonsense() -> None:
    async with running() as gateway:
        slow, wrong = await client_of(gateway), await client_of(gateway)
        request = slow.request(*sent("slow"))
        answer = slow.awaited(request)
        for byte in encode_command(request):
            slow.write(bytes((byte,)))
            await asyncio.sleep(0)
        wrong.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

        await wrong.until_over()
        assert (await answer).code == ResponseCode.SUCCESS
        unknown = await slow.call(31_000)
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "Traceback" not in gateway.log
        await slow.close()


async def test_tls(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    certificate, key = papers.pair("gateway")
    options = ("--set", f"tls.certificate={certificate}", "--set", f"tls.key={key}")
    async with running(*options, listen=("remoting://127.0.0.1:0?tls=true",)) as gateway:
        client = await client_of(gateway, tls=ssl.create_default_context(cafile=papers.authority))

        assert (await client.call(*sent("secret"))).code == ResponseCode.SUCCESS
        assert bodies(await client.call(*pulled())) == [b"secret"]
        await client.close()


async def test_two_workers_serve_the_connections_of_one_door() -> None:
    async with running("--workers", "2") as gateway:
        clients = [await client_of(gateway) for _ in range(4)]

        for number, client in enumerate(clients):
            assert (await client.call(*sent(f"m{number}"))).code == ResponseCode.SUCCESS

        for client in clients:
            assert bodies(await client.call(*pulled())) == [b"m0", b"m1", b"m2", b"m3"]
            await client.close()


async def test_sigterm_ends_polls_sends_newer_clients_away_and_serves_older_ones() -> None:
    async with running("--set", "stopping.drain_s=100") as gateway:
        old, new = await client_of(gateway, version=OLD), await client_of(gateway, version=NEW)
        assert (await old.call(*sent("one"))).code == ResponseCode.SUCCESS
        polls = [client.start(*pulled(1, 60_000)) for client in (old, new)]
        # Both are known to wait when what came behind them is answered.
        for client in (old, new):
            assert (await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})).code == 0

        # A connection in the middle of a request is not ended for being quiet, however slow this test is.
        requests = [old.request(*sent("two")), new.request(*sent("elsewhere"))]
        answers = [old.awaited(requests[0]), new.awaited(requests[1])]
        frames = [encode_command(one) for one in requests]
        old.write(frames[0][:-1])
        new.write(frames[1][:-1])
        await asyncio.to_thread(gateway.signal, signal.SIGTERM)

        async with asyncio.timeout(ANSWER_S):
            for poll in polls:
                assert (await poll).code == ResponseCode.PULL_NOT_FOUND
            old.write(frames[0][-1:])
            new.write(frames[1][-1:])
            assert [(await one).code for one in answers] == [ResponseCode.SUCCESS, ResponseCode.GO_AWAY]
        await new.until_over()
        await old.until_over()
        assert await asyncio.to_thread(gateway.wait) == 0
        assert told(gateway)["requests_cut_off"] == 0
