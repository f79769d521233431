"""Tests that run into their timeout, with pytest itself on tests made for it: they fail, and others run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.run import look_twice, pytest_outcome

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
import pytest, pytest_timeout
from tests.support.scheduling import Scheduling
from tests.support.timeouts import Timeouts

class ByFile(Scheduling):
    def _split_scope(self, nodeid):
        return nodeid.partition("::")[0]

def pytest_configure(config):
    config.pluginmanager.register(Timeouts({again_s}, {grace_s}))

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)

@pytest.fixture
def arm(request):
    def arm():
        "The timeout is nearly over now: it is not the machine that uses it up."
        settings = pytest_timeout._get_item_settings(request.node)._replace(timeout=0.2)
        request.node.ihook.pytest_timeout_set_timer(item=request.node, settings=settings)
    return arm
"""
HELPERS = """
import asyncio, pathlib, pytest, time

def begun(name):
    with pathlib.Path(__file__).with_name(name).open("a") as file:
        file.write("begun ")
"""
IN_ANOTHER_TASK = """
async def other(over, arm):
    try:
        arm()
        time.sleep(1000)
    except BaseException:
        pass
    if {ends}:
        over.set()

async def wait(arm):
    over = asyncio.Event()
    task = asyncio.create_task(other(over, arm))
    await over.wait()

def test_waiting(arm):
    begun("waiting")
    asyncio.run(wait(arm))
"""
IN_A_TEARDOWN = """
@pytest.fixture
def place():
    yield
    time.sleep(1000)

def test_failing(place, arm):
    begun("failing")
    arm()
    assert False
"""
HANGS = """
def test_hanging(arm):
    begun("hanging")
    while {hangs}:
        try:
            if arm:
                armed, arm = arm, None
                armed()
            time.sleep(1000)
        except BaseException:
            pass
"""
GOOD = """
def test_good():
    begun("good")
"""
NEVER_S = 1_000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs one file of tests."""

    def run(
        text: str, *options: str, again_s: float = NEVER_S, grace_s: float = NEVER_S
    ) -> tuple[int, list[str]]:
        (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 600\n")
        (tmp_path / "conftest.py").write_text(CONFTEST.format(again_s=again_s, grace_s=grace_s))
        (tmp_path / "test_a.py").write_text(HELPERS + text)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.delenv("TEST_TIER", raising=False)
        return look_twice(partial(pytest_outcome, cwd=str(tmp_path)), options)

    return run


@pytest.fixture
def begun(tmp_path: Path):
    return lambda name: (tmp_path / name).read_text().split() if (tmp_path / name).exists() else []


def test_an_alarm_that_another_task_keeps_comes_again(run, begun, capfd) -> None:
    assert run(IN_ANOTHER_TASK.format(ends=False) + GOOD, "-n", "0", again_s=0.2) == (1, [])
    assert len(begun("waiting")) == 2, "a second look"
    assert begun("good"), "the rest"
    told = capfd.readouterr().out
    assert "FAILED twice: test_a.py::test_waiting" in told
    assert "Timeout (>0.2s)" in told
    assert "await over.wait()" in told, "what the tasks wait for"


def test_a_test_that_ends_by_itself_after_its_timeout_has_failed(run, begun, capfd) -> None:
    assert run(IN_ANOTHER_TASK.format(ends=True) + GOOD, "-n", "0") == (1, [])
    assert begun("good")
    assert "it ended, but only after its timeout" in capfd.readouterr().out


def test_the_end_of_a_failed_test_has_a_timeout(run, begun) -> None:
    assert run(IN_A_TEARDOWN + GOOD, "-n", "0") == (1, [])
    assert len(begun("failing")) == 2
    assert begun("good")


def test_a_worker_that_hangs_is_ended_and_another_runs_the_rest(run, begun) -> None:
    only_once = 'len(pathlib.Path(__file__).with_name("hanging").read_text().split()) == 1'
    code, late = run(HANGS.format(hangs=only_once) + GOOD, "-n", "1", grace_s=0.5)
    assert (code, late) == (0, ["test_a.py::test_hanging"])
    assert len(begun("hanging")) == 2, "a second look, and no attempt in between"
    assert begun("good")


def test_a_test_that_always_hangs_fails_the_run(run, begun, capfd) -> None:
    assert run(HANGS.format(hangs=True) + GOOD, "-n", "1", grace_s=0.5) == (1, [])
    assert len(begun("hanging")) == 2
    assert begun("good")
    told = capfd.readouterr()
    assert "FAILED twice: test_a.py::test_hanging" in told.out
    assert "in test_hanging" in told.err, "the stacks of its threads"


def test_without_workers_a_test_that_hangs_is_named(run, begun, capfd) -> None:
    assert run(GOOD + HANGS.format(hangs=True), "-n", "0", grace_s=0.5) == (1, [])
    assert len(begun("hanging")) == 1
    assert "FAILED pytest ended in the middle of test_a.py::test_hanging" in capfd.readouterr().out
