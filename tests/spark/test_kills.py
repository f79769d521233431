"""The short form of `kills.py`: a Python worker and the gateway are killed under a query of the session."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import LONGEST_S, SPARK_S
from tests.spark.kills import LAST, Stage, kill, workers_under, writer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(LONGEST_S)]
SEED = 3


def test_a_query_writes_each_result_once_over_kills(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    dice = random.Random(SEED)
    stage = Stage.open(tmp_path / "data", "effectively-once")
    checkpoint = tmp_path / "checkpoint"

    def start() -> Any:
        return (
            writer(spark, stage.gateway.endpoint, checkpoint, stage.guarantee)
            .trigger(availableNow=True)
            .start()
        )

    def kill_worker() -> bool:
        workers = workers_under(os.getpid())
        return bool(workers) and kill(dice.choice(workers))

    try:
        for _ in range(6):
            stage.send_portion()
        query = start()
        for victim in ("worker", "gateway"):
            batch = dice.randint(1, 2) + len(query.recentProgress)
            wait_until(lambda: len(query.recentProgress) >= batch or not query.isActive, SPARK_S)  # noqa: B023
            if victim == "worker":
                wait_until(kill_worker, SPARK_S)
            else:
                stage.kill_gateway()
            if not query.isActive:
                query = start()
        stage.send(LAST)
        # What is sent while a query runs is the next one's.
        for _ in range(10):
            with contextlib.suppress(StreamingQueryException):
                assert query.awaitTermination(SPARK_S), query.status
                query = start()
                assert query.awaitTermination(SPARK_S), query.status
                break
            query = start()
        assert stage.complaints() == []
        # As after a death between the ledger and Spark's own note: the last batch with rows comes again.
        commits = checkpoint / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)
        assert start().awaitTermination(SPARK_S)
        assert stage.complaints() == []
    finally:
        for query in spark.streams.active:
            query.stop()
        stage.gateway.close()
