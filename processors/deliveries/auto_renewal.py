"""Renews messages that consumers hold, for as long as they process them.

A handle is valid for the group's whole consume timeout, through every replica, so most messages
are finished before a renewal is due. A message that takes longer is renewed shortly before it
expires, up to a limit, while its client is connected; when a client uses its first handle, the
newest one is used for it. Rules: any-replica, section 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import BadRequest, GatewayError, NotFound
from popgate.model import StoredMessage
from popgate.naming import told_group
from processors.clients.client_registry import ClientKind, ClientRegistry, connection_of
from processors.deliveries.delivery_table import Delivery, DeliveryTable
from processors.deliveries.release import AT_ONCE, OURS, Releaser, raise_bugs
from processors.limits import Limits
from processors.observer import Observer

_RETRY_MS = 1_000


class Claim:
    """A request about deliveries: the handles that its client sent, those to use, and their deliveries."""

    __slots__ = ("deliveries", "handles", "receipts")

    def __init__(
        self, receipts: Sequence[str], handles: Sequence[str], deliveries: Sequence[Delivery]
    ) -> None:
        self.receipts = receipts
        self.handles = handles
        self.deliveries = deliveries


class AutoRenewal:
    """Drives the `DeliveryTable` of one processor: one timer for all renewals."""

    def __init__(
        self, broker: Broker, clients: ClientRegistry, clock: Clock, limits: Limits, observer: Observer
    ) -> None:
        self.holdings = DeliveryTable(max_held=limits.max_held, max_clients=limits.max_clients)
        self._broker = broker
        self._clients = clients
        self._clock = clock
        self._limits = limits
        self._observer = observer
        self._alarm: Timer | None = None
        self._alarm_ms = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.under_way: dict[Delivery, asyncio.Future[None]] = {}
        """Deliveries that are being renewed, and what is done when that is over: see `renewed`."""
        self.releasing = Releaser(
            broker,
            clients,
            self.holdings,
            clock,
            observer,
            grace_s=limits.release_grace_s,
            spawn=self._spawn,
            under_way=self.under_way,
        )
        self._stopped = False

    def __repr__(self) -> str:
        return f"<AutoRenewal {self.holdings!r} {self.releasing!r} tasks {len(self._tasks)}>"

    def now_ms(self) -> int:
        """The time that holdings go by: no wall time."""
        return int(self._clock.monotonic() * 1000)

    def delivered(
        self,
        context: Context,
        topic: str,
        group: str,
        messages: Sequence[StoredMessage],
        *,
        ordered: bool,
        hold_ms: int,
        until: float,
    ) -> None:
        """These go to a consumer that leaves renewing to the gateway.

        They are hidden for `hold_ms`, surely until the loop time `until`.
        """
        client_key, connection = context.client_key, connection_of(context)
        delivery = self.holdings.deliver(
            client_key,
            connection,
            topic,
            group,
            messages,
            ordered=ordered,
            hold_ms=hold_ms,
            now_ms=self.now_ms(),
            due_ms=int(until * 1000),
        )
        if delivery is not None:
            client = self._clients.get(client_key)
            if client is not None and client.connection == connection:
                delivery.over = connection
            self._put_on(delivery)

    async def renewed(self, topic: str, group: str, receipts: Sequence[str]) -> None:
        """Wait until none of these is being renewed. Called before `newest`, where any delivery is.

        A broker that makes a new handle does not finish a message by the older one meanwhile.
        """
        while (renewal := self._renewal_of(topic, group, receipts)) is not None:
            await asyncio.wait([renewal])

    def newest(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> Claim:
        """The newest handles for these; they are not renewed until `settled` reports the outcome.

        Also records what the request shows about its client.
        """
        holdings, client_key = self.holdings, context.client_key
        client = self._clients.get(client_key)
        if client is not None and client.kind is ClientKind.PUSH_CONSUMER:
            holder = holdings.seen(client_key, connection_of(context))
            self.releasing.came_back(client_key)
        else:
            holder = holdings.holder(client_key)
        if not holdings.any_held(topic, group):
            if holder is not None:
                holder.spread = True
            return Claim(receipts, receipts, ())
        handles, deliveries = list(receipts), []
        for index, receipt in enumerate(receipts):
            delivery = holdings.find(topic, group, receipt)
            if delivery is None:
                if holder is not None:
                    holder.spread = True
                continue
            delivery.finishing += 1
            deliveries.append(delivery)
            handles[index] = delivery.newest[receipt]
            if holder is None or delivery.holder is not holder:
                delivery.holder.spread = True
            else:
                delivery.used = True
                holder.finished_here = True
        return Claim(receipts, handles, deliveries)

    def settled(
        self, topic: str, group: str, claim: Claim, results: Sequence[GatewayError | None] | None
    ) -> None:
        """How a request about these ended; `results` None: unknown, so they stay as they were.

        A handle that is finished, or can never be, is forgotten; after another failure it stays.
        """
        for delivery in claim.deliveries:
            delivery.finishing -= 1
        if claim.deliveries and results is not None:
            self.holdings.finished(
                topic,
                group,
                [
                    receipt
                    for receipt, result in zip(claim.receipts, results, strict=True)
                    if result is None or isinstance(result, BadRequest | NotFound)
                ],
            )

    def seen(self, context: Context) -> None:
        """A client that may hold something was heard of, on the connection of this request."""
        client_key = context.client_key
        if self.holdings.holder(client_key) is not None:
            self.holdings.seen(client_key, connection_of(context))

    def attempt_of(self, topic: str, group: str, receipt: str) -> int | None:
        """The attempt of a delivery that this replica knows of."""
        delivery = self.holdings.find(topic, group, receipt)
        return delivery.attempt_of(receipt) if delivery is not None else None

    def returned(
        self, topic: str, group: str, receipts: Sequence[str], written: Sequence[str], answer: int
    ) -> None:
        """These did not reach their client and were returned; `written`: what else the answer had."""
        self.holdings.returned(topic, group, receipts, written, answer)

    async def stop(self) -> None:
        """Stop renewing, and wait for renewals in progress. Clients keep what they hold."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.releasing.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _renewal_of(self, topic: str, group: str, receipts: Sequence[str]) -> asyncio.Future[None] | None:
        """The renewal of one of these that is in progress; None: there is none."""
        for receipt in receipts:
            delivery = self.holdings.find(topic, group, receipt)
            if delivery is not None and delivery in self.under_way:
                return self.under_way[delivery]
        return None

    def _put_on(self, delivery: Delivery) -> None:
        ahead = min(self._limits.renew_ahead_ms, delivery.hold_ms // 2)
        self._put_on_at(delivery, delivery.due_ms - ahead)

    def _put_on_at(self, delivery: Delivery, at_ms: int) -> None:
        self.holdings.renew_at(delivery, at_ms)
        if self._alarm is None or at_ms < self._alarm_ms:
            self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        next_ms = self.holdings.next_renewal_ms()
        if next_ms is None or self._stopped:
            return
        self._alarm_ms = next_ms
        delay = max(next_ms - self.now_ms(), 10)
        self._alarm = self._clock.call_later(delay / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        due = self.holdings.due(self.now_ms())
        if due:
            self._spawn(self._renew(due))
        self._arm()

    async def _renew(self, due: Sequence[Delivery]) -> None:
        """Renew due deliveries, a few at a time, so that none waits long for a slow one."""
        for start in range(0, len(due), AT_ONCE):
            outcomes = await asyncio.gather(
                *(self._renew_due(delivery) for delivery in due[start : start + AT_ONCE]),
                return_exceptions=True,
            )
            raise_bugs(outcomes)

    async def _renew_due(self, delivery: Delivery) -> None:
        now_ms = self.now_ms()
        if now_ms >= delivery.due_ms and delivery.ahead_ms is not None:
            self._leave_behind(delivery)
            self._put_on(delivery)
            return
        client_key = delivery.holder.client_key
        there = self._clients.is_there(client_key) and not self._may_be_lost(delivery, client_key)
        hold_ms = min(delivery.hold_ms, delivery.first_ms + self._limits.max_hold_ms - now_ms)
        allowed = delivery.holder.may_be_renewed(
            ordered=delivery.ordered, acks_are_checked=self._broker.traits.acks_are_checked
        )
        if not (there and allowed) or hold_ms <= 0 or now_ms >= delivery.due_ms:
            # Not proven to be at work, or perhaps finished, or for too long, or too late: the time decides.
            self.holdings.drop(delivery)
        elif delivery.finishing:
            self._put_on_at(delivery, now_ms + _RETRY_MS)
        elif hold_ms > delivery.due_ms - now_ms:
            over = self.under_way[delivery] = asyncio.get_running_loop().create_future()
            try:
                await self._renew_one(delivery, hold_ms)
            finally:
                del self.under_way[delivery]
                over.set_result(None)
        else:
            self._put_on_at(delivery, delivery.due_ms)

    def _leave_behind(self, delivery: Delivery) -> None:
        """The time is over for what could not be renewed. The rest goes on, with its newer handles."""
        if delivery.ahead_ms is not None:
            self.holdings.finished(delivery.topic, delivery.group, delivery.behind)
            delivery.due_ms, delivery.ahead_ms, delivery.behind = delivery.ahead_ms, None, ()

    def _may_be_lost(self, delivery: Delivery, client_key: str) -> bool:
        """Whether its answer was cut off, or the client's connection broke since, and none of it was used.

        Clients that gather an answer drop what they have of one that fails, though they are there.
        Such a message must not block its message group for hours (scenario 2): its time decides.
        """
        client = self._clients.get(client_key)
        moved = client is not None and delivery.over is not None and client.connection != delivery.over
        return (moved or delivery.cut) and not delivery.used

    async def _renew_one(self, delivery: Delivery, hold_ms: int) -> None:
        renewed, behind = 0, list[str]()
        asked_ms = self.now_ms()
        # What is tried again is what was not renewed: another handle for the rest is of no use.
        firsts = list(delivery.behind or delivery.newest)
        for start in range(0, len(firsts), AT_ONCE):
            part = [first for first in firsts[start : start + AT_ONCE] if first in delivery.newest]
            outcomes = await asyncio.gather(
                *(
                    self._broker.change_invisible(
                        OURS, delivery.topic, delivery.group, delivery.newest[first], hold_ms
                    )
                    for first in part
                ),
                return_exceptions=True,
            )
            for first, outcome in zip(part, outcomes, strict=True):
                if isinstance(outcome, GatewayError):
                    self._observer.failed("renew", outcome.fault)
                if isinstance(outcome, str):
                    renewed += 1
                    if first in delivery.newest:
                        delivery.newest[first] = outcome
                elif isinstance(outcome, GatewayError) and outcome.retryable:
                    behind.append(first)
                else:
                    self.holdings.finished(delivery.topic, delivery.group, [first])
            raise_bugs(outcomes)
        if renewed:
            self._observer.renewed(delivery.topic, told_group(delivery.group), renewed)
        if delivery not in delivery.holder.deliveries:
            return  # its client left
        if renewed and delivery.ahead_ms is None:
            delivery.ahead_ms = asked_ms + hold_ms
        delivery.behind = behind
        if behind:
            self._put_on_at(delivery, self.now_ms() + _RETRY_MS)
        else:
            self._leave_behind(delivery)
            self._put_on(delivery)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
