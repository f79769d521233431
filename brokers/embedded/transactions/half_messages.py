"""Half messages: stored invisibly, delivered or dropped when their producer ends them, checked until then.

The end is one batch: the half message is removed and the message is stored. How a transaction ended is
remembered for a while: the same end again gets the same response, the opposite end is refused
with the actual outcome.

A message that is both delayed and transactional is a transaction first: once committed it is
delivered at its time, or at once when that has passed.

Sources: protocol facts 3.9, 7.4 and 7.8; any-replica, section 2.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import struct
from collections.abc import Awaitable
from functools import partial

from brokers.embedded.catalog.catalog import Catalog, Topic
from brokers.embedded.log.message_log import MessageLog, stored_message
from brokers.embedded.produce.delayed_messages import DelayedMessages, record_texts
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.damaged_records import check_whole
from brokers.embedded.storage.due_queue import DueQueue
from brokers.embedded.storage.keys import (
    CHECKS,
    ENDED,
    HALF,
    HALF_RECORD,
    HALF_STATE,
    HIGHEST_U64,
    check_key,
    half_key,
    sequence_key,
    split_check_key,
)
from brokers.embedded.storage.store import Store
from brokers.embedded.transactions.half_record import Half, decode_half, without_transaction
from brokers.embedded.transactions.ids import TransactionIds
from brokers.port import CheckHandler
from popgate.clock import Clock
from popgate.errors import GatewayError, IllegalTransactionId, PeerWireError, TopicNotFound, shown
from popgate.model import EndTransaction, HalfPlace, Message, Resolution, TopicConfig, TransactionCheck
from popgate.naming import TRANSACTION_CHECKS_EXHAUSTED_TOPIC
from popgate.wire.messages.properties import (
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    find_property,
)
from popgate.wire.messages.records import (
    TRANSACTION_COMMIT,
    record_properties,
)

_log = logging.getLogger(__name__)

_SEQUENCE_BITS = 20

_ASK = b"?"
_FORGET = b"-"
"""Values in `checks`: ask the producer, or forget how the transaction ended."""
_GIVEN_UP = b"given up"
_ENDS = {Resolution.COMMIT: b"committed", Resolution.ROLLBACK: b"rolled back"}

_SLICE = 16
"""Half messages read at a time: their records may be large."""


class HalfMessages:
    """The transactions of all topics. Adds to the store's batch; the caller commits."""

    def __init__(
        self,
        store: Store,
        log: MessageLog,
        catalogue: Catalog,
        clock: Clock,
        settings: EmbeddedSettings,
        timers: DelayedMessages,
    ) -> None:
        self._store = store
        self._log = log
        self._catalogue = catalogue
        self._clock = clock
        self._settings = settings
        self._timers = timers
        self._checks = DueQueue(store, CHECKS)
        self._handler: CheckHandler | None = None
        self._ids = TransactionIds()
        self._asking: set[asyncio.Future[bool]] = set()
        self._sequence = 0
        self.pending = 0
        """Transactions that nobody ended; after a start an estimate."""
        # What the batch that is being filled changes; reads do not see it yet.
        self._turn = -1
        self._changed: dict[int, Half | None] = {}
        self._ended: dict[int, bytes | None] = {}

    def __repr__(self) -> str:
        return f"<HalfMessages given {self._sequence} next {self._checks.deadline()}>"

    def load(self) -> None:
        """Load from the store; creates the secret of a new store (the caller commits)."""
        self._turn = -1
        self._checks.load()
        self._ids.load(self._store)
        self.pending = self._store.figure_of(HALF, "rocksdb.estimate-num-keys") // 2
        # Numbers grow with time, so that none comes back after its transaction was forgotten.
        self._sequence = self._clock.now_ms() << _SEQUENCE_BITS
        for space, beyond in ((HALF, half_key(HIGHEST_U64, 0)), (ENDED, sequence_key(HIGHEST_U64))):
            last = self._store.last_below(space, beyond)
            if last is not None:
                self._sequence = max(self._sequence, int.from_bytes(last[0][:8], "big") + 1)

    def on_check(self, handler: CheckHandler) -> None:
        """Who is asked what became of a half message; it says whether there was somebody to ask."""
        self._handler = handler

    def stop_asking(self) -> None:
        """Before the store is closed: nothing more is counted."""
        for asking in self._asking:
            asking.cancel()
        self._asking.clear()

    def deadline(self) -> int | None:
        """Wall time in ms at which `tick` has something to do; the past: now, there is more."""
        return self._checks.deadline()

    def add(self, topic: Topic, queue_id: int, record: bytes, message: Message) -> str:
        """Keep an encoded record unseen until its transaction ends; the transaction's id."""
        now_ms = self._clock.now_ms()
        sequence = self._sequence
        self._sequence += 1
        settings = self._settings
        rest_ms = max(message.recovery_ms, 0) or settings.transaction_check_after_ms
        rest_ms = min(rest_ms, settings.transaction_max_age_ms)
        group = message.producer_group
        if not group:
            producer = find_property(record_properties(record), PGROUP.encode())
            group = producer.decode("utf-8", "replace") if producer else ""
        half = Half(topic.id, queue_id, now_ms, max(message.deliver_at_ms, 0), now_ms + rest_ms, 0, group)
        self._store.put(HALF, half_key(sequence, HALF_STATE), half.encode())
        self._store.put(HALF, half_key(sequence, HALF_RECORD), record)
        self.pending += 1
        self._checks.add(check_key(half.check_at_ms, sequence), _ASK)
        return self._ids.make(sequence, message.message_id)

    def place_of(self, transaction_id: str) -> tuple[int, int]:
        """The numbers with which a classic producer ends it: its place in the log, and in its queue."""
        return self._ids.place_of(transaction_id)

    def end(self, end: EndTransaction) -> None:
        """Deliver or drop a half message; ending again the same way changes nothing.

        Raises IllegalTransactionId: forged, unknown, of another message or topic, or ended otherwise.
        """
        self._begin_turn()
        place = end.place
        if place is None:
            sequence, message_id = self._ids.read(end)
        else:
            sequence, message_id = self._placed(place), end.message_id
        verdict = _ENDS[end.resolution]
        known = self._how_ended(sequence)
        if known == verdict:
            return
        if known is not None:
            raise IllegalTransactionId(
                f"the transaction of message {shown(message_id)} was {_told(known)} already"
            )
        try:
            half, record = self._half(sequence)
        except PeerWireError as error:
            raise IllegalTransactionId(f"that of message {shown(message_id)} is damaged: {error}") from error
        if half is None or record is None:
            raise IllegalTransactionId(
                f"that of message {shown(message_id)} is not open: it ended long ago, or its topic is gone"
            )
        topic = self._catalogue.topic_by_id(half.topic_id)
        if topic is None:
            raise TopicNotFound(end.topic)
        if end.topic and end.topic != topic.name:
            raise IllegalTransactionId(f"it belongs to topic {topic.name}, not to {shown(end.topic)}")
        if place is not None and place.producer_group != half.producer_group:
            raise IllegalTransactionId(
                f"it belongs to producer group {shown(half.producer_group)}, not to"
                f" {shown(place.producer_group)}"
            )
        if end.resolution is Resolution.COMMIT:
            self._deliver(topic, half, sequence, record)
        self._close(sequence, half, verdict)

    def tick(self, now_ms: int) -> None:
        """Check open half messages, give up those checked too often, and remove old ends."""
        self._begin_turn()
        settings = self._settings
        count = size = 0
        while count < settings.max_due and size < settings.max_due_bytes:
            taken = self._checks.take(now_ms, min(_SLICE, settings.max_due - count), settings.max_due_bytes)
            if not taken:
                return
            count += len(taken)
            for key, kind in taken:
                try:
                    _, sequence = split_check_key(key)
                except struct.error as error:
                    self._log.damages.move(CHECKS, [(key, kind)], error)
                    continue
                if kind == _FORGET:
                    self._store.delete(ENDED, sequence_key(sequence))
                    self._ended[sequence] = None
                    continue
                try:
                    half, record = self._half(sequence)
                except PeerWireError as error:
                    self._set_aside(sequence, error)
                    continue
                if half is not None and record is not None:
                    size += len(record)
                    self._check(now_ms, sequence, half, record)

    # -- inside -------------------------------------------------------------------------------

    def _begin_turn(self) -> None:
        if self._turn != self._store.turn:
            self._turn = self._store.turn
            self._changed.clear()
            self._ended.clear()

    def _half(self, sequence: int) -> tuple[Half | None, bytes | None]:
        """Raises PeerWireError when it is damaged."""
        state, record = self._store.get_many(
            HALF, [half_key(sequence, HALF_STATE), half_key(sequence, HALF_RECORD)]
        )
        if sequence in self._changed:
            return self._changed[sequence], record
        try:
            half = None if state is None else decode_half(state)
        except struct.error as error:
            raise PeerWireError(f"its state cannot be read: {error}") from error
        if record is not None:
            check_whole(record)
        return half, record

    def _set_aside(self, sequence: int, why: PeerWireError) -> None:
        """Keep a damaged half message where nothing comes back to it."""
        keys = [half_key(sequence, part) for part in (HALF_STATE, HALF_RECORD)]
        records = zip(keys, self._store.get_many(HALF, keys), strict=True)
        self._log.damages.move(HALF, [(key, value) for key, value in records if value is not None], why)
        self._drop(sequence)

    def _placed(self, place: HalfPlace) -> int:
        if place.broker not in ("", self._settings.name):
            raise IllegalTransactionId(f"broker {shown(place.broker)} is not this one")
        return self._ids.placed(place)

    def _how_ended(self, sequence: int) -> bytes | None:
        if sequence in self._ended:
            return self._ended[sequence]
        return self._store.get(ENDED, sequence_key(sequence))

    def _deliver(self, topic: Topic, half: Half, sequence: int, record: bytes) -> None:
        message_id, keys = record_texts(record)
        committed = without_transaction(record, topic.packed_name, TRANSACTION_COMMIT, sequence)
        if half.deliver_at_ms > self._clock.now_ms():
            self._timers.add(topic, half.queue_id, committed, half.deliver_at_ms, message_id)
        else:
            self._log.append(topic, half.queue_id, committed, message_id=message_id, keys=keys)

    def _close(self, sequence: int, half: Half, how: bytes) -> None:
        """Let go of a half message and remember for a while how it ended."""
        self._drop(sequence)
        self._checks.remove(check_key(half.check_at_ms, sequence))
        self._store.put(ENDED, sequence_key(sequence), how)
        self._ended[sequence] = how
        forget_at_ms = self._clock.now_ms() + self._settings.transaction_end_kept_ms
        self._checks.add(check_key(forget_at_ms, sequence), _FORGET)

    def _drop(self, sequence: int) -> None:
        self._store.delete(HALF, half_key(sequence, HALF_STATE))
        self._store.delete(HALF, half_key(sequence, HALF_RECORD))
        self.pending = max(self.pending - 1, 0)
        self._changed[sequence] = None

    def _check(self, now_ms: int, sequence: int, half: Half, record: bytes) -> None:
        settings = self._settings
        topic = self._catalogue.topic_by_id(half.topic_id)
        if topic is None:
            self._drop(sequence)
            return
        asked_enough = half.checks >= settings.transaction_max_checks
        hopeless = asked_enough or now_ms - half.stored_ms >= settings.transaction_max_age_ms
        if hopeless and self._give_up(topic, sequence, half, record):
            return
        asked = not hopeless and self._ask(topic, sequence, half, record)
        later = half._replace(
            check_at_ms=now_ms + settings.transaction_check_interval_ms,
            checks=half.checks + 1 if asked else half.checks,
        )
        self._store.put(HALF, half_key(sequence, HALF_STATE), later.encode())
        self._changed[sequence] = later
        self._checks.add(check_key(later.check_at_ms, sequence), _ASK)

    def _ask(self, topic: Topic, sequence: int, half: Half, record: bytes) -> bool:
        """Pass the check to a producer; returns whether there was one. A remote search reports later."""
        if self._handler is None:
            return False
        message_id = record_texts(record)[0].decode("utf-8", "replace")
        check = TransactionCheck(
            topic.name,
            half.producer_group,
            self._ids.make(sequence, message_id),
            stored_message(record, broker=self._settings.name),
            half.checks + 1,
            HalfPlace(self._settings.name, half.producer_group, sequence, self._ids.proof(sequence)),
        )
        try:
            answer = self._handler(check)
            if inspect.isawaitable(answer):
                self._await(sequence, answer)
                return False
            return bool(answer)
        except Exception:  # a bug beyond the port must not stop the checks of everybody else
            _log.exception("asking about message %s failed", message_id)
            return False

    def _await(self, sequence: int, answer: Awaitable[bool]) -> None:
        """Count the check when it is known that a producer was asked."""
        asking = asyncio.ensure_future(answer)
        self._asking.add(asking)
        asking.add_done_callback(partial(self._answered, sequence))

    def _answered(self, sequence: int, asking: asyncio.Future[bool]) -> None:
        self._asking.discard(asking)
        if asking.cancelled() or self._store.failing:
            return
        if (failure := asking.exception()) is not None:
            _log.error("asking about half message %d failed", sequence, exc_info=failure)
        elif asking.result():
            self._begin_turn()
            try:
                half, _ = self._half(sequence)
            except PeerWireError:
                return  # found and set aside at the next check
            if half is not None:
                counted = half._replace(checks=half.checks + 1)
                self._store.put(HALF, half_key(sequence, HALF_STATE), counted.encode())
                self._changed[sequence] = counted
                self._store.commit()

    def _give_up(self, topic: Topic, sequence: int, half: Half, record: bytes) -> bool:
        """Move a half message without an end to where an operator finds it; whether that was possible."""
        try:
            grave = self._catalogue.ensure_topic(
                TopicConfig(TRANSACTION_CHECKS_EXHAUSTED_TOPIC, read_queues=1, write_queues=1)
            )
        except GatewayError as error:
            _log.warning("a half message of topic %s waits on: %s", topic.name, error)
            return False
        message_id, keys = record_texts(record)
        origin = ((REAL_TOPIC.encode(), topic.packed_name), (REAL_QID.encode(), b"%d" % half.queue_id))
        moved = without_transaction(record, grave.packed_name, 0, sequence, origin)
        self._log.append(grave, 0, moved, message_id=message_id, keys=keys)
        self._close(sequence, half, _GIVEN_UP)
        return True


def _told(end: bytes) -> str:
    if end == _GIVEN_UP:
        return f"given up after too many checks (see topic {TRANSACTION_CHECKS_EXHAUSTED_TOPIC})"
    return end.decode()
