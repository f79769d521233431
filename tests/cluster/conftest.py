"""A cluster of real processes that things may happen to, one at a time on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from popgate.testing.rocketmq import BrokerPlan, Missing, RocketMQ, pairs, replicas
from tests.cluster.brokers import make

_SMALL = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
)
TOPICS = ("ns", "masters", "official", "leaving", "acting", "controlled")
"""Each is of one test, with a group of that name; made at the start, because slaves hear of them late."""


def _pairs() -> RocketMQ:
    """Two masters with slaves. That of broker-b may stand in for its master, and hand writes to broker-a."""
    read = {"slaveReadEnable": "true"}
    acting = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true"}
    return RocketMQ(
        name_servers=2,
        brokers=(*pairs("broker-a", settings=read), *pairs("broker-b", settings=read | acting)),
        name_server_settings={"supportActingMaster": "true"},
        options=_SMALL,
    )


def _controlled() -> RocketMQ:
    return RocketMQ(brokers=replicas("broker-a"), controllers=True, options=_SMALL)


class Clusters:
    """Starts a cluster when a test asks for it, after the one before was stopped."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._kind: Callable[[], RocketMQ] | None = None
        self._cluster: RocketMQ | None = None

    def of(self, kind: Callable[[], RocketMQ]) -> RocketMQ:
        if os.environ.get("TEST_CLUSTER") != "true":
            pytest.skip("starts whole clusters of brokers: TEST_CLUSTER=true runs it")
        if self._kind is not kind or self._cluster is None:
            self.stop()
            lock = Path(tempfile.gettempdir()) / f"popgate-cluster-tests-of-{getpass.getuser()}.lock"
            held = self._stack.enter_context(lock.open("w"))
            fcntl.flock(held, fcntl.LOCK_EX)
            try:
                self._cluster = kind().start()
            except Missing as missing:
                if os.environ.get("CI") == "true":
                    pytest.fail(str(missing))
                pytest.skip(f"no RocketMQ: {missing}")
            self._stack.callback(self.stop)
            self._kind = kind
            make(self._cluster, TOPICS)
        for server in (*self._cluster.name_servers, *self._cluster.brokers.values()):
            if not server.runs:  # a test that failed left it so
                server.start()
        return self._cluster

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
            self._stack.close()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    with contextlib.ExitStack() as stack:
        yield Clusters(stack)


@pytest.fixture
def pair_cluster(clusters: Clusters) -> RocketMQ:
    """Masters broker-a and broker-b with a slave each, and two name servers; all alive."""
    return clusters.of(_pairs)


@pytest.fixture
def controlled_cluster(clusters: Clusters) -> RocketMQ:
    """Two replicas of broker-a, of which a controller makes one the master."""
    return clusters.of(_controlled)


@pytest.fixture
def plan() -> type[BrokerPlan]:
    return BrokerPlan
