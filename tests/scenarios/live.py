"""The scenarios before a real RocketMQ: gateways before the cluster that all tests of this machine share.

Nothing there moves time, so these tests run side by side, as those of the contract do
(`tests/contract/live.py`). Topics and groups are made as users make them, with the admin port of a gateway
that runs all the while; their names are each test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc.aio

from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.errors import BrokerUnavailable
from popgate.faults import Faults
from popgate.pb.duration_pb2 import Duration
from popgate.testing import CREATE_ON_USE, GatewayProcess
from popgate.testing.rocketmq import SharedRocketMQ
from popgate.wire.frames.codes import RequestCode
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from protocols.adapter import AdapterContext, parse_listen
from protocols.schemes import make_adapter
from tests.support.evidence import threads_at_work
from tests.support.waiting import PATIENCE_S, until

START_S = 240.0
"""For a gateway process, likewise."""
ANSWER_S = 60.0
"""For an answer of the cluster, or a sign of life. A broker makes one topic after the other, and answers when
its name server has it, for which it waits up to 24 s; one that stands still for long is still there."""
HOLD_S = 600
"""An invisible time that is over for no test, unless it asks for another: a busy broker may give messages
one by one, minutes apart, and all of them are acknowledged then."""
LONGEST_WAIT_S = 60.0
"""Of a receive, in gateways that no test gives limits of its own: as shipped 20 s, which a busy machine
takes to begin two of them."""
TRANSACTION_KEY = "live-scenarios-0123456789-abcdefghij"


class Hall:
    """A gateway process before the cluster, started when the first test asks for it."""

    def __init__(self, cluster: SharedRocketMQ) -> None:
        self.cluster = cluster
        self._gateway: GatewayProcess | None = None
        self._lock = asyncio.Lock()

    async def gateway(self) -> GatewayProcess:
        async with self._lock:
            if self._gateway is None:
                gateway = self.process()
                await asyncio.to_thread(gateway.start, START_S)
                self._gateway = gateway
            return self._gateway

    def process(self, *settings: str) -> GatewayProcess:
        """One more gateway process, not started, that ends transactions of all others."""
        wanted = (
            f"remote.transaction_key={TRANSACTION_KEY}",
            f"remote.connect_timeout_s={ANSWER_S:g}",
            f"remote.request_timeout_s={ANSWER_S:g}",
            f"remote.probe_s={ANSWER_S:g}",
            *settings,
        )
        options = [
            "--broker",
            self.cluster.url,
            *CREATE_ON_USE,
            *(word for one in wanted for word in ("--set", one)),
        ]
        return GatewayProcess(options=options)

    def close(self) -> None:
        if self._gateway is not None:
            self._gateway.close()


class Replica:
    """A gateway in this process: broker, processor and gRPC door, with the faults it was ordered."""

    def __init__(
        self, settings: RemoteSettings, faults: str, limits: Limits, observer: Any, ping_s: float
    ) -> None:
        clock = SystemClock()
        self.faults = Faults.parse(faults) if faults else None
        self.broker = RemoteBroker(settings, clock=clock)
        self.observer = observer
        self.processor = MessagingProcessor(self.broker, clock=clock, limits=limits, observer=observer)
        adapter_context = AdapterContext(self.processor, clock, faults=self.faults, connection_ping_s=ping_s)
        self.adapter = make_adapter(parse_listen("grpc://127.0.0.1:0"), adapter_context)
        if self.faults is not None:
            self.faults.refuse_unclaimed()
        self.asked: Counter[int] = Counter()
        """Requests to brokers and name servers by code, since `watch`."""
        self._refusing: dict[int, int] = {}
        self._stopped = False

    async def start(self) -> None:
        await self.broker.start()
        await self.processor.start()
        await self.adapter.start()
        self.endpoint = self.adapter.addresses[0].removeprefix("grpc://")

    async def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            await self.adapter.stop()
            await self.processor.stop()
            await self.broker.stop()

    def watch(self) -> None:
        """Count what brokers are asked from now on, and let `refuse` happen."""
        links = self.broker.access.connections
        call = links.call

        async def counted(address: str, code: int, *arguments: Any, **more: Any) -> Any:
            self.asked[code] += 1
            if self._refusing.get(code, 0) > 0:
                self._refusing[code] -= 1
                raise BrokerUnavailable(f"{address} was cut off on purpose")
            return await call(address, code, *arguments, **more)

        links.call = counted  # type: ignore[method-assign]

    def refuse(self, *codes: RequestCode, times: int) -> None:
        """As if the next requests of these kinds found no connection."""
        self._refusing.update(dict.fromkeys(map(int, codes), times))


class Live:
    """Makes gateways, clients, topics and groups for one test, and takes them down again."""

    def __init__(
        self, hall: Hall, client: type[Any], observer: type[Any], *, name: str | None = None
    ) -> None:
        self.cluster = hall.cluster
        self.until = until
        self._hall = hall
        self._client = client
        self._observer = observer
        self.name = name or f"live-{uuid.uuid4().hex[:10]}"
        """Begins the names of this test's topics and groups."""
        self._channels: list[grpc.aio.Channel] = []
        self._replicas: list[Replica] = []
        self._processes: list[GatewayProcess] = []
        self._number = 0

    # -- gateways and clients -----------------------------------------------------------------

    async def gateway(
        self,
        faults: str = "",
        *,
        limits: Limits | None = None,
        name_servers: Sequence[str] = (),
        ping_s: float = 20.0,
        **settings: Any,
    ) -> Replica:
        """A gateway in this process."""
        servers = tuple(name_servers) or (self.cluster.name_server,)
        patient = dict.fromkeys(("connect_timeout_s", "request_timeout_s", "probe_s"), ANSWER_S)
        settings = {**patient, **settings}
        wanted = RemoteSettings(
            name_servers=servers, transaction_keys=(TRANSACTION_KEY.encode(),), **settings
        )
        made = Replica(wanted, faults, limits or Limits(max_wait_s=LONGEST_WAIT_S), self._observer(), ping_s)
        self._replicas.append(made)
        await made.start()
        return made

    async def process(self, *settings: str) -> GatewayProcess:
        """A gateway in a process of its own, which may be killed."""
        made = self._hall.process(*settings)
        self._processes.append(made)
        await asyncio.to_thread(made.start, START_S)
        return made

    async def survivor(self) -> GatewayProcess:
        """The gateway process that is there all the while."""
        return await self._hall.gateway()

    async def killed(self, gateway: GatewayProcess) -> None:
        await asyncio.to_thread(gateway.kill)

    def client(self, gateway: Any, **headers: str) -> Any:
        """A client with a connection of its own, to a gateway of either kind."""
        headers.setdefault("client_id", f"client-{uuid.uuid4().hex[:8]}")
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channel = grpc.aio.insecure_channel(gateway.endpoint, options=options)
        self._channels.append(channel)
        return self._client(channel, int(gateway.endpoint.rpartition(":")[2]), **headers)

    # -- topics and groups --------------------------------------------------------------------

    def fresh(self) -> str:
        """A name that nothing has yet."""
        self._number += 1
        return f"{self.name}-{self._number}"

    async def topic(self, *types: str, **settings: Any) -> str:
        return await self._made("/api/topics", types=types or ("NORMAL",), **settings)

    async def group(self, **settings: Any) -> str:
        return await self._made("/api/groups", **settings)

    async def _made(self, path: str, **settings: Any) -> str:
        name = self.fresh()
        await self.admin(path, {"name": name, **settings})
        return name

    async def written_down(self, client: Any, topic: str, count: int) -> None:
        """Wait until one receive can have all that was sent: where it is a broker writes down a moment after
        its answer, and of an ordered group what comes first keeps the rest back."""
        assert len(await client.gather(topic, await self.group(), count)) == count

    async def admin(self, path: str, body: object) -> Any:
        """What the admin port answers to a body. Fails when it refuses."""
        gateway = await self.survivor()
        try:
            return await asyncio.to_thread(_post, f"{gateway.admin}{path}", body)
        except AssertionError as refused:
            if "BROKER_TIMEOUT" in str(refused):
                refused.add_note("\n".join(await asyncio.to_thread(threads_at_work, self.cluster)))
            raise

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        for replica in self._replicas:
            await replica.stop()
        for process in self._processes:
            await asyncio.to_thread(process.close)


def _post(address: str, body: object) -> Any:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            raise AssertionError(f"{address}: {refused.code} {refused.read().decode()}") from None


def patient(client: type[Any]) -> type[Any]:
    """A kind of client whose calls may take as long as a busy machine needs."""

    class Patient(client):  # type: ignore[misc]
        async def call(self, name: str, request: Any, timeout: float | None = PATIENCE_S) -> Any:
            return await super().call(name, request, timeout)

        def stream(self, request: Any, timeout: float | None = PATIENCE_S) -> Any:
            return super().stream(request, timeout)

        def receive_request(self, topic: str = "t", group: str = "g", **fields: Any) -> Any:
            if not fields.get("auto_renew"):
                fields.setdefault("invisible_duration", Duration(seconds=HOLD_S))
            return super().receive_request(topic, group, **fields)

        async def frames(self, topic: str = "t", group: str = "g", **fields: Any) -> list[Any]:
            fields.setdefault("timeout", PATIENCE_S)
            return list(await super().frames(topic, group, **fields))

        async def gather(self, topic: str, group: str, count: int, **fields: Any) -> list[Any]:
            """Receive until so many messages came."""
            fields.setdefault("wait_ms", 2_000)
            found: list[Any] = []

            async def enough() -> bool:
                found.extend(await self.receive(topic, group, **fields))
                return len(found) >= count

            await until(enough)
            return found

        async def settle(self, messages: Sequence[Any], topic: str, group: str) -> list[int]:
            """Acknowledge messages; the codes of their entries."""
            handles = [str(one.system_properties.receipt_handle) for one in messages]
            answer = await self.ack(*handles, topic=topic, group=group)
            return [entry.status.code for entry in answer.entries]

    return Patient


def fixtures_of(
    cluster: SharedRocketMQ, client: type[Any], observer: type[Any], closing: contextlib.ExitStack
) -> dict[str, Callable[..., Awaitable[Any] | AsyncIterator[Any]]]:
    """The fixture `live`, for tests that run side by side; `closing` ends what they share."""
    hall = Hall(cluster)
    closing.callback(hall.close)
    kind = patient(client)

    async def live() -> AsyncIterator[Live]:
        made = Live(hall, kind, observer)
        try:
            yield made
        finally:
            await made.close()

    return {"live": live}
