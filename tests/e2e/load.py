"""Clients at work beside a test, which note every call that failed."""

from __future__ import annotations

import asyncio

import grpc.aio

from popgate.pb import definition_pb2 as pb
from popgate.testing import GatewayProcess
from tests.e2e.clients import Client
from tests.support.waiting import PATIENCE_S, until

LONGEST_S = 2 * PATIENCE_S
"""A renewal starts four processes one after the other, which took a busy machine more than a minute."""


class Load:
    """Clients at work that note every call that failed."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.clients = [Client(gateway.endpoint, f"load-{number}") for number in range(6)]
        self.sent = 0
        self.got = 0
        self.failed: list[str] = []
        self.over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._produce(one)) for one in self.clients[:3]]
        self._tasks += [asyncio.create_task(self._consume(one)) for one in self.clients[3:]]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.over = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), PATIENCE_S)
        for client in self.clients:
            await client.channel.close()

    async def _produce(self, client: Client) -> None:
        while not self.over:
            try:
                await client.send("orders", b"x")
                self.sent += 1
            except (grpc.aio.AioRpcError, AssertionError) as error:
                self.failed.append(f"send: {error}")
            await asyncio.sleep(0.002)

    async def _consume(self, client: Client) -> None:
        while not self.over:
            try:
                code, messages = await client.receive("orders", "workers", 1)
                assert code in (pb.OK, pb.MESSAGE_NOT_FOUND), code
                self.got += len(messages)
                if messages:
                    await client.ack("orders", "workers", messages)
            except (grpc.aio.AioRpcError, AssertionError) as error:
                self.failed.append(f"receive: {error}")

    async def more(self, count: int) -> None:
        """Wait until so many more were sent and received."""
        sent, got = self.sent + count, self.got + count
        await until(lambda: self.sent >= sent and self.got >= got, LONGEST_S)
