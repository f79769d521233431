"""A repository of its own, which is what is measured in these tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.beside import machine

WHO = ("-c", "user.name=somebody", "-c", "user.email=somebody@nowhere.example")
Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """A repository of its own with one commit, which is what is measured."""
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # of a hook that runs the tests
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> str:
        done = subprocess.run(["git", *WHO, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    run("init", "--quiet", "--initial-branch", "main")
    for name in ("product.py", "docs/figures.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("as it was\n")
    run("add", ".")
    run("commit", "--quiet", "--message", "first")
    return run
