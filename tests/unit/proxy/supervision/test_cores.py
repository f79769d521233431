"""proxy.supervision.cores: how many processes there are by themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.config.settings import Settings
from proxy.supervision.cores import usable_cores, workers_of


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "9000000 100000\n"}, 8),
        ({"cpu.max": "200000 0\n"}, 8),
        ({"cpu.max": "\n"}, 8),
        ({"cpu.max": "strange\n"}, 8),
        ({"cpu.max": b"\xff\xfe"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 8),
    ],
)
def test_what_a_control_group_allows_counts(
    tmp_path: Path, files: dict[str, str | bytes], cores: int
) -> None:
    for name, told in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(told if isinstance(told, bytes) else told.encode())
    assert usable_cores(tmp_path) == cores


def test_a_process_that_is_bound_to_one_core_uses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text("400000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert usable_cores(tmp_path) == 1


def test_without_affinity_all_cores_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores(tmp_path) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


def test_as_many_as_cores_but_one_with_an_embedded_broker_and_always_as_said(
    settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.supervision.cores.usable_cores", lambda: 6)
    assert workers_of(settings_for()) == 1
    assert workers_of(settings_for(broker="rocketmq://ns:9876")) == 6
    assert workers_of(settings_for(broker="popgate://host:1")) == 6
    assert workers_of(settings_for(workers=3)) == 3
    assert workers_of(settings_for(broker="rocketmq://ns:9876", workers=1)) == 1
