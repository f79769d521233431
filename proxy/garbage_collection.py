"""Configures Python's cyclic garbage collector for a long-running process that creates few cycles."""

from __future__ import annotations

import gc

_YOUNG = 20_000
"""Objects made, beyond those let go, before the young are looked at; Python's own 700 are seven requests."""
_MIDDLE = 20
_OLD = 10
"""Python's default. With 50 it took more than an hour under load until old cyclic garbage was found."""


def serve_long() -> None:
    """Freeze loaded objects, and collect the rest less often.

    Measured with single sends through `benchmarks/load`: 0.9 of the CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
