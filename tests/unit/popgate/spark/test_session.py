"""popgate.spark.session: settings of a session, and what is sent to executors, without a JVM."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest

from popgate.spark import session
from popgate.spark.session import rocketmq_session, session_settings, ship_connector, write_connector
from popgate.spark.source import RocketMQDataSource


class Builder:
    """In the place of Spark's: keeps what it is told."""

    def __init__(self) -> None:
        self.told: dict[str, object] = {}

    def appName(self, name: str) -> Builder:  # noqa: N802 - Spark's name
        self.told["name"] = name
        return self

    def master(self, master: str) -> Builder:
        self.told["master"] = master
        return self

    def config(self, key: str, value: str) -> Builder:
        self.told[key] = value
        return self

    def getOrCreate(self) -> Builder:  # noqa: N802 - Spark's name
        return self


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    found = Builder()
    monkeypatch.setattr(session, "SparkSession", type("SparkSession", (), {"builder": found}))
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    return found


def test_a_session_suits_streams_and_users_have_the_last_word(builder: Builder) -> None:
    state = "spark.sql.streaming.stateStore.providerClass"
    rocketmq_session("jobs", settings={state: "theirs", "spark.ui.enabled": "false"})
    assert builder.told["name"] == "jobs"
    assert builder.told["master"] == "local[*,4]"
    assert builder.told[state] == "theirs"
    assert builder.told["spark.ui.enabled"] == "false"
    assert builder.told["spark.python.unix.domain.socket.enabled"] == "true"
    assert session.os.environ["PYSPARK_PYTHON"] == "mine"


def test_workers_run_this_interpreter_unless_told_otherwise(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    rocketmq_session(master=None)
    assert session.os.environ["PYSPARK_PYTHON"] == session.sys.executable
    assert "master" not in builder.told


def test_only_checkpoints_on_a_local_disk_are_written_without_a_process_for_each() -> None:
    manager = "spark.sql.streaming.checkpointFileManagerClass"
    assert manager in session_settings(local_checkpoints=True)
    assert manager not in session_settings(local_checkpoints=False)


def test_what_is_sent_to_executors_has_all_that_the_connector_imports(tmp_path: Path) -> None:
    archive = tmp_path / "connector.zip"
    write_connector(archive)
    with zipfile.ZipFile(archive) as packed:
        names = set(packed.namelist())
        texts = {name: packed.read(name).decode() for name in names}
    assert "popgate/spark/source.py" in names
    assert not [name for name in names if "/testing/" in name or "/_app/" in name]
    wanted, seen = (
        [
            "popgate/spark/source.py",
            "popgate/spark/read/partition_reader.py",
            "popgate/spark/write/write_task.py",
        ],
        set(),
    )
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(texts[name])):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("popgate"):
                place = (node.module or "").replace(".", "/")
                found = {f"{place}.py", f"{place}/__init__.py"} & names
                assert found, f"{name} imports {node.module}"
                wanted += found
    assert "popgate/wire/messages/records.py" in seen


def test_the_connector_is_sent_and_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    files: list[str] = []
    registered: list[type] = []

    class Spark:
        class sparkContext:  # noqa: N801 - Spark's name
            addPyFile = files.append  # noqa: N815 - Spark's name

        class dataSource:  # noqa: N801 - Spark's name
            register = registered.append

    archive = ship_connector(Spark())  # type: ignore[arg-type]
    assert files == [str(archive)]
    assert zipfile.is_zipfile(archive)
    assert registered == [RocketMQDataSource]
