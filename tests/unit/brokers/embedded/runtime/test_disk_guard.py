"""Sends are refused before the disk is full, and go on by themselves."""

from __future__ import annotations

import logging

import pytest

from brokers.embedded.runtime.disk_guard import DiskGuard
from popgate.errors import BrokerUnavailable

MIB = 1 << 20


class Disk:
    def __init__(self, free: int, size: int = 1 << 40) -> None:
        self.bytes_free = free
        self.size = size
        self.looks = 0

    def free(self) -> int:
        self.looks += 1
        if self.bytes_free < 0:
            raise OSError("the file system does not answer")
        return self.bytes_free

    def room(self, keep: int = 64 * MIB) -> DiskGuard:
        return DiskGuard("data", self.free, lambda: self.size, keep_bytes=keep)


def refused(room: DiskGuard, now_ms: int) -> bool:
    try:
        room.check(now_ms)
    except BrokerUnavailable:
        return True
    return False


def test_sends_are_refused_with_a_sentence_and_go_on_when_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    disk = Disk(65 * MIB)
    room = disk.room()
    room.check(0)
    disk.bytes_free = 63 * MIB
    with pytest.raises(
        BrokerUnavailable, match=r"disk of data is nearly full.*embedded\.min_free_disk_bytes"
    ):
        room.check(1_000)
    disk.bytes_free = 70 * MIB  # above what is kept, and not by enough
    assert refused(room, 2_000)
    disk.bytes_free = 81 * MIB
    assert not refused(room, 3_000)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]


def test_it_looks_once_a_second_also_when_the_clock_is_set(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(100 * MIB)
    room = disk.room()
    for now_ms in range(0, 3_000, 10):
        room.check(now_ms)
    assert disk.looks == 3
    room.check(-10_000_000)
    assert disk.looks == 4


def test_of_a_small_disk_a_twentieth_is_kept() -> None:
    assert not refused(Disk(6 * MIB, size=100 * MIB).room(), 0)
    assert refused(Disk(4 * MIB, size=100 * MIB).room(), 0)


def test_nothing_is_kept_when_that_is_said_and_nothing_refused_when_nobody_knows() -> None:
    assert not refused(Disk(0).room(keep=0), 0)
    assert not refused(Disk(-1).room(), 0)
