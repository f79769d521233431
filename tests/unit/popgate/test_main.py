"""popgate.__main__: the launcher finds its own packages, whatever else is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import popgate

LAUNCHER = Path(popgate.__file__).parent / "__main__.py"


def package(folder: Path, says: str) -> None:
    (folder / "proxy").mkdir(parents=True)
    (folder / "proxy" / "__init__.py").write_text("")
    (folder / "proxy" / "cli.py").write_text(f"def main():\n    print({says!r})\n")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """As an installed wheel lies on the disk."""
    site = tmp_path / "site"
    (site / "popgate").mkdir(parents=True)
    (site / "popgate" / "__init__.py").write_text("")
    shutil.copy(LAUNCHER, site / "popgate")
    package(site / "popgate" / "_app", "ours")
    return site


def said(arguments: list[str], folder: Path, *path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout.strip()


def test_a_wheel_runs_the_packages_beside_the_launcher(wheel: Path, tmp_path: Path) -> None:
    assert said(["-m", "popgate"], tmp_path, wheel) == "ours"


def test_another_package_called_proxy_does_not_stand_in_its_way(wheel: Path, tmp_path: Path) -> None:
    package(tmp_path / "stranger", "theirs")
    package(wheel, "theirs")
    package(tmp_path, "theirs")
    assert said(["-m", "popgate"], tmp_path, tmp_path / "stranger", wheel) == "ours"
    script = "from popgate.__main__ import main; main()"
    assert said(["-c", script], tmp_path, tmp_path / "stranger", wheel) == "ours"


def test_a_checkout_runs_the_packages_beside_popgate(wheel: Path, tmp_path: Path) -> None:
    shutil.rmtree(wheel / "popgate" / "_app")
    package(wheel, "the checkout's")
    package(tmp_path / "stranger", "theirs")
    assert said(["-m", "popgate"], tmp_path, tmp_path / "stranger", wheel) == "the checkout's"
