"""Brokers that sends avoid for a while, because they were slow or failed. Source: protocol facts 6.3."""

from __future__ import annotations

_CLASSES_S = (
    (15.0, 30.0),
    (5.0, 10.0),
    (3.0, 6.0),
    (1.8, 5.0),
    (0.55, 2.0),
)
"""(so long it took or longer, so long it is left alone), the slowest first."""
_LEAST_S = _CLASSES_S[-1][0]
FAILED_S = 10.0
"""A failure counts as an answer after so long."""
_MOST = 4_096


class BrokerLatency:
    """Until when, in loop seconds, each broker is better left alone."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<BrokerLatency left alone {len(self._until)}>"

    def answered(self, broker: str, took_s: float, now: float) -> None:
        """The broker answered a send after so long, or would have (`FAILED_S`)."""
        if took_s < _LEAST_S:  # as nearly all
            if self._until:
                self._until.pop(broker, None)
            return
        for least, rest in _CLASSES_S:
            if took_s >= least:
                if len(self._until) >= _MOST:
                    self._until.clear()
                self._until[broker] = now + rest
                return

    def failed(self, broker: str, now: float) -> None:
        self.answered(broker, FAILED_S, now)

    def available(self, broker: str, now: float) -> bool:
        return not self._until or self._until.get(broker, 0.0) <= now

    def __len__(self) -> int:
        return len(self._until)
