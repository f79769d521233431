"""The examples of README.md in a real Spark, before a whole gateway: as they stand there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from popgate.blocking import BlockingConnection
from popgate.queue_client import QueueClient, QueuePlace
from popgate.testing.gateway import GatewayProcess
from tests.spark.conftest import LONGEST_S, SPARK_S, started

pytestmark = [pytest.mark.timeout(LONGEST_S)]
README = Path(__file__).resolve().parents[2] / "README.md"
MINUTE_MS = 60_000
BEGIN_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def examples() -> list[str]:
    """The programs of the section about Spark, in their order."""
    section = README.read_text().partition("### Spark\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def run(gateway: GatewayProcess, spark: Any, tmp_path: Path) -> Callable[[str], None]:
    """Runs a program at this gateway, with its files in a folder of the test."""

    def run(text: str) -> None:
        for name in ("orders-checkpoint", "orders-parquet", "counts-checkpoint"):
            text = text.replace(f'"{name}"', repr(str(tmp_path / name)))
        program = compile(text.replace("127.0.0.1:8080", gateway.endpoint), str(README), "exec")
        started(lambda _: exec(program, {}))

    return run


def test_the_examples_do_what_they_say(
    spark: Any, gateway: GatewayProcess, run: Callable[[str], None], tmp_path: Path
) -> None:
    into_parquet, counted = examples()
    with BlockingConnection.connect(gateway.endpoint, timeout_s=SPARK_S) as connection:
        client = QueueClient(connection)
        queue = QueuePlace("orders", client.route("TBW102").queues[0].broker, 0)
        for minute, tags in ((0, "aab"), (1, "a"), (5, "b")):
            messages = [(tag.encode(), f"TAGS\x01{tag}\x02".encode()) for tag in tags]
            opaque = client.start_send(queue, messages, now_ms=BEGIN_MS + minute * MINUTE_MS + 5000)
            client.finish_send(opaque, queue)

    for _ in range(2):
        run(into_parquet)
        rows = spark.read.parquet(str(tmp_path / "orders-parquet")).collect()
        assert sorted(row.body for row in rows) == list("aaabb")

    for _ in range(2):
        run(counted)
        reader = spark.read.format("rocketmq").options(endpoints=gateway.endpoint, topic="orders-per-minute")
        told = [json.loads(row.body) for row in reader.load().collect()]
        assert sorted((each["start"][:16], each["tag"], each["count"]) for each in told) == [
            ("2026-01-01T00:00", "a", 2),
            ("2026-01-01T00:00", "b", 1),
            ("2026-01-01T00:01", "a", 1),
        ]
