"""RocketMQ's own servers, fetched once from Maven Central as `pom.xml` pins them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from popgate.testing.made import Missing
from popgate.testing.maven import fetched_jars

NEWEST = "5.5.0"
VERSIONS = (NEWEST, "5.4.0", "5.3.3")
"""The versions that are complete in the registry and that popgate is tried with."""

_POM = Path(__file__).parent / "pom.xml"


def chosen_version() -> str:
    """The version for this run: TEST_ROCKETMQ, else the newest. Raises Missing for an unknown one."""
    version = os.environ.get("TEST_ROCKETMQ") or NEWEST
    if version not in VERSIONS:
        raise Missing(f"TEST_ROCKETMQ is {version}, and there are {', '.join(VERSIONS)}")
    return version


def jars(version: str = NEWEST) -> Path:
    """The folder of the jars; the first call fetches about 100 MB, others wait for it. Raises Missing."""
    if sys.platform == "win32":
        raise Missing("RocketMQ's servers are started on POSIX systems only")
    return fetched_jars("rocketmq", _POM, version, "rocketmq-broker-*.jar")
