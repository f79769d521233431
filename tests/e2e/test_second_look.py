"""The second look and the check for leftovers, with pytest itself on tests made for it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.run import look_twice, pytest_outcome

ROOT = Path(__file__).resolve().parents[2]

ONCE = """
import pathlib, pytest
@pytest.mark.parametrize("n", range({count}))
def test_once(n):
    seen = pathlib.Path(__file__).with_name(f"seen-{{n}}")
    first = not seen.exists()
    seen.touch()
    assert not first
def test_good(): pass
"""
ALWAYS = "def test_always(): assert False\n"


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run(**files: str) -> tuple[int, list[str]]:
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.delenv("TEST_TIER", raising=False)
        return look_twice(partial(pytest_outcome, cwd=str(tmp_path)), ["-n", "0"])

    return run


def test_a_test_that_fails_once_passes_and_is_named(look) -> None:
    assert look(once=ONCE.format(count=1)) == (0, ["test_once.py::test_once[0]"])


def test_one_that_always_fails_fails_the_run_and_tells_why(look, capsys) -> None:
    assert look(once=ONCE.format(count=1), always=ALWAYS) == (1, [])
    *_, first, second, _ = capsys.readouterr().out.splitlines()
    assert first == "failed at first: test_always.py::test_always: assert False"
    assert second == "FAILED twice: test_always.py::test_always: assert False"


def test_sixteen_that_fail_once_fail_the_run(look) -> None:
    assert look(once=ONCE.format(count=16))[0] == 1


def test_a_file_that_cannot_be_collected_fails_the_run(look) -> None:
    assert look(once=ONCE.format(count=0), broken="import nothing_of_this_name\n")[0] != 0


def test_a_process_that_outlives_its_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.MARK, "a-run-of-this-test")
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # The test's own process has the variable since it began, if at all: it is not the one that was set.
        found = leftovers.left_behind(within_s=0)
        assert list(found) == [process.pid]
        assert "sys.stdin.read()" in found[process.pid]
        leftovers.end(found)
        assert process.wait() < 0
    assert leftovers.left_behind(within_s=60) == {}
    assert os.environ[leftovers.MARK] == "a-run-of-this-test"
