"""Which tests stay together in one worker of xdist."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

from tests.support.tiers import tier_of


def scope_of(nodeid: str) -> str:
    """The tests that stay in one worker: those of a file, and those that share a real RocketMQ."""
    if tier_of(nodeid) == "live":
        return "live"
    if nodeid.startswith("tests/cluster/"):
        return "cluster"
    return nodeid.partition("::")[0]


class Scheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
    """Gives whole scopes to workers, in the order of `tests/support/tiers.py:paths_of`."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
