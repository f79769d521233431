"""RocketMQ's delay levels: 1 to 18, for delays from 1 s to 2 h.

Source: the default `messageDelayLevel` of RocketMQ's MessageStoreConfig.
"""

from __future__ import annotations

LEVELS_MS = tuple(seconds * 1000 for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))


def delay_ms_of(level: int) -> int:
    """The delay of a level in milliseconds; 0 for none, and the longest for one above the highest."""
    return LEVELS_MS[min(level, len(LEVELS_MS)) - 1] if level > 0 else 0
