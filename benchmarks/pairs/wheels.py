"""The sides of a comparison: the wheel of a commit, unpacked, and the benchmarks of that commit beside it."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.beside import machine
from popgate.testing.made import Missing

CHECKOUT = "checkout"
"""The files as they are, instead of a commit."""
_ROOMS = ("popgate", "brokers", "processors", "protocols", "proxy")
_WHERE = f"import {', '.join(_ROOMS)}; print({', '.join(f'{room}.__file__' for room in _ROOMS)}, sep='\\n')"


@dataclass(frozen=True)
class WheelSide:
    """A wheel that programs can be run with."""

    name: str
    folder: Path

    def environment(self) -> dict[str, str]:
        """Variables with which Python finds this wheel and no other popgate; without settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("POPGATE_")}
        places = (self.folder, self.folder / "popgate" / "_app")
        return {**kept, "PYTHONPATH": os.pathsep.join(map(str, places))}

    def has(self, script: str) -> bool:
        return (self.folder / "benchmarks" / script).is_file()

    def check(self) -> None:
        """Raises RuntimeError: Python would take a part from elsewhere."""
        told = subprocess.run(
            [sys.executable, "-c", _WHERE],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        for place in told.stdout.splitlines():
            if not Path(place).is_relative_to(self.folder):
                raise RuntimeError(f"{self.name} would be measured with {place}, which is not of its wheel")


def full_commit(name: str) -> str:
    """The full name of a commit; of CHECKOUT that. Raises Missing: there is no git, or no such commit."""
    if name == CHECKOUT:
        return name
    if shutil.which("git") is None:
        raise Missing("git is not there, and only it has other commits")
    told = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"],
        cwd=machine.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        raise Missing(f"no commit {name} is here")
    return told.stdout.strip()


def build_side(name: str, commit: str, folder: Path) -> WheelSide:
    """Build the wheel of a commit in a new folder, with the packages of this environment.

    Raises SystemExit: it could not be built.
    """
    folder = folder.resolve()
    built, unpacked = folder / "built", folder / "unpacked"
    source = machine.ROOT if commit == CHECKOUT else source_of(commit, folder)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the wheel of {commit} could not be built: {done.stderr or done.stdout}")
    (wheel,) = built.glob("popgate-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    shutil.copytree(source / "benchmarks", unpacked / "benchmarks")
    compileall.compile_dir(unpacked, quiet=2)  # else the first run of each would do it
    side = WheelSide(name, unpacked)
    side.check()
    return side


def source_of(commit: str, folder: Path) -> Path:
    """The files of a commit, unpacked below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    packed, source = folder / "source.tar", folder / "source"
    subprocess.run(["git", "archive", "-o", str(packed), commit], cwd=machine.ROOT, check=True)
    with tarfile.open(packed) as archive:
        # Python 3.11 has filters from 3.11.4 on, and warns from 3.12 on if there is none.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(source)
    return source
