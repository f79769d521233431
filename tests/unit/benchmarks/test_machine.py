"""Figures belong to a commit that others can look at, or say that they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.beside import machine

Git = Callable[..., str]


def test_a_commit_of_the_history_has_nothing_said_of_it(git: Git) -> None:
    told = machine.facts()
    assert told["revision"] == git("rev-parse", "HEAD")
    assert machine.doubts(told) == []
    assert machine.sentence(told).endswith(f"; popgate {git('rev-parse', 'HEAD')[:12]}")


def test_results_that_are_being_written_change_nothing(git: Git, tmp_path: Path) -> None:
    (tmp_path / "docs/figures.json").write_text("new\n")
    assert machine.doubts(machine.facts()) == []


def test_changed_files_are_no_commit(git: Git, tmp_path: Path) -> None:
    (tmp_path / "product.py").write_text("otherwise\n")
    told = machine.facts()
    commit = git("rev-parse", "HEAD")
    assert told["revision"] == f"{commit}+"
    assert machine.doubts(told) == [
        f"These figures belong to no commit: files were changed since {commit[:12]}."
    ]


def test_a_commit_beside_the_main_branch_is_told(git: Git) -> None:
    git("switch", "--quiet", "--create", "work")
    git("commit", "--quiet", "--allow-empty", "--message", "not landed")
    told = machine.facts()
    (doubt,) = machine.doubts(told)
    assert doubt == f"The commit {told['revision'][:12]} that was measured is not in the history of main."
    git("branch", "--force", "main")
    assert machine.doubts(told) == []


def test_a_commit_that_was_squashed_is_told_when_the_table_is_written_again(git: Git) -> None:
    assert machine.doubts({"revision": "b839638"}) == [
        "The commit b839638 that was measured is not in the history of main."
    ]


def test_no_git_is_told(git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path.parent)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent.parent))
    told = machine.facts()
    assert told["revision"] == ""
    assert machine.doubts(told) == [
        "These figures belong to no commit: there was no git where they were measured."
    ]
    assert machine.sentence(told).endswith("; popgate without a commit")
