"""RocketMQ's own servers, fetched once from Maven Central as `pom.xml` pins them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from popgate.testing.made import FETCH_TRIES, Missing, digest, locked, made_once, run_tool

NEWEST = "5.5.0"
VERSIONS = (NEWEST, "5.4.0", "5.3.3")
"""The versions that are complete in the registry and that popgate is tried with."""

_POM = Path(__file__).parent / "pom.xml"


def chosen_version() -> str:
    """The version for this run: TEST_ROCKETMQ, else the newest. Raises Missing for one that nobody knows."""
    version = os.environ.get("TEST_ROCKETMQ") or NEWEST
    if version not in VERSIONS:
        raise Missing(f"TEST_ROCKETMQ is {version}, and there are {', '.join(VERSIONS)}")
    return version


def jars(version: str = NEWEST) -> Path:
    """The folder of the jars; the first call fetches about 100 MB, others wait for it. Raises Missing."""
    if sys.platform == "win32":
        raise Missing("RocketMQ's servers are started on POSIX systems only")

    def fetch(folder: Path) -> None:
        shutil.copy2(_POM, folder)
        # -U: also what Maven noted before as not to be had.
        command = ["mvn", "-q", "-B", "-U", f"-Drocketmq.version={version}", "dependency:copy-dependencies"]
        with locked("maven"):  # processes that fill Maven's own cache at once spoil it
            run_tool(command, folder, tries=FETCH_TRIES)
        if not list((folder / "target" / "dependency").glob("rocketmq-broker-*.jar")):
            raise Missing("Maven fetched no broker")

    key = f"{version}-{digest(version, [_POM], _POM.parent)}"
    return made_once("rocketmq", key, fetch, using=("java",), making=("mvn",)) / "target" / "dependency"
