"""popgate.spark.worker: what a process is told in its first task, and not in the next one."""

from __future__ import annotations

import gc

import pytest

from popgate.spark import worker


def test_it_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, kept = [0], list[int]()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen[0])
    monkeypatch.setattr(gc, "freeze", lambda: frozen.__setitem__(0, 9))
    monkeypatch.setattr(worker, "keep_freed_memory", kept.append)
    worker.settle()
    worker.settle()
    assert (frozen, len(kept)) == ([9], 1)
