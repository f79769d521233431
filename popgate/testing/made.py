"""Downloads and builds for tests, made once and kept in a cache outside the checkout.

The folder is the one that TEST_CACHE names, or one in the home directory. Each result has a folder
of its own, named after its inputs; concurrent processes wait for the first one to build it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from popgate.testing.variables import variables

LONGEST_BUILD_S = 1_500.0
"""A cold build of the largest thing, on a busy machine of two cores, and then some; with all its tries."""
_LONGEST_REPORT = 3_000
FETCH_TRIES = 4
"""Attempts of downloads: a registry may be unreachable or refuse for a moment."""
_REST_S = 5.0
"""After the first try; after each further one twice as long."""


class Missing(Exception):
    """A requirement of a test is missing and could not be downloaded; the text names it and the cause."""


class ToolFailed(Missing):
    """A tool ended with an error: mostly a registry that is out of reach."""


def cache_folder() -> Path:
    """Where everything is kept; made when it is not there."""
    cache = Path(os.environ.get("TEST_CACHE") or Path.home() / ".cache" / "popgate-tests")
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock among all processes that use the cache; ended processes hold none."""
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest(seed: str, sources: Sequence[Path], root: Path) -> str:
    """A name derived from these files of `root` and a text."""
    made = hashlib.sha256(seed.encode())
    for source in sources:
        made.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return made.hexdigest()[:20]


def made_once(
    name: str,
    key: str,
    make: Callable[[Path], None],
    *,
    using: Sequence[str] = (),
    making: Sequence[str] = (),
) -> Path:
    """The folder that `make` fills, once per `key`; the rest of an interrupted attempt is replaced.

    `using` are the commands that the result needs, `making` those that building it needs. Raises Missing.
    """
    folder = cache_folder() / f"{name}-{key}"
    with locked(name):
        done = folder / ".made"  # written last: a folder without it is what an interruption left
        for tool in using if done.exists() else (*using, *making):
            if shutil.which(tool) is None:
                raise Missing(f"{tool} is not on this machine")
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def run_tool(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    tries: int = 1,
    unless: Sequence[str] = (),
) -> None:
    """Run a tool in a folder until it succeeds; no retry if its output contains a text of `unless`.

    All attempts together take LONGEST_BUILD_S at most. Raises ToolFailed with the end of the last output.
    """
    end = time.monotonic() + LONGEST_BUILD_S
    for number in range(1, tries + 1):
        try:
            return _run(command, folder, environment, end - time.monotonic())
        except ToolFailed as failed:
            rest_s = _REST_S * 2 ** (number - 1)
            last = number == tries or time.monotonic() + rest_s >= end
            if last or any(text in str(failed) for text in unless):
                raise
        time.sleep(rest_s)
    return None


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None, within_s: float
) -> None:
    try:
        ended = subprocess.run(  # noqa: S603 - a tool that the caller names, without a shell
            command,
            cwd=folder,
            env={**variables(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired:
        raise ToolFailed(f"{' '.join(command[:2])} did not end within {LONGEST_BUILD_S:.0f} s") from None
    if ended.returncode:
        report = f"{ended.stdout}\n{ended.stderr}"[-_LONGEST_REPORT:]
        raise ToolFailed(f"{' '.join(command[:2])} failed:\n{report}")
