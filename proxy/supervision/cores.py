"""The number of cores available to this process, by its CPU affinity and its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.config.settings import Settings

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def workers_of(settings: Settings) -> int:
    """As set; by itself one for each core, or one in all where the broker is in this process as well."""
    if settings.workers:
        return settings.workers
    return 1 if settings.broker.startswith("embedded:") else usable_cores()


def usable_cores(control_group: Path = _CONTROL_GROUP) -> int:
    """At least 1; a part of a core counts as one, as the JVM has it."""
    try:
        bound = len(os.sched_getaffinity(0))
    except AttributeError:
        bound = os.cpu_count() or 1
    allowed = _quota(control_group)
    return max(bound if allowed is None else min(bound, math.ceil(allowed)), 1)


def _quota(control_group: Path) -> float | None:
    """Cores by the quota of control groups, version 2 or 1; None: there is none."""
    words = _words(control_group / "cpu.max")
    if not words:
        words = _words(control_group / "cpu/cpu.cfs_quota_us") + _words(
            control_group / "cpu/cpu.cfs_period_us"
        )
    try:
        quota, period = int(words[0]), int(words[1])
    except (IndexError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
