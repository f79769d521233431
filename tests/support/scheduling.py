"""Which tests stay together in one worker of xdist."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

from tests.support.tiers import lane_of, tier_of


def scope_of(nodeid: str) -> str:
    """The tests that stay in one worker: those of a file, and those of a lane of the live tier."""
    if tier_of(nodeid) == "live":
        return f"live {lane_of(nodeid)}"
    if nodeid.startswith("tests/cluster/"):
        return "cluster"
    return nodeid.partition("::")[0]


class Scheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
    """Gives whole scopes to workers, in the order of `tests/support/tiers.py:paths_of`."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """The test in which a worker ended, if it did not end by itself; others are run by another worker.

        That one is not: xdist would try it until no worker may be replaced any more, and a test that hangs
        takes its timeout each time. It has failed, and has its second look.
        """
        for unit in self.assigned_work[node].values():
            for nodeid, is_done in unit.items():
                if not is_done:
                    unit[nodeid] = True
                    super().remove_node(node)
                    return str(nodeid)
        super().remove_node(node)
        return None
