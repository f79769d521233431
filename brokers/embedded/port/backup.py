"""Backups of the store while it works: a checkpoint of RocksDB, then checksums and copies beside it.

RocksDB's own threads first flush what is only in memory, so that the checkpoint itself has little to do: it
links the tables and copies the end of the log. The checkpoint runs in the loop's thread, since the binding
keeps the interpreter's lock meanwhile. The rest reads files, in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from brokers.capabilities import Backup, TakesBackups
from brokers.embedded.engine.engine import Engine
from brokers.embedded.engine.facet import Facet
from brokers.embedded.runtime.disk_guard import DiskGuard
from brokers.embedded.storage.backup_files import (
    FILES,
    copy_file,
    fingerprint,
    locked_folder,
    make_folder,
    sync_folder,
    write_manifest,
)
from brokers.embedded.storage.keys import META
from brokers.embedded.storage.migrations import FORMAT
from popgate import __version__
from popgate.errors import AlreadyExists, BrokerUnavailable, TooManyRequests

_log = logging.getLogger(__name__)
_STORE_ID_KEY = b"store id"
_TRIAL = "link"
_LOOK_S = 0.01
_FLUSH_PATIENCE_S = 30.0
_IMMUTABLE = "rocksdb.num-immutable-mem-table"


class BackupFacet(Facet, TakesBackups):
    """`TakesBackups` of the embedded broker: one at a time."""

    _taking: asyncio.Task[Backup] | None = None
    _ending: threading.Event | None = None

    async def take_backup(self, target: Path) -> Backup:
        self._engine.check_writable()
        if self._taking is not None:
            raise TooManyRequests("a backup is being taken already", 10.0)
        self._ending = threading.Event()
        self._taking = asyncio.get_running_loop().create_task(self._take_backup(target, self._ending))
        self._taking.add_done_callback(self._taken)
        # Who asked may go away: the backup is made all the same.
        return await asyncio.shield(self._taking)

    async def end_backup(self) -> None:
        """Before the broker stops: a backup that is under way ends without a result."""
        task, ending = self._taking, self._ending
        if task is not None and ending is not None:
            ending.set()
            await asyncio.wait([task])

    # -- inside -------------------------------------------------------------------------------

    def _taken(self, task: asyncio.Task[Backup]) -> None:
        self._taking = self._ending = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("no backup was taken: %s", error)

    async def _take_backup(self, target: Path, ending: threading.Event) -> Backup:
        engine = self._engine
        began = time.monotonic()
        store_id = await _store_id(engine)
        # Restored copies of a store have its id, and may take backups to the same folder at the same time.
        partial = target.with_name(f".{target.name}.{store_id[:12]}.{uuid.uuid4().hex[:8]}.partial")
        checkpoint = _checkpoint_of(engine.store.path)
        with contextlib.ExitStack() as locks:
            try:
                in_place = await asyncio.to_thread(
                    _prepare, target, partial, engine.store.path, store_id, locks
                )
                await _flush(engine, ending)
                engine.check_writable()
                taken_ms = engine.clock.now_ms()
                facts = _facts(engine, store_id, taken_ms)
                engine.store.checkpoint(partial / FILES if in_place else checkpoint)
                files = await asyncio.to_thread(
                    _finish, partial, target, None if in_place else checkpoint, facts, engine.room, ending
                )
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise BrokerUnavailable(f"the backup {target} cannot be written: {reason}") from error
            finally:
                await asyncio.shield(asyncio.to_thread(_clear, partial, checkpoint))
        size = sum(size for size, _ in files.values())
        _log.info("backup %s: %d files, %d bytes, %.1f s", target, len(files), size, time.monotonic() - began)
        return Backup(target, taken_ms, len(files), size, facts)


def clear_leftovers(store: Path) -> None:
    """Remove files that a killed process left in the store's folder, or beside it, during a backup."""
    checkpoints = [_checkpoint_of(store)]
    if store.name:
        checkpoints.append(store.with_name(f".{store.name}.checkpoint"))  # where 0.1.0 has it
    for checkpoint in checkpoints:
        # RocksDB makes it by another name first.
        _clear(checkpoint, checkpoint.with_name(f"{checkpoint.name}.tmp"))


def _checkpoint_of(store: Path) -> Path:
    """Where a checkpoint waits to be copied to another file system: links need the store's own mount,
    which may begin with its folder."""
    return store / ".checkpoint"


async def _store_id(engine: Engine) -> str:
    """The name of this store for life, which its backups and their restored copies share."""
    store_id = engine.store.get(META, _STORE_ID_KEY)
    if store_id is None:
        store_id = uuid.uuid4().hex.encode()
        engine.store.put(META, _STORE_ID_KEY, store_id)
    await engine.settled()
    return store_id.decode()


def _facts(engine: Engine, store_id: str, taken_ms: int) -> Mapping[str, object]:
    catalogue = engine.catalogue
    messages = sum(queue.kept for topic in catalogue.topics() for queue in topic.queues)
    return {
        "popgate": __version__,
        "taken": datetime.fromtimestamp(taken_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "taken_ms": taken_ms,
        "store": {"id": store_id, "format": FORMAT, "broker": engine.settings.name},
        "counts": {
            "topics": catalogue.topic_count,
            "groups": catalogue.group_count,
            "messages": messages,
        },
    }


async def _flush(engine: Engine, ending: threading.Event) -> None:
    """Let RocksDB write what it has in memory, in threads of its own; not for ever."""
    engine.store.flush_soon()
    deadline = time.monotonic() + _FLUSH_PATIENCE_S
    while engine.store.figure(_IMMUTABLE) and time.monotonic() < deadline:
        _check(ending)
        await asyncio.sleep(_LOOK_S)


def _prepare(target: Path, partial: Path, store: Path, store_id: str, locks: contextlib.ExitStack) -> bool:
    """Make and lock the folder, and remove what a killed process left of a backup of this very store.

    Returns whether RocksDB is to make its files in the folder; else they have to be copied there later.
    """
    if os.path.lexists(target):
        raise AlreadyExists("the backup", str(target))
    make_folder(target.parent)
    _clear(_checkpoint_of(store))
    for left in target.parent.glob(f".*.{store_id[:12]}.*partial"):
        with contextlib.suppress(OSError), locked_folder(left):
            _clear(left)
    partial.mkdir(mode=0o700)
    locks.enter_context(locked_folder(partial))
    if _can_link(store, partial):
        return True
    # Where the store's own disk takes no links either, RocksDB copies: once is enough.
    checkpoint = _checkpoint_of(store)
    checkpoint.mkdir(mode=0o700)
    can_link = _can_link(store, checkpoint)
    _clear(checkpoint)
    return not can_link


def _can_link(store: Path, folder: Path) -> bool:
    """Tried, since another mount of the same file system takes no links either, and looks like it.

    RocksDB copies what it cannot link, and the loop would wait for that.
    """
    trial = folder / _TRIAL
    try:
        os.link(store / "CURRENT", trial)
        trial.unlink()
    except OSError:
        return False
    return True


def _finish(
    partial: Path,
    target: Path,
    checkpoint: Path | None,
    facts: Mapping[str, object],
    room: DiskGuard,
    ending: threading.Event,
) -> dict[str, tuple[int, str]]:
    """Copy what could not be linked, put the checksums beside it, and give the folder its name."""
    files: dict[str, tuple[int, str]] = {}
    sources = sorted((checkpoint or partial / FILES).iterdir())
    fills_store = False
    if checkpoint is not None:
        (partial / FILES).mkdir(mode=0o700)
        fills_store = partial.stat().st_dev == checkpoint.stat().st_dev
    if fills_store:
        _check_room(room, target, sum(source.stat().st_size for source in sources))

    def pause() -> None:
        _check(ending)
        if fills_store:
            _check_room(room, target, 0)

    for source in sources:
        if checkpoint is not None:
            files[source.name] = copy_file(source, partial / FILES / source.name, pause)
            continue
        files[source.name] = fingerprint(source, pause)
        if source.suffix != ".sst":  # tables are on the disk since they were written
            _sync_file(source)
    sync_folder(partial / FILES)
    write_manifest(partial, facts, files)
    if target.exists():
        raise AlreadyExists("the backup", str(target))
    partial.rename(target)
    sync_folder(target.parent)
    return files


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check(ending: threading.Event) -> None:
    if ending.is_set():
        raise BrokerUnavailable("the gateway is stopping; no backup was taken")


def _check_room(room: DiskGuard, target: Path, size: int) -> None:
    """Without any the store could write nothing more, no acknowledgements either."""
    if (spare := room.spare()) < size:
        raise BrokerUnavailable(
            f"the backup {target} has no room on the store's own disk: {max(spare, 0)} bytes are left beside"
            " those for consumers (embedded.min_free_disk_bytes)"
        )


def _clear(*folders: Path) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
