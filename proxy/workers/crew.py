"""The processes of a gateway, as their supervisor sees them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from pathlib import Path
from typing import Any

from protocols.adapter import Listen
from proxy.workers.channel import Channel

ADMIN = -1
"""The number of the admin port among the doors."""
LIVED_S = 5.0
"""A process that served for so long is restarted at once."""
_FIRST_S = 0.25
_LONGEST_S = 30.0
_FEW_UNANSWERED = 2


@unique
class Role(Enum):
    """The role of a process. A host has the embedded broker, which the workers reach over a socket."""

    WORKER = "worker"
    HOST = "host"


@unique
class Stage(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


@dataclass(slots=True, frozen=True)
class Door:
    """An address for clients. `url` is that of the settings; `listen` has the port that was chosen.

    `file`: the identity of the file of a Unix domain socket.
    """

    number: int
    url: str
    listen: Listen
    file: tuple[int, int] | None = None

    @property
    def address(self) -> str:
        """As people are told of it."""
        return self.listen.url(self.listen.port)


@dataclass(slots=True, frozen=True)
class Post:
    """The parameters of a process when it is started.

    `doors` are those that it serves, `listens` all addresses of the gateway. `folder` is private
    to the gateway's processes. `broker` and `share` are URLs that replace those of the settings.
    `secret` authenticates transaction ids. `first`: it is the first process, so that one-time messages are
    logged once.
    """

    number: int
    role: Role
    channel: Channel
    folder: Path
    doors: tuple[Door, ...]
    listens: tuple[Listen, ...]
    admin: str
    broker: str
    share: str
    secret: bytes
    first: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """A process. `serves` are the numbers of its doors."""

    number: int
    role: Role
    pid: int
    channel: Channel
    serves: frozenset[int]
    generation: int
    since: float
    stage: Stage = Stage.STARTING
    has_admin: bool = False
    connections: int = 0
    turn: int = 0
    """When it last got a connection."""
    ready_at: float | None = None
    behind: bool = False
    """It does not read: it gets the latest message to all when it does."""
    unanswered: int = 0
    """Pings since its last message."""
    full: bool = False
    """It had no descriptor left for a connection a moment ago."""
    starting: int = 0
    """How often it was looked at while it was starting."""
    handed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Connections on the way to it, by their numbers, in order: the door, and a copy of the descriptor."""
    gone: bool = False
    """Its channel is closed: it ended, or is about to."""
    failure: tuple[str, bool] | None = None
    """Why it could not start, and whether the settings are to blame."""
    farewell: dict[str, int] = field(default_factory=dict)
    is_guest: bool = False
    """It needs the process of an embedded broker."""

    @property
    def silent(self) -> bool:
        """Whether it may hang."""
        return self.unanswered > _FEW_UNANSWERED

    def took(self, last: int) -> None:
        """It has the connections up to this number: they are its own business now."""
        for number in [number for number in self.handed if number <= last]:
            os.close(self.handed.pop(number)[1])

    def facts(self) -> dict[str, Any]:
        """The message about it to the other processes."""
        return {
            "number": self.number,
            "pid": self.pid,
            "role": self.role.value,
            "state": self.stage.value,
            "connections": self.connections,
            "admin": self.has_admin,
        }


def choose(members: Iterable[Member], door: int) -> list[Member]:
    """Candidates for the next connection to a door, best first: the fewest connections, then round-robin.

    Unresponsive workers come last.
    """
    fit = [
        member
        for member in members
        if member.stage is Stage.READY and door in member.serves and not member.gone
    ]
    return sorted(
        [member for member in fit if not member.full],
        key=lambda member: (member.silent, member.connections, member.turn),
    )


def choose_for_admin(members: Iterable[Member]) -> list[Member]:
    """Processes that can answer operators, best first: the host of the broker, which knows most, then by age.

    Usually the same process answers, because some metrics are collected in slices.
    """
    fit = [member for member in members if member.has_admin and not member.gone and not member.full]
    stages = (Stage.READY, Stage.STARTING, Stage.DRAINING)
    return sorted(
        fit,
        key=lambda member: (
            member.silent,
            stages.index(member.stage),
            member.role is not Role.HOST,
            member.number,
        ),
    )


def state_of(members: Sequence[Member], *, leaving: bool) -> str:
    """The gateway's state: it is ready while one of its workers is."""
    workers = [member for member in members if member.role is Role.WORKER]
    if leaving:
        return "draining"
    return "ready" if any(member.stage is Stage.READY for member in workers) else "starting"


class Backoff:
    """How long to wait before the next try, when processes die one after the other."""

    def __init__(self) -> None:
        self._deaths = 0

    def after(self, member: Member, now: float) -> float:
        """Seconds; none after one that served well for a while."""
        if member.ready_at is not None and now - member.ready_at >= LIVED_S:
            self._deaths = 0
        self._deaths += 1
        return 0.0 if self._deaths == 1 else min(_FIRST_S * 2 ** (self._deaths - 2), _LONGEST_S)


def end_told(status: int) -> str:
    """How a process ended, from its exit status."""
    code = -status
    if code > 0:
        try:
            return f"killed by {signal.Signals(code).name}"
        except ValueError:
            return f"killed by signal {code}"
    return f"ended with {status}"


def broker_at(share: str) -> str:
    """The URL by which workers reach the broker that is shared there."""
    if share.startswith("unix:"):
        return f"popgate+{share}"
    host, _, port = share.removeprefix("tcp://").rpartition(":")
    # Who listens at all addresses is reached at the machine's own.
    return f"popgate://{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"  # noqa: S104
