"""A cluster of real processes that things may happen to, one at a time on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import getpass
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from popgate.testing.papers import Papers
from popgate.testing.rocketmq import BrokerPlan, Missing, RocketMQ, pairs, replicas
from tests.cluster.brokers import ACCOUNT, make
from tests.support.needed import missing

_SMALL = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
)
TOPICS = ("ns", "masters", "official", "leaving", "acting", "controlled", "seen")
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


def _three_controllers() -> RocketMQ:
    return RocketMQ(name_servers=3, brokers=replicas("broker-a"), controllers=True, options=_SMALL)


def _with_account() -> dict[str, str]:
    """Settings of a broker that serves nobody but who has an account; the first is an administrator's."""
    account = {"accessKey": ACCOUNT[0], "secretKey": ACCOUNT[1]}
    provider = "org.apache.rocketmq.auth.authentication.provider"
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{provider}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{provider}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": ACCOUNT[0], "password": ACCOUNT[1]}),
        "innerClientAuthenticationCredentials": json.dumps(account),
    }


def _ruled(*brokers: str) -> RocketMQ:
    """Brokers, one unless they are named, that also decide what each account may do."""
    provider = "org.apache.rocketmq.auth.authorization.provider"
    rules = {
        "authorizationEnabled": "true",
        "authorizationProvider": f"{provider}.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{provider}.LocalAuthorizationMetadataProvider",
        "recallMessageEnable": "true",
    }
    plans = tuple(BrokerPlan(name) for name in brokers or ("broker-a",))
    return RocketMQ(brokers=plans, settings=_with_account() | rules, options=_SMALL)


def _ruled_two() -> RocketMQ:
    return _ruled("broker-a", "broker-b")


def _guarded(papers: Papers) -> RocketMQ:
    """One broker that serves nobody but its one account, and has retry topics of the second kind.

    Who speaks TLS to it, or to its name server, is shown a certificate of an authority of the test's.
    """
    settings = {**_with_account(), "enableRetryTopicV2": "true"}
    return RocketMQ(settings=settings, options=_SMALL, properties=_shows(papers, "server"))


def _shows(papers: Papers, name: str) -> dict[str, str]:
    """System properties of a server with the certificate of that name."""
    certificate, key = papers.pair(name)
    return {
        "tls.test.mode.enable": "false",  # else a server makes up a certificate
        "tls.server.certPath": str(certificate),
        "tls.server.keyPath": str(key),
    }


def _certified(papers: Papers) -> RocketMQ:
    """Two brokers and a name server; each has a certificate of its own, named as it is, or `namesrv`."""
    plans = tuple(BrokerPlan(name, properties=_shows(papers, name)) for name in ("broker-a", "broker-b"))
    return RocketMQ(brokers=plans, options=_SMALL, properties=_shows(papers, "namesrv"))


class Clusters:
    """Starts a cluster when a test asks for it, after the one before was stopped."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._kind: Callable[[], RocketMQ] | None = None
        self._cluster: RocketMQ | None = None

    def of(self, kind: Callable[[], RocketMQ], topics: Sequence[str] = TOPICS) -> RocketMQ:
        if os.environ.get("TEST_CLUSTER") != "true":
            pytest.skip("starts whole clusters of brokers: sh tests/run.sh --long runs it")
        if self._kind is not kind or self._cluster is None:
            self.stop()
            lock = Path(tempfile.gettempdir()) / f"popgate-cluster-tests-of-{getpass.getuser()}.lock"
            held = self._stack.enter_context(lock.open("w"))
            fcntl.flock(held, fcntl.LOCK_EX)
            try:
                self._cluster = kind().start()
            except Missing as rocketmq:
                missing(rocketmq)
            self._stack.callback(self.stop)
            self._kind = kind
            if topics:
                make(self._cluster, topics)
        servers = [*self._cluster.name_servers, *self._cluster.brokers.values()]
        ended = [server for server in servers if not server.runs]  # a test left it so
        for server in ended:
            server.start()
        for broker in self._cluster.brokers.values() if ended else ():
            broker.wait_until_ready()  # name servers that begin know of it some seconds later
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
def three_controllers_cluster(clusters: Clusters) -> RocketMQ:
    """As `controlled_cluster`, with three name servers, each with a controller."""
    return clusters.of(_three_controllers)


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """The authority that servers with TLS have their certificates of."""
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="session")
def guarded(papers: Papers) -> Callable[[], RocketMQ]:
    return functools.partial(_guarded, papers)


@pytest.fixture
def guarded_cluster(clusters: Clusters, guarded: Callable[[], RocketMQ]) -> RocketMQ:
    """A broker with an account, which the gateway must have; it has no topics."""
    return clusters.of(guarded, ())


@pytest.fixture(scope="session")
def certified(papers: Papers) -> Callable[[], RocketMQ]:
    return functools.partial(_certified, papers)


@pytest.fixture
def certified_cluster(clusters: Clusters, certified: Callable[[], RocketMQ]) -> RocketMQ:
    """Brokers broker-a and broker-b, and a name server, each with a certificate; no topics."""
    return clusters.of(certified, ())


@pytest.fixture
def ruled_cluster(clusters: Clusters) -> RocketMQ:
    """A broker that decides what each account may do; it has one, which may do everything, and no topics."""
    return clusters.of(_ruled, ())


@pytest.fixture
def ruled_two_cluster(clusters: Clusters) -> RocketMQ:
    """As `ruled_cluster`, with two brokers."""
    return clusters.of(_ruled_two, ())


@pytest.fixture
def plan() -> type[BrokerPlan]:
    return BrokerPlan
