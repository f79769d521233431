"""Deliveries of this replica to consumers that leave renewing to it: soft state, bounded.

It records which messages were delivered and finished, on which connections, and returns
the newest handle of a delivery, deliveries due for renewal, and those of a departed client that may be freed.
Its times are those of the monotonic clock, in ms: the wall clock may be set while messages are held.
Rules: any-replica, section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from popgate.model import StoredMessage

_STEP_MS = 250
"""Renewals are kept by steps of this; a delivery is renewed well before its time is over."""


@dataclass(slots=True, eq=False)
class Holder:
    """A client, by what it was seen doing through this replica."""

    client_key: str
    connection: Hashable
    deliveries: dict[Delivery, None] = field(default_factory=dict)
    spread: bool = False
    """It was seen on another connection, or finished what this replica did not give it."""
    shared: bool = False
    """Another client uses its connection: there may be a proxy in between."""
    finished_here: bool = False
    """It finished something over its connection, so its acknowledgements come here."""

    def may_be_freed(self, *, said_so: bool, acks_are_checked: bool) -> bool:
        """Whether its messages may be freed after it left.

        A broker that checks acknowledgements never redelivers a finished message; then a
        client that announces its end on its own connection is enough. Otherwise there must be no sign that
        the client used another gateway: a late message is better than one that two clients process.
        """
        if self.spread:
            return False
        if acks_are_checked:
            return said_so or not self.shared
        return not self.shared and self.finished_here

    def may_be_renewed(self, *, ordered: bool, acks_are_checked: bool) -> bool:
        """Whether a renewal of its messages certainly makes no finished one visible again.

        A client that was seen at another replica may have finished a message there. A broker that checks
        acknowledgements refuses such a renewal, and RocketMQ ignores it for an ordered group; for any other
        group it hides the finished message again, and delivers it later.
        """
        return not self.spread or ordered or acks_are_checked


@dataclass(slots=True, eq=False)
class Delivery:
    """The messages of one answer that are not finished.

    `ordered`: it went to an ordered group. `due_ms`: until then they are surely held. `newest`: from the
    handle that the client got to the one in use. `attempts` has those above 1. `finishing`: requests under
    way about them; they are not renewed meanwhile. `over`: the connection it went over, where that was the
    one of the client's stream; `used`: the client came with one of its handles, so it has them.
    `repeated`: in how many earlier answers a handle was that were not cut off, where a receive was repeated.
    `answer`: the `id` of its first message, which tells it from those. `cut`: it was not written to its end.
    `behind`: those that could not be renewed with the others, which are surely held until `ahead_ms`.
    """

    holder: Holder
    topic: str
    group: str
    ordered: bool
    hold_ms: int
    first_ms: int
    due_ms: int
    newest: dict[str, str]
    attempts: dict[str, int]
    step: int = -1
    finishing: int = 0
    over: Hashable | None = None
    used: bool = False
    repeated: dict[str, int] | None = None
    answer: int = 0
    cut: bool = False
    behind: Sequence[str] = ()
    ahead_ms: int | None = None

    def attempt_of(self, receipt: str) -> int:
        return self.attempts.get(receipt, 1)


class DeliveryTable:
    """Deliveries by handle, by client and by the time of their renewal."""

    def __init__(self, *, max_held: int, max_clients: int) -> None:
        self.max_held = max_held
        self.max_clients = max_clients
        self._by_receipt: dict[tuple[str, str], dict[str, Delivery]] = {}
        self._holders: dict[str, Holder] = {}
        self._on_connection: dict[object, set[str]] = {}
        self._steps: dict[int, dict[Delivery, None]] = {}
        self._turned_away = 0
        self.held = 0

    def __repr__(self) -> str:
        return f"<DeliveryTable held {self.held} clients {len(self._holders)}>"

    def deliver(
        self,
        client_key: str,
        connection: object,
        topic: str,
        group: str,
        messages: Sequence[StoredMessage],
        *,
        ordered: bool,
        hold_ms: int,
        now_ms: int,
        due_ms: int,
    ) -> Delivery | None:
        """Remember an answer; None when there is no room. Its renewal is put on with `renew_at`."""
        holder = self.seen(client_key, connection)
        if holder is None or self.held + len(messages) > self.max_held:
            if holder is not None:
                # What is not remembered will be finished as if it came from elsewhere.
                holder.spread = True
            return None
        newest = {message.receipt: message.receipt for message in messages}
        delivery = Delivery(
            holder,
            topic,
            group,
            ordered,
            hold_ms,
            now_ms,
            due_ms,
            newest,
            {m.receipt: m.attempt for m in messages if m.attempt > 1},
        )
        delivery.answer = id(messages[0]) if messages else 0
        ledger = self._by_receipt.setdefault((topic, group), {})
        for receipt in newest:
            # An ordered receive that is repeated gives the same handles again.
            old = ledger.get(receipt)
            if old is not None:
                delivery.first_ms = min(delivery.first_ms, old.first_ms)
                delivery.due_ms = min(delivery.due_ms, old.due_ms)
                # One that was cut off is not returned again, and nobody holds what it left.
                if earlier := (old.repeated or {}).get(receipt, 0) + (not old.cut):
                    delivery.repeated = delivery.repeated or {}
                    delivery.repeated[receipt] = earlier
                self._take(ledger, receipt)
            ledger[receipt] = delivery
        holder.deliveries[delivery] = None
        self.held += len(newest)
        return delivery

    def seen(self, client_key: str, connection: object) -> Holder | None:
        """Record a client on a connection; None when there are too many clients."""
        holder = self._holders.get(client_key)
        if holder is None:
            if len(self._holders) >= self.max_clients and not self._make_room():
                return None
            holder = self._holders[client_key] = Holder(client_key, connection)
        elif holder.connection == connection:
            return holder
        elif holder.deliveries:
            holder.spread = True
            self._share(self._on_connection.get(connection, ()))
            return holder
        else:
            # It holds nothing: a client that came back over a new connection begins anew.
            self._leave_connection(holder)
            holder.connection = connection
            holder.spread = holder.shared = holder.finished_here = False
        mates = self._on_connection.setdefault(connection, set())
        mates.add(client_key)
        if len(mates) > 1:
            self._share(mates)
        return holder

    def find(self, topic: str, group: str, receipt: str) -> Delivery | None:
        ledger = self._by_receipt.get((topic, group))
        return ledger.get(receipt) if ledger is not None else None

    def any_held(self, topic: str, group: str) -> bool:
        return (topic, group) in self._by_receipt

    def finished(self, topic: str, group: str, receipts: Iterable[str]) -> int:
        """These are no longer held, for whatever reason; how many of them were known."""
        ledger = self._by_receipt.get((topic, group))
        if ledger is None:
            return 0
        known = 0
        for receipt in receipts:
            if receipt in ledger:
                self._take(ledger, receipt)
                known += 1
        if not ledger:
            del self._by_receipt[topic, group]
        return known

    def returned(
        self,
        topic: str,
        group: str,
        receipts: Iterable[str],
        written: Iterable[str] = (),
        answer: int = 0,
    ) -> None:
        """These did not reach their client. What a repeated receive got as well is held by that one.

        `written`: what was written of the same answer, which was cut off. `answer`: see `Delivery`.
        """
        over = []
        for receipt in receipts:
            delivery = self.find(topic, group, receipt)
            if delivery is None:
                continue
            repeated = delivery.repeated
            if repeated and repeated.get(receipt):
                repeated[receipt] -= 1
                # Who repeats a receive has not got the one before: if this is the last one, all is lost.
                delivery.cut = delivery.cut or delivery.answer == answer
            else:
                delivery.cut = True
                over.append(receipt)
        for receipt in written:
            delivery = self.find(topic, group, receipt)
            if delivery is not None and (
                delivery.answer == answer or not (delivery.repeated or {}).get(receipt)
            ):
                delivery.cut = True
        self.finished(topic, group, over)

    def renew_at(self, delivery: Delivery, at_ms: int) -> None:
        """Put a delivery on for renewal, instead of when it was on before."""
        self._take_off(delivery)
        if delivery.newest:
            delivery.step = at_ms // _STEP_MS
            self._steps.setdefault(delivery.step, {})[delivery] = None

    def next_renewal_ms(self) -> int | None:
        """When the first delivery is on for renewal."""
        return (min(self._steps) + 1) * _STEP_MS if self._steps else None

    def due(self, now_ms: int) -> list[Delivery]:
        """Remove and return the deliveries that are due for renewal."""
        steps = sorted(step for step in self._steps if (step + 1) * _STEP_MS <= now_ms)
        deliveries = [delivery for step in steps for delivery in self._steps.pop(step)]
        for delivery in deliveries:
            delivery.step = -1
        return deliveries

    def holder(self, client_key: str) -> Holder | None:
        return self._holders.get(client_key)

    def drop(self, delivery: Delivery) -> None:
        """Forget a delivery: its handles are good until their time, and that is all."""
        self.finished(delivery.topic, delivery.group, list(delivery.newest))

    def forget(self, client_key: str) -> list[Delivery]:
        """The client is gone: forget it, and return what it held."""
        holder = self._holders.pop(client_key, None)
        if holder is None:
            return []
        self._leave_connection(holder)
        deliveries = list(holder.deliveries)
        for delivery in deliveries:
            kept = dict(delivery.newest)
            self.drop(delivery)
            delivery.newest = kept
        return deliveries

    def sweep(self, client_of: Callable[[str], object | None]) -> None:
        """Forget those who hold nothing and are no known clients."""
        idle = [name for name, holder in self._holders.items() if not holder.deliveries]
        for client_key in idle:
            if client_of(client_key) is None:
                self.forget(client_key)

    @property
    def holders(self) -> int:
        """How many clients are remembered for what they hold, or held."""
        return len(self._holders)

    def longest_held_ms(self, now_ms: int) -> int:
        """How long the delivery held longest has been held."""
        first = (next(iter(h.deliveries)).first_ms for h in self._holders.values() if h.deliveries)
        return now_ms - min(first, default=now_ms)

    def ages_by_group(self, now_ms: int, most: int) -> dict[tuple[str, str], int]:
        """How long the oldest answer of each topic and group has been held, in ms; of `most` of them."""
        first = ((key, next(iter(ledger.values()))) for key, ledger in self._by_receipt.items() if ledger)
        return {key: now_ms - delivery.first_ms for key, delivery in islice(first, most)}

    def _take(self, ledger: dict[str, Delivery], receipt: str) -> None:
        delivery = ledger.pop(receipt)
        if delivery.newest.pop(receipt, None) is not None:
            self.held -= 1
        if not delivery.newest:
            delivery.holder.deliveries.pop(delivery, None)
            self._take_off(delivery)

    def _take_off(self, delivery: Delivery) -> None:
        step = self._steps.get(delivery.step)
        if step is not None:
            step.pop(delivery, None)
            if not step:
                del self._steps[delivery.step]
        delivery.step = -1

    def _share(self, client_keys: Iterable[str]) -> None:
        for client_key in client_keys:
            holder = self._holders.get(client_key)
            if holder is not None:
                holder.shared = True

    def _leave_connection(self, holder: Holder) -> None:
        mates = self._on_connection.get(holder.connection)
        if mates is not None:
            mates.discard(holder.client_key)
            if not mates:
                del self._on_connection[holder.connection]

    def _make_room(self) -> bool:
        # Looking through all of them is dear, so not every newcomer pays for it.
        self._turned_away += 1
        if self._turned_away % 256 != 1:
            return False
        for client_key in [c for c, holder in self._holders.items() if not holder.deliveries]:
            self.forget(client_key)
        return len(self._holders) < self.max_clients
