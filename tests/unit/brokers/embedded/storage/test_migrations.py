import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.embedded.storage.keys import MESSAGES, META, TOPICS
from brokers.embedded.storage.migrations import (
    FORMAT,
    FORMAT_KEY,
    UPGRADES,
    Upgradable,
    Upgrade,
    bring_up_to_date,
)
from brokers.embedded.storage.store import Store
from popgate.clock import SystemClock
from popgate.errors import BrokerUnavailable


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", SystemClock())
    store.open()
    yield store
    store.close()


def set_format(store: Store, version: bytes | None) -> None:
    if version is None:
        store.delete(META, FORMAT_KEY)
    else:
        store.put(META, FORMAT_KEY, version)
    store.write_now()


def rename(old: bytes, new: bytes) -> Upgrade:
    def step(store: Upgradable) -> None:
        value = store.get(TOPICS, old)
        assert value is not None
        store.delete(TOPICS, old)
        store.put(TOPICS, new, value)

    return step


STEPS = {1: rename(b"one", b"two"), 2: rename(b"two", b"three")}


def test_a_new_store_gets_the_newest_format(store: Store) -> None:
    assert store.get(META, FORMAT_KEY) == b"%d" % FORMAT
    assert bring_up_to_date(store) == FORMAT


def test_every_format_from_the_first_to_the_newest_has_its_step() -> None:
    assert set(UPGRADES) == set(range(1, FORMAT))


def test_a_store_of_the_first_format_keeps_its_messages(store: Store) -> None:
    """Each record is a value of its own in both, and the older program would not know of blocks."""
    store.put(MESSAGES, b"key", b"record")
    set_format(store, b"1")
    assert bring_up_to_date(store) == 1
    assert (store.get(META, FORMAT_KEY), store.get(MESSAGES, b"key")) == (b"2", b"record")


def test_an_older_store_is_upgraded_step_by_step(store: Store) -> None:
    store.put(TOPICS, b"one", b"value")
    set_format(store, b"1")
    assert bring_up_to_date(store, target=3, upgrades=STEPS) == 1
    assert list(store.scan(TOPICS, b"")) == [(b"three", b"value")]
    assert store.get(META, FORMAT_KEY) == b"3"
    assert bring_up_to_date(store, target=3, upgrades=STEPS) == 3


CRASHING = """
import os, sys
from pathlib import Path
from brokers.embedded.storage import store as module
from brokers.embedded.storage.keys import TOPICS
from brokers.embedded.storage.migrations import bring_up_to_date
from popgate.clock import SystemClock

def step(version):
    def run(store):
        for key, value in list(store.scan(TOPICS, b"")):
            store.delete(TOPICS, key)
            store.put(TOPICS, b"%s of %d" % (value, version + 1), value)
        if version == int(sys.argv[2]):
            os._exit(9)
    return run

module.bring_up_to_date = lambda store: None
store = module.Store(Path(sys.argv[1]), SystemClock())
store.open()
bring_up_to_date(store, target=4, upgrades={1: step(1), 2: step(2), 3: step(3)})
store.close()
"""


@pytest.mark.parametrize("crash_in", [1, 2, 3])
def test_a_crash_in_a_step_leaves_the_version_before_it(store: Store, crash_in: int) -> None:
    store.put(TOPICS, b"a of 1", b"a")
    store.put(TOPICS, b"b of 1", b"b")
    set_format(store, b"1")
    store.close()
    run = [sys.executable, "-c", CRASHING, str(store.path)]
    assert subprocess.run([*run, str(crash_in)], check=False).returncode == 9
    store._open_files()
    assert store.get(META, FORMAT_KEY) == b"%d" % crash_in
    assert [key for key, _ in store.scan(TOPICS, b"")] == [b"a of %d" % crash_in, b"b of %d" % crash_in]


def test_a_step_that_raises_stops_the_start_and_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(store: Upgradable) -> None:
        store.put(TOPICS, b"half", b"done")
        raise ValueError("unexpected value")

    set_format(store, b"1")
    store.close()
    with monkeypatch.context() as patched:
        patched.setattr(
            "brokers.embedded.storage.store.bring_up_to_date",
            lambda store: bring_up_to_date(store, target=2, upgrades={1: broken}),
        )
        with pytest.raises(BrokerUnavailable, match="cannot be upgraded: unexpected value"):
            store.open()
    store.open()
    assert list(store.scan(TOPICS, b"")) == []


@pytest.mark.parametrize("newer", [b"2", b"99"])
def test_a_newer_store_is_refused_with_a_sentence(store: Store, newer: bytes) -> None:
    set_format(store, newer)
    with pytest.raises(BrokerUnavailable) as refused:
        bring_up_to_date(store, target=1)
    assert f"format {newer.decode()}" in refused.value.sentence
    assert "start the newer version" in refused.value.sentence


def test_a_version_that_no_step_leaves_is_refused_with_a_sentence(store: Store) -> None:
    set_format(store, b"1")
    with pytest.raises(BrokerUnavailable, match="cannot upgrade it to format 3"):
        bring_up_to_date(store, target=3, upgrades={2: STEPS[2]})


@pytest.mark.parametrize("garbage", [b"", b"x", b"-1", b"9" * 40])
def test_a_garbled_version_is_called_damage(store: Store, garbage: bytes) -> None:
    set_format(store, garbage)
    with pytest.raises(BrokerUnavailable, match="is damaged"):
        bring_up_to_date(store)


def test_data_without_a_version_is_called_damage(store: Store) -> None:
    store.put(TOPICS, b"one", b"value")
    set_format(store, None)
    with pytest.raises(BrokerUnavailable, match="holds data but does not say"):
        bring_up_to_date(store)
