"""What a worker knows of the others, told by the supervisor."""

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
        self.members: Sequence[Mapping[str, Any]] = ()

    def __repr__(self) -> str:
        return f"<Roster {self.state} {len(self.members)}>"

    def hear(self, told: Mapping[str, Any]) -> None:
        self.state = told["state"]
        self.restarts = told["restarts"]
        self.reload = told.get("reload", {})
        self.members = told["members"]

    def others(self) -> list[int]:
        """Those that answer, but this one."""
        return [
            one["number"] for one in self.members if one["number"] != self.number and one.get("admin", False)
        ]

    def serving(self) -> int:
        """Workers that serve."""
        return sum(one["role"] == "worker" and one["state"] == "ready" for one in self.members)
