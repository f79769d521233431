"""Kill what takes part in a streaming query again and again, and see whether its sink has each result once.

    python tests/spark/kills.py                        # thirty kills, about ten minutes
    python tests/spark/kills.py --seed 7 --kills 8 --guarantee transactional
    python tests/spark/kills.py --kills 10 --apart     # the broker in a process of its own, killed by itself
    python tests/spark/kills.py --kills 10 --rocketmq  # before a RocketMQ, whose broker is killed too

One query counts messages by key and window, with its state in its checkpoint, another one copies messages
with message groups. The driver (Python and JVM), Python workers of its tasks, and the gateway with the
embedded broker in it are killed at moments that the seed chooses, and started again; with `--apart` the
gateway is the guest of another one that has the broker, and each of them is killed. The broker is told to
know no ids again, and a RocketMQ never does. Afterwards each count and each copy must be there once, and the
copies of each group in order. Exit code 1 when that is not so.

The seed decides who is killed and when; how that falls together is a matter of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from popgate.blocking import BlockingConnection
from popgate.errors import GatewayError
from popgate.queue_client import QueueClient, QueuePlace
from popgate.testing.gateway import GatewayProcess
from popgate.testing.rocketmq import PATIENT, RocketMQ, SharedRocketMQ
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.records import decode_records
from tests.support.waiting import PATIENCE_S, wait_until

IN, COUNTS, COPIES, LEDGER = "numbers", "counts", "copies", "books"
QUEUES = 3
WINDOW_S, LATE_S = 10, 120
PORTION = 60
"""Messages that come between two kills: fewer than the seconds for which late ones are waited for."""
ENDED = "(a query ended)"
MOST_ENDED = 5
MOST_AWAITED_S = 8.0
CONNECTIONS = 16
"""So many come to every process of a gateway, of which there is one for each core before a cluster."""
LAST = 10_000_000
"""A message so late that all windows end."""
STOP_SOON = ("--set", "stopping.lame_duck_s=0")
OPTIONS = (
    *("--set", "embedded.dedup_window_s=0"),
    *("--set", "retention.interval_s=1s"),
    *STOP_SOON,
)


def key_of(number: int) -> str:
    return f"k{number * number % 7}"


@dataclass
class Stage:
    """A gateway, its topics, and what was sent. `host`: another one that has its broker, if it has none.

    `cluster`: a RocketMQ that has it instead, which others may use too; `mark` is in names of its topics.
    """

    gateway: GatewayProcess
    guarantee: str
    host: GatewayProcess | None = None
    cluster: RocketMQ | SharedRocketMQ | None = None
    mark: str = ""
    sent: int = 0
    ends: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        data: Path,
        guarantee: str,
        apart: Path | None = None,
        cluster: RocketMQ | SharedRocketMQ | None = None,
    ) -> Stage:
        """`apart`: a folder of a short path, for the socket of a broker in a process of its own."""
        door = ("remoting://127.0.0.1:0",)
        if cluster is not None:
            options = ("--broker", cluster.url, *PATIENT, *STOP_SOON)
            gateway = GatewayProcess(data, listen=door, options=options)
            stage = cls(gateway, guarantee, cluster=cluster, mark=f"-{uuid.uuid4().hex[:8]}")
        elif apart is None:
            stage = cls(GatewayProcess(data, listen=door, options=OPTIONS), guarantee)
        else:
            host = GatewayProcess(data, options=(*OPTIONS, "--share-broker", f"unix:{apart}/s"))
            options = (*OPTIONS, "--broker", f"popgate+unix:{apart}/s")
            stage = cls(GatewayProcess(listen=door, options=options), guarantee, host)
        try:
            for each in stage.processes:
                each.start()
            stage._make_topics()
        except BaseException:
            stage.close()
            raise
        return stage

    @property
    def processes(self) -> list[GatewayProcess]:
        return [self.gateway] if self.host is None else [self.host, self.gateway]

    def close(self) -> None:
        for each in reversed(self.processes):
            each.close()

    def named(self, topic: str) -> str:
        """The name that a topic has here."""
        return topic + self.mark

    def _make_topics(self) -> None:
        transactional = self.guarantee == "transactional"
        for told in (
            {"name": self.named(IN)},
            {"name": self.named(COUNTS), "types": ["TRANSACTION" if transactional else "NORMAL"]},
            {"name": self.named(COPIES), "types": ["TRANSACTION" if transactional else "FIFO"]},
            {"name": self.named(LEDGER), "queues": 1, "attributes": {"cleanup.policy": "COMPACTION"}},
        ):
            request = urllib.request.Request(
                f"{self.gateway.admin}/api/topics",
                json.dumps({"queues": QUEUES, **told}).encode(),
                {"content-type": "application/json"},
            )
            urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def kill_gateway(self) -> None:
        """And start the next one, on the same data and the same port."""
        self.gateway.kill()
        self.gateway = self.gateway.successor()
        self.gateway.start()
        self.ends.append("gateway")

    def kill_broker(self) -> None:
        """The one apart, and start the next one on the same data; until the gateway has come back to it."""
        if self.host is not None:
            self.host.kill()
            self.host = self.host.successor()
            self.host.start()
        else:
            assert isinstance(self.cluster, RocketMQ), "the broker is not this stage's own"
            [broker] = self.cluster.brokers.values()
            broker.kill()
            broker.start()
        self.ends.append("broker")

        def answers() -> bool:
            with contextlib.suppress(GatewayError), self.client() as client:
                # A route may be one that the gateway remembers, the ends of queues are the broker's own.
                return bool(client.maximums(client.queues(self.named(IN))))
            return False

        # Each process of the gateway has a link of its own to the broker, and a pause before it tries again.
        wait_until(lambda: all(answers() for _ in range(CONNECTIONS)))

    @contextlib.contextmanager
    def client(self) -> Iterator[QueueClient]:
        with BlockingConnection.connect(self.gateway.endpoint, timeout_s=PATIENCE_S) as connection:
            yield QueueClient(connection)

    def send(self, *numbers: int) -> None:
        """Each to the queue of its number, so that all queues have about the same times."""
        with self.client() as client:
            topic = self.named(IN)
            broker = client.queues(topic)[0].broker
            for queue_id in range(QUEUES):
                found = [
                    (b"%d" % number, f"TAGS\x01{key_of(number)}\x02UNIQ_KEY\x01N{number}\x02".encode())
                    for number in numbers
                    if number % QUEUES == queue_id
                ]
                if found:
                    client.send(QueuePlace(topic, broker, queue_id), found, timeout_s=PATIENCE_S)

    def send_portion(self) -> None:
        self.send(*range(self.sent, self.sent + PORTION))
        self.sent += PORTION

    def await_rows(self, topic: str) -> None:
        """Until a query begins to write into a topic, or does not for a while."""
        with self.client() as client:
            queues = client.queues(self.named(topic))
            before, end = client.maximums(queues), time.monotonic() + MOST_AWAITED_S
            while client.maximums(queues) == before and time.monotonic() < end:
                time.sleep(0.001)

    def bodies(self, topic: str) -> list[list[bytes]]:
        """What a query wrote, by queue in order."""
        told = []
        with self.client() as client:
            for queue in client.queues(self.named(topic)):
                at, end, rows = 0, client.maximums([queue])[queue], list[bytes]()
                while at < end:
                    answer = client.pull(queue, at, most=32)
                    assert answer.code == ResponseCode.SUCCESS
                    rows += [record.body for record in decode_records(answer.body)]
                    at = answer.next_offset
                told.append(rows)
        return told

    def complaints(self) -> list[str]:
        """One sentence for everything that should not be; empty when all is well."""
        numbers = range(self.sent)
        windows = Counter((key_of(number), number - number % WINDOW_S) for number in numbers)
        counts = [json.loads(body) for queue in self.bodies(COUNTS) for body in queue]
        copies = [[int(body) for body in queue] for queue in self.bodies(COPIES)]
        found = _differences(
            COUNTS,
            [(row["k"], row["s"], row["n"]) for row in counts],
            [(key, start, count) for (key, start), count in windows.items()],
        )
        found += _differences(COPIES, [number for queue in copies for number in queue], [*numbers, LAST])
        if self.guarantee == "effectively-once":
            for queue in copies:
                for group in range(QUEUES):
                    own = [number for number in queue if number % QUEUES == group and number != LAST]
                    if own != sorted(own):
                        found.append(f"{COPIES}: group {group} is not in order: {own}")
        return found


def _differences(topic: str, there: list[Any], wanted: list[Any]) -> list[str]:
    has, should = Counter(there), Counter(wanted)
    return [
        f"{topic}: {each} is there {has[each]} times instead of {should[each]}"
        for each in {*has, *should}
        if has[each] != should[each]
    ]


def writers(spark: Any, endpoint: str, checkpoint: Path, guarantee: str, mark: str = "") -> list[Any]:
    """The two queries, which are started with a trigger. `mark` is in names of topics and sinks."""

    def stream() -> Any:
        found = spark.readStream.schema("tag string, body binary, queue_id int").format("rocketmq")
        found.options(endpoints=endpoint, topic=IN + mark, startingOffsets="earliest")
        return found.option("maxOffsetsPerTrigger", str(PORTION)).load()

    def sink(rows: Any, topic: str) -> Any:
        found = rows.writeStream.format("rocketmq").options(endpoints=endpoint, topic=topic + mark)
        # Row by row: the time in which a batch goes out is what kills are to meet.
        found.options(sendBatchRows="1", sendInFlight="2" if topic == COUNTS else "1")
        found.options(deliveryGuarantee=guarantee, sinkId=topic + mark, ledgerTopic=LEDGER + mark)
        return found.option("checkpointLocation", str(checkpoint / topic))

    numbers = stream().selectExpr("tag k", "timestamp_seconds(cast(cast(body as string) as bigint)) t")
    counts = (
        numbers.withWatermark("t", f"{LATE_S} seconds")
        .groupBy("k", _window(f"{WINDOW_S} seconds"))
        .count()
        .selectExpr("to_json(struct(k, unix_seconds(window.start) s, count n)) body")
    )
    group = ["concat('g', queue_id) message_group"] if guarantee == "effectively-once" else []
    return [sink(counts, COUNTS), sink(stream().selectExpr("body", *group), COPIES)]


def _window(size: str) -> Any:
    from pyspark.sql.functions import window

    return window("t", size)


def workers_under(root: int) -> list[int]:
    """Python workers of tasks among the processes that a process made, and those that these made."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(stat[1])
                names[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    def is_under(pid: int) -> bool:
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    # A daemon forks the workers; itself it is a child of the JVM.
    daemons = {pid for pid, name in names.items() if "pyspark.daemon" in name}
    return sorted(pid for pid in daemons if parents.get(pid) in daemons and is_under(pid))


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# -- the long form: drivers of their own ----------------------------------------------------------------


class Driver:
    """A process with a query in it, and its JVM."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._log = (folder / "driver.log").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, __file__, "--drive", stage.gateway.endpoint),
                *("--checkpoint", str(folder / "checkpoint"), "--guarantee", stage.guarantee),
                f"--mark={stage.mark}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.begins = self._process.stdout.readline().strip() == "started"

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, workers: list[int]) -> None:
        """With its JVM, and these Python workers."""
        os.killpg(self.pid, signal.SIGKILL)
        for pid in workers:
            kill(pid)
        self.end()

    def finish(self) -> int:
        """Let it take what is there, and wait; its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        return self._process.wait(20 * PATIENCE_S)

    def end(self) -> None:
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def drive(endpoint: str, checkpoint: Path, guarantee: str, mark: str) -> int:
    """The driver's process: run until standard input ends, and then until everything is read."""
    from popgate.spark.session import rocketmq_session

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = rocketmq_session("kills", master="local[2,4]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    queries = [
        each.trigger(processingTime="0 seconds").start()
        for each in writers(spark, endpoint, checkpoint, guarantee, mark)
    ]
    print("started", flush=True)
    reader = sys.stdin.fileno()
    os.set_blocking(reader, False)
    while all(query.isActive for query in queries):
        try:
            if os.read(reader, 1) == b"":
                break
        except BlockingIOError:
            time.sleep(0.05)
    for query in queries:
        if query.exception() is not None:
            print(query.exception(), file=sys.stderr)
            return 1
        query.stop()
    for each in writers(spark, endpoint, checkpoint, guarantee, mark):
        each.trigger(availableNow=True).start().awaitTermination()
    return 0


def run(
    folder: Path,
    seed: int,
    kills: int,
    guarantee: str,
    *,
    apart: bool = False,
    cluster: RocketMQ | None = None,
) -> tuple[Stage, list[str]]:
    """A whole run in the long form, and what was wrong."""
    dice = random.Random(f"{seed}/{guarantee}")
    stage = Stage.open(folder / "data", guarantee, folder if apart else None, cluster)
    victims = {"driver": 5, "workers": 3, "gateway": 2}
    if apart or cluster is not None:
        victims["broker"] = 3
    driver: Driver | None = None
    try:
        stage.send_portion()
        while len(stage.ends) - stage.ends.count(ENDED) < kills:
            if driver is None or not driver.runs:
                if driver is not None:
                    driver.end()
                    stage.ends.append(ENDED)
                driver = Driver(stage, folder)
                if not driver.begins:
                    if stage.ends.count(ENDED) > MOST_ENDED + len(stage.ends) // 2:
                        return stage, ["queries end at once", (folder / "driver.log").read_text()[-4000:]]
                    continue
            stage.send_portion()
            victim = dice.choices(tuple(victims), tuple(victims.values()))[0]
            # Looked up before the moment comes, which is over soon.
            workers = workers_under(driver.pid)
            if dice.random() < 0.25:
                # The seed chooses by it at which moment of a batch the kill comes.
                time.sleep(dice.uniform(0.0, 3.0))
            else:
                stage.await_rows(dice.choice((COPIES, COPIES, COUNTS)))
                time.sleep(dice.choice((0.0, 0.02, 0.1, 0.3)) * dice.random())
            if victim == "gateway":
                stage.kill_gateway()
            elif victim == "broker":
                stage.kill_broker()
            elif victim == "driver":
                driver.kill(workers)
                stage.ends.append("driver")
                driver = None
            elif [pid for pid in workers if kill(pid)]:
                stage.ends.append("workers")
        stage.ends = [each for each in stage.ends if each != ENDED]
        stage.send(LAST)
        for _ in range(5):
            if driver is None or not driver.runs:
                driver = Driver(stage, folder)
            if driver.finish() == 0:
                break
            driver.end()
        else:
            return stage, ["the query does not come to its end", (folder / "driver.log").read_text()[-4000:]]
        return stage, stage.complaints()
    finally:
        if driver is not None:
            driver.end()
        stage.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill what takes part in a streaming query, and judge.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument(
        "--guarantee", default="effectively-once", choices=("effectively-once", "transactional")
    )
    parser.add_argument("--apart", action="store_true", help="the broker is in a process of its own")
    parser.add_argument("--rocketmq", action="store_true", help="the broker is a RocketMQ's")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--mark", default="")
    parser.add_argument("--drive", help="be the driver, of a query before this gateway")
    chosen = parser.parse_args()
    if chosen.drive:
        sys.exit(drive(chosen.drive, chosen.checkpoint, chosen.guarantee, chosen.mark))
    with tempfile.TemporaryDirectory(prefix="popgate-kills-") as folder, contextlib.ExitStack() as closing:
        cluster = closing.enter_context(RocketMQ()) if chosen.rocketmq else None
        stage, complaints = run(
            *(Path(folder), chosen.seed, chosen.kills, chosen.guarantee),
            apart=chosen.apart,
            cluster=cluster,
        )
        log = Path(folder) / "driver.log"
        restarts = log.read_text().count("STREAM_FAILED") if log.exists() else 0
    print(f"seed {chosen.seed}, {chosen.guarantee}, messages {stage.sent}, kills {len(stage.ends)}")
    print(f"killed: {dict(Counter(stage.ends))}, failures told by queries: {restarts}")
    print(*(f"WRONG: {each}" for each in complaints), sep="\n")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
