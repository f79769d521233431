"""The files of a backup: a manifest beside the files of a store, each with its size and checksum.

    NAME/manifest.json    versions, when, of which store, counts, and every file with size and SHA-256
    NAME/store/…          the files of RocksDB

A backup is created under a name that begins with a dot and gets its own name at the end, when everything
is on the disk. A folder without a manifest, or whose files differ from it, is no backup. This module handles
files only; it opens no store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from brokers.embedded.storage.migrations import FORMAT
from popgate.errors import GatewayError, PreconditionFailed

MANIFEST = "manifest.json"
FILES = "store"
BACKUP_FORMAT = 1
"""The version of this layout; raised whenever an older program could misread it."""

_CHUNK = 1 << 20
_MOST_MANIFEST_BYTES = 256 << 20
_TOO_MANY = 1 << 63
_Kind = TypeVar("_Kind")

Pause = Callable[[], None]
"""Called between pieces of long work; raises to end it."""


@dataclass(slots=True, frozen=True)
class Manifest:
    """The manifest of a sound backup. `files`: path within `store/`, then size and SHA-256 in hex."""

    path: Path
    facts: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())


def no_pause() -> None:
    """Work is done without a break."""


def fingerprint(path: Path, pause: Pause = no_pause) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    for chunk in _chunks(path):
        digest.update(chunk)
        size += len(chunk)
        pause()
    return size, digest.hexdigest()


def copy_file(source: Path, target: Path, pause: Pause = no_pause) -> tuple[int, str]:
    """Copy a file to a new one, on the disk when this returns; size and SHA-256 of what was read.

    Raises OSError, with the name of the source if that is what cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as writing:
        for chunk in _chunks(source):
            digest.update(chunk)
            writing.write(chunk)
            size += len(chunk)
            pause()
        writing.flush()
        os.fsync(writing.fileno())
    return size, digest.hexdigest()


def write_manifest(folder: Path, facts: Mapping[str, object], files: Mapping[str, tuple[int, str]]) -> None:
    """Write it, with a checksum of its own, so that it and its name are on the disk."""
    manifest: dict[str, object] = {
        "format": BACKUP_FORMAT,
        **facts,
        "files": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in sorted(files.items())},
    }
    manifest["sha256"] = _digest_of(manifest)
    path = folder / MANIFEST
    with path.open("x", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def make_folder(folder: Path) -> None:
    """Make a folder that is not there, and those above it, so that their names survive a power loss.

    RocksDB syncs only what is in its own. Other accounts of the machine need not read users' messages. Raises
    OSError.
    """
    missing = [new for new in (folder, *folder.parents) if not new.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for new in missing:
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Have a folder for oneself, also after it was renamed; the lock ends with the process.

    Raises OSError: BlockingIOError where another one has it, FileNotFoundError where it is gone.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # some file systems have no locks
        if not os.path.samestat(os.fstat(handle), os.stat(folder)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield
    finally:
        os.close(handle)


def read_manifest(backup: Path) -> Manifest:
    """The manifest of a backup. Raises PreconditionFailed: no backup, damaged, or too new."""
    path = backup / MANIFEST
    try:
        with _open_file(path) as file:
            data = file.read(_MOST_MANIFEST_BYTES)
    except FileNotFoundError:
        reason = "there is no such folder" if not backup.is_dir() else f"it has no {MANIFEST}"
        raise PreconditionFailed(f"{backup} is no backup: {reason}") from None
    except OSError as error:
        raise PreconditionFailed(f"{path} cannot be read: {_reason(error)}") from None
    try:
        manifest = json.loads(data)
        version = manifest["format"]
        if not isinstance(version, int) or version < 1:
            raise ValueError("its format is no number")
        if version > BACKUP_FORMAT:
            raise PreconditionFailed(
                f"{backup} is a backup of format {version}, this version of popgate reads up to format"
                f" {BACKUP_FORMAT}: use the newer version that wrote it"
            )
        if (
            _digest_of({name: value for name, value in manifest.items() if name != "sha256"})
            != manifest["sha256"]
        ):
            raise ValueError("its checksum is another one")
        files = {
            name: (
                _field(manifest, int, "files", name, "bytes"),
                _field(manifest, str, "files", name, "sha256"),
            )
            for name in _field(manifest, dict, "files")
        }
        store_format = _field(manifest, int, "store", "format")
        for names in (("taken_ms",), *(("counts", name) for name in ("topics", "groups", "messages"))):
            _field(manifest, int, *names)
    except PreconditionFailed:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PreconditionFailed(
            f"the backup is damaged: {path} is not as it was written ({error})"
        ) from None
    if store_format > FORMAT:
        raise PreconditionFailed(
            f"{backup} holds a store of format {store_format}, this version of popgate reads up to format"
            f" {FORMAT}: use the newer version that wrote it"
        )
    for name in files:
        if Path(name).name != name or name in ("", ".", ".."):
            raise PreconditionFailed(f"the backup is damaged: {path} names {name!r}, which is no file's name")
    facts = {name: value for name, value in manifest.items() if name not in ("files", "sha256")}
    return Manifest(backup, facts, files)


def verify(backup: Path, pause: Pause = no_pause) -> Manifest:
    """Check every file of a backup. Raises PreconditionFailed with the name of a wrong one."""
    manifest = read_manifest(backup)
    _check_names(manifest)
    for name, (size, digest) in manifest.files.items():
        path = backup / FILES / name
        try:
            actual = fingerprint(path, pause)
        except OSError as error:
            raise _unreadable(path, error) from None
        _check_file(path, actual, (size, digest))
    return manifest


def restore(backup: Path, target: Path, pause: Pause = no_pause) -> Manifest:
    """Make the folder `target` of a store from a backup: complete, or not at all.

    `target` must not exist, or be empty. Raises PreconditionFailed: it is in use or not empty, another
    restore to it is under way, the backup is damaged (the sentence names the file) or too new, there is
    no room.
    """
    manifest = read_manifest(backup)
    _check_names(manifest)
    _check_target(target)
    partial = target.with_name(f".{target.name}.restoring")
    try:
        make_folder(target.parent)
        partial.mkdir(mode=0o700, exist_ok=True)
        with locked_folder(partial):
            try:
                _copy_files(manifest, partial, pause)
                partial.rename(target)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        sync_folder(target.parent)
    except BlockingIOError:
        raise PreconditionFailed(f"another restore to {target} is under way") from None
    except OSError as error:
        raise PreconditionFailed(f"the store cannot be restored to {target}: {_reason(error)}") from None
    return manifest


def list_backups(folder: Path) -> list[Manifest | GatewayError]:
    """The backups in a folder, by name; for one that is damaged, what is wrong with it.

    None where there is no folder. Raises PreconditionFailed: it cannot be read.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if _may_be_folder(entry))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PreconditionFailed(f"the backups in {folder} cannot be listed: {_reason(error)}") from None
    manifests: list[Manifest | GatewayError] = []
    for name in names:
        if not name.startswith("."):
            try:
                manifests.append(read_manifest(folder / name))
            except GatewayError as error:
                manifests.append(error)
    return manifests


# -- inside ---------------------------------------------------------------------------------------


def _open_file(path: Path) -> BinaryIO:
    """Raises OSError, also for what is no file: to open a named pipe would wait for its writer."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def _chunks(path: Path) -> Iterator[bytes]:
    """Raises OSError with the name of the file."""
    try:
        with _open_file(path) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _copy_files(manifest: Manifest, partial: Path, pause: Pause) -> None:
    """Raises OSError, and PreconditionFailed for a file that is not as it was written."""
    for left in partial.iterdir():  # by a restore that was killed
        left.unlink()
    for name, expected in manifest.files.items():
        path = manifest.path / FILES / name
        try:
            actual = copy_file(path, partial / name, pause)
        except OSError as error:
            if error.filename == str(path):
                raise _unreadable(path, error) from None
            raise
        _check_file(path, actual, expected)
    sync_folder(partial)


def _digest_of(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # as of a link to itself: what is wrong is reported of this one alone
        return True


def _field(value: Any, kind: type[_Kind], *names: str) -> _Kind:
    """A checksum shows what was damaged, and not what never was a backup: others read the fields as they are.

    Raises ValueError: there is no such field of this kind, or it is no number that is counted with.
    """
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    possible = not isinstance(value, int) or 0 <= value < _TOO_MANY
    if not isinstance(value, kind) or isinstance(value, bool) or not possible:
        raise ValueError(f"{'.'.join(names)!r} is missing, or it is no {kind.__name__}")
    return value


def _check_names(manifest: Manifest) -> None:
    """Raises PreconditionFailed for a file too few or too many: RocksDB would read it, or miss it."""
    folder = manifest.path / FILES
    try:
        there = {entry.name for entry in os.scandir(folder)}
    except OSError as error:
        raise _unreadable(folder, error) from None
    for name in sorted(manifest.files.keys() - there):
        raise PreconditionFailed(f"the backup is damaged: {folder / name} is missing")
    for name in sorted(there - manifest.files.keys()):
        raise PreconditionFailed(f"the backup is damaged: {folder / name} does not belong to it")


def _check_file(path: Path, actual: tuple[int, str], expected: tuple[int, str]) -> None:
    if actual[0] != expected[0]:
        raise PreconditionFailed(
            f"the backup is damaged: {path} has {actual[0]} bytes, it was written with {expected[0]}"
        )
    if actual[1] != expected[1]:
        raise PreconditionFailed(f"the backup is damaged: {path} is not as it was written (SHA-256)")


def _unreadable(path: Path, error: OSError) -> PreconditionFailed:
    return PreconditionFailed(f"the backup is damaged: {path} cannot be read: {_reason(error)}")


def _check_target(target: Path) -> None:
    try:
        if not target.is_dir():
            if target.exists() or target.is_symlink():
                raise PreconditionFailed(f"{target} is a file and no folder")
            return
        if _is_locked(target / "LOCK"):
            raise PreconditionFailed(f"the store in {target} is in use by another process: stop it first")
        if os.listdir(target):
            raise PreconditionFailed(
                f"{target} is not empty: restore to another folder, or move what is there away first"
            )
    except OSError as error:
        raise PreconditionFailed(f"{target} cannot be looked at: {_reason(error)}") from None


def _is_locked(path: Path) -> bool:
    """Whether a RocksDB in another process has this store open. Raises OSError."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
    return False


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
