"""A worker's knowledge of the other processes, as the supervisor reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxy.lifetime.states import State


def admin_socket(folder: Path, number: int) -> Path:
    """Where the admin pages of one process are asked for by the others."""
    return folder / f"admin-{number}"


class Roster:
    """`state`: of the gateway as a whole; never "failing", which each knows by itself."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self.state: State = "starting"
        self.restarts = 0
        self.reload: Mapping[str, Any] = {}
        """How the last reload ended: see `Staying.reload`."""
        self.renewing = False
        """Whether processes of the program or settings before are still to be renewed."""
        self.members: Sequence[Mapping[str, Any]] = ()

    def __repr__(self) -> str:
        return f"<Roster {self.state} {len(self.members)}>"

    def hear(self, facts: Mapping[str, Any]) -> None:
        self.state = facts["state"]
        self.restarts = facts["restarts"]
        self.reload = facts.get("reload", {})
        self.renewing = facts.get("renewing", False)
        self.members = facts["members"]

    def others(self) -> list[int]:
        """Those that answer, but this one."""
        return [
            member["number"]
            for member in self.members
            if member["number"] != self.number and member.get("admin", False)
        ]

    def serving(self) -> int:
        """Workers that serve."""
        return sum(member["role"] == "worker" and member["state"] == "ready" for member in self.members)
