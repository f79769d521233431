from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from popgate.testing.crash_copy import copy_as_after_a_crash


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source" / "inner").mkdir(parents=True)
    (tmp_path / "source" / "a").write_text("a")
    (tmp_path / "source" / "inner" / "b").write_text("b")
    return tmp_path / "source"


def test_a_folder_is_copied_with_all_that_is_in_it(source: Path, tmp_path: Path) -> None:
    copy_as_after_a_crash(source, tmp_path / "target")
    assert (tmp_path / "target" / "a").read_text() == "a"
    assert (tmp_path / "target" / "inner" / "b").read_text() == "b"


def test_a_copy_during_which_something_changed_is_made_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(source / "inner")  # the copy of a folder in it would be counted, too
    (source / "b").write_text("b")
    real, tries = shutil.copytree, 0

    def copy(begin: Path, end: Path) -> None:
        nonlocal tries
        tries += 1
        real(begin, end)
        if tries == 1:
            (source / "a").write_text("changed")
        elif tries == 2:
            (source / "a").unlink()
        elif tries == 3:
            raise shutil.Error([("x", "y", "gone meanwhile")])

    monkeypatch.setattr(shutil, "copytree", copy)
    copy_as_after_a_crash(source, tmp_path / "target")
    assert tries == 4
    assert sorted(path.name for path in (tmp_path / "target").rglob("*")) == ["b"]


def test_a_folder_that_never_rests_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(*_: Path) -> None:
        raise FileNotFoundError("gone meanwhile")

    monkeypatch.setattr(shutil, "copytree", copy)
    with pytest.raises(TimeoutError, match="never at rest"):
        copy_as_after_a_crash(source, tmp_path / "target")
