"""What a gateway tells of itself while it is soaked, and what the system tells of it."""

from __future__ import annotations

import contextlib
import os
import re
import time
import urllib.request
from pathlib import Path

from benchmarks.beside.processes import memory_mb
from popgate.testing import GatewayProcess

LEFT = ("popgate_grpc_connections", "popgate_grpc_streams", "popgate_waiting_receives")
"""Must be none when all have gone."""
LIKE_BEFORE = (
    "popgate_broker_waiting_pops",
    "popgate_bytes_under_way",
    "popgate_event_loop_tasks",
    "sockets",
)
"""Must be as many as before the first came."""
LINKS = "popgate_broker_links_open"
HELD = {
    "known_sends": ("popgate_broker_known_sends", 1.0),
    "memtables_mb": ("popgate_broker_store_memtable_bytes", 1 / (1 << 20)),
    "cache_mb": ("popgate_broker_store_cache_bytes", 1 / (1 << 20)),
    "readers_mb": ("popgate_broker_store_readers_bytes", 1 / (1 << 20)),
    "clients": ("popgate_clients", 1.0),
}
"""What is held in memory up to a bound, by the gateway's own account, and in which unit it is told."""


class Figures:
    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway

    def told(self) -> dict[str, float]:
        """What may be left behind, and how often a peer broke the rules of HTTP/2.

        Links to brokers are none of it: they are a pool, from which each goes ten minutes after its last use.
        """
        found = self._metrics((*LEFT, *LIKE_BEFORE, LINKS, "popgate_grpc_violations_total"))
        return found | {"sockets": self._sockets() - found[LINKS]}

    def sample(self, since: float) -> dict[str, float]:
        """Memory by now, and what of it is accounted for. `since` is of the monotonic clock."""
        memory = memory_mb(self._gateway.pid)
        found = self._metrics(tuple(name for name, _ in HELD.values()))
        held = {short: round(found[name] * unit, 3) for short, (name, unit) in HELD.items()}
        return {
            "at_s": round(time.monotonic() - since, 1),
            "pss_mb": round(memory["pss_mb"], 3),
            "files_mb": round(memory["files_mb"], 3),
            **held,
            "sockets": float(self._sockets()),
        }

    def _metrics(self, names: tuple[str, ...]) -> dict[str, float]:
        with urllib.request.urlopen(f"{self._gateway.admin}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return {
            name: sum(float(value) for value in re.findall(rf"^{name}(?:{{.*?}})? (\S+)$", text, re.M))
            for name in names
        }

    def _sockets(self) -> int:
        count = 0
        for process in (self._gateway.pid, *self._gateway.processes):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    count += os.readlink(link).startswith("socket:")
        return count
