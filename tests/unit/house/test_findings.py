"""What the end of a run tells of the contract: what differs between brokers, and what was not made up for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

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


def test_traits_that_differ_are_listed_and_others_are_not(findings):
    traits = {"one": {"scope": "queue", "days": "3"}, "two": {"scope": "group", "days": "3"}}
    findings.take("test_a", "one", traits=traits)
    assert findings.lines() == ["scope: one queue, two group"]


def test_a_test_that_is_replaced_is_listed_with_what_replaces_it(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    findings.take("test_b", "one")
    assert findings.lines() == ["one: coarse: 1 replaced by test_b"]
    assert findings.problems() == []


def test_a_replacement_that_failed_or_was_itself_replaced_is_a_problem(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    findings.take("test_b", "one", "skipped", ("exact", ["test_a"]))
    assert len(findings.problems()) == 2


def test_a_replacement_that_ran_elsewhere_only_is_a_problem(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    findings.take("test_b", "two")
    (problem,) = findings.problems()
    assert "one" in problem
    assert "test_b" in problem


def test_a_replacement_that_nobody_asked_for_in_this_run_is_none(findings):
    findings.take("test_a", "one", "skipped", ("coarse", ["test_b"]))
    assert findings.problems() == []


def test_tests_against_a_real_rocketmq_are_known_by_their_parameters(run):
    assert run.parameters("tests/contract/test_x.py::test_a[remote]") == ["remote"]
    assert run.parameters("tests/contract/test_x.py::test_a[remote-3]") == ["remote", "3"]
    assert run.parameters("tests/contract/test_x.py::test_remote") == []
