"""Per-process set-up of Spark's Python workers, which run one task after the other."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """Freeze loaded objects for the garbage collector, once per process.

    Spark collects garbage after each task, and need not traverse loaded modules each time. It does not check
    `gc.get_freeze_count()`, which counts all frozen objects in some 7 ms.
    """
    gc.freeze()
