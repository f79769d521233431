"""Selects the cluster that serves a topic."""

from __future__ import annotations

from collections.abc import Sequence

from popgate.context import Context


class First:
    """Always the first of the configured clusters."""

    __slots__ = ()

    def pick(self, context: Context, topic: str, clusters: Sequence[str], now: float) -> str:
        return clusters[0]
