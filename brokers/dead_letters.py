"""The capability of a broker to report the dead letters that it creates by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

DeadLetterHandler = Callable[[str, str, bytes], None]
"""Called with the group, the topic that it read, and the message's block of properties."""


class ReportsDeadLetters(ABC):
    """Reports messages that became dead letters because their last allowed delivery ended unfinished.

    Those that a client asked for are not reported: whoever asked knows of them. Found by
    `Broker.capability`, as the classes of `brokers.capabilities`.
    """

    @abstractmethod
    def on_dead_letter(self, handler: DeadLetterHandler) -> None:
        """`handler` is called once the dead letter is stored; the last one set counts. It must not raise."""
