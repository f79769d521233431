"""What is compared: gateways that are started in turn, before one broker or with a broker inside.

The Java proxy is started as RocketMQ's own script starts it with Java 9 and above (bin/runserver.sh), which
gives it a heap of 4 GB in both modes; a second one has 512 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import urllib.request
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from deploy.compile import differences
from popgate.naming import pop_retry_topic_v1, pop_retry_topic_v2, retry_topic
from popgate.testing import CREATE_ON_USE, GatewayDidNotStart, GatewayProcess
from popgate.testing.rocketmq import BrokerPlan, JavaServer, RocketMQ, RocketMQDidNotStart
from popgate.testing.rocketmq.requests import addresses_known, ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.fastjson import loads

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
    tail: str = ""
    """Ends the names of its topics and groups, where others use the broker, too."""
    broker_pid: int | None = None
    stored: dict[str, int] = field(default_factory=dict)
    """Messages that wait in a topic for this side's consumers."""

    def named(self, word: str) -> str:
        """A topic's or a group's name that is this side's alone."""
        return f"{word}-{self.name}{self.tail}"

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def compiled_copy(words: str) -> Path:
    """The argument of an option. Raises ArgumentTypeError for a copy of another checkout."""
    tree = Path(words)
    if different := differences(tree):
        raise argparse.ArgumentTypeError(f"not of this checkout: {', '.join(different[:5])} differ")
    return tree


def environment_of(tree: Path | None) -> dict[str, str]:
    """Variables of a gateway that is started from that checkout; of none: from this one."""
    # Not from the folder that this runs in, where Python would look first.
    return {} if tree is None else {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tree.resolve())}


class Town:
    """The broker of a tier, or only its name server, and the gateways that are started there.

    `broker` is the URL of a RocketMQ that runs already and that others use, too: what is made there has
    names of its own, and is gone in the end. `java_options` are those of the Java proxy's virtual machine;
    none: as it is shipped. `tree` is the checkout that ours is started from; none: this one.
    """

    def __init__(
        self,
        tier: str,
        serve_options: Sequence[str],
        *,
        java: bool = True,
        java_options: Sequence[str] = (),
        broker: str = "",
        tree: Path | None = None,
    ) -> None:
        self.tier = tier
        self.names = (JAVA, OURS) if java else (OURS,)
        self.workers = 0
        """Processes that serve clients, of the gateway of ours that was started last."""
        self._serve_options = tuple(serve_options)
        self._java_options = tuple(java_options)
        self._broker = broker
        self._tail = f"-{uuid.uuid4().hex[:12]}" if broker else ""
        self._made: tuple[set[str], set[str]] = (set(), set())
        """Topics and groups that are to go in the end."""
        self._cluster: RocketMQ | None = None
        self._inside = 0
        self._environment = environment_of(tree)

    def __enter__(self) -> Town:
        if JAVA in self.names or (self.tier == "own" and not self._broker):
            self._cluster = _tried(self._start_cluster)
        return self

    def _start_cluster(self) -> RocketMQ:
        if self._broker:  # a place for the Java proxy alone
            return RocketMQ(name_servers=0, brokers=()).start()
        own = (BrokerPlan(),) if self.tier == "own" else ()
        return RocketMQ(brokers=own, settings=BROKER_SETTINGS, options=BROKER_OPTIONS).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._broker:
                _unmake_at(self._broker, *self._made)
        finally:
            if self._cluster is not None:
                self._cluster.stop()

    def start(self, name: str) -> Side:
        """Raises RocketMQDidNotStart, GatewayDidNotStart."""
        return _tried(self._start_ours if name == OURS else lambda: self._start_java(name))

    @contextlib.contextmanager
    def sides(self) -> Iterator[list[Side]]:
        """Both gateways at once; who measures one has the other stand still."""
        with contextlib.ExitStack() as open_:
            yield [open_.enter_context(self.start(name)) for name in self.names]

    def _start_ours(self) -> Side:
        options = list(self._serve_options)
        if self.tier == "own":
            options += ["--broker", self._url, *CREATE_ON_USE]
        listens = any(option.partition("=")[0] == "--listen" for option in options)
        listen = () if listens else ("grpc://127.0.0.1:0",)
        gateway = GatewayProcess(options=options, listen=listen, environment=self._environment)
        begun = time.monotonic()
        gateway.start()
        ready_s = time.monotonic() - begun
        side = Side(OURS, self.tier, gateway.pid, gateway.endpoint, ready_s, gateway.close, _made_when_used)
        self.workers = _workers_of(gateway)
        return self._before_broker(side) if self.tier == "own" else side

    def _start_java(self, name: str) -> Side:
        inside = None
        if self.tier == "embedded":
            self._inside += 1
            inside = BrokerPlan(f"inside-{self._inside}")
        options = self._java_options if name == JAVA and self._java_options else HEAPS[name]
        settings = {"namesrvAddr": ";".join(_name_servers(self._broker))} if self._broker else {}
        begun = time.monotonic()
        proxy = self._running.start_proxy(settings, options=options, broker=inside)
        ready_s = time.monotonic() - begun
        side = Side(name, self.tier, proxy.pid, proxy.address, ready_s, proxy.stop, _made_when_used)
        if inside is None:
            # It keeps nothing, and takes up to 7 s to end by itself.
            side.close = proxy.kill
            return self._before_broker(side)
        address = addresses_known(self._running.addresses[0])[inside.name][0]
        side.make = lambda topics, groups: _make(address, topics, groups)
        return side

    def _before_broker(self, side: Side) -> Side:
        if self._broker:
            side.tail = self._tail
            side.make = self._make_there
            return side
        broker: JavaServer = self._running.master()
        side.broker_pid = broker.pid
        side.make = lambda topics, groups: _make(broker.address, topics, groups)
        return side

    def _make_there(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        wanted = tuple(topics), tuple(groups)
        for made, names in zip(self._made, wanted, strict=True):
            made.update(names)
        make_at(self._broker, *wanted)

    @property
    def _url(self) -> str:
        return self._broker or self._running.url

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


def _workers_of(gateway: GatewayProcess) -> int:
    """How many processes serve clients: those of a supervisor, or the gateway alone."""
    with urllib.request.urlopen(f"{gateway.admin}/health") as answer:
        members = json.load(answer).get("processes", ())
    return sum(one["role"] == "worker" for one in members) or 1


def _made_when_used(topics: Iterable[str], groups: Iterable[str]) -> None:
    """The embedded broker makes a topic of as many queues by itself."""


def make_at(url: str, topics: Iterable[str], groups: Iterable[str]) -> None:
    """Topics and groups at every master of a cluster; `url` has its name servers, as `--broker` wants it."""
    for addresses in addresses_known(_name_servers(url)[0]).values():
        _make(addresses[0], topics, groups)


def _unmake_at(url: str, topics: Collection[str], groups: Collection[str]) -> None:
    """Topics and groups deleted everywhere, with the topics that brokers make for retries of these groups."""
    doomed = [*topics, *map(retry_topic, groups)]
    for made in (pop_retry_topic_v1, pop_retry_topic_v2):
        doomed += [made(group, topic) for group in groups for topic in topics]
    servers = _name_servers(url)
    for addresses in addresses_known(servers[0]).values():
        for topic in doomed:
            _asked(addresses[0], RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        for group in groups:
            fields = {"groupName": group, "cleanOffset": "true"}
            _asked(addresses[0], RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
    clusters = loads(ask(servers[0], RequestCode.GET_BROKER_CLUSTER_INFO).body)["clusterAddrTable"]
    for server in servers:
        for topic in doomed:
            for cluster in clusters:
                fields = {"topic": topic, "clusterName": cluster}
                _asked(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)


def _name_servers(url: str) -> list[str]:
    return url.partition("://")[2].split(",")


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
