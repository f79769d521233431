"""What the end of a run tells of the contract: what differs between brokers, and what was not made up for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def run():
    path = Path(__file__).resolve().parents[2] / "conftest.py"
    spec = importlib.util.spec_from_file_location("whole_run", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(name, site, outcome="passed", difference=None, traits=None):
    told = [("site", site), ("traits", traits or {})]
    if difference:
        told.append(("difference", difference))
    return pytest.TestReport(
        f"tests/contract/test_x.py::{name}[{site}]",
        ("test_x.py", 1, name),
        {},
        outcome,
        None,
        "call",
        user_properties=told,
    )


@pytest.fixture
def findings(run):
    made = run.Findings()

    def take(*args, **more):
        made.pytest_runtest_logreport(report(*args, **more))

    made.take = take
    return made


def told(findings, verbosity=0):
    lines = []
    findings.pytest_terminal_summary(
        SimpleNamespace(verbosity=verbosity, section=lines.append, line=lambda text, **_: lines.append(text))
    )
    return lines


def test_traits_that_differ_are_listed_and_others_are_not(findings):
    traits = {"one": {"scope": "queue", "days": "3"}, "two": {"scope": "group", "days": "3"}}
    findings.take("test_a", "one", traits=traits)
    assert told(findings) == ["differences between brokers", "scope: one queue; two group"]


def test_a_trait_is_told_once_for_all_that_have_it(findings):
    traits = {name: {"scope": "group"} for name in ("shared", "embedded")} | {"remote": {"scope": "queue"}}
    findings.take("test_a", "remote", traits=traits)
    assert findings.declared() == ["scope: embedded, shared group; remote queue"]


def test_a_test_that_is_replaced_is_listed_with_what_replaces_it(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    findings.take("test_b", "one")
    assert told(findings) == ["1 tests do not hold for every broker, others hold instead: -v lists them"]
    assert told(findings, 1) == ["differences between brokers", "one: coarse: 1 replaced by test_b"]
    assert findings.problems() == []


def test_a_replacement_that_was_itself_replaced_is_a_problem(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    findings.take("test_b", "one", "skipped", ("exact", ["test_a"]))
    assert len(findings.problems()) == 2


def test_a_replacement_that_failed_is_left_to_the_second_look(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    findings.take("test_b", "one", "failed")
    assert findings.problems() == []


def test_a_replacement_that_ran_elsewhere_only_is_a_problem(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    findings.take("test_b", "two")
    (problem,) = findings.problems()
    assert "one" in problem
    assert "test_b" in problem


def test_a_replacement_that_nobody_asked_for_in_this_run_is_none(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    assert findings.problems() == []


def test_a_failure_is_told_once_more_at_the_end_and_short(run):
    findings, lines = run.Findings(), []
    failed = report("test_a", "one", "failed")
    failed.longrepr = "x" * 5_000 + " the end"
    findings.pytest_runtest_logreport(failed)
    findings.pytest_terminal_summary(
        SimpleNamespace(verbosity=0, section=lines.append, line=lambda text, **_: lines.append(text))
    )
    assert lines[-2] == "tests/contract/test_x.py::test_a[one] (call)"
    assert lines[-1].endswith("the end")
    assert len(lines[-1]) < 2_000


def test_why_tests_were_skipped_is_told_with_how_many(run):
    findings, lines = run.Findings(), []
    for name in "ab":
        skipped = pytest.TestReport(
            f"tests/x.py::test_{name}",
            ("x.py", 1, name),
            {},
            "skipped",
            ("x.py", 1, "Skipped: no Java"),
            "call",
        )
        findings.pytest_runtest_logreport(skipped)
    findings.pytest_terminal_summary(SimpleNamespace(verbosity=0, line=lines.append))
    assert lines == ["skipped 2: no Java"]


def test_traits_of_an_earlier_tier_are_compared_with_those_of_this_one(run, tmp_path):
    first = run.Findings(str(tmp_path / "traits"))
    first.pytest_runtest_logreport(report("test_a", "embedded", traits={"embedded": {"scope": "group"}}))
    session = SimpleNamespace(config=SimpleNamespace(stash={}), exitstatus=0)
    first.pytest_sessionfinish(session)
    second = run.Findings(str(tmp_path / "traits"))
    second.pytest_runtest_logreport(report("test_a", "remote", traits={"remote": {"scope": "queue"}}))
    assert second.declared() == ["scope: embedded group; remote queue"]


@pytest.mark.parametrize(
    ("tier", "left"), [("live", ["tests/spark/a"]), ("fast", ["tests/unit/b"]), (None, None)]
)
def test_each_tier_has_its_tests(run, monkeypatch, tier, left):
    if tier is None:
        monkeypatch.delenv("TEST_TIER", raising=False)
    else:
        monkeypatch.setenv("TEST_TIER", tier)
    items = [SimpleNamespace(nodeid=nodeid) for nodeid in ("tests/spark/a", "tests/unit/b")]
    gone = []
    hook = SimpleNamespace(pytest_deselected=lambda items: gone.extend(items))
    both = [item.nodeid for item in items]
    run.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)
    assert [item.nodeid for item in items] == (left or both)
    assert len(gone) + len(items) == 2
