"""Handles a damaged write-ahead log: reports it, keeps it, and continues from before the damage.

RocksDB silently ignores an incomplete record at the end of the log, and in the same way everything after
a damaged record. The first is the result of a kill or a power loss, and contains nothing that was
confirmed; the second is a loss. Both open here, but the second is reported with what was lost, and the log is
kept beside the store for further recovery. See docs/adr/0007-a-damaged-log-is-opened-aloud.md.

Some bytes in the place of a record's type make RocksDB 9.8 read in an endless loop: the types 5 to 8
and 11, which reused logs have. Logs here are never reused, so such a byte is damage, and is replaced with a
type that RocksDB refuses, before it sees the log.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rocksdict import DBRecoveryMode, Rdict

_log = logging.getLogger(__name__)
_FOLDER = "damaged-logs"
_MOST_KEPT = 3
_BLOCK = 32 * 1024
_HEADER = 7
_TYPES = range(1, 5)
_REFUSED = b"\xff"
"""A record type that is none, so that RocksDB says so."""
_PADDING = 0
_BEGINNINGS = (1, 2)
"""Record types with the beginning of a batch: whole ones and first parts. Source: RocksDB's log format."""
_FAR = 1 << 32
"""A number that is so much higher than the last sound one is noise."""


def open_mending(path: Path, opened: Callable[[DBRecoveryMode], Rdict]) -> Rdict:
    """What `opened` opens with every change that is in the log; without some only if it is damaged.

    Raises what `opened` raises, when it is not, or not only, the log that is damaged.
    """
    _warn_of_missing_log(path)
    noise = _find_noise(path)
    strictly: Exception = ValueError("a record of no known type")
    if not noise:
        try:
            return opened(DBRecoveryMode.absolute_consistency())
        except Exception as error:
            if "corruption" not in str(error).lower():
                raise
            strictly = error
    kept = _keep_logs(path)
    try:
        _refuse_noise(noise)
        db = opened(DBRecoveryMode.point_in_time())
    except BaseException:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    _tell(path, kept, db.latest_sequence_number(), strictly)
    return db


def is_readable(path: Path) -> bool:
    """Whether RocksDB can be let at the logs as they are, without reading in circles."""
    return not _find_noise(path)


def _tell(path: Path, kept: Path, last: int, strictly: Exception) -> None:
    """`last`: the number of the last change that is there."""
    batches = (batch for file in kept.iterdir() for batch in _batches(file.read_bytes()))
    # The batch after the last one that is there is the damaged one; was there anything behind it?
    highest = max(
        (first + count - 1 for first, count in batches if last + 1 < first < last + _FAR), default=0
    )
    if highest:
        _log.error(
            "THE STORE LOST CHANGES: its write-ahead log in %s is damaged (%s), and about %d changes"
            " that were written behind the damage are lost; the log is kept in %s. Messages may be missing"
            " and finished ones may come again: restore a backup if you have one, and check the disk",
            *(path, strictly, highest - last, kept),
        )
        for old in sorted(kept.parent.iterdir())[:-_MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    else:
        shutil.rmtree(kept, ignore_errors=True)
        _log.warning(
            "the write-ahead log in %s ended in the middle of a write (%s), as a kill or a power loss leaves"
            " it; nothing follows, and that write was left out",
            *(path, strictly),
        )


def _warn_of_missing_log(path: Path) -> None:
    """A store that was used has a log, maybe an empty one; a restored backup may have none."""
    if (path / "CURRENT").exists() and next(path.glob("*.log"), None) is None:
        _log.warning(
            "the store in %s has no write-ahead log: right after a restore that is as it should be, else the"
            " file was lost with what was written last",
            path,
        )


def _keep_logs(path: Path) -> Path:
    """Copies of the logs: opening removes them. Raises OSError when there is no room for that."""
    number = 1 + max((int(p.name) for p in (path / _FOLDER).glob("*") if p.name.isdigit()), default=0)
    kept = path / _FOLDER / f"{number:06d}"
    kept.mkdir(mode=0o700, parents=True)
    try:
        for log in path.glob("*.log"):
            shutil.copyfile(log, kept / log.name)
    except OSError:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    return kept


# -- RocksDB's log format: blocks of 32 KiB, records of crc (4), length (2), type (1), data -----------


def _find_noise(path: Path) -> dict[Path, Sequence[int]]:
    """By log: where a record's type is one that no record of ours has."""
    by_log: dict[Path, Sequence[int]] = {}
    for log in path.glob("*.log"):
        data = log.read_bytes()
        places = [at for at, kind, _ in _records(data) if kind not in _TYPES and kind != _PADDING]
        if places:
            by_log[log] = places
    return by_log


def _refuse_noise(noise: Mapping[Path, Sequence[int]]) -> None:
    for log, places in noise.items():
        with log.open("r+b") as file:
            for at in places:
                file.seek(at + _HEADER - 1)
                file.write(_REFUSED)
            file.flush()
            os.fsync(file.fileno())


def _batches(log: bytes) -> Iterator[tuple[int, int]]:
    """(first sequence number, count) of the batches that can be made out, also behind damage."""
    for at, kind, length in _records(log):
        if kind in _BEGINNINGS and length >= 12:
            body = at + _HEADER
            first = int.from_bytes(log[body : body + 8], "little")
            count = int.from_bytes(log[body + 8 : body + 12], "little")
            if count:
                yield first, count


def _records(log: bytes) -> Iterator[tuple[int, int, int]]:
    """(place, type, length) of each record; the rest of a block behind one that cannot be is skipped.

    Every block begins with a record's header, so that a damaged block hides no other one.
    """
    for block in range(0, len(log), _BLOCK):
        at, end = block, min(block + _BLOCK, len(log))
        while at + _HEADER <= end:
            length, kind = log[at + 4] | log[at + 5] << 8, log[at + 6]
            yield at, kind, length
            at += _HEADER + length
            if kind not in _TYPES or at > end:
                break
