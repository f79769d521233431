"""Frees the messages that a client held when it leaves: at once when it says so, else after a grace period.

Never more than `Holder.may_be_freed` allows, and never retried: after an unknown outcome a
second attempt could undo an acknowledgement. Rules: any-replica, section 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence

from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.naming import told_group
from processors.clients.client_registry import ClientHandle, ClientRegistry
from processors.deliveries.delivery_table import Delivery, DeliveryTable
from processors.observer import Observer

AT_ONCE = 64
"""Renewals and releases asked of the broker together."""

OURS = Context(door="gateway")
"""The circumstances of what the gateway does by itself."""

Spawn = Callable[[Coroutine[object, object, None]], None]


class Releaser:
    """Decides about clients that left. A timer per client whose stream broke, none for others."""

    def __init__(
        self,
        broker: Broker,
        clients: ClientRegistry,
        holdings: DeliveryTable,
        clock: Clock,
        observer: Observer,
        *,
        grace_s: float,
        spawn: Spawn,
        under_way: Mapping[Delivery, asyncio.Future[None]],
    ) -> None:
        """`under_way`: deliveries that are being renewed, until each future is done."""
        self._broker = broker
        self._clients = clients
        self._holdings = holdings
        self._clock = clock
        self._observer = observer
        self.grace_s = grace_s
        self._spawn = spawn
        self._under_way = under_way
        self._graces: dict[str, Timer] = {}
        self._draining = False
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Releaser graces {len(self._graces)}>"

    def left(self, handle: ClientHandle, said_so: bool) -> None:
        """A client announced its end, or its stream ended. A `ClientRegistry.on_leave` listener."""
        if self._holdings.holder(handle.key) is None or self._stopped:
            return
        self.came_back(handle.key)
        if said_so:
            self._spawn(self._free(handle, said_so=True))
        elif not self._draining:
            self._give_grace(handle, self._clock.monotonic())

    def came_back(self, client_key: str) -> None:
        """The client shows life: it was not lost."""
        if self._graces:
            timer = self._graces.pop(client_key, None)
            if timer is not None:
                timer.cancel()

    def drain(self) -> None:
        """From now on streams end because this replica stops: their clients are alive and go elsewhere."""
        self._draining = True
        for timer in self._graces.values():
            timer.cancel()
        self._graces.clear()

    def stop(self) -> None:
        self._stopped = True
        self.drain()

    def _give_grace(self, handle: ClientHandle, lost: float) -> None:
        self._graces[handle.key] = self._clock.call_later(
            self.grace_s, lambda: self._grace_over(handle, lost)
        )

    def _grace_over(self, handle: ClientHandle, lost: float) -> None:
        key = handle.key
        self._graces.pop(key, None)
        current = self._clients.get(key)
        if current is not None and (current is not handle or current.alive):
            return
        if self._clients.polls(key):
            # Some clients close their stream and go on: an open poll shows that this one is there.
            self._give_grace(handle, lost)
        elif self._clients.last_seen(key) <= lost:
            self._spawn(self._free(handle, said_so=False))

    async def _free(self, handle: ClientHandle, *, said_so: bool) -> None:
        holder = self._holdings.holder(handle.key)
        if holder is None:
            return
        if holder.connection != handle.connection:
            holder.spread = True
        allowed = holder.may_be_freed(said_so=said_so, acks_are_checked=self._broker.traits.acks_are_checked)
        deliveries = self._holdings.forget(handle.key)
        if allowed:
            for delivery in deliveries:
                # An acknowledgement that is still tried again must not come too late for what it is about.
                if not delivery.finishing:
                    if (renewal := self._under_way.get(delivery)) is not None:
                        # It makes another handle.
                        await asyncio.wait([renewal])
                    await self._free_one(delivery)

    async def _free_one(self, delivery: Delivery) -> None:
        handles = list(delivery.newest.values())
        freed = 0
        for start in range(0, len(handles), AT_ONCE):
            outcomes = await asyncio.gather(
                *(
                    self._broker.change_invisible(OURS, delivery.topic, delivery.group, handle, 0)
                    for handle in handles[start : start + AT_ONCE]
                ),
                return_exceptions=True,
            )
            raise_bugs(outcomes)
            freed += sum(1 for outcome in outcomes if isinstance(outcome, str))
        if freed:
            self._observer.released(delivery.topic, told_group(delivery.group), freed)


def raise_bugs(outcomes: Sequence[object]) -> None:
    """Raise gathered exceptions that are no `GatewayError`: those are outcomes, all others are bugs."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, GatewayError):
            raise outcome
