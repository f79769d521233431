"""Checks, while a batch is written, whether its driver still owns the sink."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from popgate.spark.guarantees.ledger import Attempt, Ledger
from popgate.spark.guarantees.openings import Opened

CHECK_S: Final = 1.0
"""The interval at which a writer checks for a successor."""
_MOST_CHECKS: Final = 2
"""A check that took longer than that says what was so before, and is done again. A ledger that is always slow
holds up a task no longer."""


class Ownership:
    """Asks now and then whether a batch is still this driver's to write, and a task this attempt's."""

    def __init__(
        self,
        ledger: Ledger,
        opened: Opened,
        attempt: Attempt | None = None,
        *,
        since: float = float("-inf"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`since`: when that was so, in seconds as `now` tells them."""
        self._ledger, self._opened, self._attempt = ledger, opened, attempt
        self._since, self._now = since, now
        self._begin = None if attempt is None else attempt.offset + 1

    def check(self) -> None:
        """Raises SparkSourceError (LEDGER): it is not."""
        for _ in range(_MOST_CHECKS):
            now = self._now()
            if now - self._since < CHECK_S:
                return
            self._begin = self._ledger.check_owner(self._opened, self._attempt, self._begin)
            self._since = now
