"""What drivers are helped with: a listener in a real Spark, and modules for executors without popgate."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from popgate.spark.session import write_connector
from popgate.testing.gateway import GatewayProcess
from tests.spark.conftest import LONGEST_S, SPARK_S, started
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.timeout(LONGEST_S)]


def test_a_listener_tells_how_far_a_stream_is_behind(
    spark: Any,
    gateway: GatewayProcess,
    send: Callable[[str, int, int], None],
    finished: Callable[[Any], list[int]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from popgate.spark.listener import RocketMQListener

    send("heard", 0, 20)
    stream = spark.readStream.schema("body binary").format("rocketmq")
    stream.options(endpoints=gateway.endpoint, topic="heard", startingOffsets="earliest")
    writer = stream.option("maxOffsetsPerTrigger", "12").load().writeStream.format("noop").queryName("heard")
    listener = RocketMQListener()
    spark.streams.addListener(listener)
    try:
        with caplog.at_level(logging.INFO, "popgate.spark.listener"):
            assert finished(writer.option("checkpointLocation", str(tmp_path))) == [12, 8]

            def told() -> list[str]:
                return [each.getMessage() for each in caplog.records if each.name == "popgate.spark.listener"]

            wait_until(lambda: "query heard ended" in told(), SPARK_S, seen=told)
    finally:
        spark.streams.removeListener(listener)
    # A topic that is made on first use has eight queues, of which two were sent to.
    batches = [each.partition(" in ")[0] + each.partition(" ms")[2] for each in told() if " rows " in each]
    assert batches[:2] == [
        "query heard: batch 0 of 12 rows, queues are behind by 0 to 4, 1.0 on average",
        "query heard: batch 1 of 8 rows, queues are behind by 0 to 0, 0.0 on average",
    ]
    assert listener.metrics.text() == ""


def test_a_gateway_has_the_figures_of_a_query_while_it_runs(
    spark: Any, gateway: GatewayProcess, send: Callable[[str, int, int], None], tmp_path: Path
) -> None:
    from popgate.spark.listener import RocketMQListener

    send("reported", 0, 20)
    stream = spark.readStream.schema("body binary").format("rocketmq")
    stream.options(endpoints=gateway.endpoint, topic="reported", startingOffsets="earliest")
    writer = stream.load().writeStream.format("noop").queryName("reported")
    writer.option("checkpointLocation", str(tmp_path))

    def told() -> dict[str, float]:
        with urlopen(f"{gateway.admin}/metrics", timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        found = (line.rpartition(" ") for line in lines if 'query="reported"' in line)
        return {name.partition("{")[0]: float(value) for name, _, value in found}

    def runs(_: float) -> Any:
        query = writer.start()
        query.processAllAvailable()
        return query

    listener = RocketMQListener({"endpoints": gateway.endpoint})
    spark.streams.addListener(listener)
    try:
        query = started(runs)
        wait_until(lambda: told().get("popgate_spark_input_rows_total") == 20, SPARK_S, seen=told)
        assert told()["popgate_spark_lag_max"] == 0
        query.stop()
        wait_until(lambda: not told(), SPARK_S, seen=told)
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def test_what_is_sent_to_executors_can_be_imported(tmp_path: Path) -> None:
    archive = tmp_path / "connector.zip"
    write_connector(archive)
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "import popgate.spark.read.partition_reader, popgate.spark.source, popgate.spark.write.write_task\n"
        "print(popgate.spark.write.write_task.__file__)\n"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(archive))
