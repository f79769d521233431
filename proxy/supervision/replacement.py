"""The supervisor loads its program anew and keeps its place: its process id, ports, workers and figures.

What has to last is written to a file in the private folder, and named in the environment; descriptors
stay open under their numbers.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from protocols.adapter import parse_listen
from proxy.supervision.doors import Doors
from proxy.workers.channel import Channel
from proxy.workers.crew import Door, Member, Role, Stage

if TYPE_CHECKING:
    from proxy.config.settings import Settings

VARIABLE = "_POPGATE_STAYING"
"""Names the private folder in the environment of a supervisor that was loaded anew."""
_FILE = "staying"
SETTINGS = "settings"
"""The file of the settings that the trial read: nothing may come between them and their use."""
_LONGEST_PLACE = 66
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Held back while the program is loaded: there is nobody yet who would know what to do."""


@dataclass(slots=True)
class Staying:
    """What lasts."""

    folder: Path
    secret: bytes
    generation: int = 0
    number: int = 0
    """The last that was given to a process or a door."""
    restarts: int = 0
    reload: dict[str, Any] = field(default_factory=lambda: {"count": 0, "at_ms": _now_ms(), "reason": ""})
    """How many reloads there were, when the last good one was, and why the last one failed, if it did."""
    share: str = ""
    """Where the embedded broker is shared, when that is known."""
    members: list[Member] = field(default_factory=list)
    doors: list[tuple[Door, list[int]]] = field(default_factory=list)

    @staticmethod
    def first() -> Staying:
        """Of a supervisor that nobody was before. Raises OSError."""
        # Paths of sockets are short: not every folder for temporary files will do.
        place = tempfile.gettempdir()
        short = place if len(place.encode()) <= _LONGEST_PLACE else "/tmp"  # noqa: S108
        return Staying(Path(tempfile.mkdtemp(prefix="popgate-", dir=short)), secrets.token_bytes(32))

    def note_reload(self, reason: str = "") -> None:
        """How a reload ended; without a reason it was good."""
        at_ms = self.reload["at_ms"] if reason else _now_ms()
        self.reload = {"count": self.reload["count"] + 1, "at_ms": at_ms, "reason": reason}

    def next_number(self) -> int:
        self.number += 1
        return self.number


def load_anew(staying: Staying, doors: Doors) -> NoReturn:
    """Become the program that the same command line starts now. Raises OSError: all is as it was."""
    held = doors.sockets()
    told = {
        "secret": staying.secret.hex(),
        "generation": staying.generation,
        "number": staying.number,
        "restarts": staying.restarts,
        "reload": staying.reload,
        "share": staying.share,
        "members": [_member_out(one) for one in staying.members if not one.gone],
        "doors": [
            [door.number, door.url, door.listen.port, [link.fileno() for link in links]]
            for door, links in held.values()
        ],
    }
    inherited: list[socket.socket | Channel] = [link for _, links in held.values() for link in links]
    inherited += [one.channel for one in staying.members if not one.gone]
    file = staying.folder / _FILE
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        file.write_text(json.dumps(told), "utf-8")
        for one in inherited:
            one.set_inheritable(True)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(  # noqa: S606 - ourselves, without a shell
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, VARIABLE: str(staying.folder)},
        )
    except BaseException:
        for one in inherited:
            one.set_inheritable(False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        raise


def settings_left() -> Settings | None:
    """The settings of a supervisor that was loaded anew; None: they are to be read."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        return None
    file = Path(folder) / SETTINGS
    settings = pickle.loads(file.read_bytes())  # noqa: S301 - from our own child, in a private folder
    file.unlink()
    return cast("Settings", settings)


def stayed() -> Staying | None:
    """What an earlier program of this process left to this one; None: it is the first."""
    folder = os.environ.pop(VARIABLE, "")
    if not folder:
        return None
    file = Path(folder) / _FILE
    told = json.loads(file.read_text("utf-8"))
    file.unlink()
    return Staying(
        folder=Path(folder),
        secret=bytes.fromhex(told["secret"]),
        generation=told["generation"],
        number=told["number"],
        restarts=told["restarts"],
        reload=told.get("reload") or {"count": 0, "at_ms": _now_ms(), "reason": ""},
        share=told["share"],
        members=[_member_in(one) for one in told["members"]],
        doors=[
            (Door(number, url, replace(parse_listen(url), port=port)), links)
            for number, url, port, links in told["doors"]
        ],
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _member_out(one: Member) -> dict[str, Any]:
    now = time.monotonic()
    return {
        "number": one.number,
        "role": one.role.value,
        "pid": one.pid,
        "channel": one.channel.fileno(),
        "serves": sorted(one.serves),
        "generation": one.generation,
        "since": now - one.since,
        "ready": None if one.ready_at is None else now - one.ready_at,
        "stage": one.stage.value,
        "has_admin": one.has_admin,
        "connections": one.connections,
        "kept": one.channel.take_kept(),
    }


def _member_in(told: dict[str, Any]) -> Member:
    now = time.monotonic()
    channel = Channel.of(told["channel"])
    with suppress(OSError):  # it has ended meanwhile, and that is read
        for message in told["kept"]:
            channel.send(message)
    return Member(
        number=told["number"],
        role=Role(told["role"]),
        pid=told["pid"],
        channel=channel,
        serves=frozenset(told["serves"]),
        generation=told["generation"],
        since=now - told["since"],
        ready_at=None if told["ready"] is None else now - told["ready"],
        stage=Stage(told["stage"]),
        has_admin=told["has_admin"],
        connections=told["connections"],
    )
