"""The store with faults on order: failed writes, late commits, a disk that is full or read-only, an end.

For tests only, and put in the place of `Store` when the broker is made: without faults nothing of
this is loaded. Steps, each counting its own calls:

| step      | what it is                                          | what can happen there              |
| --------- | --------------------------------------------------- | ---------------------------------- |
| commit    | a batch is about to be written                      | fail, delay, full, readonly, kill  |
| committed | it is written (as the system sees it), nobody knows | kill                               |
| sync      | written batches are about to be put on the disk     | fail, kill                         |
| synced    | they are on the disk, nobody knows                  | kill                               |
| open      | the files are opened again after a failure          | fail, kill                         |
| disk      | it is looked how much room the disk has             | full                               |

`fail=commit` is a write that the system refuses: nothing was done. `fail=sync` leaves everybody in
doubt. `full=commit:for=2s` is a disk without room from that call on, for so long: writes fail and so
does opening the files. `readonly=commit:for=2s` is the same of a disk that was made read-only.
`full=disk:for=2s` only says so, before a write fails.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocksdict import WriteBatch

from brokers.embedded.storage.store import Durability, Store
from popgate.clock import Clock
from popgate.errors import BrokerUnavailable
from popgate.faults import Faults, Rule

STEPS = {
    "fail": ("commit", "sync", "open"),
    "delay": ("commit",),
    "full": ("commit", "disk"),
    "readonly": ("commit",),
    "kill": ("commit", "committed", "sync", "synced", "open"),
}
OPTIONS = {"delay": ("duration",), "full": ("for",), "readonly": ("for",)}


def store_maker(faults: Faults) -> Callable[..., Store]:
    """What makes the store of a broker with these faults. Raises ValueError for a rule that cannot be."""
    faults.claim(STEPS, OPTIONS)

    def make(path: Path, clock: Clock, **options: Any) -> Store:
        return FaultyStore(path, clock, faults, **options)

    return make


class FaultyStore(Store):
    """A `Store` to which the plan's faults happen, from when it was opened."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        faults: Faults,
        *,
        durability: Durability = Durability.INTERVAL,
        sync_interval: float = 0.1,
        write_buffer_bytes: int = 16 * 1024 * 1024,
        cache_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        super().__init__(  # each by its name: compiled, `**options` would be given as the first of them
            path,
            clock,
            durability=durability,
            sync_interval=sync_interval,
            write_buffer_bytes=write_buffer_bytes,
            cache_bytes=cache_bytes,
        )
        self.faults = faults
        self._opened_once = False
        self._full_until: dict[str, float] = {}
        self._refusal = errno.ENOSPC
        """Why nothing can be written until then."""
        self._late = False
        self._decided: tuple[Rule | None] | None = None
        """What happens to the batch that is being written, when that is settled already."""

    def open(self) -> None:
        self._opened_once = False
        super().open()
        self._opened_once = True
        self._db = _FaultyFiles(self._db, self)  # type: ignore[assignment]

    def free_bytes(self) -> int:
        if self.is_full("disk"):
            return 0
        return super().free_bytes()

    def is_full(self, step: str) -> bool:
        """Whether the disk takes nothing at this step. Asking is a call of the step while it has."""
        now = self._clock.monotonic()
        if now < self._full_until.get(step, 0.0):
            return True
        if step == "disk":
            rule = self.faults.strike(step)
            if rule is not None:
                self._full_until[step] = now + rule.options.get("for", 1.0)
                return True
        return False

    def before_write(self) -> None:
        """What happens to a batch that is about to be written. Raises OSError."""
        if self.is_full("commit"):
            raise _refused(self._refusal)
        decided, self._decided = self._decided, None
        rule = decided[0] if decided is not None else self.faults.strike("commit")
        if rule is None or rule.verb == "delay":
            return
        if rule.verb == "kill":
            self.faults.kill()
        if rule.verb in ("full", "readonly"):
            self._full_until["commit"] = self._clock.monotonic() + rule.options.get("for", 1.0)
            self._refusal = errno.EROFS if rule.verb == "readonly" else errno.ENOSPC
            raise _refused(self._refusal)
        raise OSError(errno.EIO, f"the write was failed on purpose ({rule.text})")

    def at(self, step: str) -> None:
        """A step that can only fail or be the last one. Raises OSError."""
        rule = self.faults.strike(step)
        if rule is None:
            return
        if rule.verb == "kill":
            self.faults.kill()
        raise OSError(errno.EIO, f"{step} was failed on purpose ({rule.text})")

    def _open_files(self) -> None:
        if self._opened_once and not self._closing:
            try:
                if self.is_full("commit"):
                    raise _refused(self._refusal)
                self.at("open")
            except OSError as error:
                raise BrokerUnavailable(f"the store in {self.path} cannot be opened: {error}") from error
        super()._open_files()
        if self._opened_once:
            self._db = _FaultyFiles(self._db, self)  # type: ignore[assignment]

    def _write(self) -> None:
        """A delayed commit takes along what is added meanwhile, as a slow disk does."""
        if self._late:
            return
        if self._ordered and not self._batch.is_empty() and not self.is_full("commit"):
            rule = self.faults.strike("commit")
            self._decided = (rule,)
            if rule is not None and rule.seconds is not None:
                self._late = True
                self._clock.call_later(rule.seconds, self._write_late)
                return
        super()._write()

    def _write_late(self) -> None:
        self._late = False
        super()._write()


class _FaultyFiles:
    """RocksDB's handle, with a say before and after what is written."""

    def __init__(self, db: Any, store: FaultyStore) -> None:
        self._db = db
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def write(self, batch: WriteBatch) -> None:
        self._store.before_write()
        self._db.write(batch)
        self._store.at("committed")

    def flush_wal(self, sync: bool) -> None:
        self._store.at("sync")
        self._db.flush_wal(sync)
        self._store.at("synced")


def _refused(code: int) -> OSError:
    return OSError(code, os.strerror(code))
