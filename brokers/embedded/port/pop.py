"""Takes and settles messages: pop, acknowledge, hide, return, dead-letter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.engine.facet import Facet
from brokers.embedded.engine.pop_checks import (
    LONGEST_INVISIBLE_MS,
    admit,
    bytes_for,
    check_request,
    illegal_invisible_time,
)
from brokers.embedded.groups.entries import Entry
from brokers.embedded.groups.group_topic import GroupTopic
from brokers.embedded.groups.ledger import Ledger
from brokers.embedded.groups.pop_attempt import PopAttempt, receipt_head
from brokers.embedded.groups.receipts import encode_handle, expired, find_delivery, find_undelivered
from brokers.embedded.lite_port.settle import LiteSettlement
from popgate.context import Context
from popgate.errors import GatewayError, NotFound, TooManyRequests
from popgate.groups.group_config import PRIORITY_FACTOR
from popgate.lite import takes_lite_topics
from popgate.model import MessageType, Pop, StoredMessage

_PRIORITY = MessageType.PRIORITY
_FIRST_LOOKS = 64
_PATIENCE_S = 1.0
"""How long a pop that may not wait looks through messages that do not pass its filter."""


class PopFacet(Facet):
    """The port's `Store`, without sending."""

    _lite_settlement: LiteSettlement

    async def pop(self, context: Context, request: Pop) -> list[StoredMessage]:
        engine = self._engine
        check_request(request)
        until = request.wait_until
        patience = engine.clock.monotonic() + _PATIENCE_S if until is None else until
        wake = 0
        looks = engine.settings.max_scan
        if len(engine.turns):
            # Others look through their backlog already: a first look is a short one.
            looks = min(looks, _FIRST_LOOKS)
        while True:
            topic, group = admit(engine, request)
            share = engine.shares.share(topic, group)
            try:
                max_bytes = bytes_for(context, request.max_bytes)
            except TooManyRequests as error:
                if error.alone:
                    engine.waiting.pass_on(topic.id, group.id, wake)
                raise
            want = self._take(context, request, share, max_bytes, looks)
            goes_on = want.more and not want.taken and engine.clock.monotonic() < patience
            if wake and not goes_on and (want.refused or _has_work(share)):
                engine.waiting.pass_on(topic.id, group.id, wake)
            if want.taken:
                taken = max_bytes - want.bytes_left
                if context.allowance is not None:
                    context.allowance.add(taken)
                if await self._keep(want):
                    return want.taken
                if context.allowance is not None:
                    context.allowance.add(-taken)
                continue
            if goes_on:
                try:
                    await engine.turns.next()
                except asyncio.CancelledError:
                    engine.waiting.pass_on(topic.id, group.id, wake)
                    raise
                looks = engine.settings.max_scan
                continue
            if until is None or engine.clock.monotonic() >= until:
                return []
            wake = await engine.waiting.wait(
                topic.id, group.id, until, queue_id=request.queue_id, room=request.max_messages
            )
            if not wake:
                return []

    async def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        engine = self._engine
        share, held_topic, held_group, now_ms = self._find_share(topic, group)
        if takes_lite_topics(held_group.config, topic):
            return await self._lite_settlement.ack(held_topic, held_group, receipts)
        broker = engine.settings.name
        results: list[GatewayError | None] = []
        failed = 0
        for handle in receipts:
            try:
                delivery = find_delivery(share, held_topic, broker, handle, now_ms)
                if delivery is not None:
                    delivery[0].finish(delivery[1], now_ms)
                results.append(None)
            except GatewayError as error:
                results.append(error)
                failed += 1
        if failed < len(results):
            # Also when all were finished before: that may not have been written yet.
            engine.wake_freed()
            await engine.settled()
        return results

    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> str:
        engine = self._engine
        share, held_topic, held_group, now_ms = self._find_share(topic, group)
        if not 0 <= invisible_ms <= LONGEST_INVISIBLE_MS:
            raise illegal_invisible_time(invisible_ms)
        if takes_lite_topics(held_group.config, topic):
            return await self._lite_settlement.change_invisible(
                held_topic, held_group, receipt, invisible_ms, suspend=suspend
            )
        delivery = find_delivery(share, held_topic, engine.settings.name, receipt, now_ms)
        if delivery is None:
            raise expired(receipt)
        ledger, offset, entry = delivery
        try:
            again = ledger.hide(offset, entry, now_ms + invisible_ms, now_ms, suspend=suspend)
        except Exception as error:
            engine.abandon(error)
            raise
        engine.wake_freed()
        engine.arm()
        await engine.settled()
        return encode_handle(ledger, offset, again, engine.settings.name)

    async def give_back(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> int:
        engine = self._engine
        try:
            share, held_topic, held_group, now_ms = self._find_share(topic, group)
        except NotFound:
            return 0
        if takes_lite_topics(held_group.config, topic):
            return await self._lite_settlement.give_back(held_topic, held_group, receipts)
        freed = 0
        for handle in receipts:
            delivery = find_undelivered(share, held_topic, engine.settings.name, handle)
            if delivery is not None and _is_let_go(*delivery):
                ledger, offset, entry = delivery
                ledger.free(offset, entry, now_ms)
                freed += 1
        if freed:
            engine.wake_freed()
            await engine.settled()
        return freed

    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        engine = self._engine
        share, held_topic, held_group, now_ms = self._find_share(topic, group)
        if takes_lite_topics(held_group.config, topic):
            await self._lite_settlement.dead_letter(held_topic, held_group, receipt)
            return
        delivery = find_delivery(share, held_topic, engine.settings.name, receipt, now_ms)
        if delivery is None:
            raise expired(receipt)
        ledger, offset, _ = delivery
        try:
            ledger.bury(offset, now_ms)
        except Exception as error:
            engine.abandon(error)
            raise
        engine.wake_freed()
        await engine.settled()

    # -- inside -------------------------------------------------------------------------------

    def _find_share(self, topic_name: str, group_name: str) -> tuple[GroupTopic | None, Topic, Group, int]:
        """What the group has of the topic, the two, and the time. Raises TopicNotFound, GroupNotFound."""
        engine = self._engine
        engine.check_writable()
        topic, group = engine.catalogue.topic(topic_name), engine.catalogue.group(group_name)
        return engine.shares.get(topic.id, group.id), topic, group, engine.steady.now_ms()

    def _take(
        self, context: Context, request: Pop, share: GroupTopic, max_bytes: int, looks: int
    ) -> PopAttempt:
        """Take what there is now, in memory and in the batch."""
        engine = self._engine
        now_ms = engine.steady.now_ms()
        want = PopAttempt(request, engine.settings.name, context.client_id, now_ms=now_ms, looks=looks)
        want.bytes_left = max_bytes
        ordered = request.ordered or share.group.config.ordered
        try:
            engine.fall_due(now_ms)
            if share.begin():
                want.changed = True
            is_so = share.become(ordered=ordered, now_ms=now_ms, looks=looks)
            if ordered and want.attempt_id in share.attempts:
                self._take_same(share, want)
            retries = share.retries
            if retries is not None:
                if retries.begin():
                    want.changed = True
                is_so = retries.become(ordered=ordered, now_ms=now_ms, looks=looks) and is_so
                if ordered and want.attempt_id in retries.attempts:
                    self._take_same(retries, want)
            if not is_so:
                want.more = True  # in the next turn
            elif not want.repeated:
                if retries is None:
                    _take_in_turn(share, want, request.queue_id)
                else:
                    _take_with_retries(share, retries, want, request.queue_id)
                if want.looks <= 0 and want.room > 0 and not want.full and _has_work(share):
                    want.more = True  # in a queue that was not looked at, too
        except Exception as error:
            engine.abandon(error)
            raise
        if want.changed and not want.taken:
            engine.store.commit()
        engine.wake_freed()
        engine.arm_ledgers()
        return want

    def _take_same(self, share: GroupTopic, want: PopAttempt) -> None:
        """A repeated receive of an ordered group: what the first one still holds."""
        engine = self._engine
        places = sorted(share.attempts[want.attempt_id])
        for queue_id, offset in places:
            ledger = share.ledgers[queue_id]
            entry = ledger.entries.get(offset)
            if entry is None or not entry.held or entry.due_ms <= want.now_ms:
                continue
            if want.room <= 0:
                return
            record = engine.log.get(share.topic, queue_id, offset)
            decoded = (
                engine.log.decoded(share.topic, queue_id, offset, record) if record is not None else None
            )
            if decoded is not None:
                head = receipt_head(entry, want.broker, queue_id, ordered=True, topic_type=share.topic_type)
                want.deliver(share.shown_topic, offset, decoded, entry, head)
                want.holds.append((ledger, entry, [offset]))
                want.repeated = True
                share.repeat(want.attempt_id, queue_id, offset)

    async def _keep(self, want: PopAttempt) -> bool:
        """Wait until the taken messages are written; returns whether they are still the caller's.

        A caller that is cancelled meanwhile returns all that no other receive of its attempt has.
        """
        try:
            await self._engine.settled()
        except asyncio.CancelledError:
            self._undo(want)
            raise
        if not want.repeated:
            return True
        if all(ledger.entries.get(offset) is entry for ledger, entry, (offset,) in want.holds):
            return True
        self._undo(want)
        return False

    def _undo(self, want: PopAttempt) -> None:
        engine = self._engine
        now_ms = engine.steady.now_ms()
        for old, entry, offsets in want.holds:
            ledger = self._ledger_now(old)
            if ledger is None:
                continue
            for offset in offsets:
                held = ledger.entries.get(offset)
                # Memory that was made anew knows no other receives of an attempt: the first one may have it.
                is_mine = held is entry or (held is not None and not want.repeated and held.is_same(entry))
                if held is not None and is_mine and _is_let_go(ledger, offset, held):
                    ledger.free(offset, held, now_ms)
        engine.store.commit()
        engine.wake_freed()

    def _ledger_now(self, old: Ledger) -> Ledger | None:
        """The same ledger after a wait: memory may have been made anew meanwhile."""
        share = self._engine.shares.in_memory(old.share.topic.id, old.share.group.id)
        return share.ledgers.get(old.queue.queue_id) if share is not None else None


def _is_let_go(ledger: Ledger, offset: int, entry: Entry) -> bool:
    """A receive has not got this message; whether nobody has it: a repeated one has the same handle."""
    return ledger.share.let_go(entry.attempt_id, ledger.queue.queue_id, offset)


def _take_with_retries(share: GroupTopic, retries: GroupTopic, want: PopAttempt, queue_id: int) -> None:
    """Take from a topic and from the group's retries of it: each is asked first every other time."""
    share.retries_first = not share.retries_first
    for chosen in (retries, share) if share.retries_first else (share, retries):
        if want.room > 0 and not want.full and want.looks > 0:
            want.turn_to(chosen.topic_type)
            _take_in_turn(chosen, want, queue_id if chosen is share else -1)


def _take_in_turn(share: GroupTopic, want: PopAttempt, queue_id: int) -> None:
    """Take from the queue that is asked for, or from all, beginning at another one each time."""
    if queue_id >= 0:
        first, count = queue_id, 1
    elif _PRIORITY in share.topic.config.message_types and not share.ordered:
        _take_by_priority(share, want)
        return
    else:
        count = share.topic.config.read_queues
        share.turn = first = (share.turn + 1) % count if count else 0
    ledgers = share.ledgers
    for at in range(first, first + count):
        ledger = ledgers[at % count if queue_id < 0 else at]
        if ledger.has_work() or ledger.refused:
            ledger.take(want)
            if want.room <= 0 or want.full or want.looks <= 0:
                return


def _take_by_priority(share: GroupTopic, want: PopAttempt) -> None:
    """Take from the highest queue down: a queue's number is the priority of its messages.

    Of a hundred pops, as many as the group's attribute `priority.factor` says (100); the others begin
    at another queue each time, so that nothing starves. Source: RocketMQ 5.4, as for the attribute.
    """
    count = share.topic.config.read_queues
    share.turn = turn = (share.turn + 1) % (100 * max(count, 1))
    factor = share.group.config.attributes.get(PRIORITY_FACTOR, "")
    is_number = factor.isascii() and factor.isdigit()
    first = turn if is_number and turn % 100 >= int(factor[:9]) else 0
    for at in range(first, first + count):
        ledger = share.ledgers[count - 1 - at % count]
        if ledger.has_work() or ledger.refused:
            ledger.take(want)
            if want.room <= 0 or want.full or want.looks <= 0:
                return


def _has_work(share: GroupTopic) -> bool:
    if share.retries is not None and _has_work(share.retries):
        return True
    readable = share.topic.config.read_queues
    return any(ledger.has_work() for queue_id, ledger in share.ledgers.items() if queue_id < readable)
