"""tests.support.counts: the counts of a test are printed also when it passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest

@pytest.fixture(scope="module")
def report():
    print("3 came again: it died")

@pytest.mark.counted
def test_counted(report):
    print("5 sent")

@pytest.mark.counted
def test_quiet():
    pass

def test_other():
    print("noise")
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_counts_are_printed_of_tests_that_pass(tmp_path: Path, workers: str) -> None:
    """Also what a fixture counted, and also by way of a worker's process; of other tests nothing is."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(
        "from tests.support.counts import Counts\n"
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'counted: what it prints are counts')\n"
        "    config.pluginmanager.register(Counts())\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider"]
    where = ["--rootdir", str(tmp_path), "-c", str(tmp_path / "none.ini"), str(tmp_path)]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([*command, *where], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "counts of what passed" in line)
    assert lines[at + 1].endswith("test_suite.py::test_counted")
    assert lines[at + 2 : at + 4] == ["  3 came again: it died", "  5 sent"]
    assert "test_quiet" not in done.stdout
    assert "noise" not in done.stdout
