"""deploy/image.sh, ended in the middle; a stand-in for Python and pip makes the files that it looks for."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
_STAND_IN = """#!/bin/sh
set -eu
case "$*" in
"-m venv "*)
    for folder; do :; done
    mkdir -p "$folder/bin"
    for name in python pip cyclonedx-py; do cp "$0" "$folder/bin/$name"; done
    ;;
"wheel "*"--wheel-dir "*)
    last=
    for word; do
        if [ "$last" = --wheel-dir ]; then mkdir "$word" && : >"$word/popgate-1-py3-none-any.whl"; fi
        last=$word
    done
    ;;
"--python "*)
    [ -x "$2" ]
    if [ -e "$STATE/hangs" ]; then : >"$STATE/is here"; exec sleep 300; fi
    [ ! -e "$STATE/offline" ]
    mkdir -p "${2%/bin/python}/lib/python3.11/site-packages/popgate-1.dist-info"
    : >"${2%/bin/python}/lib/python3.11/site-packages/popgate-1.dist-info/RECORD"
    ;;
esac
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder with the stand-in, and files by which it fails or hangs."""
    program = tmp_path / "python"
    program.write_text(_STAND_IN)
    program.chmod(0o755)
    (tmp_path / "temporary").mkdir()
    return tmp_path


def start(state: Path, target: str) -> subprocess.Popen[bytes]:
    """The steps, in a process group of their own, as those that a terminal starts."""
    variables = {
        **os.environ,
        "FORM": "plain",
        "PYTHON": str(state / "python"),
        "STATE": str(state),
        "TMPDIR": str(state / "temporary"),
    }
    command = ["sh", str(ROOT / "deploy" / "image.sh"), target]
    return subprocess.Popen(command, cwd=state, env=variables, start_new_session=True)


def exit_code(steps: subprocess.Popen[bytes]) -> int:
    wait_until(lambda: steps.poll() is not None)
    return steps.wait()


def is_clean(state: Path) -> bool:
    return not (state / "image").exists() and not list((state / "temporary").iterdir())


def test_an_image_that_failed_is_made_the_next_time(state: Path) -> None:
    (state / "offline").touch()
    assert exit_code(start(state, str(state / "image"))) == 1
    assert is_clean(state)
    (state / "offline").unlink()
    assert exit_code(start(state, str(state / "image"))) == 0
    assert (state / "image" / "bin" / "python").exists()


def test_an_image_ended_by_a_signal_leaves_nothing(state: Path) -> None:
    (state / "hangs").touch()
    steps = start(state, str(state / "image"))
    try:
        wait_until((state / "is here").exists)
    finally:
        os.killpg(steps.pid, signal.SIGTERM)
    assert exit_code(steps) == 128 + signal.SIGTERM
    assert is_clean(state)


def test_an_image_in_a_relative_folder_is_made(state: Path) -> None:
    assert exit_code(start(state, "image")) == 0
    assert (state / "image" / "bin" / "python").exists()


def test_an_image_that_is_there_already_stays(state: Path) -> None:
    (state / "image").mkdir()
    assert exit_code(start(state, "image")) == 1
    assert (state / "image").is_dir()
