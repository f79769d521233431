"""The keyspaces in RocksDB: opened together, read, and closed in every state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from rocksdict import Checkpoint, ColumnFamily, CompactOptions, Rdict, ReadOptions

from brokers.embedded.storage.keys import SPACES
from brokers.embedded.storage.open_rocksdb import identity_of, is_refusal, open_rocks, open_to_read, try_room
from popgate.errors import BrokerUnavailable

_BEYOND = b"\xff" * 24
"""Behind a prefix: higher than every key that begins with it."""


class _Absent(dict[str, object]):
    """Stands for the keyspaces while the store is not open: asking for one says why."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self._sentence = sentence

    def __missing__(self, name: str) -> object:
        raise BrokerUnavailable(self._sentence)


class ColumnFamilies:
    """Reads of one RocksDB; all in the loop's thread, but `reclaim`, which works in one of its own."""

    def __init__(self, path: Path, *, write_buffer_bytes: int, cache_bytes: int) -> None:
        self.path = path
        self._write_buffer_bytes = write_buffer_bytes
        self._cache_bytes = cache_bytes
        self._db: Rdict | None = None
        self._identity = ""
        """Of the database that was opened, until its owner ends: no other one takes its place."""
        self._only_read = False
        """Whether the files are open for reading only."""
        self._links: TemporaryDirectory[str] | None = None
        """What they are read through where the binding may not write its settings file."""
        self._last_change: int | None = None
        """The number of the last change that was there when the files were closed; None: it is not known."""
        self._families: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._reclaim_thread: ThreadPoolExecutor | None = None
        self._closing = False
        self._forget_spaces(f"the store in {path} is not open")

    # -- reading: sees what is written, never the batch being filled ----------------------------

    def get(self, space: str, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._families[space].get(key)
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = self._families[space].get(keys)  # type: ignore[arg-type,assignment]
        except Exception as error:
            raise self._unreadable(error) from error
        return values

    def scan(self, space: str, begin: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with begin <= key (and key < end), in order, as they are now.

        Never keep the iterator over an await: the files cannot be closed while it lives.
        """
        options = None
        if end is not None:
            if end <= begin:
                return
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
        try:
            cursor = self._families[space].iter(options)
            cursor.seek(begin)
            while cursor.valid():
                yield cursor.key(), cursor.value()
                cursor.next()
            cursor.status()  # an unreadable table ends the loop just as the last key does
        except Exception as error:
            raise self._unreadable(error) from error

    def scan_back(self, space: str, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The pairs of `scan` from the last one to the first. Never keep it over an await, either."""
        try:
            cursor = self._families[space].iter()
            cursor.seek(begin)
            # A step before the first one would go through all that was deleted there (100,000 keys: 50 ms).
            # The binding's lower bound is of no use: it sets the upper one.
            first = cursor.key() if cursor.valid() else end
            if first < end:
                cursor.seek_for_prev(end)
                if cursor.valid() and cursor.key() == end:
                    cursor.prev()
                while cursor.valid() and (key := cursor.key()) >= first:
                    yield key, cursor.value()
                    if key == first:
                        break
                    cursor.prev()
            cursor.status()
        except Exception as error:
            raise self._unreadable(error) from error

    def values(self, space: str, begin: bytes, end: bytes) -> Iterator[bytes]:
        """The values of `scan` alone, in two thirds of its time.

        What cannot be read ends them, too: `scan` from there on tells it.
        """
        if end <= begin:
            return
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        try:
            yield from self._families[space].values(from_key=begin, read_opt=options)
        except Exception as error:
            raise self._unreadable(error) from error

    def first(self, space: str, begin: bytes, end: bytes | None = None) -> tuple[bytes, bytes] | None:
        """The first pair with begin <= key (and key < end)."""
        return next(self.scan(space, begin, end), None)

    def runs(self, space: str, begin: bytes, shared: int, most: int) -> list[bytes]:
        """The first `shared` bytes of keys, from `begin` on, each once: at most `most` of them."""
        prefixes: list[bytes] = []
        try:
            cursor = self._families[space].iter()
            cursor.seek(begin)
            while cursor.valid() and len(prefixes) < most:
                prefix = cursor.key()[:shared]
                prefixes.append(prefix)
                cursor.seek(prefix + _BEYOND)
            cursor.status()
        except Exception as error:
            raise self._unreadable(error) from error
        return prefixes

    def last_below(self, space: str, key: bytes) -> tuple[bytes, bytes] | None:
        """The last pair whose key is lower than `key`."""
        return self.seeker(space)(key)

    def seeker(self, space: str) -> Callable[[bytes], tuple[bytes, bytes] | None]:
        """`last_below` for many keys of a keyspace as it is now. Never keep it over an await."""
        try:
            cursor = self._families[space].iter()
        except Exception as error:
            raise self._unreadable(error) from error

        def seek(key: bytes) -> tuple[bytes, bytes] | None:
            try:
                cursor.seek_for_prev(key)
                if cursor.valid() and cursor.key() == key:
                    cursor.prev()
                if cursor.valid():
                    return cursor.key(), cursor.value()
                cursor.status()
            except Exception as error:
                raise self._unreadable(error) from error
            return None

        return seek

    def figure(self, name: str) -> int:
        """A RocksDB property of one keyspace, summed over them, e.g. `rocksdb.estimate-live-data-size`."""
        if self._db is None:
            return 0
        return sum(self._families[space].property_int_value(name) or 0 for space in SPACES)

    def free_bytes(self) -> int:
        """What the file system of the folder still has for us. Raises OSError."""
        system = os.statvfs(self.path)
        return system.f_bavail * system.f_frsize

    def figure_of(self, space: str, name: str) -> int:
        """The same of one keyspace."""
        return 0 if self._db is None else self._families[space].property_int_value(name) or 0

    def flush_soon(self) -> None:
        """Let RocksDB write what it has in memory to tables, in threads of its own."""
        for family in self._families.values():
            family.flush(False)

    def checkpoint(self, folder: Path) -> None:
        """A consistent copy of the files as the new folder `folder`, linked on the same file system.

        The binding keeps the interpreter's lock meanwhile. Raises BrokerUnavailable with the reason.
        """
        db = self._opened()
        try:
            Checkpoint(db).create_checkpoint(str(folder))
        except Exception as error:
            raise BrokerUnavailable(f"no copy of the store in {self.path} can be made: {error}") from error

    def disk_bytes(self) -> int:
        """The size of that file system. Raises OSError."""
        system = os.statvfs(self.path)
        return system.f_blocks * system.f_frsize

    def reclaim(self, space: str, begin: bytes, end: bytes) -> None:
        """Give the disk back what was deleted in [begin, end), in a thread, behind others that wait."""
        if self._closing:
            return
        family = self._families[space]
        if self._reclaim_thread is None:
            self._reclaim_thread = ThreadPoolExecutor(1, thread_name_prefix="popgate-store-reclaim")
        self._reclaim_thread.submit(_compact, family, begin, end)

    def _unreadable(self, error: Exception) -> BrokerUnavailable:
        if isinstance(error, BrokerUnavailable):
            return error
        return BrokerUnavailable(f"the store in {self.path} cannot be read: {error}")

    # -- files --------------------------------------------------------------------------------

    def _opened(self) -> Rdict:
        if self._db is None:
            raise BrokerUnavailable(f"the store in {self.path} is not open")
        return self._db

    def _open_files(self) -> None:
        db = self._db = open_rocks(
            self.path,
            SPACES,
            write_buffer_bytes=self._write_buffer_bytes,
            cache_bytes=self._cache_bytes,
            identity=self._identity,
        )
        if not self._identity:
            with contextlib.suppress(OSError):
                self._identity = identity_of(self.path)
        self._find_spaces(db)

    def _open_to_read(self) -> None:
        """Open the files again so that nothing is written. Raises BrokerUnavailable, unless all is there."""
        self._db, self._links = open_to_read(
            self.path, cache_bytes=self._cache_bytes, identity=self._identity
        )
        db, self._only_read = self._db, True
        least, last = self._last_change, db.latest_sequence_number()
        if least is None or last < least:
            raise BrokerUnavailable(f"of {least} changes only {last} are there")
        self._find_spaces(db)

    def _is_refused(self) -> bool:
        """Whether nothing can be written still, to the folder whose files are being read.

        A disk that was unmounted leaves another folder there, or none: its files must be let go of.
        """
        try:
            if identity_of(self.path) != self._identity:
                return False
            try_room(self.path)
        except OSError as error:
            return is_refusal(error)
        return False

    def _find_spaces(self, db: Rdict) -> None:
        self._families = {name: db.get_column_family(name) for name in SPACES}
        self._handles = {name: db.get_column_family_handle(name) for name in SPACES}

    def _close_files(self, why: str) -> None:
        """Let go of the files whatever state they are in; what cannot be written any more is not."""
        db, self._db = self._db, None
        if db is not None and not self._only_read:
            with contextlib.suppress(Exception):
                self._last_change = db.latest_sequence_number()
        self._only_read = False
        families = list(self._families.values())
        self._forget_spaces(why)
        for part in (*families, db):
            if part is not None:
                with contextlib.suppress(Exception):  # a failed write makes closing complain again
                    part.close()
        links, self._links = self._links, None
        if links is not None:
            with contextlib.suppress(OSError):
                links.cleanup()

    def _forget_spaces(self, why: str) -> None:
        self._families = _Absent(why)  # type: ignore[assignment]
        self._handles = _Absent(why)  # type: ignore[assignment]

    def _stop_reclaiming(self) -> None:
        thread, self._reclaim_thread = self._reclaim_thread, None
        if thread is not None:
            thread.shutdown(wait=False, cancel_futures=True)
            if self._db is not None:
                self._db.cancel_all_background(True)
            thread.shutdown(wait=True)


def _compact(family: Rdict, begin: bytes, end: bytes) -> None:
    options = CompactOptions()
    options.set_exclusive_manual_compaction(False)
    with contextlib.suppress(Exception):  # it is a favour: what fails here fails louder elsewhere
        family.compact_range(begin, end, options)
