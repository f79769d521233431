"""Jars from Maven Central, fetched once as a `pom.xml` pins them."""

from __future__ import annotations

import shutil
from pathlib import Path

from popgate.testing.made import FETCH_TRIES, Missing, digest, locked, made_once, run_tool


def fetched_jars(name: str, pom: Path, version: str, needed: str) -> Path:
    """The folder of the jars that the file `pom` depends on; the first call fetches, others wait for it.

    The property `{name}.version` of the file is `version`. `needed`: a pattern of the file that has to be
    among them. Raises Missing.
    """

    def fetch(folder: Path) -> None:
        shutil.copy2(pom, folder)
        # -U: also what Maven noted before as not to be had.
        command = ["mvn", "-q", "-B", "-U", f"-D{name}.version={version}", "dependency:copy-dependencies"]
        with locked("maven"):  # processes that fill Maven's own cache at once spoil it
            run_tool(command, folder, tries=FETCH_TRIES)
        if not list((folder / "target" / "dependency").glob(needed)):
            raise Missing(f"Maven fetched no {needed}")

    key = f"{version}-{digest(version, [pom], pom.parent)}"
    return made_once(name, key, fetch, using=("java",), making=("mvn",)) / "target" / "dependency"
