import asyncio
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from brokers.embedded.storage import column_families as tables
from brokers.embedded.storage.keys import MESSAGES, META, SPACES, message_key
from brokers.embedded.storage.store import Durability, Store
from popgate.clock import SystemClock
from popgate.errors import BrokerTimeout, BrokerUnavailable
from popgate.testing import MovableClock
from tests.support.waiting import PATIENCE_S, until

Make = Callable[..., Store]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Store] = []

    def make_store(name: str = "store", clock: object = None, **options: object) -> Store:
        store = Store(tmp_path / name, clock or SystemClock(), **options)  # type: ignore[arg-type]
        made.append(store)
        store.open()
        return store

    yield make_store
    for store in made:
        store.close()


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Every write beyond `size` bytes of a file fails in this process, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("durability", Durability)
async def test_what_was_committed_is_there_after_a_reopening(make: Make, durability: Durability) -> None:
    store = make(durability=durability)
    store.put(MESSAGES, b"a", b"1")
    store.put(META, b"b", b"2")
    await store.commit()
    assert (store.get(MESSAGES, b"a"), store.get(META, b"b")) == (b"1", b"2")
    store.close()
    again = make()
    assert (again.get(MESSAGES, b"a"), again.get(META, b"b")) == (b"1", b"2")


async def test_steps_of_one_turn_share_a_future_and_a_batch(make: Make) -> None:
    store = make()
    turn = store.turn
    store.put(MESSAGES, b"a", b"1")
    first = store.commit()
    store.put(MESSAGES, b"b", b"2")
    assert store.commit() is first
    assert store.get(MESSAGES, b"a") is None
    assert store.turn == turn
    assert store.filling
    await first
    assert store.get_many(MESSAGES, [b"a", b"b", b"c"]) == [b"1", b"2", None]
    assert store.turn == turn + 1
    assert not store.filling


@pytest.mark.parametrize("durability", Durability)
async def test_what_waits_for_the_commit_is_called_before_it_is_answered(
    make: Make, durability: Durability
) -> None:
    store = make(durability=durability)
    order: list[str] = []
    store.put(MESSAGES, b"a", b"1")
    store.after_commit(lambda: order.append("called"))
    answer = store.commit()
    answer.add_done_callback(lambda _: order.append("answered"))
    await answer
    await asyncio.sleep(0)
    assert order == ["called", "answered"]


async def test_batches_that_arrive_during_a_sync_are_all_answered_in_order(make: Make) -> None:
    store = make(durability=Durability.SYNC)
    order: list[int] = []
    answers = []
    for number in range(200):
        store.put(MESSAGES, b"%d" % number, b"x" * 500)
        store.after_commit(lambda number=number: order.append(number))
        answers.append(store.commit())
        if number % 5 == 4:
            await asyncio.sleep(0)
    await asyncio.gather(*answers)
    assert order == list(range(200))


async def test_one_sync_covers_everything_written_while_the_one_before_ran(make: Make) -> None:
    store = make(durability=Durability.SYNC)
    syncs: list[int] = []
    store.on_syncing = lambda: syncs.append(1)
    store.put(MESSAGES, b"first", b"")
    answers = [store.commit()]
    await asyncio.sleep(0)
    assert len(syncs) == 1
    for number in range(20):
        store.put(MESSAGES, b"%d" % number, b"")
        answers.append(store.commit())
        await asyncio.sleep(0)
    await asyncio.gather(*answers)
    assert len(syncs) < 20


async def test_the_loop_goes_on_while_a_sync_runs(make: Make) -> None:
    store = make(durability=Durability.SYNC)
    threads: list[str] = []
    db = store._db
    assert db is not None
    started, release = threading.Event(), threading.Event()

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(db, name)

        def flush_wal(self, sync: bool) -> None:
            threads.append(threading.current_thread().name)
            started.set()
            release.wait(60)
            db.flush_wal(sync)

    store._db = Slow()  # type: ignore[assignment]
    store.put(MESSAGES, b"a", b"1")
    answer = store.commit()
    await until(started.is_set)
    store.put(MESSAGES, b"b", b"2")
    later = store.commit()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.get(MESSAGES, b"b") == b"2"
    assert not answer.done()
    release.set()
    await asyncio.gather(answer, later)
    assert threads[0] != threading.main_thread().name
    assert len(threads) == 2


async def test_interval_syncs_once_the_interval_is_over_and_then_rests(make: Make) -> None:
    clock = MovableClock()
    store = make(clock=clock, durability=Durability.INTERVAL, sync_interval=0.1)
    synced: list[int] = []
    store.on_synced = lambda: synced.append(1)
    store.put(MESSAGES, b"a", b"1")
    await store.commit()
    clock.advance(0.09)
    assert store._syncing is None
    clock.advance(0.02)
    assert store._syncing is not None
    await until(lambda: len(synced) == 1)
    clock.advance(10)
    assert store._syncing is None


async def test_a_write_during_a_sync_is_synced_an_interval_after_it_was_written(make: Make) -> None:
    clock = MovableClock()
    store = make(clock=clock, durability=Durability.INTERVAL, sync_interval=0.1)
    synced: list[int] = []
    store.on_synced = lambda: synced.append(1)
    store.put(MESSAGES, b"a", b"1")
    await store.commit()
    clock.advance(0.1)
    assert store._syncing is not None
    store.put(MESSAGES, b"b", b"2")
    store.commit()
    store._write()
    clock.advance(0.06)
    await until(lambda: len(synced) == 1)
    clock.advance(0.05)
    assert store._syncing is not None
    await until(lambda: len(synced) == 2)


async def test_none_never_syncs_before_the_end(make: Make) -> None:
    clock = MovableClock()
    store = make(clock=clock, durability=Durability.NONE)
    store.on_syncing = lambda: pytest.fail("a sync nobody asked for")
    store.put(MESSAGES, b"a", b"1")
    await store.commit()
    clock.advance(3600)
    await asyncio.sleep(0)


@pytest.mark.parametrize("durability", Durability)
async def test_closing_writes_what_was_added_and_answers_everybody(
    make: Make, durability: Durability
) -> None:
    store = make(durability=durability)
    answers = []
    for number in range(50):
        store.put(MESSAGES, b"%02d" % number, b"x" * 2000)
        answers.append(store.commit())
        if number % 7 == 0:
            await asyncio.sleep(0)
    store.close()
    assert all(answer.done() for answer in answers)
    await asyncio.gather(*answers)
    again = make()
    assert [key for key, _ in again.scan(MESSAGES, b"")] == [b"%02d" % number for number in range(50)]


async def test_closing_twice_and_using_a_closed_store(make: Make) -> None:
    store = make()
    store.close()
    store.close()
    for use in (
        lambda: store.get(MESSAGES, b"a"),
        lambda: store.get_many(MESSAGES, [b"a"]),
        lambda: store.put(MESSAGES, b"a", b"b"),
        lambda: store.delete(MESSAGES, b"a"),
        lambda: list(store.scan(MESSAGES, b"")),
        lambda: store.last_below(MESSAGES, b"z"),
    ):
        with pytest.raises(BrokerUnavailable, match="is closed"):
            use()
    with pytest.raises(BrokerUnavailable, match="not open"):
        await store.commit()
    assert store.figure("rocksdb.estimate-num-keys") == 0


async def test_scans_go_in_order_and_keep_to_their_bounds(make: Make) -> None:
    store = make()
    keys = [message_key(1, 0, offset) for offset in (0, 1, 255, 256, 65536)]
    for key in reversed(keys):
        store.put(MESSAGES, key, b"v" + key)
    await store.commit()
    assert [key for key, _ in store.scan(MESSAGES, b"")] == keys
    assert [key for key, _ in store.scan(MESSAGES, keys[1], keys[3])] == keys[1:3]
    assert list(store.scan(MESSAGES, keys[3], keys[1])) == []
    assert store.first(MESSAGES, keys[2] + b"\0", keys[4]) == (keys[3], b"v" + keys[3])
    assert store.first(MESSAGES, keys[3] + b"\0", keys[4]) is None
    assert store.last_below(MESSAGES, keys[2]) == (keys[1], b"v" + keys[1])
    assert store.last_below(MESSAGES, keys[0]) is None
    store.delete_range(MESSAGES, keys[1], keys[3])
    store.delete(MESSAGES, keys[4])
    await store.commit()
    assert [key for key, _ in store.scan(MESSAGES, b"")] == [keys[0], keys[3]]


async def test_an_empty_batch_costs_no_sync_but_waits_for_the_one_under_way(make: Make) -> None:
    store = make(durability=Durability.SYNC)
    syncs: list[int] = []
    store.on_syncing = lambda: syncs.append(1)
    await store.commit()
    assert syncs == []
    store.put(MESSAGES, b"a", b"1")
    order: list[str] = []
    store.after_commit(lambda: order.append("written"))
    store.commit()
    await asyncio.sleep(0)
    store.after_commit(lambda: order.append("empty"))
    await store.commit()
    assert order == ["written", "empty"]
    assert len(syncs) == 1


async def test_an_abandoned_turn_changes_nothing_and_says_so(make: Make) -> None:
    store = make()
    store.put(MESSAGES, b"before", b"1")
    before = store.commit()
    await before
    turn = store.turn
    store.put(MESSAGES, b"a", b"1")
    store.after_commit(lambda: pytest.fail("it was never written"))
    answer = store.commit()
    told: list[BaseException] = []
    store.on_failure = told.append
    store.abandon(RuntimeError("a bug"))
    assert store.turn == turn + 1
    assert len(told) == 1
    assert not store.failing
    with pytest.raises(BrokerUnavailable, match="nothing was changed"):
        await answer
    store.put(MESSAGES, b"b", b"2")
    await store.commit()
    assert [key for key, _ in store.scan(MESSAGES, b"")] == [b"b", b"before"]


# -- failing and coming back -------------------------------------------------------------------


@pytest.mark.parametrize(
    "waits",
    [
        "for the sync",
        "behind another write",
        "in the turn of the failure",
        "in that turn beside another write",
        "when the store is closed",
    ],
)
async def test_who_waits_for_a_sync_that_fails_is_told_that_nobody_knows(make: Make, waits: str) -> None:
    """A repeated send adds nothing, and what it repeats may last or not."""
    store = make(durability=Durability.SYNC)
    db, release = store._db, threading.Event()

    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(db, name)

        def flush_wal(self, sync: bool) -> None:
            release.wait(PATIENCE_S)
            raise OSError("input/output error")

    store._db = Broken()  # type: ignore[assignment]
    store.put(MESSAGES, b"a", b"1")
    answers = [store.commit()]
    await until(lambda: store._syncing is not None, pause_s=0)
    if waits == "behind another write":
        store.put(MESSAGES, b"b", b"2")
        answers.append(store.commit())
        await until(lambda: store._pending is None, pause_s=0)
    if waits == "when the store is closed":
        answers.append(store.settled())
        release.set()
        store.close()
    elif "turn" in waits:

        def ended(sync: "asyncio.Future[None]") -> None:
            answers.append(store.settled())
            if "beside" in waits:
                store.put(MESSAGES, b"b", b"2")
            store._sync_ended(sync)

        assert store._syncing is not None
        store._syncing.remove_done_callback(store._sync_ended)
        store._syncing.add_done_callback(ended)
        release.set()
        await until(lambda: len(answers) == 2, pause_s=0)
    else:
        answers.append(store.settled())
        await until(lambda: not store._ordered, pause_s=0)
        release.set()
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {BrokerTimeout}


@pytest.mark.parametrize("durability", Durability)
async def test_a_full_disk_fails_the_write_and_the_store_comes_back(
    make: Make, durability: Durability
) -> None:
    clock = MovableClock()
    store = make(clock=clock, durability=durability)
    failures: list[BaseException] = []
    store.on_failure = failures.append
    store.put(MESSAGES, b"before", b"1")
    await store.commit()
    with files_limited_to(4096):
        called: list[int] = []
        for number in range(3):
            store.put(MESSAGES, b"lost %d" % number, b"x" * 8000)
            store.after_commit(lambda: called.append(1))
            with pytest.raises(BrokerUnavailable, match="cannot be written"):
                await store.commit()
        assert store.failing
        assert called == []
        assert store.get(MESSAGES, b"before") == b"1"
        await until(lambda: store._syncing is None)
        clock.advance(0.3)
        assert store.failing
    assert failures == []
    clock.advance(30)
    assert not store.failing
    assert len(failures) == 1
    assert store.get(MESSAGES, b"before") == b"1"
    assert store.get(MESSAGES, b"lost 1") is None
    store.put(MESSAGES, b"after", b"2")
    await store.commit()
    store.close()
    assert [key for key, _ in make().scan(MESSAGES, b"")] == [b"after", b"before"]


async def test_a_turn_is_abandoned_for_good_when_memory_cannot_be_rebuilt(make: Make) -> None:
    clock = MovableClock()
    store = make(clock=clock)
    trouble = [RuntimeError("not yet")]

    def rebuild(error: BaseException) -> None:
        if trouble:
            raise trouble.pop()

    store.on_failure = rebuild
    store.put(MESSAGES, b"a", b"1")
    store.abandon(RuntimeError("a bug"))
    assert store.failing
    clock.advance(10)
    assert not store.failing
    assert store.first(MESSAGES, b"") is None


@pytest.mark.parametrize("there", ["nothing", "another"])
async def test_a_store_that_is_gone_is_not_begun_anew_and_is_found_when_it_is_back(
    make: Make, there: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As when its disk is unmounted, checked and mounted again: what is begun meanwhile would be hidden."""
    clock = MovableClock()
    store = make(clock=clock)
    store.put(MESSAGES, b"before", b"1")
    await store.commit()
    with files_limited_to(4096):
        store.put(MESSAGES, b"lost", b"x" * 8000)
        with pytest.raises(BrokerUnavailable, match="cannot be written"):
            await store.commit()
        await until(lambda: store._syncing is None)
        clock.advance(0.3)  # to try again it lets go of its files, and cannot write what opening needs
        assert store.failing
    assert [record.levelname for record in caplog.records if "cannot be written" in record.message] == [
        "ERROR"
    ]
    away = store.path.with_name("away")
    store.path.rename(away)
    store.path.mkdir()
    if there == "another":
        shutil.copytree(away, store.path, dirs_exist_ok=True)
        (store.path / "IDENTITY").write_text("another")
    clock.advance(30)
    assert store.failing
    sentence = f"{there} {'one is' if there == 'another' else 'is'} in its place"
    with pytest.raises(BrokerUnavailable, match=sentence):
        await store.commit()
    assert (store.path / "CURRENT").exists() is (there == "another")
    shutil.rmtree(store.path)
    away.rename(store.path)
    clock.advance(30)
    assert not store.failing
    assert store.get(MESSAGES, b"before") == b"1"


async def test_what_was_built_on_a_failed_batch_fails_with_it(make: Make) -> None:
    clock = MovableClock()
    store = make(clock=clock)
    with files_limited_to(4096):
        store.put(MESSAGES, b"a", b"x" * 8000)
        first = store.commit()
        store._write()
        store.put(MESSAGES, b"b", b"y")
        second = store.commit()
        for answer in (first, second):
            with pytest.raises(BrokerUnavailable):
                await answer
    clock.advance(30)
    assert store.get(MESSAGES, b"b") is None
    assert not store.filling


async def test_an_owner_that_cannot_rebuild_is_asked_again_later(make: Make) -> None:
    clock = MovableClock()
    store = make(clock=clock)
    asked: list[BaseException] = []

    def rebuild(error: BaseException) -> None:
        asked.append(error)
        if len(asked) == 1:
            raise RuntimeError("not yet")

    store.on_failure = rebuild
    with files_limited_to(4096):
        store.put(MESSAGES, b"a", b"x" * 8000)
        with pytest.raises(BrokerUnavailable):
            await store.commit()
    clock.advance(0.2)
    assert store.failing
    assert len(asked) == 1
    store.put(MESSAGES, b"added by a step that never committed", b"")
    clock.advance(30)
    assert not store.failing
    assert len(asked) == 2
    assert not store.filling


async def test_a_failed_sync_fails_the_steps_it_covers_and_those_behind(make: Make) -> None:
    clock = MovableClock()
    store = make(clock=clock, durability=Durability.SYNC)
    db = store._db
    assert db is not None
    release = threading.Event()

    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(db, name)

        def flush_wal(self, sync: bool) -> None:
            release.wait(60)
            raise OSError("the disk is gone")

    store._db = Broken()  # type: ignore[assignment]
    store.put(MESSAGES, b"a", b"1")
    first = store.commit()
    await asyncio.sleep(0)
    store.put(MESSAGES, b"b", b"2")
    second = store.commit()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    release.set()
    for answer in (first, second):  # written, so they may be found again: not "not done"
        with pytest.raises(BrokerTimeout, match=r"not known whether.*the disk is gone"):
            await answer
    store.put(MESSAGES, b"never written", b"")
    with pytest.raises(BrokerUnavailable, match="the disk is gone"):
        await store.commit()
    clock.advance(30)
    assert not store.failing
    assert store.get(MESSAGES, b"a") == b"1"
    assert store.get(MESSAGES, b"never written") is None
    store.put(MESSAGES, b"c", b"3")
    await store.commit()


async def test_at_the_end_a_failed_sync_is_unknown_and_a_failed_write_not_done(make: Make) -> None:
    class Broken:
        def __init__(self, db: object, broken: str) -> None:
            self.db, self.broken = db, broken

        def __getattr__(self, name: str) -> object:
            if name == self.broken:
                raise OSError("the disk is gone")
            return getattr(self.db, name)

    for broken, expected in (("flush_wal", BrokerTimeout), ("write", BrokerUnavailable)):
        store = make(name=broken, clock=MovableClock(), durability=Durability.SYNC)
        store._db = Broken(store._db, broken)  # type: ignore[assignment]
        store.put(MESSAGES, b"a", b"1")
        answer = store.commit()
        store.close()
        with pytest.raises(expected, match="the disk is gone"):
            await answer


async def test_at_the_end_a_sync_that_failed_is_not_made_good_by_the_next(make: Make) -> None:
    """What one sync could not put on the disk the system may have dropped: another one does not tell."""
    store = make(clock=MovableClock(), durability=Durability.SYNC)
    db = store._db
    release = threading.Event()

    class FailsOnce:
        syncs = 0

        def __getattr__(self, name: str) -> object:
            return getattr(db, name)

        def flush_wal(self, sync: bool) -> None:
            self.syncs += 1
            if self.syncs == 1:
                release.wait(60)
                raise OSError("the disk is gone")

    store._db = failing = FailsOnce()  # type: ignore[assignment]
    store.put(MESSAGES, b"a", b"1")
    written = store.commit()
    await until(lambda: failing.syncs)
    store.put(MESSAGES, b"b", b"2")
    behind = store.commit()
    release.set()
    store.close()
    with pytest.raises(BrokerTimeout, match="the disk is gone"):
        await written
    with pytest.raises(BrokerUnavailable, match="the disk is gone"):
        await behind


# -- opening -----------------------------------------------------------------------------------


def test_a_store_in_use_says_so(make: Make) -> None:
    store = make()
    with pytest.raises(BrokerUnavailable, match="in use by another process"):
        Store(store.path, SystemClock()).open()


def test_a_store_in_use_by_another_process_says_so(make: Make) -> None:
    store = make()
    code = (
        "import sys; from pathlib import Path; from brokers.embedded.storage.store import Store;"
        "from popgate.clock import SystemClock; Store(Path(sys.argv[1]), SystemClock()).open()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=False
    )
    assert "in use by another process" in done.stderr


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BrokerUnavailable, match="is a file and no folder"):
            Store(path, SystemClock()).open()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    # In a process of its own, which gives up being root: root may write everywhere.
    folder = tmp_path / "closed"
    folder.mkdir()
    for part in (tmp_path, *tmp_path.parents[:2]):
        part.chmod(0o755)
    folder.chmod(0o555)
    code = (
        "import os, sys; from pathlib import Path; from brokers.embedded.storage.store import Store\n"
        "from popgate.clock import SystemClock\n"
        "store = Store(Path(sys.argv[1]), SystemClock())\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "store.open()"
    )
    for path in (folder, folder / "below"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
        )
        assert "BrokerUnavailable" in done.stderr
        assert "cannot be written by this user" in done.stderr


def _filled(make: Make) -> Path:
    store = make()

    async def fill() -> None:
        for number in range(400):
            store.put(MESSAGES, message_key(1, 0, number), os.urandom(400))
        await store.commit()

    asyncio.run(fill())
    store.close()
    return store.path


def test_a_store_without_its_current_file_is_not_begun_anew(make: Make) -> None:
    path = _filled(make)
    (path / "CURRENT").unlink()
    with pytest.raises(BrokerUnavailable, match=r"damaged: its file CURRENT is missing"):
        Store(path, SystemClock()).open()
    assert list(path.glob("*.sst"))


@pytest.mark.parametrize("damaged", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_lost_or_garbled_file_is_called_damage(make: Make, damaged: str) -> None:
    path = _filled(make)
    [file, *_] = path.glob(damaged)
    file.write_bytes(b"garbage" * 40)
    with pytest.raises(BrokerUnavailable, match="is damaged"):
        Store(path, SystemClock()).open()
    file.unlink()
    with pytest.raises(BrokerUnavailable, match="is damaged"):
        Store(path, SystemClock()).open()


def test_a_garbled_block_is_an_error_and_never_the_end_of_the_data(make: Make) -> None:
    path = _filled(make)
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 64):
        data[at] ^= 0xFF
    table.write_bytes(data)
    store = make()
    with pytest.raises(BrokerUnavailable, match="cannot be read"):
        list(store.scan(MESSAGES, b""))
    with pytest.raises(BrokerUnavailable, match="cannot be read"):
        store.get_many(MESSAGES, [message_key(1, 0, number) for number in range(400)])


@pytest.mark.parametrize("torn", [1, 10, 5000])
async def test_a_torn_last_write_is_left_out_and_the_store_opens(make: Make, torn: int) -> None:
    store = make()
    for batch in range(3):
        for number in range(20):
            store.put(MESSAGES, message_key(batch, 0, number), os.urandom(400))
        await store.commit()
    copy = store.path.with_name("copy")
    shutil.copytree(store.path, copy)
    log = max(copy.glob("*.log"), key=lambda file: file.stat().st_size)
    os.truncate(log, log.stat().st_size - torn)
    # Each batch is there as a whole or not at all.
    assert [key for key, _ in make("copy").scan(MESSAGES, b"")] == [
        message_key(batch, 0, number) for batch in range(2) for number in range(20)
    ]


def test_a_keyspace_of_a_newer_version_does_not_hide_its_format(make: Make) -> None:
    store = make()
    path = store.path
    store.close()
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    spaces = {name: Options(raw_mode=True) for name in (*SPACES, "invented later")}
    db = Rdict(str(path), options, spaces)
    db.get_column_family(META).put(b"format", b"99")
    db.close()
    with pytest.raises(BrokerUnavailable, match=r"format 99.*start the newer version"):
        Store(path, SystemClock()).open()


def test_a_refused_store_is_let_go_of(make: Make) -> None:
    store = make()
    store._families[META].put(b"format", b"99")
    store.close()
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="format 99"):
            store.open()


# -- giving space back ---------------------------------------------------------------------------


async def test_deleted_ranges_give_the_disk_its_space_back(make: Make) -> None:
    store = make(write_buffer_bytes=1024 * 1024)
    for number in range(0, 8000, 200):
        for offset in range(number, number + 200):
            store.put(MESSAGES, message_key(1, 0, offset), os.urandom(1000))
        await store.commit()

    def tables() -> int:
        found = 0
        for file in store.path.glob("*.sst"):
            with suppress(FileNotFoundError):  # it may be removed while we look
                found += file.stat().st_size
        return found

    await until(lambda: tables() > 4_000_000)
    store.delete_range(MESSAGES, message_key(1, 0, 0), message_key(1, 0, 7900))
    store.after_commit(lambda: store.reclaim(MESSAGES, message_key(1, 0, 0), message_key(1, 0, 7900)))
    await store.commit()
    await until(lambda: tables() < 1_500_000)
    assert store.first(MESSAGES, b"") is not None


async def test_closing_does_not_wait_for_the_whole_of_a_reclaiming(make: Make) -> None:
    store = make(write_buffer_bytes=1024 * 1024)
    for number in range(0, 4000, 200):
        for offset in range(number, number + 200):
            store.put(MESSAGES, message_key(1, 0, offset), os.urandom(1000))
        await store.commit()
    for _ in range(50):
        store.reclaim(MESSAGES, message_key(1, 0, 0), message_key(1, 0, 4000))
    store.close()
    assert len(list(make().scan(MESSAGES, b""))) == 4000


async def test_a_full_disk_is_read_while_nothing_can_be_written(make: Make) -> None:
    clock = MovableClock()
    store = make(clock=clock, durability=Durability.NONE)
    told: list[str] = []
    store.on_reading = lambda: told.append("to read")
    store.on_failure = lambda _: told.append("to write")
    store.put(MESSAGES, b"a", b"1")
    await store.commit()
    with files_limited_to(8192):
        store.put(MESSAGES, b"b", bytes(20_000))
        with pytest.raises(BrokerUnavailable, match="too large"):
            await store.commit()
        clock.advance(1)
        for _ in range(3):  # once opened, the files stay open until there is room
            assert told == ["to read"]
            assert store.failing
            assert [key for key, _ in store.scan(MESSAGES, b"")] == [b"a"]
            store.put(MESSAGES, b"c", b"1")
            with pytest.raises(BrokerUnavailable):
                await store.commit()
            assert "too large" in store.trouble
            clock.advance(10)
    clock.advance(10)
    assert told == ["to read", "to write"]
    assert store.trouble == ""
    store.put(MESSAGES, b"d", b"1")
    await store.commit()
    assert [key for key, _ in store.scan(MESSAGES, b"")] == [b"a", b"d"]
    assert not list(store.path.glob(".room"))


@pytest.mark.parametrize("missing", [0, 1])
async def test_a_full_disk_is_not_read_unless_all_that_was_written_is_there(
    make: Make, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    clock = MovableClock()
    store = make(clock=clock, durability=Durability.NONE)
    told: list[str] = []
    store.on_reading = lambda: told.append("to read")
    store.put(MESSAGES, b"a", b"1")
    await store.commit()
    opened = tables.open_to_read

    def open_one_that_lost(*where: object, **how: object) -> object:
        assert store._last_change is not None
        store._last_change += missing
        return opened(*where, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "open_to_read", open_one_that_lost)
    with files_limited_to(8192):
        store.put(MESSAGES, b"b", bytes(20_000))
        with pytest.raises(BrokerUnavailable, match="too large"):
            await store.commit()
        clock.advance(1)
        assert store.failing
        if missing:
            with pytest.raises(BrokerUnavailable, match="too large"):
                store.get(MESSAGES, b"a")
        else:
            assert store.get(MESSAGES, b"a") == b"1"
    assert told == ([] if missing else ["to read"])
    clock.advance(10)
    assert store.get(MESSAGES, b"a") == b"1"
    assert not store.failing
