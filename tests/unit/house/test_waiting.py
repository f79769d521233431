"""tests.support.waiting: what it returns, when it gives up, what a failure says, how long the patience is."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from popgate.testing import MovableClock
from tests.support import waiting
from tests.support.waiting import (
    BASE_S,
    FACTOR,
    MEASURED_SCALE,
    NotInTimeError,
    patience_of,
    until,
    wait_until,
)

ROOT = Path(__file__).parents[3]
OWN = re.compile(
    r"^(?:async )?def (?:until|wait_until|eventually|wait_for|soon)\(|^_?PATIENCE\w* = [\d_.]+$", re.MULTILINE
)
EXEMPT = {"support/waiting.py", "conformance/python/driver.py"}
"""The helper, and what runs in an official client's process and environment."""


def countdown(*values: Any) -> Callable[[], Any]:
    """Returns one value after the other."""
    left = iter(values)
    return lambda: next(left)


async def test_the_first_true_value_is_returned() -> None:
    assert await until(countdown(0, "", None, "third", "fourth")) == "third"
    assert wait_until(countdown(0, [], (7,), (8,))) == (7,)


async def test_a_condition_may_be_a_coroutine_function() -> None:
    values = countdown(None, {}, {"a": 1})

    async def condition() -> Any:
        await asyncio.sleep(0)
        return values()

    assert await until(condition) == {"a": 1}
    assert await until(lambda: asyncio.sleep(0, result="made by a lambda")) == "made by a lambda"


async def test_a_condition_that_is_true_is_evaluated_once_and_nothing_turns() -> None:
    turned: list[int] = []
    assert await until(countdown("at once"), 0.0, turn=lambda: turned.append(1)) == "at once"
    assert wait_until(countdown("at once"), 0.0, turn=lambda: turned.append(1)) == "at once"
    assert turned == []


async def test_a_turn_moves_the_clock_between_evaluations() -> None:
    clock, rung = MovableClock(), asyncio.Event()
    clock.call_later(3600.0, rung.set)
    start = clock.monotonic()
    await until(rung.is_set, turn=lambda: clock.advance(600.0))
    assert clock.monotonic() - start == 3600.0


async def test_a_turn_may_be_a_coroutine_function() -> None:
    turned: list[int] = []

    async def turn() -> None:
        await asyncio.sleep(0)
        turned.append(1)

    await until(lambda: len(turned) == 5, turn=turn)


async def test_the_loop_works_while_it_is_waited() -> None:
    told: list[str] = []
    task = asyncio.ensure_future(until(lambda: told))
    await asyncio.sleep(0)
    assert not task.done()
    told.append("now")
    assert await task == ["now"]


async def test_a_failure_names_the_function_and_the_last_value() -> None:
    def has_three() -> list[int]:
        return []

    with pytest.raises(NotInTimeError) as failure:
        await until(has_three, 0.0)
    assert str(failure.value).startswith("not within 0 s: ")
    assert str(failure.value).endswith("has_three; last seen: []")


async def test_a_failure_shows_the_source_of_a_lambda() -> None:
    taken = 3
    with pytest.raises(NotInTimeError, match=r"until\(lambda: taken > 4, 0\.001\); last seen: False"):
        await until(lambda: taken > 4, 0.001)
    with pytest.raises(NotInTimeError, match=r"wait_until\(lambda: taken > 5, 0\.001\); last seen: False"):
        wait_until(lambda: taken > 5, 0.001)


async def test_a_failure_says_what_was_waited_for_and_what_was_seen() -> None:
    async def seen() -> list[str]:
        return ["first", "second"]

    expected = r"not within 0 s: three messages came; last seen: \['first', 'second'\]"
    with pytest.raises(NotInTimeError, match=expected):
        await until(lambda: False, 0.0, what="three messages came", seen=seen)
    with pytest.raises(NotInTimeError, match=expected):
        wait_until(lambda: False, 0.0, what="three messages came", seen=lambda: ["first", "second"])


async def test_an_error_of_the_condition_is_raised() -> None:
    def broken() -> bool:
        raise LookupError("no such topic")

    with pytest.raises(LookupError):
        await until(broken)
    with pytest.raises(LookupError):
        wait_until(broken)


def test_what_came_true_while_the_machine_stood_still_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an evaluation after the last pause, however long that took."""
    times = countdown(0.0, 1.0, 1_000.0)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=times, sleep=lambda _: None))
    assert wait_until(countdown(False, True), 60.0) is True


async def test_a_fixed_pause_is_the_one_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append))
    assert wait_until(countdown(0, 0, 1), pause_s=0.25) == 1
    assert wait_until(countdown(0, 1)) == 1
    assert slept == [0.25, 0.25, 0.002]


def test_pauses_grow_with_the_time_waited_and_stay_short() -> None:
    assert waiting._pause(0.0) == 0.002
    assert waiting._pause(0.1) == pytest.approx(0.01)
    assert waiting._pause(1_000.0) == 0.05


def test_no_other_file_has_a_helper_or_a_patience_of_its_own() -> None:
    files = (path for path in (ROOT / "tests").rglob("*.py") if OWN.search(path.read_text()))
    assert {path.relative_to(ROOT / "tests").as_posix() for path in files} == EXEMPT


def measured(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def never() -> float:
    raise AssertionError("measured though the run has a scale")


def test_a_quiet_machine_has_the_base_as_its_patience() -> None:
    assert patience_of({}, measured(0.05)) == BASE_S
    assert patience_of({}, measured(0.001)) == BASE_S, "never below 1"


def test_a_slow_machine_has_more_up_to_a_bound() -> None:
    assert patience_of({}, measured(0.1)) == 2 * BASE_S
    assert patience_of({}, measured(60.0)) == waiting.MAX_SCALE * BASE_S


def test_the_environment_multiplies_the_patience() -> None:
    assert patience_of({FACTOR: "2.5"}, measured(0.1)) == 5 * BASE_S
    assert patience_of({FACTOR: "0.01", MEASURED_SCALE: "2"}, never) == pytest.approx(0.02 * BASE_S)
    assert patience_of({FACTOR: "", MEASURED_SCALE: "1"}, never) == BASE_S


@pytest.mark.parametrize("factor", ["0", "-1", "inf", "nan", "a lot"])
def test_a_factor_that_is_no_positive_number_is_refused(factor: str) -> None:
    with pytest.raises(ValueError, match=r"TEST_PATIENCE|a lot"):
        patience_of({FACTOR: factor}, measured(0.05))


def test_it_is_measured_once_per_run() -> None:
    environment: dict[str, str] = {}
    assert patience_of(environment, measured(0.15)) == 3 * BASE_S
    assert patience_of(environment, never) == 3 * BASE_S


def test_a_child_process_takes_the_scale_of_its_run() -> None:
    assert float(os.environ[MEASURED_SCALE]) >= 1.0
    code = "from tests.support.waiting import PATIENCE_S; print(PATIENCE_S)"
    environment = {**os.environ, MEASURED_SCALE: "1.37", FACTOR: "3"}
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert float(child.stdout) == pytest.approx(BASE_S * 1.37 * 3)


def test_a_worker_of_xdist_was_given_the_scale_at_its_start() -> None:
    given = Path("/proc/self/environ").read_text().split("\0")
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert f"{MEASURED_SCALE}={os.environ[MEASURED_SCALE]}" in given


def test_the_work_takes_time() -> None:
    assert waiting.time_work() > 0.0
