"""tests.support.run: exit codes and last lines, with pytest replaced by a script."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.run import MOST_LOOKS, Outcome, closing, look_twice, main


class Script:
    """Stands in for pytest: the first call has `failed`, a second look passes unless it is in `again`."""

    def __init__(
        self, failed: Sequence[str], again: Sequence[str] = (), problems: Sequence[str] = ()
    ) -> None:
        self._first = Outcome(int(bool(failed or problems)), dict.fromkeys(failed, "first"), list(problems))
        self._again = again
        self.calls: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> Outcome:
        self.calls.append(arguments)
        if len(self.calls) == 1:
            return self._first
        node = arguments[0]
        return Outcome(1, {node: "then"}) if node in self._again else Outcome(0)


def test_what_passes_at_once_is_looked_at_once() -> None:
    script = Script([])
    assert look_twice(script, ["all"]) == (0, [])
    assert script.calls == [["all"]]


def test_a_test_that_failed_once_passes_and_is_named() -> None:
    script = Script(["a", "b"])
    assert look_twice(script, ["all"]) == (0, ["a", "b"])
    assert script.calls[1:] == [["a", "-n", "0"], ["b", "-n", "0"]]


def test_a_test_that_fails_again_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert look_twice(Script(["a", "b"], again=["b"]), []) == (1, [])
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "failed at first: a: first",
        "failed at first: b: first",
        "FAILED twice: b: then",
    ]


def test_more_failures_than_looks_fail_the_run() -> None:
    script = Script([f"t{n}" for n in range(MOST_LOOKS + 1)])
    assert look_twice(script, []) == (1, [])
    assert len(script.calls) == 1
    assert look_twice(Script([f"t{n}" for n in range(MOST_LOOKS)]), [])[0] == 0


def test_a_problem_is_not_mended_by_a_second_look() -> None:
    script = Script(["a"], problems=["b is replaced by c, which did not pass there"])
    assert look_twice(script, []) == (1, [])
    assert len(script.calls) == 1


@pytest.mark.parametrize("code", [-15, 2, 3, 4, 5])
def test_other_exit_codes_of_pytest_stay_and_what_failed_is_named(
    code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert look_twice(lambda _: Outcome(code, {"a": "first"}), []) == (code, [])
    assert "FAILED a\n" in capsys.readouterr().out


def test_the_last_line_names_what_passed_only_at_a_second_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert closing(0, ["a", "b"], {}) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "passed only at a second look: a, b"


def test_a_process_left_behind_fails_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.leftovers.end", lambda _: None)
    assert closing(0, [], {4711: "java -jar broker.jar"}) == 1
    assert "FAILED left behind: process 4711: java -jar broker.jar" in capsys.readouterr().out
    assert closing(5, [], {}) == 5


@pytest.mark.parametrize("given", [["--long", "nothing"], ["--tier"], ["--tier", "slow"]])
def test_unknown_names_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 4
    assert capsys.readouterr().err
