"""How transactions ended through this replica: soft state, so that a repeated end takes effect once.

A broker cannot distinguish a second commit from the first, and a check stores the half message again, so that
a commit of the old place and one of the new place are two messages (any-replica, section 2). This memory
prevents that where it can; its loss costs what the documentation names, never a message.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from brokers.remote.transactions.ids import Half
from popgate.model import Resolution

_NEVER_MS = 1 << 62


class TransactionOutcome:
    """One transaction. `newest`: the valid place of its half message, as far as known here.

    `first`: the offset of its original place, -1 while unknown. `shared`: others have
    its message id, too: a client that sends one message twice has two transactions. `verdict`: how it ended,
    confirmed, at `ended_ms`, wall time. `doubted`: the offset of a place whose end has an unknown
    outcome. `asked`: how often a producer here was checked. `under_way`: set while an end is being sent.
    """

    __slots__ = ("asked", "doubted", "ended_ms", "first", "newest", "shared", "under_way", "verdict")

    def __init__(self, newest: Half) -> None:
        self.newest = newest
        self.first = -1
        self.shared = False
        self.verdict: Resolution | None = None
        self.ended_ms = _NEVER_MS
        self.doubted = -1
        self.asked = 0
        self.under_way: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        verdict = self.verdict.value if self.verdict is not None else "open"
        return f"<TransactionOutcome {self.newest.message_id} {verdict} at {self.newest.commit_offset}>"

    def seen_at(self, half: Half) -> None:
        """The half message is there; a later place is the newer one."""
        if not half.checked:
            self.first = half.commit_offset
        if half.commit_offset > self.newest.commit_offset:
            self.newest = half

    def is_at(self, half: Half) -> bool:
        """Whether it is known to be, or to have been, at this place."""
        return half.commit_offset in (self.first, self.newest.commit_offset)

    def may_be_named(self, half: Half) -> bool:
        """Whether a classic producer that names this place, and its message id, means it.

        In doubt not: that is asked about once more, while what ends for another one is lost.
        """
        if self.shared or self.is_at(half):
            return self.is_at(half)
        if half.checked:
            # The check went another way.
            return self.verdict is None or half.commit_offset < self.newest.commit_offset
        # A message is sent to one place, and a check stores it behind that.
        return self.first < 0 and half.commit_offset < self.newest.commit_offset

    def may_be_asked_about(self, half: Half) -> bool:
        """Whether a transaction known only from a classic producer is this one, which a broker checks."""
        if self.newest.born_ms or self.shared or half.born_ms > self.ended_ms:
            return False
        return half.commit_offset > self.newest.commit_offset or self.is_at(half)


class TransactionOutcomes:
    """The transactions that were ended or asked about last, at most `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str, str, int], TransactionOutcome] = OrderedDict()
        self._named: OrderedDict[tuple[str, str, str], TransactionOutcome] = OrderedDict()
        """The same by broker, producer group and message id, which is all that a classic producer says."""

    def __repr__(self) -> str:
        return f"<TransactionOutcomes {len(self._known)}>"

    def __len__(self) -> int:
        return len(self._known)

    def of(self, half: Half) -> TransactionOutcome:
        """The known transaction, updated with this place.

        Time of birth and message id identify it: a client that sends again after
        a timeout uses its message id twice, and a check keeps both. For one that a classic producer names
        the birth is unknown: there the message id counts, and a reused id is recognised by times
        and places.
        """
        known = self._named_of(half) if not half.born_ms else self._born_of(half)
        known.seen_at(half)
        name = _name(half)
        other = self._named.get(name, known)
        if other is not known:
            known.shared = other.shared = True
        self._named[name] = known
        self._named.move_to_end(name)
        if len(self._named) > self._most:
            self._named.popitem(last=False)
        return known

    def _named_of(self, half: Half) -> TransactionOutcome:
        known = self._named.get(_name(half))
        return known if known is not None and known.may_be_named(half) else TransactionOutcome(half)

    def _born_of(self, half: Half) -> TransactionOutcome:
        key = (half.broker, half.topic, half.message_id, half.born_ms)
        known = self._known.get(key)
        if known is None:
            named = self._named.get(_name(half))
            if named is None or not named.may_be_asked_about(half):
                named = TransactionOutcome(half)
            known = self._known[key] = named
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known


def _name(half: Half) -> tuple[str, str, str]:
    return half.broker, half.producer_group, half.message_id or f"@{half.commit_offset}"
