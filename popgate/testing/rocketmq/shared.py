"""A cluster that all test processes of this machine share, started by the first and stopped by the last.

A cluster runs in a process of its own (`host`). Each user holds a shared lock on a file; the host waits
for an exclusive lock, which the system grants when the last user has ended for any reason. Each version has
its own cluster, and so does each folder that `FOLDER_VARIABLE` names.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import popgate
from popgate.testing.made import digest
from popgate.testing.rocketmq.cluster import RocketMQ
from popgate.testing.rocketmq.downloads import chosen_version, jars
from popgate.testing.rocketmq.servers import STARTED_WITHIN_S, RocketMQDidNotStart
from popgate.testing.variables import variables

FOLDER_VARIABLE: Final = "TEST_ROCKETMQ_FOLDER"
"""The folder of the locks, for processes that have a cluster of their own."""
_POLLED_EVERY_S: Final = 0.05
_HOST_WITHIN_S: Final = 3 * STARTED_WITHIN_S
"""A name server, then a broker, and an old host that is still ending."""


_hosts: Final[list[subprocess.Popen[bytes]]] = []
"""Hosts that this process started. They outlive it; unknown ones would be reported as left running."""


@dataclass(slots=True, frozen=True)
class SharedRocketMQ:
    """A name server and a broker that others use, too: names of topics and groups must be one's own."""

    version: str
    name_server: str
    broker: str
    broker_pid: int
    folder: str

    @property
    def url(self) -> str:
        """As the gateway's `--broker` wants it."""
        return f"rocketmq://{self.name_server}"


@contextlib.contextmanager
def shared_rocketmq(version: str | None = None) -> Iterator[SharedRocketMQ]:
    """The shared cluster, until the end of the block. Raises Missing, RocketMQDidNotStart."""
    version = version or chosen_version()
    jars(version)
    place = _place(version)
    with (place / "users.lock").open("w") as users:
        with (place / "entry.lock").open("w") as entry:
            fcntl.flock(entry, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)  # waits for a host that is ending
            state_file = place / "cluster.json"
            if not state_file.exists() or not _is_held(place / "host.lock"):
                state_file.unlink(missing_ok=True)
                _start_host(place, version, state_file)
            cluster = SharedRocketMQ(**json.loads(state_file.read_text()))
        yield cluster


def host(version: str) -> None:
    """Start the cluster, say where it is, wait for the last user to go, and stop it."""
    place = _place(version)
    with (place / "host.lock").open("w") as mine, RocketMQ(version=version) as cluster:
        fcntl.flock(mine, fcntl.LOCK_EX)
        master = cluster.master()
        shared = SharedRocketMQ(
            version, cluster.addresses[0], master.address, master.pid, str(cluster.folder)
        )
        written = place / "cluster.json.new"
        written.write_text(json.dumps({name: getattr(shared, name) for name in SharedRocketMQ.__slots__}))
        written.rename(place / "cluster.json")
        with (place / "users.lock").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            (place / "cluster.json").unlink()
            cluster.stop()


def _place(version: str) -> Path:
    """The folder of the locks; another one for each user, version, and way to start it."""
    here = Path(__file__).parent
    key = digest(version, sorted([*here.glob("*.py"), here / "pom.xml"]), here)
    everybody = Path(tempfile.gettempdir()) / f"popgate-rocketmq-of-{getpass.getuser()}"
    place = Path(os.environ.get(FOLDER_VARIABLE) or everybody) / f"{version}-{key}"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


def _is_held(lock: Path) -> bool:
    """Whether a process holds the lock."""
    with lock.open("w") as tried:
        try:
            fcntl.flock(tried, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _start_host(place: Path, version: str, state_file: Path) -> None:
    home = str(Path(popgate.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))
    log = place / "host.log"
    with log.open("wb") as output:
        process = _started_host(version, {**variables(), "PYTHONPATH": path}, output)
    end = time.monotonic() + _HOST_WITHIN_S
    _hosts.append(process)
    while not state_file.exists():
        if process.poll() is not None or time.monotonic() > end:
            process.terminate()
            raise RocketMQDidNotStart(log.read_text(errors="replace"))
        time.sleep(_POLLED_EVERY_S)


def _started_host(version: str, environment: dict[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "popgate.testing.rocketmq", "host", "--version", version]
    return subprocess.Popen(  # noqa: S603 - our own program, without a shell
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
