"""Per-process set-up of Spark's Python workers, which run one task after the other."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """In the first task; later ones find it done.

    Spark collects garbage after each task, and what is loaded by now need not be looked at each time. Not by
    `gc.get_freeze_count()`: that counts all that is frozen, which takes some 7 ms.
    """
    gc.freeze()
