"""A Spark session to measure in, and what its streams take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

WAIT_S: Final = 600.0
"""For a stream to its end."""
MISSING: Final = 3
"""The exit code of a benchmark when there is no Java, which Spark needs."""
_LOG: Final = "spark.log"
_LOG_TOLD: Final = 10_000


def session(folder: Path, settings: Mapping[str, str] | None = None) -> Any:
    """Two tasks at a time, with the settings of `rocketmq_session` and these; its files lie in the folder."""
    from popgate.spark.session import rocketmq_session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # a machine may not know its own name
    own = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    # What Spark says of itself, and its Python processes as they are ended, is told only when a part fails.
    stderr = os.dup(2)
    try:
        with (folder / _LOG).open("wb") as log:
            os.dup2(log.fileno(), 2)
        made = rocketmq_session("bench", master="local[2]", settings={**own, **(settings or {})})
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    made.sparkContext.setLogLevel("ERROR")
    return made


def pid_of(spark: Any) -> int:
    """The JVM; the Python workers are its children."""
    return int(type(spark.sparkContext)._gateway.proc.pid)


def last_words(folder: Path) -> str:
    """The end of what Spark said of itself."""
    return (folder / _LOG).read_text(errors="replace")[-_LOG_TOLD:]


def run_to_end(writer: Any) -> list[tuple[int, float]]:
    """Rows and seconds of each batch with rows of a stream that reads what is there. Raises SystemExit."""
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(WAIT_S):
        raise SystemExit(f"a stream did not end within {WAIT_S:.0f} s: {query.status}")
    return batches(query)


def batches(query: Any) -> list[tuple[int, float]]:
    """Of those with rows; the first of a query that has several also sets up, and is left out."""
    told = [
        (each.numInputRows, each.durationMs["triggerExecution"] / 1000)
        for each in query.recentProgress
        if each.numInputRows
    ]
    return told[1:] if len(told) > 2 else told
