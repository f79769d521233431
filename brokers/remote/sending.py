"""Storing messages: which queue, together or alone, and elsewhere when that is safe.

A request goes to another broker only when the first one surely did not do it, and only for messages
that have no queue of their own: those of a message group stay where their order is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from brokers.remote.batching import in_batches, is_held_back, may_batch
from brokers.remote.errors import error_of
from brokers.remote.latency import Latency
from brokers.remote.outgoing import complete, send_request, sent
from brokers.remote.picking import Picker, Target, writable_queues, zones_of
from brokers.remote.registering import Registering
from brokers.remote.settings import RemoteSettings
from brokers.remote.transaction_ids import (
    half_properties,
    make_transaction_id,
    producer_group_of,
    sent_half,
)
from brokers.traits import Traits
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    DelayTooLong,
    Forbidden,
    GatewayError,
    PeerWireError,
    shown,
)
from popgate.model import Message, MessageType, Sent
from popgate.wire.codes import ResponseCode
from popgate.wire.remoting import Command
from popgate.wire.routes import TopicRoute

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
_TRIES_S = 2.0
"""Request timeouts that a send without a deadline may take, over all brokers."""
_MOST_TOPICS = 4_096
_LONGEST_DELAY = re.compile(r"max delay ([0-9]{1,15})ms")
"""In the sentence of a broker whose own limit is lower than the one we know."""


@dataclass(slots=True, frozen=True)
class _Places:
    """Where a topic can be written to, worked out once for each route."""

    route: TopicRoute
    queues: tuple[Target, ...]
    zones: dict[str, str]


class _Unit:
    """Messages for one queue, by their places in the call. `pinned`: the queue that the caller names."""

    __slots__ = ("at", "messages", "pinned")

    def __init__(self, pinned: Target | None) -> None:
        self.pinned = pinned
        self.messages: list[Message] = []
        self.at: list[int] = []

    @property
    def bound(self) -> bool:
        """Whether it may go nowhere else."""
        return self.pinned is not None or bool(self.messages[0].message_group)


class Sending(Registering):
    """The port's `send`."""

    traits: Traits

    def __init__(self, settings: RemoteSettings, *, clock: Clock) -> None:
        super().__init__(settings, clock=clock)
        self.latency = Latency()
        self._picker = Picker(self.latency, settings.zone)
        self._places: dict[str, _Places] = {}

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

    async def _places_of(self, topic: str, *, anew: bool = False) -> _Places:
        """Raises TopicNotFound, Forbidden (nothing to write to), BrokerUnavailable."""
        route = await (self.routes.now(topic) if anew else self.routes.of(topic))
        places = self._places.get(topic)
        if places is None or places.route is not route:
            if len(self._places) >= _MOST_TOPICS:
                self._places.clear()
            places = self._places[topic] = _Places(route, writable_queues(topic, route), zones_of(route))
        if not places.queues:
            if any(queues.writable and queues.write_queues for queues in route.queues):
                raise BrokerUnavailable(f"no broker of topic {topic} has a master that takes messages now")
            raise Forbidden(f"topic {topic} is not writable")
        return places

    def _units(
        self,
        topic: str,
        messages: Sequence[Message],
        places: _Places,
        results: list[Sent | GatewayError | None],
    ) -> list[_Unit]:
        """Who goes where, and with whom. What cannot go anywhere gets its result."""
        units: dict[object, _Unit] = {}
        now_ms = self.clock.now_ms()
        for at, message in enumerate(messages):
            try:
                pinned = self._prepared(topic, message, places, now_ms)
            except GatewayError as error:
                results[at] = error
                continue
            key: object
            if is_held_back(message):
                key = at
            elif pinned is not None:
                key = pinned
            elif message.message_group:
                key = message.message_group
            else:
                key = message.priority
            unit = units.get(key)
            if unit is None:
                unit = units[key] = _Unit(pinned)
            unit.messages.append(message)
            unit.at.append(at)
        return list(units.values())

    def _prepared(self, topic: str, message: Message, places: _Places, now_ms: int) -> Target | None:
        """Make a message ready; the queue that it names. Raises BadRequest, PropertiesTooLarge."""
        if message.topic != topic:
            raise BadRequest(f"messages for {topic} and other topics cannot be sent together")
        delay_ms, longest_ms = message.deliver_at_ms - now_ms, self.traits.max_delay_ms
        if delay_ms > longest_ms:
            raise DelayTooLong(delay_ms, longest_ms)
        complete(message)
        if message.type is MessageType.TRANSACTION:
            message.properties = half_properties(message, self.settings.transaction_check_after_s)
            self.register.expect_checks(topic, producer_group_of(message))
        if message.queue_id < 0:
            return None
        for target in places.queues:
            if target.queue_id == message.queue_id and message.broker in ("", target.broker):
                return target
        where = f" at broker {shown(message.broker)}" if message.broker else ""
        raise BadRequest(f"topic {topic} has no writable queue {message.queue_id}{where}")

    async def _send_unit(
        self, context: Context, topic: str, unit: _Unit, results: list[Sent | GatewayError | None]
    ) -> None:
        """Send what goes to one queue, in its order; after a failure the rest is not tried."""
        batches = in_batches(unit.messages, together=len(unit.messages) > 1 and may_batch(topic))
        at = 0
        failure: GatewayError | None = None
        for batch in batches:
            outcomes: Sequence[Sent | GatewayError]
            if failure is None:
                try:
                    outcomes = await self._send_batch(context, topic, batch, unit)
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
        self, context: Context, topic: str, batch: Sequence[Message], unit: _Unit
    ) -> list[Sent]:
        """One request, at one broker after the other while that is safe. Raises the last failure."""
        clock = self.clock
        now = clock.monotonic()
        until = context.deadline
        if until is None:
            until = now + _TRIES_S * self.settings.request_timeout_s
        without: set[str] = set()
        failure: GatewayError | None = None
        places = await self._places_of(topic)
        first = batch[0]
        while True:
            if now >= until:
                raise failure or BrokerTimeout(f"the time to send to {topic} is over")
            target = unit.pinned or self._picker.pick(
                places.queues,
                places.zones,
                now,
                message_group=first.message_group,
                priority=first.priority,
                without=without,
            )
            if target is None:
                raise failure or BrokerUnavailable(f"no broker of topic {topic} takes messages now")
            try:
                return await self._ask_to_store(context, batch, target, until - now)
            except _NotDone as refused:
                failure = refused.error
            without.add(target.broker)
            if unit.pinned is not None:
                raise failure
            now = clock.monotonic()
            if unit.bound:
                # Its queue is where the hash says; only a new route may say otherwise.
                before = places
                self.routes.forget(topic)
                places = await self._places_of(topic, anew=True)
                if places.queues == before.queues:
                    raise failure
                without.clear()

    async def _ask_to_store(
        self, context: Context, batch: Sequence[Message], target: Target, timeout_s: float
    ) -> list[Sent]:
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
