"""The supervisor's side of a trial: it runs the test start, and binds new addresses."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from proxy.config.handover import TRIAL
from proxy.reload.settings_process import reason_told
from proxy.supervision.doors import Doors, with_options
from proxy.supervision.replacement import SETTINGS, SupervisorState
from proxy.tls.door_tls import door_urls
from proxy.workers.crew import ADMIN, end_told

if TYPE_CHECKING:
    from proxy.config.settings import Settings

_WORDS = "trial"
"""The file for the output of the trial."""
_MOST_WORDS = 1 << 16


def spawn_trial(folder: Path) -> int:
    """The process id of a process that looks whether the program starts as it is now. Raises OSError.

    It leads a group of its own: it has a child of its own, which `kill_trial` ends with it.
    """
    words = str(folder / _WORDS)
    return os.posix_spawn(
        sys.executable,
        [sys.executable, *sys.orig_argv[1:]],
        {**os.environ, TRIAL: str(folder / SETTINGS), "POPGATE_OUTPUT": "json"},
        file_actions=[(os.POSIX_SPAWN_OPEN, 2, words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)],
        setpgroup=0,
    )


def kill_trial(trial: int) -> None:
    """It may have ended already."""
    with suppress(ProcessLookupError):
        os.killpg(trial, signal.SIGKILL)


def why_failed(folder: Path, status: int) -> str:
    """The reason that a trial reported when it ended with this status."""
    file = folder / _WORDS
    try:
        with file.open("rb") as opened:
            said = opened.read(_MOST_WORDS)
        file.unlink()
    except OSError:
        said = b""
    return reason_told(said.decode(errors="replace"), end_told(status))


def bind_anew(doors: Doors, staying: SupervisorState) -> str:
    """Take the addresses that the settings name now and that are not held yet; why not, or nothing.

    After a failure none of them is held, and the settings are gone. Settings of another version, which may
    make no sense here, are left to its program.
    """
    file = staying.folder / SETTINGS
    try:
        settings = cast("Settings", pickle.loads(file.read_bytes()))  # noqa: S301 - from our own child
        urls, admin = door_urls(settings), settings.admin
    except Exception:  # whatever another version is made of: who serves has to go on
        return ""
    left = [door for number, (door, _) in doors.sockets().items() if number != ADMIN]
    bound: list[int] = []
    try:
        for url in urls:
            here = sorted(left, key=lambda door: door.url != url)
            chosen = next((door for door in here if with_options(door, url) is not None), None)
            if chosen is not None:
                left.remove(chosen)
                continue
            number = staying.next_number()
            doors.bind(number, url)
            bound.append(number)
        _try_admin(doors, staying, admin)
    except (OSError, ValueError) as error:
        for number in bound:
            doors.drop(number)
        file.unlink()
        return str(error)
    staying.fresh = bound
    return ""


def _try_admin(doors: Doors, staying: SupervisorState, url: str) -> None:
    """Raises OSError for an address of the admin port that cannot be had."""
    held = doors.sockets().get(ADMIN)
    if url in ("", "off") or (held is not None and with_options(held[0], url) is not None):
        return
    number = staying.next_number()
    doors.bind(number, url)
    doors.drop(number)
