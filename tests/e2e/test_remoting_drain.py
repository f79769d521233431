"""SIGTERM under the load of classic clients: they go to the other gateway, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.remoting import RemotingClient
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import V5_3_1, Command
from popgate.wire.messages.records import decode_records
from tests.support.waiting import until

OLD, NEW = V5_3_1, V5_3_1 + 1


def port_of(gateway: GatewayProcess) -> int:
    return int(gateway.addresses[0].rpartition(":")[2])


class Producer:
    """Sends to the first gateway, one message after the other; to the second when it is told or cut off."""

    def __init__(self, name: str, version: int, ports: tuple[int, int]) -> None:
        self.name = name
        self.version = version
        self._ports = list(ports)
        self.stored: list[bytes] = []
        self.told_to_go = self.cut_off = 0
        self.over = False
        self._client: RemotingClient | None = None

    @property
    def moved(self) -> bool:
        return len(self._ports) == 1

    async def run(self) -> None:
        number = 0
        await self._connect()
        while not self.over:
            body = f"{self.name}-{number}".encode()
            number += 1
            try:
                answer = await self._send(body)
            except ConnectionError:
                self.cut_off += 1
                answer = await self._again(body)
            if answer.code == ResponseCode.GO_AWAY:
                self.told_to_go += 1
                answer = await self._again(body)
            assert answer.code == ResponseCode.SUCCESS, answer
            self.stored.append(body)
        await self.close()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> None:
        await self.close()
        self._client = await RemotingClient.connect("127.0.0.1", self._ports[0], version=self.version)

    async def _again(self, body: bytes) -> Command:
        """What RocketMQ's own clients do: once, by a new connection."""
        assert not self.moved, f"{self.name} was sent away twice"
        self._ports.pop(0)
        await self._connect()
        return await self._send(body)

    async def _send(self, body: bytes) -> Command:
        assert self._client is not None
        if self._client.is_over:
            raise ConnectionError("the connection ended")
        fields = {
            "a": "writers",
            "b": "orders",
            "c": "TBW102",
            "d": "1",
            "e": "0",
            "f": "0",
            "g": "1",
            "h": "0",
        }
        return await self._client.call(RequestCode.SEND_MESSAGE_V2, {**fields, "i": ""}, body)


async def pulled(port: int) -> list[bytes]:
    client = await RemotingClient.connect("127.0.0.1", port)
    found: list[bytes] = []
    offset = 0
    while True:
        fields = {"consumerGroup": "readers", "topic": "orders", "queueId": "0", "queueOffset": str(offset)}
        more = {
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        answer = await client.call(RequestCode.PULL_MESSAGE, {**fields, **more, "expressionType": "TAG"})
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
            await client.close()
            return found
        found += [one.body for one in decode_records(answer.body)]
        offset = int(answer.fields["nextBeginOffset"])


@pytest.fixture
def shared(socket_folder: Path) -> Path:
    return socket_folder / "broker"


async def test_producers_of_any_age_go_to_the_other_gateway_and_lose_nothing(
    tmp_path: Path, shared: Path
) -> None:
    host = GatewayProcess(
        tmp_path / "host",
        listen=("remoting://127.0.0.1:0",),
        options=("--share-broker", f"unix:{shared}"),
    )
    guest = GatewayProcess(
        tmp_path / "guest",
        listen=("remoting://127.0.0.1:0",),
        options=(
            *("--broker", f"popgate+unix:{shared}", "--workers", "1", "--set", "stopping.drain_s=5"),
            # No call may fail while the host, or the machine, stands still.
            *("--set", "shared.startup_timeout_s=100", "--set", "shared.request_timeout_s=50"),
        ),
    )
    try:
        await asyncio.to_thread(host.start)
        await asyncio.to_thread(guest.start)
        ports = port_of(guest), port_of(host)
        producers = [Producer(f"{kind}-{n}", kind, ports) for kind in (OLD, NEW) for n in range(3)]
        running = asyncio.gather(*(one.run() for one in producers))
        await until(lambda: running.done() or all(len(one.stored) > 20 for one in producers))

        await asyncio.to_thread(guest.signal, signal.SIGTERM)
        await until(lambda: running.done() or all(one.moved for one in producers))
        for one in producers:
            one.over = True
        await running

        assert await asyncio.to_thread(guest.wait) == 0
        stored = Counter(await pulled(ports[1]))
        for one in producers:
            assert not [body for body in one.stored if not stored[body]]
            # Only what was sent again may be there twice, and each was sent away once.
            assert sum(stored[body] - 1 for body in one.stored) <= 1
            assert one.told_to_go + one.cut_off == 1
    finally:
        await asyncio.to_thread(guest.close)
        await asyncio.to_thread(host.close)
