"""tests.support.folders: where the tests have their temporary files."""

from __future__ import annotations

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


@pytest.mark.parametrize("why", ["somebody chose another", "little room", "no memory"])
def test_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(folders, "LEAST_FREE", 1 << 62 if why == "little room" else 0)
    environment = {"TMPDIR": str(tmp_path)} if why == "somebody chose another" else {}
    memory = tmp_path / "none" if why == "no memory" else tmp_path
    with folder_in_memory(environment, memory) as folder:
        assert folder is None
