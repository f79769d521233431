"""tests.scheduling: which tests stay together."""

from __future__ import annotations

from tests.scheduling import parameters, scope_of


def test_tests_of_a_file_stay_together_and_so_do_those_that_run_side_by_side() -> None:
    assert scope_of("tests/unit/test_a.py::test[a::b]") == "tests/unit/test_a.py"
    assert scope_of("tests/contract/test_a.py::test_b[embedded]") == "tests/contract/test_a.py"
    beside = [f"tests/contract/test_{name}.py::test[{name}-remote]" for name in "ab"]
    assert len({scope_of(nodeid) for nodeid in beside}) == 1
    assert len({scope_of(f"tests/scenarios/test_live_{name}.py::test") for name in "ab"}) == 1
    assert len({scope_of(f"tests/cluster/test_{name}.py::test") for name in "ab"}) == 1
    assert scope_of("tests/cluster/test_a.py::test") != scope_of("tests/scenarios/test_live_a.py::test")


def test_tests_against_a_real_rocketmq_are_known_by_their_parameters() -> None:
    assert parameters("tests/contract/test_x.py::test_a[remote]") == ["remote"]
    assert parameters("tests/contract/test_x.py::test_a[remote-3]") == ["remote", "3"]
    assert parameters("tests/contract/test_x.py::test_a[remote-[::1]:5]") == ["remote", "[::1]:5"]
    assert parameters("tests/contract/test_x.py::test_remote") == []
