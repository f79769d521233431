"""What is compared: gateways that are started in turn, before one broker or with a broker inside.

The Java proxy is started as RocketMQ's own script starts it with Java 9 and above (bin/runserver.sh), which
gives it a heap of 4 GB in both modes; a second one has 512 MB.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from popgate.testing import CREATE_ON_USE, GatewayDidNotStart, GatewayProcess
from popgate.testing.rocketmq import BrokerPlan, JavaServer, RocketMQ, RocketMQDidNotStart
from popgate.testing.rocketmq.asking import addresses_known, ask
from popgate.wire.codes import RequestCode, ResponseCode

JAVA, JAVA_SMALL, OURS = "java", "java_512m", "ours"
TIERS = ("own", "embedded")
QUEUES = 8
_MORE_TRIES = 5

SHIPPED = (
    *("-server", "-Xms4g", "-Xmx4g", "-XX:MetaspaceSize=128m", "-XX:MaxMetaspaceSize=320m"),
    *("-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25"),
    *("-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0"),
    *("-XX:-OmitStackTraceInFastThrow", "-XX:-UseLargePages"),
)
HEAPS = {JAVA: SHIPPED, JAVA_SMALL: ("-Xms512m", "-Xmx512m")}
BROKER_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
BROKER_SETTINGS = {
    # Half messages are no part of this; looking for them costs a broker up to two thirds of a core.
    "transactionCheckInterval": "60000",
    "mappedFileSizeCommitLog": str(128 << 20),
}


Started = TypeVar("Started")


@dataclass
class Side:
    """A gateway that runs."""

    name: str
    tier: str
    pid: int
    target: str
    ready_s: float
    close: Callable[[], object]
    make: Callable[[Iterable[str], Iterable[str]], None]
    """Topics and groups, where they are not made by their first use."""
    broker_pid: int | None = None
    stored: dict[str, int] = field(default_factory=dict)
    """Messages that wait in a topic for this side's consumers."""

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Town:
    """The broker of a tier, or only its name server, and the gateways that are started there."""

    def __init__(self, tier: str, serve_options: Sequence[str], *, java: bool = True) -> None:
        self.tier = tier
        self.names = (JAVA, OURS) if java else (OURS,)
        self._serve_options = tuple(serve_options)
        self._java = java
        self._cluster: RocketMQ | None = None
        self._inside = 0

    def __enter__(self) -> Town:
        if self._java:
            self._cluster = _tried(self._start_cluster)
        return self

    def _start_cluster(self) -> RocketMQ:
        own = (BrokerPlan(),) if self.tier == "own" else ()
        return RocketMQ(brokers=own, settings=BROKER_SETTINGS, options=BROKER_OPTIONS).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._cluster.stop()

    def start(self, name: str) -> Side:
        """Raises RocketMQDidNotStart, GatewayDidNotStart."""
        return _tried(self._start_ours if name == OURS else lambda: self._start_java(name))

    @contextlib.contextmanager
    def sides(self) -> Iterator[list[Side]]:
        """Both gateways at once; the one that is not under load sleeps."""
        with contextlib.ExitStack() as open_:
            yield [open_.enter_context(self.start(name)) for name in self.names]

    def _start_ours(self) -> Side:
        options = list(self._serve_options)
        if self.tier == "own":
            options += ["--broker", self._running.url, *CREATE_ON_USE]
        listens = any(option.partition("=")[0] == "--listen" for option in options)
        gateway = GatewayProcess(options=options, listen=() if listens else ("grpc://127.0.0.1:0",))
        begun = time.monotonic()
        gateway.start()
        ready_s = time.monotonic() - begun
        side = Side(OURS, self.tier, gateway.pid, gateway.endpoint, ready_s, gateway.close, _made_when_used)
        return self._before_broker(side) if self.tier == "own" else side

    def _start_java(self, name: str) -> Side:
        inside = None
        if self.tier == "embedded":
            self._inside += 1
            inside = BrokerPlan(f"inside-{self._inside}")
        begun = time.monotonic()
        proxy = self._running.start_proxy(options=HEAPS[name], broker=inside)
        ready_s = time.monotonic() - begun
        side = Side(name, self.tier, proxy.pid, proxy.address, ready_s, proxy.stop, _made_when_used)
        if inside is None:
            return self._before_broker(side)
        address = addresses_known(self._running.addresses[0])[inside.name][0]
        side.make = lambda topics, groups: _make(address, topics, groups)
        return side

    def _before_broker(self, side: Side) -> Side:
        broker: JavaServer = self._running.master()
        side.broker_pid = broker.pid
        side.make = lambda topics, groups: _make(broker.address, topics, groups)
        return side

    @property
    def _running(self) -> RocketMQ:
        if self._cluster is None:
            raise RuntimeError("this town has no RocketMQ")
        return self._cluster


def _tried(start: Callable[[], Started]) -> Started:
    """Start it, and again when that fails: a busy machine is too slow for some of their patience."""
    for _ in range(_MORE_TRIES):
        try:
            return start()
        except (RocketMQDidNotStart, GatewayDidNotStart) as error:
            print(f"did not start, once more: {str(error).partition(chr(10))[0]}", flush=True)
    return start()


def _made_when_used(topics: Iterable[str], groups: Iterable[str]) -> None:
    """The embedded broker makes a topic of as many queues by itself."""


def make_at(url: str, topics: Iterable[str], groups: Iterable[str]) -> None:
    """Topics and groups at every master of a cluster; `url` has its name server, as `--broker` wants it."""
    for addresses in addresses_known(url.partition("://")[2].split(",")[0]).values():
        _make(addresses[0], topics, groups)


def _make(broker: str, topics: Iterable[str], groups: Iterable[str]) -> None:
    for topic in topics:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES),
            "topicSysFlag": "0",
            "order": "false",
            "attributes": "+message.type=NORMAL",
        }
        _asked(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    for group in groups:
        told = {"groupName": group, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16}
        body = json.dumps(told).encode()
        _asked(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def _asked(broker: str, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> None:
    answer = ask(broker, code, fields, body)
    if answer.code != ResponseCode.SUCCESS:
        raise SystemExit(f"the broker refused {code.name}: {answer.remark}")


__all__ = ["JAVA", "JAVA_SMALL", "OURS", "TIERS", "Side", "Town", "make_at"]
