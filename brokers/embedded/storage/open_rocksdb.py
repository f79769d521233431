"""Opens RocksDB: its options, the checks of its folder, and an error sentence for each way it fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    MemtableFactory,
    Options,
    Rdict,
)

from brokers.embedded.storage.backup_files import make_folder
from brokers.embedded.storage.keys import CHECKS, INDEX, INFLIGHT, MESSAGES, PROGRESS, TIMERS
from brokers.embedded.storage.wal_repair import is_readable, open_mending
from popgate.errors import BrokerUnavailable

_OPEN_FILES = 512
_TABLES_PER_OPENER = 16
"""Tables that one thread opens: RocksDB starts all its openers anew for every keyspace, also an empty one
(measured, 20 keyspaces: opened in 24 ms instead of 55)."""
_MOST_OPENERS = 16
"""RocksDB's own default."""
_LOG_BYTES = 4 * 1024 * 1024
_BLOCK_BYTES = 16 * 1024
_INDEX_BUFFER_BYTES = 4 * 1024 * 1024
_LEAST_TABLE_BYTES = 4 * 1024 * 1024
_MESSAGE_TABLES = 8
"""New tables of messages that are merged at once. Each has messages of all queues, so that every merge writes
the newest level anew: half as many merges as with RocksDB's 4. Measured, with the index below, 8 million
messages of 300 bytes with two entries each: 3.7 µs of its threads for a message instead of 5.2."""
_MESSAGE_LEVEL = 4
"""Write buffers that the newest level of messages has at most, whose tables have half a one. One merge takes
25 such tables at most (RocksDB's `max_compaction_bytes` follows their size). Every merge of new tables writes
that level anew. What leaves it is mostly the end of a queue, so that small tables are moved as they are.
Measured, 4 million messages of 300 bytes: merging takes 0.8 µs for a message instead of 1.4 µs with RocksDB's
256 MiB, where it grows with the level until that is full."""
_INDEX_TABLES = 32
"""The same of the index, of which each table has keys from anywhere. A look-up, which is rare, reads all."""
_INDEX_SLOWDOWN, _INDEX_STOP = 2 * _INDEX_TABLES, 3 * _INDEX_TABLES
_REFUSALS = tuple(
    os.strerror(code).lower()
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
)
_TRIAL = ".room"
_TRIAL_BYTES = 1024 * 1024


def open_rocks(
    path: Path, spaces: Iterable[str], *, write_buffer_bytes: int, cache_bytes: int, identity: str = ""
) -> Rdict:
    """Open or create the database with these keyspaces, and those that a newer version left in it.

    With an `identity` only that database is opened: if its disk was unmounted, the folder is empty,
    and a new database in it would be hidden, with all its data, when the disk is mounted again.
    Raises BrokerUnavailable with a sentence for the operator: not writable, locked, damaged, not there.
    """
    try:
        if identity:
            _refuse_another(path, identity)
        else:
            make_folder(path)
        _refuse_headless(path)
        names = set(spaces)
        if (path / "CURRENT").exists():
            names |= set(Rdict.list_cf(str(path)))
        names.discard("default")

        def opened(mode: DBRecoveryMode) -> Rdict:
            options = _options(write_buffer_bytes)
            options.create_if_missing(not identity)
            options.set_wal_recovery_mode(mode)
            options.set_max_file_opening_threads(_openers(path))
            return Rdict(str(path), options, _space_options(names, write_buffer_bytes, cache_bytes))

        return open_mending(path, opened)
    except BrokerUnavailable:
        raise
    except Exception as error:
        raise BrokerUnavailable(_opening_sentence(path, error)) from error


def open_to_read(
    path: Path, *, cache_bytes: int, identity: str
) -> tuple[Rdict, TemporaryDirectory[str] | None]:
    """Open that database, with all its keyspaces, without changing what is stored.

    The binding writes its own settings file even then. Where that is refused the database is opened
    through a folder of links, which is returned too: its owner removes it after the database is closed.
    Raises BrokerUnavailable: it is not there, or its write-ahead log is damaged.
    """
    try:
        _refuse_another(path, identity)
        _refuse_headless(path)
        if not is_readable(path):
            raise BrokerUnavailable(f"the write-ahead log in {path} is damaged")
        names = set(Rdict.list_cf(str(path))) - {"default"}
        options = _options(_INDEX_BUFFER_BYTES)
        options.create_if_missing(False)
        options.create_missing_column_families(False)
        options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
        options.set_max_file_opening_threads(_openers(path))
        spaces = _space_options(names, _INDEX_BUFFER_BYTES, cache_bytes)
        try:
            return Rdict(str(path), options, spaces, AccessType.read_only()), None
        except Exception as error:
            if not is_refusal(error):
                raise
        links = _linked(path)
        try:
            return Rdict(links.name, options, spaces, AccessType.read_only()), links
        except BaseException:
            links.cleanup()
            raise
    except BrokerUnavailable:
        raise
    except Exception as error:
        raise BrokerUnavailable(_opening_sentence(path, error)) from error


def is_refusal(error: BaseException) -> bool:
    """Whether something could not be written, and what is there can be read all the same.

    The disk or the user's part of it is full, it was made read-only, or the user may not write any more.
    """
    text = str(error).lower()
    return any(words in text for words in _REFUSALS)


def try_room(path: Path) -> None:
    """Try whether a megabyte can be written there. Raises OSError."""
    trial = path / _TRIAL
    try:
        with trial.open("wb") as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        trial.unlink(missing_ok=True)


def identity_of(path: Path) -> str:
    """What RocksDB named the database when it made it; empty: none is there. Raises OSError."""
    try:
        return (path / "IDENTITY").read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""


def _linked(path: Path) -> TemporaryDirectory[str]:
    """A folder with a link to each file of a database, but for those that a process writes for itself."""
    links = TemporaryDirectory(prefix="popgate-store-")
    try:
        for file in path.resolve().iterdir():
            if file.is_file() and not file.name.startswith(("LOCK", "LOG", "rocksdict-", _TRIAL)):
                Path(links.name, file.name).symlink_to(file)
    except BaseException:
        links.cleanup()
        raise
    return links


def _refuse_another(path: Path, identity: str) -> None:
    present = identity_of(path)
    if present != identity:
        there = "another one is in its place" if present else "nothing is in its place"
        raise BrokerUnavailable(
            f"the store in {path} is not there any more, {there} (is its disk mounted?);"
            " none is begun anew while the gateway runs"
        )


def _refuse_headless(path: Path) -> None:
    """Without its CURRENT file RocksDB would create a new database and remove unknown tables."""
    if (path / "CURRENT").exists():
        return
    tables = next(path.glob("*.sst"), None)
    logged = next((log for log in path.glob("*.log") if log.stat().st_size), None)
    if tables is not None or logged is not None:
        raise BrokerUnavailable(
            f"the store in {path} is damaged: its file CURRENT is missing, but data is there"
            f" ({(tables or logged or path).name}); restore the folder from a copy"
        )


def _openers(path: Path) -> int:
    """How many threads open the tables that are there."""
    return min(_MOST_OPENERS, 1 + sum(1 for _ in path.glob("*.sst")) // _TABLES_PER_OPENER)


def _options(write_buffer_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_max_background_jobs(2)
    options.set_max_open_files(_OPEN_FILES)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_db_write_buffer_size(4 * write_buffer_bytes)
    options.set_max_total_wal_size(8 * write_buffer_bytes)
    options.set_stats_dump_period_sec(0)
    # One thread writes; and the memtable of the index takes no concurrent ones.
    options.set_allow_concurrent_memtable_write(False)
    return options


def _space_options(names: Iterable[str], write_buffer_bytes: int, cache_bytes: int) -> dict[str, Options]:
    cache = Cache(cache_bytes)
    spaces = {}
    for name in names:
        options = Options(raw_mode=True)
        options.set_write_buffer_size(write_buffer_bytes)
        options.set_compression_type(DBCompressionType.lz4())
        if name in (INFLIGHT, PROGRESS, TIMERS, CHECKS):
            # Short-lived keys: a delete soon follows its put, so compaction is told to look early.
            options.add_compact_on_deletion_collector_factory(10_000, 5_000, 0.5)
        if name == INDEX:
            # Its keys are hashes, written all the time and hardly ever read: they are sorted once,
            # when the buffer is flushed, not one by one (measured: 0.5 µs a key for 1.4). A
            # look-up sorts what is in the buffer, so that is small (4 MiB: about 30 ms).
            options.set_memtable_factory(MemtableFactory.vector())
            options.set_write_buffer_size(min(write_buffer_bytes, _INDEX_BUFFER_BYTES))
            options.set_level_zero_file_num_compaction_trigger(_INDEX_TABLES)
            options.set_level_zero_slowdown_writes_trigger(_INDEX_SLOWDOWN)
            options.set_level_zero_stop_writes_trigger(_INDEX_STOP)
        table = BlockBasedOptions()
        table.set_block_cache(cache)
        # Indexes of tables count towards the cache's bound instead of growing with the data.
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        if name == MESSAGES:
            table.set_block_size(_BLOCK_BYTES)
            options.set_level_zero_file_num_compaction_trigger(_MESSAGE_TABLES)
            options.set_max_bytes_for_level_base(_MESSAGE_LEVEL * write_buffer_bytes)
            options.set_target_file_size_base(max(write_buffer_bytes // 2, _LEAST_TABLE_BYTES))
            options.set_target_file_size_multiplier(2)  # few tables where there is much
        elif name != INDEX:  # of which only ranges are read: no filter helps there
            table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        spaces[name] = options
    return spaces


def _opening_sentence(path: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    low = text.lower()
    if isinstance(error, FileExistsError | NotADirectoryError) or "not a directory" in low:
        return f"the store cannot be in {path}: that, or a part of it, is a file and no folder"
    if isinstance(error, PermissionError) or "permission denied" in low or "read-only" in low:
        return f"the store in {path} cannot be written by this user: {text}"
    if "lock" in low and ("held" in low or "hold" in low or "unavailable" in low or "available" in low):
        return f"the store in {path} is in use by another process (stop it, or choose another folder): {text}"
    if isinstance(error, FileNotFoundError) and not path.exists():
        return f"the store's folder {path} cannot be made: {error.strerror or text}"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return f"the store in {path} cannot be opened: {text}"
    if "no space left" in low or "too large" in low or "quota" in low:
        return f"the store in {path} has no room to write: {text}"
    if any(
        word in low for word in ("corruption", "no such file", "checksum", "invalid argument", "not found")
    ):
        return f"the store in {path} is damaged: {text}; restore the folder from a copy"
    return f"the store in {path} cannot be opened: {text}"
