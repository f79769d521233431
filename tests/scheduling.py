"""Which tests stay together in one worker: those of a file, and some that share what is slow to start.

Files with most tests come first, as xdist has it. To begin with those that take longest was tried, and took
longer: each worker keeps until its end the RocketMQs that its tests started, nearly a core of two.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

LIVE_SITE = "remote"
CONTRACT = "tests/contract/"
CLUSTER = "tests/cluster/"
LIVE_SCENARIOS = "tests/scenarios/test_live_"
LIVE_CONTRACT = f"{CONTRACT}[{LIVE_SITE}]"


def scope_of(nodeid: str) -> str:
    """Which tests it stays with: those of its file, or those before a real RocketMQ that run side by side."""
    if nodeid.startswith(LIVE_SCENARIOS):
        return LIVE_SCENARIOS
    if nodeid.startswith(CLUSTER):
        return CLUSTER
    if nodeid.startswith(CONTRACT) and LIVE_SITE in parameters(nodeid):
        return LIVE_CONTRACT
    return nodeid.partition("::")[0]


def parameters(nodeid: str) -> list[str]:
    """The parts of what stands in brackets behind a test's name."""
    # The first one: parameters may have brackets of their own.
    _, bracket, inside = nodeid.partition("[") if nodeid.endswith("]") else ("", "", "")
    return inside[:-1].split("-") if bracket else []


class Scheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
    """Gives whole scopes to workers."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
