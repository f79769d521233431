"""popgate.tls.watched_files: what was replaced is noticed."""

from __future__ import annotations

import os
from pathlib import Path

from popgate.testing.clock import MovableClock
from popgate.tls.watched_files import WatchedFiles


def test_a_file_that_is_written_replaced_or_removed_has_changed(tmp_path: Path) -> None:
    file, other = tmp_path / "one", tmp_path / "other"
    file.write_text("a")
    watched = WatchedFiles((file, None, other))
    assert not watched.changed()
    file.write_text("ab")
    assert watched.changed()
    assert not watched.changed()
    fresh = tmp_path / "fresh"
    fresh.write_text("cd")
    os.utime(fresh, ns=(0, file.stat().st_mtime_ns))
    os.replace(fresh, file)
    assert watched.changed(), "another file of the same size and time"
    other.write_text("")
    assert watched.changed()
    file.unlink()
    assert watched.changed()
    assert not watched.changed()


def test_a_look_is_due_once_a_second(tmp_path: Path) -> None:
    clock = MovableClock()
    watched = WatchedFiles((tmp_path / "one",), clock.monotonic)
    assert not watched.is_due()
    clock.advance(1.0)
    assert watched.is_due()
    assert not watched.is_due()


def test_what_failed_is_tried_again_with_the_same_files(tmp_path: Path) -> None:
    clock = MovableClock()
    watched = WatchedFiles((tmp_path / "one",), clock.monotonic)
    watched.retry()
    assert not watched.changed()
    clock.advance(10.0)
    assert watched.changed()
    assert not watched.changed()
