"""A data folder that nobody can write to, also when a store is in it: a sentence, and not a start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from popgate.testing import GatewayProcess

NOT_STARTED = 5
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'


def with_read_only(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees the folder as on a disk that is mounted read-only; others see it as it is."""
    apart = ("unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh", str(folder))
    return subprocess.run([*apart, *command], capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("used", [False, True], ids=["empty", "with a store"])
def test_a_folder_on_a_read_only_disk_keeps_a_process_from_starting_and_says_so(
    tmp_path: Path, used: bool
) -> None:
    try:
        possible = with_read_only(tmp_path, "true").returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("no mounts of one's own can be made here")
    if used:
        with GatewayProcess(tmp_path):
            pass
    serve = ("serve", "--data", str(tmp_path), "--listen", "grpc://127.0.0.1:0", "--admin", "off")
    told = with_read_only(tmp_path, sys.executable, "-m", "popgate", *serve)
    assert (told.returncode, told.stdout) == (NOT_STARTED, "")
    assert f"{tmp_path}/store cannot be written" in told.stderr
    assert "Read-only file system" in told.stderr
    assert len(told.stderr.splitlines()) == 1
    with GatewayProcess(tmp_path):  # nothing was spoilt
        pass
