"""Backups of a broker that goes on working, and what is made of them."""

import asyncio
import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.port import backup as backing_up
from brokers.embedded.storage import backup_files
from brokers.embedded.storage.backup_files import (
    FILES,
    MANIFEST,
    Manifest,
    list_backups,
    read_manifest,
    restore,
    verify,
)
from brokers.embedded.storage.store import Store
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import AlreadyExists, BrokerUnavailable, PreconditionFailed, TooManyRequests
from popgate.filters.compiled import compile_filter
from popgate.model import FilterKind, GroupConfig, Message, Pop, Sent, StoredMessage, TopicConfig
from popgate.wire.messages.properties import encode_properties

CONTEXT = Context(client_id="keeper")
EVERYTHING = compile_filter(FilterKind.TAG, "*")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path / "store", clock=SystemClock())
    await broker.start()
    await broker.create_topic(TopicConfig("T", read_queues=2, write_queues=2))
    await broker.create_group(GroupConfig("G"))
    yield broker
    await broker.stop()


async def send(broker: EmbeddedBroker, *bodies: str, size: int = 0) -> None:
    messages = [
        Message(
            "T", body.encode().ljust(size), message_id=body, properties=encode_properties({"UNIQ_KEY": body})
        )
        for body in bodies
    ]
    results = await broker.send(CONTEXT, messages)
    assert all(isinstance(result, Sent) for result in results)


async def pop(broker: EmbeddedBroker, at_most: int = 32, invisible_ms: int = 60_000) -> list[StoredMessage]:
    return await broker.pop(CONTEXT, Pop("T", "G", EVERYTHING, invisible_ms, max_messages=at_most))


async def drain(broker: EmbeddedBroker) -> list[str]:
    found: list[str] = []
    while taken := await pop(broker):
        assert await broker.ack(CONTEXT, "T", "G", [m.receipt for m in taken]) == [None] * len(taken)
        found += [m.body.decode().strip() for m in taken]
    return found


async def opened(backup: Path, folder: Path) -> EmbeddedBroker:
    restore(backup, folder)
    restored = EmbeddedBroker(folder, clock=SystemClock())
    await restored.start()
    return restored


async def test_a_restored_store_has_what_was_answered_before_and_nothing_of_after(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await send(broker, *(str(n) for n in range(50)))
    done = await pop(broker, 10)
    await broker.ack(CONTEXT, "T", "G", [m.receipt for m in done])
    held = await pop(broker, 5, invisible_ms=60_000)
    backup = await broker.take_backup(tmp_path / "backups" / "one")
    await send(broker, "after")
    assert (backup.files, backup.size) == (
        len(read_manifest(backup.path).files),
        read_manifest(backup.path).size,
    )
    assert backup.facts["counts"] == {"topics": 1, "groups": 1, "messages": 50}

    restored = await opened(tmp_path / "backups" / "one", tmp_path / "again" / "store")
    try:
        gone = {m.body for m in (*done, *held)}
        assert sorted(await drain(restored), key=int) == sorted(
            (str(n) for n in range(50) if str(n).encode() not in gone), key=int
        )
        # What was held is held by the copy, too, and by the same handle.
        assert await restored.ack(CONTEXT, "T", "G", [m.receipt for m in held]) == [None] * 5
    finally:
        await restored.stop()
    assert "after" in await drain(broker)


async def test_sends_go_on_while_a_backup_is_taken(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[str] = []
    going = True
    finish = backing_up._finish

    def finish_later(*arguments: Any) -> Any:
        """In its thread; over only when more was answered, however fast the disk is."""
        enough, end = len(answered) + 1, time.monotonic() + 60
        while len(answered) < enough:
            assert time.monotonic() < end, "no send was answered meanwhile"
            time.sleep(0.001)
        return finish(*arguments)

    monkeypatch.setattr(backing_up, "_finish", finish_later)

    async def produce() -> None:
        while going:
            body = str(len(answered))
            await send(broker, body, size=20_000)
            answered.append(body)
            await asyncio.sleep(0)

    producer = asyncio.create_task(produce())
    backups = []
    try:
        for name in ("one", "two", "three"):
            at_least = len(answered) + 200
            while len(answered) < at_least and not producer.done():
                await asyncio.sleep(0)
            before = len(answered)
            await broker.take_backup(tmp_path / name)
            assert len(answered) > before, "no send was answered meanwhile"
            backups.append((name, before, len(answered)))
    finally:
        going = False
        await producer
    for name, before, after in backups:
        restored = await opened(tmp_path / name, tmp_path / f"again-{name}")
        try:
            found = sorted(int(body) for body in await drain(restored))
        finally:
            await restored.stop()
        # All that was answered before, each once; of what came meanwhile a beginning, without a gap.
        assert found == list(range(len(found)))
        assert before <= len(found) <= after + 1


async def test_a_backup_shares_its_tables_with_the_store_where_it_can(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    await send(broker, *(str(n) for n in range(10)))
    await broker.take_backup(tmp_path / "one")
    tables = list((tmp_path / "one" / FILES).glob("*.sst"))
    assert tables
    assert all(table.stat().st_nlink > 1 for table in tables)


_link = os.link


def refuse_link(source: Path, target: Path, **how: object) -> None:
    """Within the store's own folder links are possible."""
    if source.parent not in target.parents:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    _link(source, target)


def refuse_all_links(source: Path, target: Path, **how: object) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


async def test_a_backup_that_cannot_be_linked_is_copied(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another file system, or in another mount of the same one, with the same device number."""
    await send(broker, *(str(n) for n in range(10)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse_link)
        await broker.take_backup(tmp_path / "far" / "one")
    tables = list((tmp_path / "far" / "one" / FILES).glob("*.sst"))
    assert tables
    assert all(table.stat().st_nlink == 1 for table in tables)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "store"]
    restored = await opened(tmp_path / "far" / "one", tmp_path / "again")
    try:
        assert len(await drain(restored)) == 10
    finally:
        await restored.stop()


@pytest.mark.parametrize(
    ("link", "folder"), [(refuse_link, "store/.checkpoint"), (refuse_all_links, "far/.one.*.partial/store")]
)
async def test_a_store_whose_disk_takes_no_links_is_copied_once(
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    link: Callable[..., None],
    folder: str,
) -> None:
    """RocksDB copies there by itself, and a second copy would take the room for another store."""
    checkpoint, folders = Store.checkpoint, []

    def noted(store: Store, folder: Path) -> None:
        folders.append(folder)
        checkpoint(store, folder)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(Store, "checkpoint", noted)
    await send(broker, "1")
    await broker.take_backup(tmp_path / "far" / "one")
    assert [path.match(str(tmp_path / folder)) for path in folders] == [True]
    verify(tmp_path / "far" / "one")
    assert not (tmp_path / "store" / ".checkpoint").exists()


@pytest.mark.parametrize("at_first", [0, 1 << 40])
async def test_a_copy_leaves_the_room_that_is_kept_for_consumers(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_first: int
) -> None:
    """Neither when there is too little to begin with, nor when sends take it meanwhile."""
    await send(broker, *(str(n) for n in range(10)))
    free = iter([at_first])
    monkeypatch.setattr(os, "link", refuse_link)
    monkeypatch.setattr(broker._engine.room, "_free", lambda: next(free, 0))
    with pytest.raises(BrokerUnavailable, match=r"backup .*/one has no room .*min_free_disk_bytes"):
        await broker.take_backup(tmp_path / "far" / "one")
    assert list((tmp_path / "far").iterdir()) == []


async def test_a_link_needs_no_room(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(broker, *(str(n) for n in range(10)))
    monkeypatch.setattr(broker._engine.room, "_free", lambda: 0)
    await broker.take_backup(tmp_path / "one")


async def test_a_backup_never_takes_the_place_of_another(broker: EmbeddedBroker, tmp_path: Path) -> None:
    await broker.take_backup(tmp_path / "one")
    before = (tmp_path / "one" / MANIFEST).read_bytes()
    with pytest.raises(AlreadyExists):
        await broker.take_backup(tmp_path / "one")
    (tmp_path / "file").touch()
    with pytest.raises(AlreadyExists):
        await broker.take_backup(tmp_path / "file")
    assert (tmp_path / "one" / MANIFEST).read_bytes() == before


async def test_one_backup_at_a_time(broker: EmbeddedBroker, tmp_path: Path) -> None:
    first = asyncio.create_task(broker.take_backup(tmp_path / "one"))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await broker.take_backup(tmp_path / "two")
    await first
    await broker.take_backup(tmp_path / "two")


async def test_who_asked_may_go_away(broker: EmbeddedBroker, tmp_path: Path) -> None:
    asking = asyncio.create_task(broker.take_backup(tmp_path / "one"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    async with asyncio.timeout(60):
        while not (tmp_path / "one").exists():
            await asyncio.sleep(0.001)
    verify(tmp_path / "one")


async def test_a_broker_that_stops_leaves_no_half_backup(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(broker, *(str(n) for n in range(10)))
    reached, loop = asyncio.Event(), asyncio.get_running_loop()
    finish = backing_up._finish

    def slowly(*arguments: object) -> object:
        loop.call_soon_threadsafe(reached.set)
        ending = arguments[-1]
        assert ending.wait(60)  # type: ignore[attr-defined]
        return finish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(backing_up, "_finish", slowly)
    asking = asyncio.create_task(broker.take_backup(tmp_path / "one"))
    await reached.wait()
    await broker.stop()
    with pytest.raises(BrokerUnavailable, match="stopping"):
        await asking
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


async def test_what_a_killed_process_left_is_cleared(broker: EmbeddedBroker, tmp_path: Path) -> None:
    one = await broker.take_backup(tmp_path / "kept" / "one")
    store_id = one.facts["store"]["id"]  # type: ignore[index]
    left = tmp_path / "kept" / f".other.{store_id[:12]}.01ab23cd.partial"
    of_another = tmp_path / "kept" / ".other.0123456789ab.01ab23cd.partial"
    checkpoint = tmp_path / "store" / ".checkpoint"
    for folder in (left, of_another, checkpoint):
        (folder / FILES).mkdir(parents=True)
    await broker.take_backup(tmp_path / "kept" / "two")
    assert not left.exists()
    assert of_another.exists(), "it may be under way: of another gateway that shares the folder"
    assert not checkpoint.exists()


@pytest.mark.parametrize("name_of_copy", ["two", "one"])
async def test_a_copy_of_the_store_spares_a_backup_under_way(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name_of_copy: str
) -> None:
    """A restored copy beside the original has the same id, and may have the same folder of backups."""
    kept = tmp_path / "kept"
    await broker.take_backup(kept / "before")
    copy = await opened(kept / "before", tmp_path / "copy")
    reached, going_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    finish = backing_up._finish

    def finish_later(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(reached.set)
        going_on.wait(60)
        return finish(*arguments)

    monkeypatch.setattr(backing_up, "_finish", finish_later)
    taking = asyncio.create_task(broker.take_backup(kept / "one"))
    try:
        await reached.wait()
        monkeypatch.setattr(backing_up, "_finish", finish)
        await copy.take_backup(kept / name_of_copy)
    finally:
        going_on.set()
        await asyncio.wait([taking])
        await copy.stop()
    if name_of_copy == "one":
        with pytest.raises(AlreadyExists):
            await taking
    else:
        await taking
    assert {path.name for path in kept.iterdir()} == {"before", "one", name_of_copy}
    for path in kept.iterdir():
        verify(path)


@pytest.mark.parametrize(
    "name",
    [
        *("store/.checkpoint", "store/.checkpoint.tmp"),
        *(".store.checkpoint", ".store.checkpoint.tmp"),  # of 0.1.0
    ],
)
async def test_a_start_clears_what_a_killed_process_left_of_a_backup(tmp_path: Path, name: str) -> None:
    checkpoint = tmp_path / name
    checkpoint.mkdir(parents=True)
    broker = EmbeddedBroker(tmp_path / "store", clock=SystemClock())
    await broker.start()
    await broker.stop()
    assert not checkpoint.exists()


async def test_a_store_may_be_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path / "store")
    broker = EmbeddedBroker(Path(), clock=SystemClock())
    await broker.start()
    try:
        await broker.take_backup(tmp_path / "one")
    finally:
        await broker.stop()
    verify(tmp_path / "one")


async def test_a_folder_that_cannot_be_written_is_told(broker: EmbeddedBroker, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerUnavailable, match=r"file.*cannot be written"):
        await broker.take_backup(tmp_path / "file" / "one")
    await send(broker, "still works")
    await broker.take_backup(tmp_path / "one")


async def test_all_backups_of_a_store_have_its_id_and_a_restored_copy_has_too(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    ids = {(await broker.take_backup(tmp_path / name)).facts["store"]["id"] for name in ("a", "b")}  # type: ignore[index]
    restored = await opened(tmp_path / "b", tmp_path / "again")
    try:
        ids.add((await restored.take_backup(tmp_path / "c")).facts["store"]["id"])  # type: ignore[index]
    finally:
        await restored.stop()
    assert len(ids) == 1


# -- what is no sound backup ------------------------------------------------------------------------


def truncated(backup: Path) -> Path:
    path = max((backup / FILES).glob("*.sst"))
    shorter = path.read_bytes()[:-1]
    path.unlink()  # the store has the same file
    path.write_bytes(shorter)
    return path


def flipped(backup: Path) -> Path:
    path = max((backup / FILES).glob("*.sst"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    return path


def missing(backup: Path) -> Path:
    path = backup / FILES / "CURRENT"
    path.unlink()
    return path


def added(backup: Path) -> Path:
    path = backup / FILES / "000099.log"
    path.write_bytes(b"")
    return path


def pipe(backup: Path) -> Path:
    path = backup / FILES / "CURRENT"
    path.unlink()
    os.mkfifo(path)
    return path


def manifest_is_pipe(backup: Path) -> Path:
    path = backup / MANIFEST
    path.unlink()
    os.mkfifo(path)
    return path


def folder(backup: Path) -> Path:
    path = backup / FILES / "CURRENT"
    path.unlink()
    path.mkdir()
    return path


def manifest_edited(backup: Path) -> Path:
    path = backup / MANIFEST
    path.write_text(path.read_text().replace('"messages": 20', '"messages": 21'))
    return path


def manifest_cut(backup: Path) -> Path:
    path = backup / MANIFEST
    path.write_text(path.read_text()[:-40])
    return path


@pytest.mark.parametrize(
    "damage",
    [
        *(truncated, flipped, missing, added, pipe, folder),
        *(manifest_edited, manifest_cut, manifest_is_pipe),
    ],
)
async def test_a_damaged_backup_is_refused_with_the_name_of_the_file(
    broker: EmbeddedBroker, tmp_path: Path, damage: Callable[[Path], Path]
) -> None:
    await send(broker, *(str(n) for n in range(20)))
    await broker.take_backup(tmp_path / "one")
    verify(tmp_path / "one")
    path = damage(tmp_path / "one")
    for work in (lambda: verify(tmp_path / "one"), lambda: restore(tmp_path / "one", tmp_path / "again")):
        with pytest.raises(PreconditionFailed) as refused:
            work()
        assert str(path) in refused.value.sentence
        assert "damaged" in refused.value.sentence
    assert not (tmp_path / "again").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", {"id": "x", "format": "one", "broker": "x"}),
        ("files", {"CURRENT": {"bytes": "many", "sha256": ""}}),
        ("files", {"CURRENT": {"bytes": -1, "sha256": ""}}),
        ("files", {"CURRENT": {"bytes": 1, "sha256": 1}}),
        ("counts", {"topics": 1, "groups": 1}),
        ("counts", {"topics": 1, "groups": 1, "messages": "all"}),
        ("taken_ms", "today"),
        ("taken_ms", 10**30),
    ],
)
async def test_a_manifest_of_nonsense_is_refused_and_hides_no_other(
    broker: EmbeddedBroker, tmp_path: Path, field: str, value: object
) -> None:
    folder = tmp_path / "backups"
    for name in ("a", "b"):
        await broker.take_backup(folder / name)
    path = folder / "b" / MANIFEST
    manifest = {**json.loads(path.read_bytes()), field: value}
    del manifest["sha256"]
    checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**manifest, "sha256": checksum}))
    sound, damaged = list_backups(folder)
    assert isinstance(sound, Manifest)
    assert sound.size > 0
    assert isinstance(damaged, PreconditionFailed)
    assert str(path) in damaged.sentence
    assert field in damaged.sentence


async def test_what_is_newer_than_this_program_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    import brokers.embedded.storage.backup_files as files

    await broker.take_backup(tmp_path / "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "FORMAT", 0)
        with pytest.raises(PreconditionFailed, match=r"store of format 2, this version .* up to format 0"):
            verify(tmp_path / "one")
        patch.setattr(files, "BACKUP_FORMAT", 0)
        with pytest.raises(PreconditionFailed, match="backup of format 1"):
            restore(tmp_path / "one", tmp_path / "again")


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionFailed, match="no such folder"):
        verify(tmp_path / "nowhere")
    with pytest.raises(PreconditionFailed, match="it has no manifest"):
        restore(tmp_path, tmp_path / "again")


async def test_a_store_is_restored_to_an_empty_place_only(broker: EmbeddedBroker, tmp_path: Path) -> None:
    await broker.take_backup(tmp_path / "one")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(PreconditionFailed, match="not empty"):
        restore(tmp_path / "one", tmp_path / "full")
    with pytest.raises(PreconditionFailed, match="a file and no folder"):
        restore(tmp_path / "one", tmp_path / "full" / "note")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".empty.restoring").mkdir()  # of a restore that was killed
    restore(tmp_path / "one", tmp_path / "empty")
    assert not (tmp_path / ".empty.restoring").exists()


async def test_new_folders_are_on_the_disk_before_what_is_in_them(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss must not take a folder away whose files were reported as safe."""
    synced: set[Path] = set()
    monkeypatch.setattr(backup_files, "sync_folder", synced.add)
    await broker.take_backup(tmp_path / "a" / "b" / "one")
    restore(tmp_path / "a" / "b" / "one", tmp_path / "c" / "d" / "store")
    assert synced >= {tmp_path, tmp_path / "a", tmp_path / "c", tmp_path / "c" / "d"}


async def test_a_store_of_another_user_is_not_called_in_use(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def refuse(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == "LOCK":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *how, **more)

    await broker.take_backup(tmp_path / "one")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PreconditionFailed, match=r"store cannot be looked at: permission denied"):
        restore(tmp_path / "one", tmp_path / "store")


async def test_two_restores_to_one_place_make_one_whole_store(broker: EmbeddedBroker, tmp_path: Path) -> None:
    await broker.take_backup(tmp_path / "one")
    reached, first_is_over = threading.Event(), threading.Event()
    refused: list[str] = []

    def restore_too() -> None:
        try:
            restore(tmp_path / "one", tmp_path / "again", pause_second)
        except PreconditionFailed as error:
            refused.append(error.sentence)
        reached.set()

    def pause_second() -> None:
        reached.set()
        first_is_over.wait(60)

    second = threading.Thread(target=restore_too)

    def pause_first() -> None:
        """In the midst of its files: the second one begins."""
        if second.ident is None and len(list(tmp_path.glob(".again.restoring/*"))) > 4:
            second.start()
            assert reached.wait(60)

    try:
        manifest = restore(tmp_path / "one", tmp_path / "again", pause_first)
    finally:
        first_is_over.set()
        second.join(60)
    assert {path.name for path in (tmp_path / "again").iterdir()} == manifest.files.keys()
    assert refused == [f"another restore to {tmp_path / 'again'} is under way"]


async def test_the_list_tells_sound_and_damaged_ones_apart(broker: EmbeddedBroker, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    assert list_backups(folder) == []
    for name in ("a", "b"):
        await broker.take_backup(folder / name)
    manifest_cut(folder / "b")
    (folder / ".c.partial").mkdir()
    shutil.copy(folder / "a" / MANIFEST, folder / "stray")
    sound, damaged = list_backups(folder)
    assert not isinstance(sound, PreconditionFailed)
    assert sound.path == folder / "a"  # type: ignore[union-attr]
    assert isinstance(damaged, PreconditionFailed)


async def test_one_folder_that_cannot_be_read_hides_no_backup(broker: EmbeddedBroker, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    await broker.take_backup(folder / "b")
    (folder / "a").symlink_to("a")
    unreadable, sound = list_backups(folder)
    assert isinstance(unreadable, PreconditionFailed)
    assert str(folder / "a") in unreadable.sentence
    assert isinstance(sound, Manifest)


def test_backups_that_cannot_be_listed_are_not_none(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.symlink_to(folder)
    with pytest.raises(PreconditionFailed, match=r"backups cannot be listed: too many levels"):
        list_backups(folder)
