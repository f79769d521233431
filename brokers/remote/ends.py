"""How transactions ended through this replica: soft state, so that what is told twice is done once.

A broker cannot tell a second commit from a first, and a check stores the half message again, so that a
commit of the older place and one of the newer are two messages (any-replica, section 2). What is known
here keeps that from happening where it can; losing it costs what the documentation names, never a message.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from brokers.remote.transaction_ids import Half
from popgate.model import Resolution


class Ending:
    """One transaction. `newest`: the place of its half message that counts, as far as known here.

    `verdict`: how it ended, for certain. `doubted`: the offset of a place whose end nobody knows the
    outcome of. `asked`: how often a producer here was asked. `under_way`: set while a broker is told.
    """

    __slots__ = ("asked", "doubted", "newest", "under_way", "verdict")

    def __init__(self, newest: Half) -> None:
        self.newest = newest
        self.verdict: Resolution | None = None
        self.doubted = -1
        self.asked = 0
        self.under_way: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        verdict = self.verdict.value if self.verdict is not None else "open"
        return f"<Ending {self.newest.message_id} {verdict} at {self.newest.commit_offset}>"

    def seen_at(self, half: Half) -> None:
        """The half message is there; a later place is the newer one."""
        if half.commit_offset > self.newest.commit_offset:
            self.newest = half


class Ends:
    """The transactions that were ended or asked about last, at most `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str, str, int], Ending] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Ends {len(self._known)}>"

    def __len__(self) -> int:
        return len(self._known)

    def of(self, half: Half) -> Ending:
        """What is known of the transaction, with this place taken in.

        Time of birth and message id make sure that it is the same one: a client that sends again after
        a timeout uses its message id twice, and a check keeps both.
        """
        key = (half.broker, half.topic, half.message_id, half.born_ms)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Ending(half)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
            known.seen_at(half)
        return known
