"""What Spark reads and writes through the gateway: rows per second, the time of a batch, the gateway's CPU.

    python benchmarks/spark.py            # a million rows, about four minutes
    python benchmarks/spark.py --quick    # a few; proves only that it runs
    python benchmarks/spark.py --broker rocketmq://host:port    # before a RocketMQ that runs already
    python benchmarks/spark.py --compiled DIR    # the gateway as `deploy/compile.py tree DIR` made it
    python benchmarks/spark.py --only-sink       # a minute
    python benchmarks/spark.py --transport grpc --rows 50000    # by the option transport

One session of local[2] with the settings of `rocketmq_session`, a gateway of one process beside it, and the
load on the same cores. Rows have 100 bytes, 16 bytes of keys and two properties, in 8 queues; streams read
all there is in one trigger (AvailableNow) into Spark's noop sink. A stream's time is the `triggerExecution`
that Spark tells of the batches with rows, so that neither the start of a query nor that of the session
counts; a batch write's is that of the whole call. Each runs once to warm up, then some times, and the median
counts. CPU is user and system time of the gateway, and of Spark, with all their processes, by rows.

One-row batches take one message each (`maxOffsetsPerTrigger` 1), beside Spark's own rate source with a row a
second; the line says how much more ours take.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.processes import cpu_s
from benchmarks.beside.sides import compiled_copy, environment_of
from benchmarks.beside.spark_session import MISSING, WAIT_S, batches, last_words, pid_of, run_to_end, session
from popgate.blocking import BlockingConnection
from popgate.queue_client import QueueClient, QueuePlace
from popgate.testing.gateway import CREATE_ON_USE, GatewayProcess

QUEUES, MANY_QUEUES = 8, 64
BODY = "x" * 100


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of each is done."""

    rows: int
    rounds: int
    batches: int
    """Of one row each."""


FULL = Amounts(rows=1_000_000, rounds=3, batches=20)
QUICK = Amounts(rows=2_000, rounds=1, batches=3)


class Bench:
    def __init__(
        self, gateway: GatewayProcess, spark: Any, folder: Path, amounts: Amounts, transport: str
    ) -> None:
        self._gateway, self._spark, self._folder, self._amounts = gateway, spark, folder, amounts
        self._options = {"endpoints": gateway.endpoint, "transport": transport}
        self._pids = gateway.pid, pid_of(spark)
        self._streams = 0

    def sink(self) -> None:
        """Write the rows that are read afterwards."""
        rows = self._amounts.rows
        frame = self._spark.range(0, rows, 1, QUEUES).selectExpr(
            "'rows' as topic",
            f"'{BODY}' as body",
            "lpad(cast(id as string), 16, 'k') as keys",
            "map('color', 'red', 'parity', cast(id % 2 as string)) as properties",
        )
        writer = frame.write.format("rocketmq").options(**self._options)
        writer.mode("append").save()  # warms up, and is read with the rest
        took, cost = [], []
        for _ in range(self._amounts.rounds):
            began, spent = time.monotonic(), self._cpu_s()
            writer.mode("append").save()
            took.append(time.monotonic() - began)
            cost.append(self._cpu_since(spent))
        _tell("sink", rows, took, cost)

    def read(self, name: str, schema: str | None) -> None:
        """Everything that the sink wrote, with these columns. None: all."""
        took, cost, rows = [], [], 0
        for _ in range(1 + self._amounts.rounds):
            spent = self._cpu_s()
            times = self._stream({"topic": "rows"}, schema)
            cost.append(self._cpu_since(spent))
            took.append(sum(seconds for _, seconds in times))
            rows = sum(count for count, _ in times)
        wanted = self._amounts.rows * (1 + self._amounts.rounds)
        if rows != wanted:
            raise SystemExit(f"{name}: {rows} rows were read, and {wanted} written")
        _tell(name, rows, took[1:], cost[1:])

    def one_row_batches(self) -> None:
        self._fill("single", self._amounts.batches, 1)
        ours = [
            seconds for _, seconds in self._stream({"topic": "single", "maxOffsetsPerTrigger": "1"}, None)
        ]
        query = self._writer(
            self._spark.readStream.format("rate").option("rowsPerSecond", "1").load()
        ).start()
        end = time.monotonic() + WAIT_S
        while len(theirs := [seconds for _, seconds in batches(query)]) < len(ours):
            if time.monotonic() > end or not query.isActive:
                raise SystemExit(f"Spark's rate source came to {len(theirs)} batches: {query.status}")
            time.sleep(0.2)
        query.stop()
        ours_ms, theirs_ms = (statistics.median(each) * 1000 for each in (ours, theirs))
        print(f"spark.one_row_batch {ours_ms:.0f} ms, Spark's rate source {theirs_ms:.0f} ms", end="")
        print(f", {ours_ms - theirs_ms:+.0f} ms ({len(ours)} and {len(theirs)} batches)", flush=True)

    def many_queues(self) -> None:
        """A message in each of many queues."""
        took = []
        for number in range(1 + self._amounts.rounds):
            topic = f"many{number}"
            command = [
                sys.executable,
                "-m",
                "popgate",
                "topic",
                "create",
                topic,
                "--queues",
                str(MANY_QUEUES),
            ]
            subprocess.run([*command, "--admin", self._gateway.admin], check=True, stdout=subprocess.DEVNULL)
            self._fill(topic, MANY_QUEUES, MANY_QUEUES)
            times = self._stream({"topic": topic}, None)
            took.append(sum(seconds for _, seconds in times))
        median = statistics.median(took[1:])
        print(f"spark.many_queues {median:.2f} s, {MANY_QUEUES} queues with one row each", flush=True)

    def _cpu_s(self) -> list[float]:
        """Of the gateway and of Spark, so far."""
        return [cpu_s(pid) for pid in self._pids]

    def _cpu_since(self, before: Sequence[float]) -> list[float]:
        return [now - then for now, then in zip(self._cpu_s(), before, strict=True)]

    def _fill(self, topic: str, count: int, queues: int) -> None:
        with BlockingConnection.connect(self._gateway.endpoint, timeout_s=WAIT_S) as connection:
            client = QueueClient(connection)
            broker = client.route("TBW102").queues[0].broker
            for number in range(count):
                client.send(QueuePlace(topic, broker, number % queues), [(BODY.encode(), b"TAGS\x01a\x02")])

    def _stream(self, options: dict[str, str], schema: str | None) -> list[tuple[int, float]]:
        """Rows and seconds of each batch with rows of a stream that reads everything."""
        reader = self._spark.readStream.format("rocketmq").options(**self._options)
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.options(startingOffsets="earliest", **options).load()
        return run_to_end(self._writer(frame))

    def _writer(self, frame: Any) -> Any:
        self._streams += 1
        writer = frame.writeStream.format("noop")
        return writer.option("checkpointLocation", str(self._folder / f"{self._streams}"))


def _tell(name: str, rows: int, took: Sequence[float], cost: Sequence[Sequence[float]]) -> None:
    """`cost`: seconds of the gateway and of Spark, of each round."""
    gateway, spark = (statistics.median(each) / rows * 1e6 for each in zip(*cost, strict=True))
    rates = [rows / each for each in took]
    print(
        f"spark.{name} {statistics.median(rates):,.0f} rows/s ({min(rates):,.0f} to {max(rates):,.0f})",
        end="",
    )
    print(f", {gateway:.2f} us of the gateway's CPU per row, {spark:.2f} of Spark's", flush=True)


def measure(
    amounts: Amounts,
    broker: str | None,
    folder: Path,
    *,
    tree: Path | None = None,
    only_sink: bool = False,
    transport: str = "remoting",
) -> None:
    """`tree`: the checkout that the gateway is started from; None: this one."""
    options = ["--set", f"topics.queues={QUEUES}"]
    options += ["--broker", broker, *CREATE_ON_USE] if broker else []
    # Single messages are filled in by remoting in any case.
    scheme, environment = "grpc+remoting" if transport == "grpc" else transport, environment_of(tree)
    listen = (f"{scheme}://127.0.0.1:0",)
    with GatewayProcess(listen=listen, options=options, environment=environment) as gateway:
        spark = session(folder)
        try:
            bench = Bench(gateway, spark, folder, amounts, transport)
            parts: tuple[Callable[[], None], ...] = (
                bench.sink,
                lambda: bench.read("read_all_columns", None),
                lambda: bench.read("read_lean", "body binary"),
                bench.one_row_batches,
                bench.many_queues,
            )
            for part in parts[:1] if only_sink else parts:
                part()
        except BaseException:
            print(last_words(folder), file=sys.stderr)
            raise
        finally:
            spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--broker", help="a RocketMQ's name server, like rocketmq://127.0.0.1:9876")
    parser.add_argument("--rows", type=int, help="that are written in one round")
    parser.add_argument("--rounds", type=int, help=f"default {FULL.rounds}")
    parser.add_argument("--only-sink", action="store_true")
    parser.add_argument(
        "--compiled",
        type=compiled_copy,
        metavar="DIR",
        help="the gateway as `deploy/compile.py tree DIR` made it",
    )
    parser.add_argument("--transport", choices=("remoting", "grpc"), default="remoting")
    given = parser.parse_args()
    if shutil.which("java") is None:
        print("there is no java, which Spark needs", file=sys.stderr)
        return MISSING
    amounts = QUICK if given.quick else FULL
    if given.rows is not None:
        amounts = replace(amounts, rows=given.rows)
    if given.rounds is not None:
        amounts = replace(amounts, rounds=given.rounds)
    with tempfile.TemporaryDirectory(prefix="popgate-spark-") as folder:
        measure(
            amounts,
            given.broker,
            Path(folder),
            tree=given.compiled,
            only_sink=given.only_sink,
            transport=given.transport,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
