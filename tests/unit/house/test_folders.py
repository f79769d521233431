"""tests.support.folders: where the tests have their temporary files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import folders
from tests.support.folders import folder_in_memory


def test_a_folder_in_memory_is_there_for_as_long_as_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "LEAST_FREE", 0)
    with folder_in_memory({}, tmp_path) as folder:
        assert folder is not None
        (folder / "file").write_text("text")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_that_of_one_that_lives_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "LEAST_FREE", 0)
    no_process = int(Path("/proc/sys/kernel/pid_max").read_text())
    for pid in (os.getpid(), no_process):
        (tmp_path / f"pt-{pid}-some").mkdir()
    with folder_in_memory({}, tmp_path):
        assert (tmp_path / f"pt-{os.getpid()}-some").exists()
        assert not (tmp_path / f"pt-{no_process}-some").exists()


@pytest.mark.parametrize("why", ["somebody chose another", "little room", "no memory"])
def test_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(folders, "LEAST_FREE", 1 << 62 if why == "little room" else 0)
    environment = {"TMPDIR": str(tmp_path)} if why == "somebody chose another" else {}
    memory = tmp_path / "none" if why == "no memory" else tmp_path
    with folder_in_memory(environment, memory) as folder:
        assert folder is None
