"""The supervisor re-executes its program and keeps its process id, ports, workers and counters.

The state that must survive is written to a file in the private folder, whose name is in the environment;
descriptors stay open under their numbers.
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

from popgate.sockets.unix_sockets import identity_of
from protocols.adapter import parse_listen
from proxy.announcement import write_out
from proxy.supervision.doors import Doors
from proxy.workers.channel import Channel
from proxy.workers.crew import Door, Member, Role, Stage

if TYPE_CHECKING:
    from proxy.config.settings import Settings

VARIABLE = "_POPGATE_STAYING"
"""Names the private folder in the environment of a re-executed supervisor."""
_FILE = "staying"
SETTINGS = "settings"
"""The file of the settings that the trial read: nothing may come between them and their use."""
_LONGEST_PLACE = 66
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Blocked while the program is loaded, because no handler is installed yet."""


@dataclass(slots=True)
class SupervisorState:
    """The state that survives the re-execution."""

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
    share_setting: str | None = None
    """The setting `share_broker` that this place was chosen by; None: that is not known."""
    members: list[Member] = field(default_factory=list)
    doors: list[tuple[Door, list[int]]] = field(default_factory=list)
    waiting: dict[int, list[int]] = field(default_factory=dict)
    """Accepted connections that no process could take yet, by the numbers of their doors."""
    fresh: list[int] = field(default_factory=list)
    """Doors that were bound for the next program only."""
    is_hosted: bool = False
    """The process of the embedded broker started since the last reload."""
    hostless: str = ""
    """Why it could not."""

    @staticmethod
    def first() -> SupervisorState:
        """The state of the first supervisor. Raises OSError."""
        # Paths of sockets are short: not every folder for temporary files will do.
        place = tempfile.gettempdir()
        short = place if len(place.encode()) <= _LONGEST_PLACE else "/tmp"  # noqa: S108
        return SupervisorState(Path(tempfile.mkdtemp(prefix="popgate-", dir=short)), secrets.token_bytes(32))

    def note_reload(self, reason: str = "") -> None:
        """How a reload ended; without a reason it was good."""
        at_ms = self.reload["at_ms"] if reason else _now_ms()
        self.reload = {**self.reload, "count": self.reload["count"] + 1, "at_ms": at_ms, "reason": reason}

    def note_host(self, why: str = "") -> None:
        """Whether the process of the embedded broker started: it is the last that a reload renews."""
        if self.generation and not self.is_hosted and why != self.hostless:
            self.hostless = why
            self.note_reload(why)
        self.is_hosted |= not why

    def note_waiting(self, settings: Settings) -> None:
        """Which of these settings count after a restart only."""
        is_kept = self.share and self.share_setting not in (None, settings.share_broker)
        waits = is_kept and settings.broker.startswith("embedded:")
        self.reload = {**self.reload, "waiting": ["share_broker"] if waits else []}

    def place_of_broker(self, setting: str) -> str:
        """Where the next process of an embedded broker serves it: where guests know it, if there are any."""
        if not self.share:
            self.share_setting = setting
        return self.share or setting or f"unix:{self.folder}/broker"

    def next_number(self) -> int:
        self.number += 1
        return self.number


def load_anew(staying: SupervisorState, doors: Doors) -> NoReturn:
    """Become the program that the same command line starts now. Raises OSError: all is as it was."""
    held, waiting = doors.sockets(), doors.waiting()
    state = {
        "secret": staying.secret.hex(),
        "generation": staying.generation,
        "number": staying.number,
        "restarts": staying.restarts,
        "reload": staying.reload,
        "share": staying.share,
        "share_setting": staying.share_setting,
        "members": [_member_out(member) for member in staying.members if not member.gone],
        "doors": [
            [door.number, door.url, door.listen.port, [link.fileno() for link in links]]
            for door, links in held.values()
        ],
        "files": [[number, door.file] for number, (door, _) in held.items() if door.file],
        "waiting": [[number, [link.fileno() for link in links]] for number, links in waiting.items()],
    }
    inherited: list[socket.socket | Channel] = [link for _, links in held.values() for link in links]
    inherited += [link for links in waiting.values() for link in links]
    inherited += [member.channel for member in staying.members if not member.gone]
    file = staying.folder / _FILE
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        file.write_text(json.dumps(state), "utf-8")
        for channel in inherited:
            channel.set_inheritable(True)
        write_out()
        os.execve(  # noqa: S606 - ourselves, without a shell
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, VARIABLE: str(staying.folder)},
        )
    except BaseException:
        for channel in inherited:
            channel.set_inheritable(False)
        for number in staying.fresh:
            doors.drop(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        raise


def settings_left() -> Settings | None:
    """The settings of a re-executed supervisor; None: they have to be read."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        return None
    file = Path(folder) / SETTINGS
    settings = pickle.loads(file.read_bytes())  # noqa: S301 - from our own child, in a private folder
    file.unlink()
    return cast("Settings", settings)


def stayed() -> SupervisorState | None:
    """The state that an earlier program of this process left; None: it is the first one."""
    folder = os.environ.pop(VARIABLE, "")
    if not folder:
        return None
    file = Path(folder) / _FILE
    state = json.loads(file.read_text("utf-8"))
    file.unlink()
    members = [_member_in(member_state) for member_state in state["members"]]
    files = dict(state.get("files", ()))
    return SupervisorState(
        folder=Path(folder),
        secret=bytes.fromhex(state["secret"]),
        generation=state["generation"],
        number=state["number"],
        restarts=state["restarts"],
        reload=state.get("reload") or {"count": 0, "at_ms": _now_ms(), "reason": ""},
        # Of a broker before: workers of a later one would be sent there before its process serves.
        share=state["share"]
        if any(member.role is Role.HOST or member.is_guest for member in members)
        else "",
        share_setting=state.get("share_setting"),
        members=members,
        doors=[
            (_door_in(number, url, port, files.get(number)), links)
            for number, url, port, links in state["doors"]
        ],
        waiting=dict(state.get("waiting", ())),
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _door_in(number: int, url: str, port: int, file: list[int] | None) -> Door:
    listen = parse_listen(url)
    # An older version does not name the file.
    identity = (file[0], file[1]) if file else identity_of(listen.path)
    return Door(number, url, replace(listen, port=port), identity)


def _member_out(member: Member) -> dict[str, Any]:
    now = time.monotonic()
    return {
        "number": member.number,
        "role": member.role.value,
        "pid": member.pid,
        "channel": member.channel.fileno(),
        "serves": sorted(member.serves),
        "generation": member.generation,
        "since": now - member.since,
        "is_guest": member.is_guest,
        "ready": None if member.ready_at is None else now - member.ready_at,
        "stage": member.stage.value,
        "has_admin": member.has_admin,
        "connections": member.connections,
        "kept": member.channel.kept_messages(),
    }


def _member_in(member_state: dict[str, Any]) -> Member:
    now = time.monotonic()
    channel = Channel.of(member_state["channel"])
    with suppress(OSError):  # it has ended meanwhile, and that is read
        for message in member_state["kept"]:
            channel.send(message)
    return Member(
        number=member_state["number"],
        role=Role(member_state["role"]),
        pid=member_state["pid"],
        channel=channel,
        serves=frozenset(member_state["serves"]),
        generation=member_state["generation"],
        since=now - member_state["since"],
        is_guest=member_state.get("is_guest", False),
        ready_at=None if member_state["ready"] is None else now - member_state["ready"],
        stage=Stage(member_state["stage"]),
        has_admin=member_state["has_admin"],
        connections=member_state["connections"],
    )
