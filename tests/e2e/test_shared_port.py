"""gRPC and remoting at one port of a whole gateway, with TLS and without, served by two workers."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import urllib.request
from pathlib import Path

from popgate.testing.gateway import GatewayProcess, running_gateway
from popgate.testing.papers import Papers
from popgate.testing.remoting import RemotingClient
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.records import decode_records
from tests.support.waiting import PATIENCE_S, until

_CLIENT_S = 2 * PATIENCE_S
"""For a whole process of an official client, from its start to its end."""
WAYS = (("grpc", "no"), ("grpc", "yes"), ("remoting", "no"), ("remoting", "yes"))
UNKNOWN = 'violations_total{kind="unknown"}'
_SENDS = """
import sys
from rocketmq import ClientConfiguration, Credentials, Message, Producer

endpoint, body, secured = sys.argv[1:]
configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=45)
producer = Producer(configuration, ("orders",), tls_enable=secured == "tls")
producer.startup()
message = Message()
message.topic = "orders"
message.body = body.encode()
print("sent", producer.send(message).message_id)
producer.shutdown()
"""
"""The official Python client, as its users use it."""


async def official_sends(endpoint: str, body: str, papers: Papers, folder: Path, *, tls: bool) -> str:
    """What it printed."""
    environment = os.environ | {
        "HOME": str(folder),
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(papers.authority),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SENDS, endpoint, body, "tls" if tls else "plain"),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_CLIENT_S):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return said.decode()


def request(body: str) -> tuple[int, dict[str, str], bytes]:
    fields = {"a": "writers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return RequestCode.SEND_MESSAGE_V2, {**fields, "i": "", "m": "false"}, body.encode()


async def bodies(client: RemotingClient) -> list[bytes]:
    """What is in all queues of the topic."""
    found = []
    for queue in range(4):
        asked = {"consumerGroup": "readers", "topic": "orders", "queueId": str(queue), "queueOffset": "0"}
        asked |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
        asked |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        answer = await client.call(RequestCode.PULL_MESSAGE, asked)
        found += [one.body for one in decode_records(answer.body)] if answer.body else []
    return sorted(found)


def sniffed(gateway: GatewayProcess) -> dict[str, float]:
    """What connections spoke, of all workers."""
    with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    told = (line.removeprefix("popgate_sniffing_").rpartition(" ") for line in lines)
    return {name: float(count) for name, _, count in told if name.startswith(("found", "violations"))}


async def test_official_and_classic_clients_at_one_port_with_tls_and_without(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    certificate, key = papers.pair("gateway")
    options = ("--workers", "2", "--set", f"tls.certificate={certificate}", "--set", f"tls.key={key}")
    listen = ("grpc+remoting://127.0.0.1:0?tls=permissive",)
    async with running_gateway(listen=listen, options=options) as gateway:
        assert gateway.addresses == [f"grpc+remoting://{gateway.endpoint}"]
        port = int(gateway.endpoint.rpartition(":")[2])
        secure = ssl.create_default_context(cafile=papers.authority)
        plain = await RemotingClient.connect("127.0.0.1", port)
        secured = await RemotingClient.connect("127.0.0.1", port, tls=secure)

        for client, body in ((plain, "a"), (secured, "b")):
            assert (await client.call(*request(body))).code == ResponseCode.SUCCESS
        for body, tls in (("c", False), ("d", True)):
            said = await official_sends(gateway.endpoint, body, papers, tmp_path, tls=tls)
            assert "sent " in said, said

        for client in (plain, secured):
            assert await bodies(client) == [b"a", b"b", b"c", b"d"]
        wrong = await RemotingClient.connect("127.0.0.1", port)
        wrong.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await wrong.until_over()
        for client in (plain, secured):
            await client.close()
        ways = [f'found_total{{protocol="{protocol}",tls="{tls}"}}' for protocol, tls in WAYS]
        told: dict[str, float] = {}

        async def all_told() -> bool:
            # A worker that does not answer the other one in time, because the machine is busy, is left out.
            told.clear()
            told.update(await asyncio.to_thread(sniffed, gateway))
            return all(told.get(one) for one in (UNKNOWN, *ways))

        await until(all_told, seen=lambda: told)
        assert told[UNKNOWN] == 1
        # Each of the official ones opens as many as it likes.
        assert all(told[way] >= 1 for way in ways)
        assert "Traceback" not in gateway.log
