"""Storing messages: which queue, together or alone, and elsewhere when that is safe.

A request goes to another broker only when the first one surely did not do it, and only for messages
that have no queue of their own: those of a message group stay where their order is.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence

from brokers.remote.batching import in_batches, may_batch
from brokers.remote.errors import error_of
from brokers.remote.latency import Latency
from brokers.remote.outgoing import send_request, sent
from brokers.remote.pausing import pause
from brokers.remote.picking import Picker, Target, led_now
from brokers.remote.placing import Placing, Unit
from brokers.remote.settings import RemoteSettings
from brokers.remote.transaction_ids import (
    make_transaction_id,
    sent_half,
)
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    DelayTooLong,
    GatewayError,
    PeerWireError,
)
from popgate.model import Message, MessageType, Sent
from popgate.wire.codes import ResponseCode
from popgate.wire.remoting import Command

_NOT_DONE = frozenset(
    {
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)
"""Answers to a send that did nothing, and that another broker may answer better."""
_MOVED = frozenset(
    {ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NOT_LEADER_FOR_QUEUE}
)
"""Those after which the route is in doubt."""
_TOO_FEW = "in-sync replicas not enough"
"""How a broker says, before it stores anything, that too few others would have it."""
_TRIES_S = 2.0
"""Request timeouts that a send without a deadline may take, over all brokers."""
_BUSY_REST_S = 0.1
_LONGEST_REST_S = 1.0
"""How long everybody rests when all brokers asked for a pause: they did nothing."""
_LONGEST_DELAY = re.compile(r"max delay ([0-9]{1,15})ms")
"""In the sentence of a broker whose own limit is lower than the one we know."""


class Sending(Placing):
    """The port's `send`."""

    def __init__(self, settings: RemoteSettings, *, clock: Clock) -> None:
        super().__init__(settings, clock=clock)
        self.latency = Latency()
        self._picker = Picker(self.latency, settings.zone)

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        if not messages:
            return []
        topic = messages[0].topic
        places = await self._places_of(topic)
        results: list[Sent | GatewayError | None] = [None] * len(messages)
        units = self._units(topic, messages, places, results)
        if len(units) == 1:
            await self._send_unit(context, topic, units[0], results)
        elif units:
            await asyncio.gather(*(self._send_unit(context, topic, unit, results) for unit in units))
        return _told(results)

    # -- inside -------------------------------------------------------------------------------

    async def _send_unit(
        self, context: Context, topic: str, unit: Unit, results: list[Sent | GatewayError | None]
    ) -> None:
        """Send what goes to one queue, in its order; after a failure the rest is not tried.

        What is wrong with a message itself is no such failure. A batch that is refused for it, whole, is
        sent singly: one of it is wrong, or only they are too much together.
        """
        batches = deque(in_batches(unit.messages, together=len(unit.messages) > 1 and may_batch(topic)))
        at = 0
        failure: GatewayError | None = None
        while batches:
            batch = batches.popleft()
            outcomes: Sequence[Sent | GatewayError]
            if failure is None:
                try:
                    outcomes = await self._send_batch(context, topic, batch, unit)
                except BadRequest as error:
                    if len(batch) > 1:
                        batches.extendleft([one] for one in reversed(batch))
                        continue
                    outcomes = [error]
                except GatewayError as error:
                    failure = error
                    outcomes = [error] * len(batch)
            else:
                why = f"not sent, because one before it was not stored: {failure.sentence}"
                outcomes = [BrokerUnavailable(why)] * len(batch)
            for outcome in outcomes:
                results[unit.at[at]] = outcome
                at += 1

    async def _send_batch(
        self, context: Context, topic: str, batch: Sequence[Message], unit: Unit
    ) -> list[Sent]:
        """One request, at one broker after the other while that is safe. Raises the last failure."""
        clock = self.clock
        now = clock.monotonic()
        until = context.deadline
        if until is None:
            until = now + _TRIES_S * self.settings.request_timeout_s
        without: set[str] = set()
        failure: GatewayError | None = None
        rest = _BUSY_REST_S
        places = await self._places_of(topic)
        first = batch[0]
        while True:
            if now >= until:
                raise failure or BrokerTimeout(f"the time to send to {topic} is over")
            target = (
                unit.pinned
                or unit.chosen
                or self._picker.pick(
                    places.queues,
                    places.zones,
                    now,
                    message_group=first.message_group,
                    priority=first.priority,
                    without=without,
                )
            )
            if target is not None and target.broker not in without:
                try:
                    stored = await self._ask_to_store(batch, target, until - now)
                except _NotDone as refused:
                    failure = refused.error
                else:
                    unit.chosen = target
                    return stored
                unit.chosen = None
                without.add(target.broker)
                if not unit.bound:
                    now = clock.monotonic()
                    continue
            # Whoever could take it was asked.
            if isinstance(failure, BrokerBusy) and clock.monotonic() + rest < until:
                await pause(clock, rest)
                rest = min(rest * 2, _LONGEST_REST_S)
            elif not unit.bound or failure is None or (unit.pinned and not places.route.mappings):
                raise failure or BrokerUnavailable(f"no broker of topic {topic} takes messages now")
            else:
                # Its queue is where the hash says, or who leads it; only a new route may say otherwise.
                before = places
                self.routes.forget(topic)
                places = await self._places_of(topic, anew=True)
                if places.queues == before.queues:
                    raise failure
                if unit.pinned is not None:
                    unit.pinned = led_now(unit.pinned, places.queues)
                    if unit.pinned is None:
                        raise failure
            without.clear()
            now = clock.monotonic()

    async def _ask_to_store(self, batch: Sequence[Message], target: Target, timeout_s: float) -> list[Sent]:
        """Raises _NotDone when another broker may be asked, GatewayError for all else."""
        clock = self.clock
        broker, topic = target.broker, batch[0].topic
        half = batch[0].type is MessageType.TRANSACTION
        # A broker refuses late commits, and counts from here: no client's clock decides that.
        born_ms = clock.now_ms() if half else batch[0].born_ms or clock.now_ms()
        code, fields, body = send_request(batch, target.queue_id, born_ms)
        asked = clock.monotonic()
        try:
            answer = await self.callings.call(
                broker,
                code,
                fields,
                body,
                timeout_s=min(timeout_s, self.settings.request_timeout_s),
                named="n",
            )
        except (BrokerUnavailable, BrokerBusy) as error:
            self.latency.failed(broker, clock.monotonic())
            raise _NotDone(error) from error
        except BrokerTimeout:
            self.latency.failed(broker, clock.monotonic())
            raise
        now = clock.monotonic()
        self.latency.answered(broker, now - asked, now)
        if answer.code != ResponseCode.SUCCESS:
            raise self._refusal(answer, broker, batch[0], now)
        try:
            stored = sent(batch, broker, answer.fields)
            if half:
                place = sent_half(
                    batch[0],
                    broker=broker,
                    offset_message_id=answer.fields.get("msgId", ""),
                    queue_offset=stored[0].offset,
                    born_ms=born_ms,
                    check_after_s=self.settings.transaction_check_after_s,
                )
                stored[0].transaction_id = make_transaction_id(self.settings.transaction_keys[0], place)
        except PeerWireError as error:
            raise BrokerTimeout(f"broker {broker} stored something for {topic} and said: {error}") from error
        return stored

    def _refusal(self, answer: Command, broker: str, message: Message, now: float) -> Exception:
        """What an answer that is no success means for a send."""
        topic = message.topic
        error = error_of(answer, broker=broker, topic=topic)
        if answer.code in _MOVED:
            self.routes.forget(topic)
        if answer.code in _NOT_DONE:
            self.latency.failed(broker, now)
            return _NotDone(error)
        if answer.code == ResponseCode.SYSTEM_ERROR and _TOO_FEW in answer.remark:
            self.latency.failed(broker, now)
            why = f"broker {broker} has too few replicas in sync to store messages"
            return _NotDone(BrokerUnavailable(why))
        longest = _LONGEST_DELAY.search(answer.remark)
        if answer.code == ResponseCode.MESSAGE_ILLEGAL and longest is not None:
            return DelayTooLong(message.deliver_at_ms - self.clock.now_ms(), int(longest[1]))
        return error


class _NotDone(Exception):
    """A broker surely stored nothing."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(error.sentence)
        self.error = error


def _told(results: Sequence[Sent | GatewayError | None]) -> list[Sent | GatewayError]:
    """The results, or the error that is that of all."""
    told = [result for result in results if result is not None]
    first = told[0]
    if isinstance(first, GatewayError) and all(type(result) is type(first) for result in told):
        raise first
    return told
