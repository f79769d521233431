"""Three gateways before one broker, embedded in a host process or a real RocketMQ. They come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from popgate.testing import CREATE_ON_USE, GatewayProcess
from popgate.testing.rocketmq import PATIENT, RocketMQ, shared_rocketmq
from tests.replicas.balancer import Balancer
from tests.replicas.books import EmbeddedBooks, RocketMQBooks

EMBEDDED, ROCKETMQ = "embedded", "rocketmq"
BROKERS = (EMBEDDED, ROCKETMQ)
_QUICK = (
    *("--set", "limits.min_invisible_s=1"),
    *("--set", "transactions.first_check_s=2"),
    *("--set", "transactions.check_interval_s=2"),
    *("--set", "transactions.max_checks=1000"),
    # Clients that do not leave by themselves stay to its end.
    *("--set", "stopping.drain_s=15"),
)
CONSUME_TIMEOUT_MS = {EMBEDDED: 6_000, ROCKETMQ: 60_000}
"""RocketMQ counts it in minutes."""
READY_WITHIN_S = 300.0
"""Of a gateway, on a machine that has other things to do."""
HOLD_S = {EMBEDDED: 4, ROCKETMQ: 8}
"""The invisible time of simple consumers; a RocketMQ may drop what comes in its last moments."""


class Town:
    """`prefix` makes names of topics and groups one's own: others may use the same RocketMQ.

    `classic`, started: a balancer for classic clients, which every replica has a door for then.
    `name_server`: of the RocketMQ behind them, if there is one.
    """

    def __init__(
        self,
        kind: str,
        options: Sequence[str],
        host: GatewayProcess | None,
        classic: Balancer | None = None,
        name_server: str = "",
        transport: str = "",
    ) -> None:
        self.kind = kind
        self.classic = classic
        self.books = RocketMQBooks(name_server) if name_server else EmbeddedBooks(self.ask)
        self.host = host
        self.prefix = f"r{uuid.uuid4().hex[:8]}"
        doors = [f"grpc://127.0.0.1:0{f'?transport={transport}' if transport else ''}"]
        if classic is not None:
            doors.append(f"remoting://127.0.0.1:0?advertised={classic.address}")
        self.replicas = [GatewayProcess(listen=doors, options=options) for _ in range(3)]
        self.leaving: set[int] = set()
        """Of replicas that end or begin: a balancer knows that they are not ready."""
        self.ends: list[str] = []
        self.summaries: list[str] = []
        self.errors: list[str] = []
        self.balancer = Balancer(lambda: [self.endpoints[at] for at in range(3) if at not in self.leaving])
        self.endpoints: list[str] = []

    def named(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    async def start(self) -> None:
        # One after the other costs less than all at once, on few cores.
        await asyncio.gather(*(asyncio.to_thread(one.start, READY_WITHIN_S) for one in self.replicas))
        self.endpoints = [one.endpoint.partition("?")[0] for one in self.replicas]
        if self.classic is not None:
            doors = [one.addresses[1].partition("://")[2].partition("?")[0] for one in self.replicas]
            self.classic.serve(lambda: [doors[at] for at in range(3) if at not in self.leaving])
        await self.balancer.start()

    async def make_topic(self, name: str, kind: str, queues: int = 4) -> None:
        await self.ask("/api/topics", {"name": self.named(name), "types": [kind], "queues": queues})

    async def make_group(self, name: str, *, ordered: bool = False, max_attempts: int = 1_000) -> None:
        told = {"name": self.named(name), "ordered": ordered, "max_attempts": max_attempts}
        await self.ask("/api/groups", {**told, "consume_timeout_ms": CONSUME_TIMEOUT_MS[self.kind]})

    async def ask(self, path: str, told: dict[str, Any] | None = None, *, at: int = 0) -> Any:
        """An answer of a replica's admin port; POST when something is told."""

        def ask() -> Any:
            data = None if told is None else json.dumps(told).encode()
            request = urllib.request.Request(
                f"{self.replicas[at].admin}{path}", data, {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")

        return await asyncio.to_thread(ask)

    # -- replicas come and go -----------------------------------------------------------------------

    async def end_some(self, dice: random.Random, longest: float) -> None:
        """Let them live for a while, then end one of them, or two, and start their successors.

        The sleep waits for nothing: the seed chooses by it at which moment an end comes.
        """
        await asyncio.sleep(dice.uniform(0.1, longest))
        which = dice.sample(range(3), 2 if dice.random() < 0.25 else 1)
        ways = [dice.choices(("killed", "drained"), (6, 4))[0] for _ in which]
        await asyncio.gather(*(self.replace(at, way) for at, way in zip(which, ways, strict=True)))

    async def replace(self, at: int, way: str) -> None:
        replica = self.replicas[at]
        if way == "killed":
            await asyncio.to_thread(replica.kill)
            self.leaving.add(at)
        else:
            self.leaving.add(at)
            await self.drain(at)
        self.ends.append(way)
        await self.begin_anew(at)
        self.leaving.discard(at)

    async def drain(self, at: int) -> None:
        """Let one end well; the balancer is not told."""
        replica, began = self.replicas[at], time.monotonic()
        code = await asyncio.to_thread(replica.terminate)
        self._judge_drain(replica, code, time.monotonic() - began)

    async def begin_anew(self, at: int) -> None:
        """Start the successor of one that has ended."""
        replica = self.replicas[at]
        self._keep_errors(replica)
        self.replicas[at] = replica.successor()
        await asyncio.to_thread(self.replicas[at].start, READY_WITHIN_S)

    def _judge_drain(self, replica: GatewayProcess, code: int, took_s: float) -> None:
        summary = next((line for line in replica.output.splitlines() if line.startswith("stopped ")), "")
        self.summaries.append(f"{summary} in {took_s:.1f} s")
        if code or not summary:
            self.errors.append(f"a drained replica ended with {code}: {summary or 'it said nothing'}")

    def _keep_errors(self, replica: GatewayProcess) -> None:
        errors = [line for line in replica.log.splitlines() if '"level": "error"' in line]
        self.errors += [line for line in errors if "FAULTS ARE ON" not in line]
        if "Traceback" in replica.log:
            self.errors.append(replica.log[replica.log.index("Traceback") :][:3_000])

    async def close(self) -> None:
        await self.balancer.close()
        if self.classic is not None:
            await self.classic.close()
        for replica in [*self.replicas, *([self.host] if self.host is not None else [])]:
            with contextlib.suppress(RuntimeError):
                await asyncio.to_thread(replica.close)
            self._keep_errors(replica)


@contextlib.asynccontextmanager
async def town_before(
    kind: str,
    folder: Path,
    *,
    options: Sequence[str] = (),
    classic: bool = False,
    transport: str = "",
    cluster: RocketMQ | None = None,
) -> AsyncIterator[Town]:
    """Three gateways that are ready. Raises Missing where there is no RocketMQ.

    `cluster`, started: the RocketMQ behind them, in the place of the one that all tests share.
    """
    async with contextlib.AsyncExitStack() as stack:
        host, name_server = None, ""
        if kind == EMBEDDED:
            socket = folder / "s"
            host = GatewayProcess(folder / "host", options=(*_QUICK, "--share-broker", f"unix:{socket}"))
            stack.push_async_callback(asyncio.to_thread, host.close)
            await asyncio.to_thread(host.start, READY_WITHIN_S)
            where = ("--broker", f"popgate+unix:{socket}")
        else:
            if cluster is None:
                sharing = shared_rocketmq()
                shared = await asyncio.to_thread(sharing.__enter__)
                stack.callback(sharing.__exit__, None, None, None)
                name_server, url = shared.name_server, shared.url
            else:
                name_server, url = cluster.addresses[0], cluster.url
            key = "one key for all of the replicas."
            where = (
                "--broker",
                url,
                *CREATE_ON_USE,
                *PATIENT,
                "--set",
                f"remote.transaction_key={key}",
            )
        door = await Balancer(lambda: ()).start() if classic else None
        town = Town(kind, (*where, *_QUICK, *options), host, door, name_server, transport)
        stack.push_async_callback(town.close)
        await town.start()
        yield town
