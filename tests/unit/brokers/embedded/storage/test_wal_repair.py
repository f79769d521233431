"""A damaged write-ahead log: what a kill leaves is no alarm, what was lost is told and kept."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from brokers.embedded.storage import wal_repair as mending
from brokers.embedded.storage.keys import MESSAGES, message_key
from brokers.embedded.storage.store import Store
from popgate.clock import SystemClock
from popgate.errors import BrokerUnavailable

BATCHES = 200


@pytest.fixture
async def left(tmp_path: Path) -> Path:
    """What a kill leaves of a store with 200 batches, none of which is in a table yet."""
    store = Store(tmp_path / "store", SystemClock())
    store.open()
    for number in range(BATCHES):
        store.put(MESSAGES, message_key(1, 0, number), os.urandom(900))
        await store.commit()
    shutil.copytree(store.path, tmp_path / "left")
    store.close()
    return tmp_path / "left"


def wal(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda file: file.stat().st_size)


def found(path: Path) -> int:
    store = Store(path, SystemClock())
    store.open()
    try:
        keys = [key for key, _ in store.scan(MESSAGES, b"")]
    finally:
        store.close()
    assert keys == [message_key(1, 0, number) for number in range(len(keys))]
    return len(keys)


def test_a_log_as_a_kill_leaves_it_is_no_damage(left: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert found(left) == BATCHES
    assert not caplog.records
    assert not (left / "damaged-logs").exists()


def tear(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 300)


def zero(file: Path) -> None:
    size = file.stat().st_size
    os.truncate(file, size - 300)
    os.truncate(file, size + 5000)


def spoil_the_end(file: Path) -> None:
    with file.open("ab") as log:
        log.write(bytes(range(1, 256)) * 20)


@pytest.mark.parametrize("damage", [tear, zero, spoil_the_end])
def test_an_end_that_is_torn_is_left_out_and_told_calmly(
    left: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    damage(wal(left))
    assert BATCHES - 1 <= found(left) <= BATCHES
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "ended in the middle of a write" in caplog.text
    assert not list((left / "damaged-logs").glob("*"))
    caplog.clear()
    found(left)
    assert not caplog.records


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_what_lies_behind_a_damaged_record_is_lost_aloud_and_the_log_is_kept(
    left: Path, caplog: pytest.LogCaptureFixture, at: float
) -> None:
    log = wal(left)
    data = bytearray(log.read_bytes())
    middle = int(len(data) * at)
    for place in range(middle, middle + 8):
        data[place] ^= 0xFF
    log.write_bytes(data)
    name = log.name
    count = found(left)
    assert 0 < count < BATCHES
    [told] = caplog.records
    assert told.levelno == logging.ERROR
    assert "THE STORE LOST CHANGES" in caplog.text
    assert "restore a backup" in caplog.text
    assert f"about {BATCHES - count} changes" in caplog.text
    [kept] = (left / "damaged-logs").iterdir()
    assert (kept / name).read_bytes() == bytes(data)
    caplog.clear()
    assert found(left) == count  # and from here on it is sound
    assert not caplog.records


@pytest.mark.parametrize("kind", [5, 7, 8, 11, 12, 255])
@pytest.mark.parametrize("inside", [False, True])
def test_noise_that_would_keep_rocksdb_busy_for_ever_is_damage_like_any_other(
    left: Path, caplog: pytest.LogCaptureFixture, kind: int, inside: bool
) -> None:
    log = wal(left)
    data = bytearray(log.read_bytes())
    if inside:
        data[32 * 1024 * 3 + 6] = kind  # where the fourth block begins with a record
    else:
        data += bytes((1, 2, 3, 4, 5, 1, kind)) + bytes(300)
    log.write_bytes(data)
    count = found(left)
    assert (count < BATCHES) is inside
    assert ("THE STORE LOST CHANGES" in caplog.text) is inside
    assert ("ended in the middle of a write" in caplog.text) is not inside


def test_only_so_many_damaged_logs_are_kept(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "_MOST_KEPT", 1)
    for number in range(3):
        old = left / "damaged-logs" / f"{number:06d}"
        old.mkdir(parents=True)
    log = wal(left)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    found(left)
    assert [kept.name for kept in (left / "damaged-logs").iterdir()] == ["000003"]


def test_other_damage_is_refused_and_leaves_no_copies(left: Path) -> None:
    found(left)
    for table in left.glob("*.sst"):
        table.write_bytes(b"garbage" * 40)
    with pytest.raises(BrokerUnavailable, match="is damaged"):
        found(left)
    assert not list((left / "damaged-logs").glob("*"))


def test_a_log_that_is_not_there_is_told(left: Path, caplog: pytest.LogCaptureFixture) -> None:
    found(left)
    for log in left.glob("*.log"):
        log.unlink()
    assert found(left) == BATCHES
    assert "has no write-ahead log" in caplog.text
