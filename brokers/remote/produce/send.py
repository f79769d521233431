"""Stores messages: selects the queue, combines messages, and retries at another broker where that is safe.

A request goes to another broker only if the first one certainly did not process it, and only for messages
without a queue of their own: messages of a message group stay where their order is.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import Final

from brokers.batches import Batch, ForwardsBatches, Single, StoredBatch
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.produce.batches import in_batches, may_batch
from brokers.remote.produce.broker_latency import BrokerLatency
from brokers.remote.produce.plan import Places, SendPlanner, Unit, writable_queue
from brokers.remote.produce.queue_selector import QueueSelector, Target, led_now
from brokers.remote.produce.send_batcher import MOST_BYTES, MOST_MESSAGES, Part, SendBatcher, may_lie_anywhere
from brokers.remote.produce.send_request import (
    BatchLoad,
    Load,
    MessagesLoad,
    PackedLoad,
    SingleLoad,
    complete,
)
from brokers.remote.transactions.ids import (
    make_transaction_id,
    sent_half,
)
from popgate.answers import error_of
from popgate.clock import pause
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    DelayTooLong,
    Fault,
    GatewayError,
    PeerWireError,
)
from popgate.messages.packed_messages import PackedMessages, SentTogether
from popgate.model import Message, MessageType, Sent
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command

_NOT_DONE: Final = frozenset(
    {
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)
"""Answers to a send that did nothing, and that another broker may answer better."""
_MOVED: Final = frozenset(
    {ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NOT_LEADER_FOR_QUEUE}
)
"""Those after which the route is in doubt."""
_TOO_FEW: Final = "in-sync replicas not enough"
"""How a broker says, before it stores anything, that too few others would have it."""
_TOO_LARGE: Final = "message body size exceeded"
"""How it says, likewise, that a batch is larger than its own limit; of one message it says so by a code.
Source: RocketMQ 4.9.8 and 5.3.3, encode(MessageExtBatch), which throws."""
_TRIES_S: Final = 2.0
"""Request timeouts that a send without a deadline may take, over all brokers."""
_BUSY_REST_S: Final = 0.1
_LONGEST_REST_S: Final = 1.0
"""How long everybody rests when all brokers asked for a pause: they did nothing."""
_LONGEST_DELAY: Final = re.compile(r"max delay ([0-9]{1,15})ms")
"""In the sentence of a broker whose own limit is lower than the one we know."""


class Sender(ForwardsBatches):
    """The port's `send`."""

    def __init__(self, access: ClusterAccess, planner: SendPlanner) -> None:
        self._clock = access.clock
        self._settings = access.settings
        self._routes = access.routes
        self._client = access.client
        self._planner = planner
        self.latency = BrokerLatency()
        self._queue_selector = QueueSelector(self.latency, access.settings.zone)
        self._send_batcher = SendBatcher(self._send_gathered)

    async def stop(self) -> None:
        await self._send_batcher.stop()

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        if not messages:
            return []
        topic = messages[0].topic
        if _may_gather(topic, messages):
            return [*await self.send_packed(context, PackedMessages.pack(topic, messages))]
        return await self._send_apart(topic, messages, self._until(context))

    async def send_packed(self, context: Context, packed: PackedMessages) -> Sequence[Sent | GatewayError]:
        until = self._until(context)
        large = packed.size > MOST_BYTES or len(packed.message_ids) > MOST_MESSAGES
        if large or not may_batch(packed.topic):
            return await self._send_apart(packed.topic, packed.unpack(), until)
        outcomes = await self._send_batcher.send(packed, until)
        return outcomes if isinstance(outcomes, SentTogether) else _told(outcomes)

    async def forward_batch(self, context: Context, batch: Batch) -> StoredBatch:
        places = await self._planner.places_of(batch.topic)
        unit = Unit(writable_queue(batch.topic, places, batch.broker, batch.queue_id))
        (stored,) = await self._send_load(BatchLoad(batch), unit, self._until(context), places)
        ids = stored.message_id
        if ids.count(",") != batch.count - 1:
            ids = ""
        return StoredBatch(stored.broker, stored.queue_id, stored.offset, ids)

    async def forward_message(self, context: Context, message: Single) -> Sent:
        places = await self._planner.places_of(message.topic)
        unit = Unit(writable_queue(message.topic, places, message.broker, message.queue_id))
        (stored,) = await self._send_load(SingleLoad(message), unit, self._until(context), places)
        return stored

    # -- inside -------------------------------------------------------------------------------

    async def _send_apart(
        self, topic: str, messages: Sequence[Message], until: float
    ) -> list[Sent | GatewayError]:
        """Send what one caller sends with nothing of others, in as few requests as they fit into."""
        places = await self._planner.places_of(topic)
        results: list[Sent | GatewayError | None] = [None] * len(messages)
        units = self._planner.units(topic, messages, places, results)
        if len(units) == 1:
            await self._send_unit(topic, units[0], until, results)
        elif units:
            await asyncio.gather(*(self._send_unit(topic, unit, until, results) for unit in units))
        return _told(results)

    def _until(self, context: Context) -> float:
        if context.deadline is not None:
            return context.deadline
        return self._clock.monotonic() + _TRIES_S * self._settings.request_timeout_s

    async def _send_gathered(self, parts: Sequence[Part]) -> None:
        """Send messages for any queue as one batch; those that a broker refuses are sent again, alone."""
        first = parts[0].packed
        if len(parts) > 1 or len(first.message_ids) > 1:
            load = PackedLoad([part.packed for part in parts])
            outcomes: Sequence[Sent] | None = None
            try:
                outcomes = await self._send_load(load, Unit(None), max(part.until for part in parts))
            except BadRequest:
                pass
            except GatewayError as error:
                for part in parts:
                    if not part.done.done():
                        part.done.set_result([_own(error)] * len(part.packed.message_ids))
                return
            if outcomes is None:
                # One of them is wrong, or only they are too much together. Who has gone sends nothing.
                there = [part for part in parts if not part.done.done()]
                together = len(parts) > 1
                await asyncio.gather(*(self._send_part(part, together=together) for part in there))
                return
            at = 0
            for part in parts:
                end = at + len(part.packed.message_ids)
                if not part.done.done():
                    part.done.set_result(_part_of(outcomes, at, end))
                at = end
        else:
            await self._send_part(parts[0], together=False)

    async def _send_part(self, part: Part, *, together: bool) -> None:
        unit = Unit(None)
        unit.messages += part.packed.unpack()
        unit.at += range(len(unit.messages))
        results: list[Sent | GatewayError | None] = [None] * len(unit.messages)
        await self._send_unit(part.packed.topic, unit, part.until, results, together=together)
        if not part.done.done():
            part.done.set_result([result for result in results if result is not None])

    async def _send_unit(
        self,
        topic: str,
        unit: Unit,
        until: float,
        results: list[Sent | GatewayError | None],
        *,
        together: bool = True,
    ) -> None:
        """Send what goes to one queue, in its order; after a failure the rest is not tried.

        What is wrong with a message itself is no such failure. A batch that is refused for it, whole, is
        sent singly: one of it is wrong, or only they are too much together.
        """
        together = together and len(unit.messages) > 1 and may_batch(topic)
        batches = deque(in_batches(unit.messages, together=together))
        at = 0
        failure: GatewayError | None = None
        while batches:
            batch = batches.popleft()
            outcomes: Sequence[Sent | GatewayError]
            if failure is None:
                try:
                    outcomes = await self._send_load(MessagesLoad(batch), unit, until)
                except BadRequest as error:
                    if len(batch) > 1:
                        batches.extendleft([message] for message in reversed(batch))
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

    async def _send_load(
        self, load: Load, unit: Unit, until: float, places: Places | None = None
    ) -> Sequence[Sent]:
        """One request, at one broker after the other while that is safe. Raises the last failure."""
        clock = self._clock
        now = clock.monotonic()
        first, topic = load.first, load.topic
        without: set[str] = set()
        failure: GatewayError | None = None
        moved = False
        rest = _BUSY_REST_S
        # As they are before the first try: a new route may say otherwise after it.
        if places is None:
            places = await self._planner.places_of(topic)
        while True:
            if now >= until:
                raise failure or BrokerTimeout(f"the time to send to {topic} is over")
            target = unit.pinned or unit.chosen
            if target is None:
                target = self._queue_selector.pick(
                    places.queues,
                    places.zones,
                    now,
                    message_group=first.message_group if first is not None else "",
                    priority=first.priority if first is not None else None,
                    without=without,
                )
            if target is not None and target.broker not in without:
                try:
                    stored = await self._ask_to_store(load, target, until - now)
                except _NotDone as refused:
                    failure = refused.error
                    moved = refused.moved
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
            elif failure is None or not (unit.bound or moved) or (unit.pinned and not places.route.mappings):
                raise failure or BrokerUnavailable(f"no broker of topic {topic} takes messages now")
            else:
                # Its queue is where the hash says, or who leads it; only a new route may say otherwise.
                before = places
                self._routes.forget(topic)
                places = await self._planner.places_of(topic, anew=True)
                if places.queues == before.queues:
                    raise failure
                if unit.pinned is not None:
                    unit.pinned = led_now(unit.pinned, places.queues)
                    if unit.pinned is None:
                        raise failure
            without.clear()
            now = clock.monotonic()

    async def _ask_to_store(self, load: Load, target: Target, timeout_s: float) -> Sequence[Sent]:
        """Raises _NotDone when another broker may be asked, GatewayError for all else."""
        clock = self._clock
        broker, first = target.broker, load.first
        half = first if first is not None and first.type is MessageType.TRANSACTION else None
        # A broker refuses late commits, and counts from here: no client's clock decides that.
        born_ms = clock.now_ms() if half is not None else load.born_ms or clock.now_ms()
        code, fields, body = load.request(target.queue_id, born_ms)
        asked = clock.monotonic()
        try:
            answer = await self._client.call(
                broker,
                code,
                fields,
                body,
                timeout_s=min(timeout_s, self._settings.request_timeout_s),
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
            raise self._refusal(answer, broker, load, now)
        try:
            stored = load.stored(broker, answer.fields)
            if half is not None:
                place = sent_half(
                    half,
                    broker=broker,
                    offset_message_id=answer.fields.get("msgId", ""),
                    queue_offset=stored[0].offset,
                    born_ms=born_ms,
                    check_after_s=self._settings.transaction_check_after_s,
                )
                stored[0].transaction_id = make_transaction_id(self._settings.transaction_keys[0], place)
        except PeerWireError as error:
            raise BrokerTimeout(
                f"broker {broker} stored something for {load.topic} and said: {error}"
            ) from error
        return stored

    def _refusal(self, answer: Command, broker: str, load: Load, now: float) -> Exception:
        """What an answer that is no success means for a send."""
        topic = load.topic
        error = error_of(answer, broker=broker, topic=topic)
        if answer.code in _MOVED:
            self._routes.forget(topic)
        if answer.code in _NOT_DONE:
            self.latency.failed(broker, now)
            return _NotDone(error, moved=answer.code in _MOVED)
        if answer.code == ResponseCode.SYSTEM_ERROR and _TOO_FEW in answer.remark:
            self.latency.failed(broker, now)
            why = f"broker {broker} has too few replicas in sync to store messages"
            return _NotDone(BrokerUnavailable(why))
        if answer.code == ResponseCode.SYSTEM_ERROR and _TOO_LARGE in answer.remark:
            return BadRequest(error.sentence, Fault.BODY_TOO_LARGE)
        longest = _LONGEST_DELAY.search(answer.remark)
        if answer.code == ResponseCode.MESSAGE_ILLEGAL and longest is not None:
            due_ms = load.first.deliver_at_ms if load.first is not None else 0
            return DelayTooLong(due_ms - self._clock.now_ms(), int(longest[1]))
        return error


class _NotDone(Exception):
    """A broker surely stored nothing."""

    def __init__(self, error: GatewayError, *, moved: bool = False) -> None:
        super().__init__(error.sentence)
        self.error = error
        self.moved = moved


def _may_gather(topic: str, messages: Sequence[Message]) -> bool:
    """Whether all of them may lie anywhere and go in one request, and nothing is wrong with any."""
    first = messages[0]
    size = 0
    try:
        for message in messages:
            if (
                not may_lie_anywhere(topic, message)
                or message.producer_group != first.producer_group
                or message.sys_flag != first.sys_flag
            ):
                return False
            complete(message)
            size += len(message.body) + len(message.properties)
    except GatewayError:
        return False  # it gets an outcome of its own
    return size <= MOST_BYTES and len(messages) <= MOST_MESSAGES and may_batch(topic)


def _own(error: GatewayError) -> GatewayError:
    """The same error for one more caller: one that all of them raised would keep the frames of all."""
    other = type(error).__new__(type(error), *error.args)
    other.__dict__.update(error.__dict__)
    return other


def _part_of(outcomes: Sequence[Sent], begin: int, end: int) -> Sequence[Sent]:
    """What one caller hears of a request for several."""
    return outcomes.part(begin, end) if isinstance(outcomes, SentTogether) else outcomes[begin:end]


def _told(results: Sequence[Sent | GatewayError | None]) -> list[Sent | GatewayError]:
    """The results, or the error that is that of all."""
    outcomes = [result for result in results if result is not None]
    first = outcomes[0]
    if isinstance(first, GatewayError) and all(type(result) is type(first) for result in outcomes):
        raise first
    return outcomes
