"""What doors tell of their calls, to whoever counts them: one plain call each."""

from __future__ import annotations

from typing import Protocol


class CallObserver(Protocol):
    """Implemented by the metrics. Calls are cheap and never raise."""

    def answered(self, method: str, code: str, seconds: float) -> None:
        """A call ended after so long; `code` is the status of its answer, in the protocol's own word."""

    def refused(self, topic: str, group: str) -> None:
        """A call about these ended badly; names are as they came and may be anything, or empty."""


class NullCalls:
    """Counts nothing."""

    __slots__ = ()

    def answered(self, method: str, code: str, seconds: float) -> None: ...
    def refused(self, topic: str, group: str) -> None: ...
