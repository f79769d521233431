"""popgate.spark.worker: what a process is told in its first task, and not in the next one."""

from __future__ import annotations

import gc

import pytest

from popgate.spark import worker


def test_what_is_loaded_is_frozen_once_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: called.append("count"))
    monkeypatch.setattr(gc, "freeze", lambda: called.append("freeze"))
    worker.settle.cache_clear()
    worker.settle()
    worker.settle()
    worker.settle.cache_clear()
    assert called == ["freeze"]
