"""Metrics of the store: what RocksDB reports of itself, and how long writes took."""

from __future__ import annotations

import os
from pathlib import Path

from brokers.embedded.storage.keys import MESSAGES, TIMERS
from brokers.embedded.storage.store import Store

_SUMMED = {
    "store_bytes": "rocksdb.estimate-live-data-size",
    "store_files_bytes": "rocksdb.total-sst-files-size",
    "store_memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "store_readers_bytes": "rocksdb.estimate-table-readers-mem",
    "store_pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
}
"""Properties of keyspaces, summed over them."""

_SHARED = {
    "store_cache_bytes": "rocksdb.block-cache-usage",
    "store_compactions_running": "rocksdb.num-running-compactions",
    "store_flushes_running": "rocksdb.num-running-flushes",
    "store_writes_stopped": "rocksdb.is-write-stopped",
    "store_delayed_write_bytes_per_second": "rocksdb.actual-delayed-write-rate",
    "store_background_errors": "rocksdb.background-errors",
}
"""Properties of all keyspaces together, whichever is asked."""


def store_figures(store: Store) -> dict[str, float]:
    """A few hundred microseconds of questions; of a store that is not open only what is counted here."""
    writes, syncs = store.writes, store.syncs
    figures: dict[str, float] = {
        "store_failing": float(store.failing),
        "store_writes_total": writes.count,
        "store_write_seconds_total": writes.total,
        "store_write_longest_seconds": writes.longest,
        "store_syncs_total": syncs.count,
        "store_sync_seconds_total": syncs.total,
        "store_sync_longest_seconds": syncs.longest,
        "store_wal_bytes": _log_bytes(store.path),
        "delayed_messages": store.figure_of(TIMERS, "rocksdb.estimate-num-keys"),
    }
    for name, of in _SUMMED.items():
        figures[name] = store.figure(of)
    for name, of in _SHARED.items():
        figures[name] = store.figure_of(MESSAGES, of)
    return figures


def _log_bytes(path: Path) -> int:
    """The write-ahead logs: RocksDB has no property for them."""
    try:
        with os.scandir(path) as files:
            return sum(file.stat().st_size for file in files if file.name.endswith(".log"))
    except OSError:
        return 0
