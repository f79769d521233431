"""deploy/environment.sh: what is not whole is mended, and what cannot be made has its reason."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_STAND_IN = """#!/bin/sh
case "$*" in
"-c import ensurepip"*) [ -z "${NO_ENSUREPIP:-}" ] ;;
"-c import pip") [ -e "${0%/bin/python}/pip" ] ;;
"-m ensurepip") : >"${0%/bin/python}/pip" ;;
"-m venv "*)
    if [ -n "${NO_SPACE:-}" ]; then echo "Error: No space left on device" >&2; exit 1; fi
    case "$*" in *--clear*) rm -rf .venv ;; esac
    mkdir -p .venv/bin && cp "$0" .venv/bin/python && : >.venv/pip
    ;;
"-m pip "*)
    [ -e "${0%/bin/python}/pip" ] || { echo "No module named pip" >&2; exit 1; }
    echo "$*" >>installed
    ;;
esac
"""
"""For Python: a file `pip` beside its folder stands for the module."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("deploy/environment.sh", "deploy/constraints.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("python", "apt-get", "sudo"):
        program = tmp_path / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(_STAND_IN if name == "python" else f"#!/bin/sh\necho {name} >>asked\nexit 1\n")
        program.chmod(0o755)
    return tmp_path


def need(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    programs = checkout / "programs"
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-euc", ". deploy/environment.sh; need_environment .venv/popgate-serve -e ."],
        cwd=checkout,
        env={**os.environ, "PATH": path, "PYTHON": str(programs / "python"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def installed(checkout: Path) -> int:
    """How often the checkout itself was installed."""
    asked = checkout / "installed"
    return sum(line.endswith("-e .") for line in asked.read_text().splitlines()) if asked.exists() else 0


def test_an_environment_is_made_and_filled_once(checkout: Path) -> None:
    for _ in range(2):
        ended = need(checkout)
        assert (ended.returncode, ended.stderr) == (0, "")
    assert installed(checkout) == 1


def test_an_environment_left_without_pip_is_mended(checkout: Path) -> None:
    """As after Ctrl-C: Python is there from the first moment, pip comes seconds later."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(checkout / "programs" / "python", checkout / ".venv" / "bin")
    ended = need(checkout)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert installed(checkout) == 1


def test_another_version_of_python_installs_anew(checkout: Path) -> None:
    """It has folders of its own for modules, in which nothing is."""
    assert need(checkout).returncode == 0
    (checkout / ".venv" / "pip").unlink()
    assert need(checkout).returncode == 0
    assert installed(checkout) == 2


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Path) -> None:
    assert need(checkout).returncode == 0
    (checkout / ".venv" / "bin" / "python").unlink()
    (checkout / ".venv" / "bin" / "python").symlink_to("/nowhere/python3.11")
    assert need(checkout).returncode == 0
    assert installed(checkout) == 2


def test_why_an_environment_cannot_be_made_is_said(checkout: Path) -> None:
    ended = need(checkout, NO_SPACE="1")
    assert ended.returncode == 1
    assert "No space left on device" in ended.stderr
    assert not (checkout / "asked").exists()


def test_a_python_without_ensurepip_asks_for_its_package(checkout: Path) -> None:
    ended = need(checkout, NO_SPACE="1", NO_ENSUREPIP="1")
    assert ended.returncode == 1
    assert "install python3-venv" in ended.stderr
    assert (checkout / "asked").exists()
