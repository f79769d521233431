"""popgate.spark.guarantees.ownership: how old what a check says may be."""

from __future__ import annotations

from typing import cast

from popgate.spark.guarantees.ledger import Ledger
from popgate.spark.guarantees.openings import Opened
from popgate.spark.guarantees.ownership import CHECK_S, Ownership

OPENED = Opened("token", 0, "", -1, 0)


class SlowLedger:
    """Each look at it takes the next one of these times, in seconds."""

    def __init__(self, *takes: float) -> None:
        self.now, self.takes = 100.0, list(takes)

    def check_owner(self, *_: object) -> int:
        self.now += self.takes.pop(0)
        return 0

    def ownership(self) -> Ownership:
        return Ownership(cast("Ledger", self), OPENED, now=lambda: self.now)


def test_a_check_that_took_long_is_done_again() -> None:
    """Another one may have come after the look, and looked for rows by now."""
    ledger = SlowLedger(5, 0.9, 7)
    ownership = ledger.ownership()
    ownership.check()
    assert ledger.takes == [7]
    ledger.now += CHECK_S - 0.9 - 0.01
    ownership.check()
    assert ledger.takes == [7]


def test_a_ledger_that_is_always_slow_holds_nobody_up() -> None:
    ledger = SlowLedger(*[2] * 20)
    ledger.ownership().check()
    assert len(ledger.takes) == 18
