"""The short form of `kills.py`: a Python worker, the gateway, and a broker apart are killed under queries.

Before the embedded broker, and before a RocketMQ, which others use and which so is not killed here.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import CLUSTER, LONGEST_S, SPARK_S
from tests.spark.kills import COPIES, COUNTS, LAST, Stage, kill, workers_under, writers
from tests.support.needed import needed_rocketmq
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(LONGEST_S)]
SEED = 3


@pytest.fixture(
    params=[("worker", "gateway"), ("broker", "gateway"), ("worker", "gateway", CLUSTER)], ids="-".join
)
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, socket_folder: Path
) -> Iterator[tuple[Stage, list[str]]]:
    """A stage, and whom to kill on it."""
    victims = [each for each in request.param if each != CLUSTER]
    with contextlib.ExitStack() as closing:
        cluster = closing.enter_context(needed_rocketmq()) if CLUSTER in request.param else None
        apart = socket_folder if "broker" in victims else None
        stage = Stage.open(tmp_path / "data", "effectively-once", apart, cluster)
        closing.callback(stage.close)
        yield stage, victims
        # Connections that Spark's workers keep would be waited for.
        for each in stage.processes:
            each.kill()


def test_a_query_writes_each_result_once_over_kills(
    spark: Any, tmp_path: Path, opened: tuple[Stage, list[str]]
) -> None:
    from pyspark.errors import StreamingQueryException

    dice = random.Random(SEED)
    stage, victims = opened
    checkpoint = tmp_path / "checkpoint"

    def start(number: int) -> Any:
        writer = writers(spark, stage.gateway.endpoint, checkpoint, stage.guarantee, stage.mark)[number]
        return writer.trigger(availableNow=True).start()

    def kill_worker() -> bool:
        workers = workers_under(os.getpid())
        return bool(workers) and kill(dice.choice(workers))

    def finish(number: int, query: Any) -> None:
        """To its end, and once more: what was sent while a query ran is the next one's."""
        for _ in range(10):
            with contextlib.suppress(StreamingQueryException):
                assert query.awaitTermination(SPARK_S), query.status
                query = start(number)
                assert query.awaitTermination(SPARK_S), query.status
                return
            query = start(number)
        raise AssertionError("the query does not come to its end")

    def run(number: int) -> None:
        """To its end, without another failure than one of Spark itself: it gives a Python process 10 s to
        connect (`PythonWorkerFactory.createSimpleWorker`), which on a busy machine may not be enough."""
        for _ in range(5):
            try:
                assert start(number).awaitTermination(SPARK_S)
            except StreamingQueryException as failed:
                if "Python worker failed to connect back" not in str(failed):
                    raise
            else:
                return
        raise AssertionError("Spark cannot start its Python processes")

    try:
        for _ in range(5):
            stage.send_portion()
        queries = [start(0), start(1)]
        for victim in victims:
            query, more = dice.choice(queries), dice.randint(1, 2)
            batch = more + len(query.recentProgress)
            wait_until(lambda: len(query.recentProgress) >= batch or not query.isActive, SPARK_S)  # noqa: B023
            if query.isActive:
                stage.await_rows((COUNTS, COPIES)[queries.index(query)])
            if victim == "worker":
                wait_until(kill_worker, SPARK_S)
            elif victim == "broker":
                stage.kill_broker()
            else:
                stage.kill_gateway()
            queries = [each if each.isActive else start(at) for at, each in enumerate(queries)]
        stage.send(LAST)
        for number, query in enumerate(queries):
            finish(number, query)
        assert stage.complaints() == []
        # As after a death between the ledger's note and Spark's own: the last batch comes again.
        for number, name in enumerate((COUNTS, COPIES)):
            commits = checkpoint / name / "commits"
            last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
            for file in (f"{last}", f".{last}.crc"):
                (commits / file).unlink(missing_ok=True)
            run(number)
        assert stage.complaints() == []
    finally:
        for query in spark.streams.active:
            query.stop()
