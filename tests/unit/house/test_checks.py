"""What is looked at before the tests run."""

from __future__ import annotations

import sys

import pytest

from tests.support.checks import look

_PASSES = (sys.executable, "-c", "print('nothing to tell')")
_FAILS = (sys.executable, "-c", "print('line 7 is wrong'); raise SystemExit(3)")


def test_a_check_that_fails_is_named_with_its_output_and_the_others_run(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert look({"first": _FAILS, "second": _PASSES, "third": _FAILS}) == ["first", "third"]
    told = capfd.readouterr().out
    assert told.count("exit code 3\nline 7 is wrong") == 2
    assert "second: passed" in told
    assert "nothing to tell" not in told


def test_nothing_is_told_to_have_failed_where_all_passes() -> None:
    assert look({"one": _PASSES, "two": _PASSES}) == []
