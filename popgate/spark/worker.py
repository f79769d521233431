"""What a Python process of an executor is told once, since it runs one task after the other."""

from __future__ import annotations

import gc
from typing import Final

from popgate.malloc import keep_freed_memory

_KEPT_BYTES: Final = 64 << 20
"""Replies under way, their records, and the batch that is made of them."""


def settle() -> None:
    """In the first task; later ones find it done."""
    # Spark collects garbage after each task; what is loaded by now need not be looked at each time.
    if gc.get_freeze_count() == 0:
        gc.freeze()
        keep_freed_memory(_KEPT_BYTES)
