"""What Spark reads and writes through the gateway, beside its own Kafka source and sink: rows/s and CPU.

    python benchmarks/spark_beside_kafka.py [--out docs/performance]    # five rounds, about six minutes
    python benchmarks/spark_beside_kafka.py --compiled DIR      # the gateway as deploy/compile.py made it
    python benchmarks/spark_beside_kafka.py --quick                     # proves only that it runs

The connector to Kafka is there for Spark 4.2.0, and so both sides run in that: in an environment of its own,
which is made once, with the numpy and pyarrow of this one. One session of local[2] with the settings of
`rocketmq_session`; the gateway with its embedded broker, one process, and a Kafka broker of one process
(KRaft) run all the time, on the same cores. The same rows go to both: 100 bytes, 16 bytes of keys and two
properties (headers), 8 queues (partitions). Each part runs once to warm up, and then in rounds, in which the
sides take turns and another one is first each time. The sink is a batch written to a new topic, at least
once; reads are streams that take all of one topic in one trigger (AvailableNow) into Spark's noop sink,
timed as `benchmarks/spark.py` does:

    all     all columns of each side: twenty of ours, Kafka's eight with its headers
    same    those that both have: topic, queue, offset, time, keys, body, properties
    lean    the body

Kafka is read with a short wait and larger polls (`TUNED`), and, as `kafka_shipped`, without: as shipped its
source mostly waits. CPU is user and system time by row, of Spark (the JVM and its Python processes) and of
the broker (the gateway and all its processes, or Kafka's JVM). Ratios are those of one round.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.kafka.server import SPARK, Kafka, connector_jars, jars
from benchmarks.beside.machine import ROOT, doubts, facts
from benchmarks.beside.processes import cpu_s
from benchmarks.beside.sides import compiled_copy, environment_of
from benchmarks.beside.spark_session import MISSING, last_words, pid_of, run_to_end, session
from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import FETCH_TRIES, Missing, made_once, run_tool

NAME = "spark-beside-kafka"
QUEUES = 8
OURS, KAFKA, SHIPPED = "ours", "kafka", "kafka_shipped"
TUNED = {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "20000"}
SAME = (
    "topic string, queue_id int, queue_offset bigint, store_timestamp timestamp, keys array<string>,"
    " body binary, properties map<string, string>"
)
COLUMNS: dict[str, tuple[str | None, Sequence[str], bool]] = {
    "all": (None, ("*",), True),
    "same": (
        SAME,
        ("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
        True,
    ),
    "lean": ("body binary", ("value",), False),
}
"""Of each part that reads: our schema, Kafka's columns, and whether it is to have headers."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Of one side in one round."""

    rows_per_s: float
    spark_us: float
    """CPU by row."""
    broker_us: float


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    broker_pid: int
    write: Callable[[str], None]
    """All rows, to this topic."""
    read: Callable[[str, str], Any]
    """A stream of a topic, with the columns of a part."""


class Bench:
    def __init__(self, spark: Any, folder: Path, rows: int, rounds: int) -> None:
        self._spark, self._folder, self._rows, self._rounds = spark, folder, rows, rounds
        self._streams = 0
        self.found: dict[str, dict[str, list[Figure]]] = {}

    def run(self, gateway: GatewayProcess, kafka: Kafka) -> None:
        sides = self._sides(gateway, kafka)
        writers = [side for side in sides if side.name != SHIPPED]
        topics = iter(range(1 + self._rounds))
        self._turns(
            "sink", writers, lambda side, topic: self._write(side, topic), lambda: f"rows{next(topics)}"
        )
        for part in COLUMNS:
            self._turns(
                part, sides, lambda side, topic, part=part: self._read(side, topic, part), lambda: "rows0"
            )

    def _turns(
        self,
        part: str,
        sides: Sequence[Side],
        work: Callable[[Side, str], float],
        topic_of_round: Callable[[], str],
    ) -> None:
        """`work` tells the seconds that it took."""
        found = self.found[part] = {side.name: [] for side in sides}
        for number in range(1 + self._rounds):
            first = number % len(sides)
            topic = topic_of_round()
            for side in [*sides[first:], *sides[:first]]:
                spent = self._spark_cpu_s(), cpu_s(side.broker_pid)
                took = work(side, topic)
                spark_s, broker_s = self._spark_cpu_s() - spent[0], cpu_s(side.broker_pid) - spent[1]
                if number:
                    by_row = 1e6 / self._rows
                    found[side.name].append(Figure(self._rows / took, spark_s * by_row, broker_s * by_row))
        for line in lines_of(part, found):
            print(line, flush=True)

    def _write(self, side: Side, topic: str) -> float:
        began = time.monotonic()
        side.write(topic)
        return time.monotonic() - began

    def _read(self, side: Side, topic: str, part: str) -> float:
        self._streams += 1
        writer = side.read(topic, part).writeStream.format("noop")
        found = run_to_end(writer.option("checkpointLocation", str(self._folder / f"{self._streams}")))
        rows = sum(count for count, _ in found)
        if rows != self._rows:
            raise SystemExit(f"{part}, {side.name}: {rows} rows were read, and {self._rows} written")
        return sum(seconds for _, seconds in found)

    def _spark_cpu_s(self) -> float:
        return cpu_s(pid_of(self._spark))

    def _sides(self, gateway: GatewayProcess, kafka: Kafka) -> list[Side]:
        body = "x" * 100
        frame = self._spark.range(0, self._rows, 1, QUEUES).selectExpr(
            f"'{body}' as body",
            "lpad(cast(id as string), 16, 'k') as keys",
            "map('color', 'red', 'parity', cast(id % 2 as string)) as properties",
        )
        headers = (
            "transform(map_entries(properties), e -> struct(e.key as key, cast(e.value as binary) as value))"
        )
        records = frame.selectExpr("keys as key", "body as value", f"{headers} as headers")

        def write_ours(topic: str) -> None:
            writer = frame.write.format("rocketmq").options(endpoints=gateway.endpoint, topic=topic)
            writer.mode("append").save()

        def write_kafka(topic: str) -> None:
            writer = records.write.format("kafka").option("kafka.bootstrap.servers", kafka.address)
            writer.option("topic", topic).option("includeHeaders", "true").mode("append").save()

        def read_ours(topic: str, part: str) -> Any:
            schema, _, _ = COLUMNS[part]
            reader = self._spark.readStream.format("rocketmq")
            reader = reader if schema is None else reader.schema(schema)
            return reader.options(endpoints=gateway.endpoint, topic=topic, startingOffsets="earliest").load()

        def reader_of_kafka(settings: dict[str, str]) -> Callable[[str, str], Any]:
            def read(topic: str, part: str) -> Any:
                _, columns, has_headers = COLUMNS[part]
                reader = self._spark.readStream.format("kafka").options(**settings, subscribe=topic)
                reader = reader.option("kafka.bootstrap.servers", kafka.address)
                reader = reader.options(startingOffsets="earliest", includeHeaders=str(has_headers).lower())
                return reader.load().select(*columns)

            return read

        return [
            Side(OURS, gateway.pid, write_ours, read_ours),
            Side(KAFKA, kafka.pid, write_kafka, reader_of_kafka(TUNED)),
            Side(SHIPPED, kafka.pid, write_kafka, reader_of_kafka({})),
        ]


def lines_of(part: str, found: dict[str, list[Figure]]) -> list[str]:
    """Medians of each side, and the ratio of ours to each other: the rounds' median, and all."""
    lines = []
    for side, figures in found.items():
        rate, spark, broker = (
            statistics.median(getattr(each, name) for each in figures)
            for name in ("rows_per_s", "spark_us", "broker_us")
        )
        line = f"{part} {side} {rate:,.0f} rows/s, CPU {spark:.2f} us of Spark, {broker:.2f} of the broker"
        if side != OURS and OURS in found:
            ratios = [
                ours.rows_per_s / its.rows_per_s for ours, its in zip(found[OURS], figures, strict=True)
            ]
            told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            line += f"; ours reaches {statistics.median(ratios):.2f} of it ({told})"
        lines.append(line)
    return lines


def measure(
    rows: int, rounds: int, python: str, folder: Path, tree: Path | None
) -> dict[str, dict[str, list[Figure]]]:
    """`python`: the interpreter of the gateway; `tree`: its checkout, None: this one. Raises Missing."""
    settings = {"spark.jars": ",".join(map(str, connector_jars()))}
    gateway_process = GatewayProcess(
        listen=("remoting://127.0.0.1:0",),
        options=["--set", f"topics.queues={QUEUES}"],
        environment=environment_of(tree),
        python=python,
    )
    with Kafka(QUEUES) as kafka, gateway_process as gateway:
        spark = session(folder, settings)
        try:
            bench = Bench(spark, folder, rows, rounds)
            bench.run(gateway, kafka)
        except BaseException:
            print(last_words(folder), file=sys.stderr)
            raise
        finally:
            spark.stop()
    return bench.found


def python_with_spark() -> Path:
    """Of an environment with the Spark of the connector. Raises Missing."""
    versions = {"pyspark": SPARK, **{name: importlib.metadata.version(name) for name in ("numpy", "pyarrow")}}
    wanted = [f"{name}=={version}" for name, version in versions.items()]

    def make(folder: Path) -> None:
        run_tool([sys.executable, "-m", "venv", "."], folder)
        pip = ["bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_tool([*pip, *wanted], folder, tries=FETCH_TRIES)

    key = "-".join([*versions.values(), f"{sys.version_info.major}.{sys.version_info.minor}"])
    return made_once("pyspark", key, make) / "bin" / "python"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few rows, one round")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"write {NAME}.json there")
    parser.add_argument(
        "--compiled",
        type=compiled_copy,
        metavar="DIR",
        help="the gateway as `deploy/compile.py tree DIR` made it",
    )
    parser.add_argument("--gateway-python", help=argparse.SUPPRESS)  # this is the process with Spark in it
    given = parser.parse_args()
    try:
        if given.gateway_python is None:
            if shutil.which("java") is None:
                raise Missing("there is no java, which Spark needs")
            jars()
            python = str(python_with_spark())
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python}
            words = [str(Path(__file__)), *sys.argv[1:], "--gateway-python", sys.executable]
            os.execve(python, [python, *words], environment)
        rows, rounds = (2_000, 1) if given.quick else (given.rows, given.rounds)
        machine = facts()
        with tempfile.TemporaryDirectory(prefix="popgate-spark-") as folder:
            found = measure(rows, rounds, given.gateway_python, Path(folder), given.compiled)
    except Missing as why:
        print(why, file=sys.stderr)
        return MISSING
    for doubt in doubts(machine):
        print(f"WARNING: {doubt}", file=sys.stderr)
    if given.out is not None:
        told = {
            "machine": machine,
            "spark": SPARK,
            "compiled": given.compiled is not None,
            "rows": rows,
            "results": {
                part: {side: [asdict(each) for each in figures] for side, figures in sides.items()}
                for part, sides in found.items()
            },
        }
        (given.out / f"{NAME}.json").write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
