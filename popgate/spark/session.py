"""A Spark session that suits streams of topics, and the connector for executors that do not have it."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from popgate.spark.source import RocketMQDataSource

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_PACKAGE: Final = Path(__file__).resolve().parents[1]
_NOT_SHIPPED: Final = frozenset({"_app", "testing", "__pycache__"})
"""Folders of the package that tasks do not need: the gateway itself, and test support."""


def session_settings(*, local_checkpoints: bool) -> dict[str, str]:
    """The settings of `rocketmq_session`, by Spark's names.

    Python workers communicate over Unix domain sockets, because over TCP the small responses of a task wait
    for each other. State is stored in RocksDB, of which a batch writes its changes only.
    `local_checkpoints`: Spark's default way to write a checkpoint starts a process for each file on a local
    disk.
    """
    settings = {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    if local_checkpoints:
        manager = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
        settings["spark.sql.streaming.checkpointFileManagerClass"] = manager
    return settings


def rocketmq_session(
    name: str = "rocketmq",
    *,
    master: str | None = "local[*,4]",
    local_checkpoints: bool = True,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Create a session, or return the existing one, with `session_settings`; `settings` take precedence.

    `master` None: as configured by spark-submit or its files. A local master retries tasks up to four
    attempts, instead of one by default. `local_checkpoints` is for folders on a disk of this machine; use
    False for HDFS and object stores. Python workers run this interpreter unless PYSPARK_PYTHON is set.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**session_settings(local_checkpoints=local_checkpoints), **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def ship_connector(spark: SparkSession) -> Path:
    """Send the connector to executors that have no popgate installed, and register it; the file that is sent.

    They need Python 3.11 or newer with pyspark, numpy and pyarrow, which are no pure Python. The file lives
    as long as this process. It goes as modules and not pickled by value: connections that a worker keeps
    belong to a module, and would be others in every task.
    """
    folder = Path(tempfile.mkdtemp(prefix="popgate-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / "popgate_connector.zip"
    write_connector(archive)
    spark.sparkContext.addPyFile(str(archive))
    spark.dataSource.register(RocketMQDataSource)
    return archive


def write_connector(archive: Path) -> None:
    """Write the modules of the connector as a zip file, from which Python imports them."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for file in sorted(_PACKAGE.rglob("*.py")):
            place = file.relative_to(_PACKAGE)
            if _NOT_SHIPPED.isdisjoint(place.parts):
                packed.write(file, Path("popgate") / place)
