"""One Spark session and two gateways for all tests here: a JVM, and its Python processes, take their time.

A test marked `ON_BOTH` runs before the embedded broker and before a real RocketMQ, another one before the
former. The cluster is shared with other tests and other runs: `own` makes a name this run's own. One marked
`ON_ALL` runs also through RocketMQ's own proxy, without a gateway, where TEST_SPARK_JAVA_PROXY is `true`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from popgate.blocking import BlockingConnection
from popgate.queue_client import QueueClient, QueuePlace
from popgate.testing.gateway import CREATE_ON_USE, GatewayProcess
from popgate.testing.rocketmq import PATIENT, Missing, RocketMQ
from popgate.testing.rocketmq.requests import ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from tests.support.needed import missing, needed_rocketmq
from tests.support.waiting import PATIENCE_S, wait_until

T = TypeVar("T")
SPARK_S = 5 * PATIENCE_S
"""For a query, from the start of its Python workers to its end: a JVM on two busy cores takes minutes."""
LONGEST_S = 5 * SPARK_S
"""For a test: three streams one after the other, and the looks at what they did."""
EMBEDDED, CLUSTER, JAVA_PROXY = "embedded", "cluster", "java_proxy"
ON_BOTH = pytest.mark.parametrize("site", [EMBEDDED, CLUSTER], indirect=True)
_WITH_JAVA_PROXY = os.environ.get("TEST_SPARK_JAVA_PROXY") == "true"
ON_ALL = pytest.mark.parametrize(
    "site", [EMBEDDED, CLUSTER, *([JAVA_PROXY] if _WITH_JAVA_PROXY else [])], indirect=True
)
DOOR = ("grpc+remoting://127.0.0.1:0",)
_RUN = uuid.uuid4().hex[:8]


def own(name: str) -> str:
    """The name as this run has it."""
    return f"{name}-{_RUN}"


@pytest.fixture(scope="session")
def embedded_gateway() -> Iterator[GatewayProcess]:
    # What is sent again counts as that on a busy machine, too; and a compaction is waited for.
    options = ["--set", "embedded.dedup_window_s=1d", "--set", "retention.interval_s=1s"]
    with GatewayProcess(listen=DOOR, options=options) as running:
        yield running


@pytest.fixture(scope="session")
def cluster_gateway() -> Iterator[GatewayProcess]:
    with needed_rocketmq() as cluster:
        options = ["--broker", cluster.url, *CREATE_ON_USE, *PATIENT]
        with GatewayProcess(listen=DOOR, options=options) as running:
            yield running


@dataclass(frozen=True, slots=True)
class JavaProxy:
    """As much of a `GatewayProcess` as it has."""

    endpoint: str
    name_server: str
    broker: str

    def make(self, topic: str) -> None:
        """It remembers for a while that a topic is not there."""
        fields = {"topic": topic, "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        made = ask(self.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, "defaultTopic": "TBW102"})
        assert made.code == ResponseCode.SUCCESS, made

        def is_known() -> bool:
            answer = ask(self.name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            return answer.code == ResponseCode.SUCCESS

        wait_until(is_known)


@pytest.fixture(scope="session")
def java_proxy_gateway() -> Iterator[JavaProxy]:
    """Its remoting port, for messages of all types, with a broker of its own."""
    try:
        settings = {"autoCreateTopicEnable": "true", "autoCreateSubscriptionGroup": "true"}
        with RocketMQ(settings=settings) as cluster:
            proxy = cluster.start_proxy({"enableTopicMessageTypeCheck": False})
            [name_server], [broker] = cluster.addresses, cluster.brokers.values()
            yield JavaProxy(f"127.0.0.1:{proxy.port + 1}", name_server, broker.address)
    except Missing as what:
        missing(what)


@pytest.fixture
def site(request: pytest.FixtureRequest) -> str:
    """Before which broker the test runs."""
    return getattr(request, "param", EMBEDDED)


@pytest.fixture
def gateway(request: pytest.FixtureRequest, site: str) -> Any:
    """The `GatewayProcess` of the site, or the `JavaProxy`."""
    return request.getfixturevalue(f"{site}_gateway")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if shutil.which("java") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no java, which Spark needs")
        pytest.skip("there is no java, which Spark needs")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    environment = pytest.MonkeyPatch()
    environment.setenv("PYSPARK_PYTHON", sys.executable)
    environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # a machine may not know its own name
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
        environment.delenv(name, raising=False)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        # A busy machine is no failure.
        "spark.network.timeout": "800s",
        "spark.executor.heartbeatInterval": "60s",
        "spark.python.authenticate.socketTimeout": "300s",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    # The JVM ends when its standard input does, and else with this process.
    jvm = SparkContext._gateway
    jvm.shutdown()
    jvm.proc.stdin.close()
    jvm.proc.wait(SPARK_S)
    SparkContext._gateway = SparkContext._jvm = None
    environment.undo()


def started(work: Callable[[float], T]) -> T:
    """What `work` makes, which starts a stream and waits for it, for as many seconds as it is given.

    Spark gives the process that a stream asks for its offsets ten seconds to start, which no setting moves:
    on a busy machine a query may end before it began, and is started again from its checkpoint.
    """
    from pyspark.errors import StreamingQueryException

    end = time.monotonic() + SPARK_S
    while True:
        try:
            return work(max(end - time.monotonic(), 1.0))
        except StreamingQueryException as error:
            if time.monotonic() >= end or "Python worker failed to connect back" not in str(error):
                raise


@pytest.fixture
def named(gateway: Any) -> Callable[[str], str]:
    """The name that a topic has in this run; it is made where it is not made on first use."""

    def named(topic: str) -> str:
        name = own(topic)
        if isinstance(gateway, JavaProxy):
            gateway.make(name)
        return name

    return named


@pytest.fixture
def finished() -> Callable[[Any], list[int]]:
    """Runs a stream until it has everything that is there; how many rows its batches had, those with any."""

    def run(writer: Any) -> list[int]:
        def once(within_s: float) -> Any:
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(within_s), query.status
            return query

        query = started(once)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    return run


@pytest.fixture
def send(gateway: GatewayProcess) -> Callable[[str, int, int], None]:
    """Messages of these numbers, to queues 0 and 1 in turn."""

    def send(topic: str, begin: int, end: int) -> None:
        # Each time a connection of its own: between two of them a query may run for longer than the door
        # keeps one that says nothing.
        with BlockingConnection.connect(gateway.endpoint, timeout_s=SPARK_S) as connection:
            client = QueueClient(connection)
            broker = client.route("TBW102").queues[0].broker
            for queue_id in (0, 1):
                messages = [
                    (b"body %d" % number, _properties(number))
                    for number in range(begin, end)
                    if number % 2 == queue_id
                ]
                client.send(QueuePlace(topic, broker, queue_id), messages, timeout_s=SPARK_S)

    return send


def _properties(number: int) -> bytes:
    told = {"TAGS": f"t{number % 4}", "KEYS": f"a b{number}", "UNIQ_KEY": f"ID{number}", "color": "red"}
    told["parity"] = "odd" if number % 2 else "even"
    return "".join(f"{name}\x01{value}\x02" for name, value in told.items()).encode()
