"""tests.support.tiers and tests.support.scheduling: where each test runs, and with which others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.run import options_of, tiers_for
from tests.support.scheduling import scope_of
from tests.support.tiers import (
    LANES,
    LIVE_WORKERS,
    SERIES,
    TIERS,
    lane_of,
    parameters,
    paths_of,
    tier_of,
    tiers_of_path,
)

ROOT = Path(__file__).resolve().parents[3]
SCOPES = ["--dist", "loadfile", "--no-loadscope-reorder"]


def test_every_test_file_has_a_tier() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert tier_of(path.relative_to(ROOT).as_posix())


def test_a_folder_without_a_tier_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"tests/new/test_a\.py is in no tier"):
        tier_of("tests/new/test_a.py::test")


def test_every_test_file_is_collected_by_its_tier() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        file = path.relative_to(ROOT).as_posix()
        for tier in tiers_of_path(file) & set(TIERS):
            assert any(file == place or file.startswith(f"{place}/") for place in paths_of(tier)), (
                file,
                tier,
            )


def test_named_paths_choose_the_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert tiers_for(["-k", "receipt"]) == list(TIERS)
    assert tiers_for(["tests/unit", "-k", "receipt"]) == ["fast"]
    assert tiers_for(["tests/contract/test_delays.py"]) == ["process", "live"]
    assert tiers_for(["tests/cluster"]) == ["long"]
    assert tiers_for(["tests"]) == [*TIERS, "long"]


def test_a_tier_has_the_workers_that_its_waiting_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("TEST_JOBS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert options_of("live", ["tests/spark"]) == [*SCOPES, "-n", "3"]
    assert options_of("process", ["tests/e2e"]) == [*SCOPES, "-n", str(2 * cores)]
    assert options_of("long", ["tests/cluster"]) == [*SCOPES, "-n", "1"]
    assert options_of("fast", ["tests/unit"]) == [*SCOPES, "-n", "auto"]
    assert options_of("fast", ["-n4", "tests/unit"]) == SCOPES


def test_long_series_name_what_exists() -> None:
    for series in SERIES.values():
        assert bool(series.paths) != bool(series.programs)
        for path in (*series.paths, *(program[0] for program in series.programs)):
            assert (ROOT / path).exists(), path


def test_tests_of_one_file_share_a_worker() -> None:
    assert scope_of("tests/unit/test_a.py::test[a::b]") == "tests/unit/test_a.py"
    assert scope_of("tests/contract/test_a.py::test_b[embedded]") == "tests/contract/test_a.py"


def test_tests_of_a_lane_share_a_worker() -> None:
    live = [f"tests/contract/test_{name}.py::test[{name}-remote]" for name in "ab"]
    live += ["tests/scenarios/test_live_bounds.py::test", "tests/tools/test_tools.py::test"]
    assert {scope_of(nodeid) for nodeid in live} == {"live broker"}
    clients = ("tests/conformance/test_proxied.py::test", "tests/conformance/test_clients.py::test")
    assert {scope_of(nodeid) for nodeid in clients} == {"live clients"}
    apart = ("tests/conformance/test_interrupted.py::test", "tests/classic/test_classic.py::test")
    assert {scope_of(nodeid) for nodeid in apart} == {"live interruptions"}
    assert len({scope_of(f"tests/cluster/test_{name}.py::test") for name in "ab"}) == 1


def test_every_lane_has_a_worker() -> None:
    lanes = {lane_of(f"{place}::test") for place in (*LANES, "tests/contract/test_a.py")}
    assert len(lanes) == LIVE_WORKERS


def test_a_real_rocketmq_is_recognised_by_the_parameters() -> None:
    assert parameters("tests/contract/test_x.py::test_a[remote]") == ["remote"]
    assert parameters("tests/contract/test_x.py::test_a[remote-3]") == ["remote", "3"]
    assert parameters("tests/contract/test_x.py::test_a[remote-[::1]:5]") == ["remote", "[::1]:5"]
    assert parameters("tests/contract/test_x.py::test_remote") == []
