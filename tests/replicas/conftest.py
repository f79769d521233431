"""Two gateways before a real RocketMQ, each with a broker of its own in its hands and nothing in common."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc.aio
import pytest

from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.model import GroupConfig, MessageType, TopicConfig
from popgate.testing.rocketmq import SharedRocketMQ
from processors.limits import Limits
from tests.support.needed import needed_rocketmq
from tests.unit.protocols.grpc.conftest import Client, Gateway

_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
GRACE_S = 0.5


@pytest.fixture(scope="session")
def cluster() -> Iterator[SharedRocketMQ]:
    with needed_rocketmq() as cluster:
        yield cluster


class Pair:
    """Gateways A and B. `topic` and `group` are names of one test's own."""

    def __init__(self, cluster: SharedRocketMQ) -> None:
        self.topic = f"pair-{uuid.uuid4().hex[:10]}"
        self.group = f"{self.topic}-readers"
        self.context = Context(door="test")
        self.gateways: list[Gateway] = []
        self._channels: list[grpc.aio.Channel] = []
        self._settings = RemoteSettings(
            name_servers=(cluster.name_server,),
            transaction_keys=(b"the same for all of the replicas",),
            connect_timeout_s=30.0,
            request_timeout_s=30.0,
            probe_s=30.0,  # a broker that stands still for some seconds is there all the same
        )

    async def start(self) -> None:
        for _ in range(2):
            clock = SystemClock()
            broker: Any = RemoteBroker(self._settings, clock=clock)
            await broker.start()
            limits = Limits(min_invisible_ms=1_000, release_grace_s=GRACE_S)
            gateway = Gateway(broker, clock, limits)
            self.gateways.append(gateway)
            await gateway.start()

    async def stop(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        for gateway in self.gateways:
            await gateway.stop()
            await gateway.broker.stop()

    async def make(self, kind: MessageType, *, ordered: bool = False, queues: int = 1) -> None:
        """The topic and its group."""
        broker = self.gateways[0].broker
        await broker.create_topic(TopicConfig(self.topic, (kind,), read_queues=queues, write_queues=queues))
        await broker.create_group(GroupConfig(self.group, ordered=ordered, consume_timeout_ms=60_000))

    def client(self, which: int, name: str = "client-1") -> Client:
        """A client with a connection of its own to one of the two; one name may be at both."""
        gateway = self.gateways[which]
        channel = grpc.aio.insecure_channel(gateway.address, options=_OPTIONS)
        self._channels.append(channel)
        return Client(channel, gateway.port, client_id=f"{self.topic}-{name}")


@pytest.fixture
async def pair(cluster: SharedRocketMQ) -> AsyncIterator[Pair]:
    pair = Pair(cluster)
    try:
        await pair.start()
        yield pair
    finally:
        await pair.stop()
