from typing import Any

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
