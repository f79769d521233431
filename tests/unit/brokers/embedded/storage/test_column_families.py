from typing import Any

import pytest

from brokers.embedded.storage.keys import INDEX, index_key

Parts = Any


async def test_runs_gives_each_beginning_once_and_goes_on_where_asked(parts: Parts) -> None:
    store = parts.store
    for hour in (1, 2, 3):
        for topic in (5, 6):
            for offset in range(50):
                store.put(INDEX, index_key(hour, topic, offset, 0, offset), b"")
    await store.commit()
    beginnings = [index_key(hour, topic, 0, 0, 0)[:8] for hour in (1, 2, 3) for topic in (5, 6)]
    assert store.runs(INDEX, b"", 8, 100) == beginnings
    assert store.runs(INDEX, b"", 8, 2) == beginnings[:2]
    assert store.runs(INDEX, beginnings[1] + b"\xff" * 24, 8, 100) == beginnings[2:]
    assert store.runs(INDEX, beginnings[-1] + b"\xff" * 24, 8, 100) == []
    store.delete_range(INDEX, beginnings[1], beginnings[4])
    await store.commit()
    assert store.runs(INDEX, b"", 8, 100) == [beginnings[0], *beginnings[4:]]


async def test_figures_are_sums_over_the_keyspaces(parts: Parts) -> None:
    before = parts.store.figure("rocksdb.estimate-num-keys")
    for number in range(100):
        parts.store.put(INDEX, b"%d" % number, b"")
    await parts.store.commit()
    assert parts.store.figure("rocksdb.estimate-num-keys") >= before + 100
    assert parts.store.figure("no.such.figure") == 0


class Walked:
    """A cursor that notes where it was asked to step back from."""

    def __init__(self, cursor: Any, left: list[bytes]) -> None:
        self._cursor, self._left = cursor, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def prev(self) -> None:
        self._left.append(self._cursor.key())
        self._cursor.prev()


class Watched:
    """A keyspace whose cursors do so."""

    def __init__(self, family: Any) -> None:
        self._family, self.left = family, list[bytes]()

    def iter(self, *options: Any) -> Walked:
        return Walked(self._family.iter(*options), self.left)


async def test_scan_back_has_the_pairs_of_scan_the_other_way_round(parts: Parts) -> None:
    store = parts.store
    for number in range(0, 20, 2):
        store.put(INDEX, b"%02d" % number, b"v%d" % number)
    await store.commit()
    bounds = [b"%02d" % number for number in range(22)]
    for begin in bounds:
        for end in bounds:
            assert [*store.scan_back(INDEX, begin, end)] == [*store.scan(INDEX, begin, end)][::-1]


async def test_scan_back_does_not_step_over_what_is_before_its_range(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be any number of deleted keys, and RocksDB looks at each before it has the next one."""
    store = parts.store
    for number in range(20):
        store.put(INDEX, b"%02d" % number, b"")
    await store.commit()
    watched = Watched(store._families[INDEX])
    monkeypatch.setitem(store._families, INDEX, watched)
    assert [key for key, _ in store.scan_back(INDEX, b"10", b"13")] == [b"12", b"11", b"10"]
    assert watched.left == [b"13", b"12", b"11"]
    watched.left.clear()
    assert [*store.scan_back(INDEX, b"125", b"128")] == []
    assert watched.left == []
