"""A Kafka broker of one process (KRaft), and Spark's own connector to it, both from Maven Central."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

from popgate.testing.made import Missing
from popgate.testing.maven import fetched_jars
from popgate.testing.rocketmq.ports import free_ports, is_open
from popgate.testing.rocketmq.servers import JavaServer, Reaper, java

KAFKA: Final = "4.1.1"
SPARK: Final = "4.2.0"
"""The newest Spark whose connector is in the registry, and so that of both sides; `pom.xml` has it too."""
_POM: Final = Path(__file__).parent / "pom.xml"
_CONNECTOR: Final = (
    f"spark-sql-kafka-0-10_2.13-{SPARK}.jar",
    f"spark-token-provider-kafka-0-10_2.13-{SPARK}.jar",
    f"kafka-clients-{KAFKA}.jar",
    "commons-pool2-*.jar",
)
_CLUSTER_ID: Final = "cG9wZ2F0ZS1iZW5jaC0wMQ"
_HEAP: Final = ("-Xms256m", "-Xmx1g")
"""As Kafka's own start script has it, but for the first."""
_FORMATTED_WITHIN_S: Final = 120.0


def jars() -> Path:
    """The folder of all of them. Raises Missing."""
    return fetched_jars("kafka", _POM, KAFKA, _CONNECTOR[0])


def connector_jars() -> list[Path]:
    """What Spark needs besides its own jars. Raises Missing."""
    folder = jars()
    found = [path for pattern in _CONNECTOR for path in folder.glob(pattern)]
    if len(found) != len(_CONNECTOR):
        raise Missing(f"of {', '.join(_CONNECTOR)} there are {', '.join(path.name for path in found)}")
    return found


class Kafka:
    """A broker on free ports of the loopback device, with its data in a folder that goes with it."""

    def __init__(self, partitions: int) -> None:
        """`partitions`: of topics that are made on first use."""
        self._partitions = partitions
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._reaper: Reaper | None = None
        self._server: JavaServer | None = None

    @property
    def address(self) -> str:
        return self._running.address

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> JavaServer:
        if self._server is None:
            raise RuntimeError("it was not started")
        return self._server

    def __enter__(self) -> Kafka:
        """Start it and wait until it serves. Raises Missing, RocketMQDidNotStart."""
        found = jars()
        self._temporary = tempfile.TemporaryDirectory(prefix="popgate-kafka-", ignore_cleanup_errors=True)
        self._reaper = Reaper()
        self._reaper.tell(self._temporary.name)
        self._server = JavaServer(
            "kafka",
            "kafka.Kafka",
            jars=found,
            folder=Path(self._temporary.name),
            reaper=self._reaper,
            arguments=lambda server: [str(self._formatted(server, found))],
            says="Kafka Server started",
            ready=lambda server: is_open(server.port),
            options=_HEAP,
        )
        try:
            self._server.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._server is not None:
            self._server.kill()
        if self._reaper is not None:
            self._reaper.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _formatted(self, server: JavaServer, found: Path) -> Path:
        """The file of settings, of a folder for data that is made ready. Raises Missing."""
        server.port = free_ports(2)
        controller = f"127.0.0.1:{server.port + 1}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{server.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{server.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(server.folder / "data"),
            "num.partitions": str(self._partitions),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        path = server.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if not (server.folder / "data").exists():
            words = ["format", "--cluster-id", _CLUSTER_ID, "--config", str(path)]
            ended = subprocess.run(
                [java(), "-cp", str(found / "*"), "kafka.tools.StorageTool", *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=_FORMATTED_WITHIN_S,
                cwd=server.folder,
            )
            if ended.returncode:
                raise Missing(f"Kafka's data cannot be made ready:\n{ended.stdout}{ended.stderr}")
        return path
