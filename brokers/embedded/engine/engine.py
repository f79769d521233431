"""What the facets of the embedded broker share: the store, its state in memory, and its clocks.

Memory mirrors the store. A step changes memory and adds to the store's batch without awaiting in
between. When a batch cannot be written, everything except the waiting clients is rebuilt from the
store, so that memory never contains what the store does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from brokers.dead_letters import DeadLetterHandler
from brokers.embedded.catalog.catalog import Catalog, QueueState, Topic
from brokers.embedded.engine.pending_resets import PendingResets
from brokers.embedded.groups.dead_letters import DeadLetters
from brokers.embedded.groups.eviction import Eviction
from brokers.embedded.groups.group_topic_index import GroupTopicIndex
from brokers.embedded.groups.invisibility_heap import InvisibilityHeap
from brokers.embedded.groups.ledger import LedgerParts
from brokers.embedded.groups.queue_locks import QueueLocks
from brokers.embedded.groups.redrive_marks import forget_below
from brokers.embedded.groups.wait_queue import WaitQueue
from brokers.embedded.lite.engine import LiteEngine
from brokers.embedded.lite.subscriptions import Subscriptions
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.log.retention import Retention
from brokers.embedded.produce.deduplication import Deduplication
from brokers.embedded.produce.delayed_messages import DelayedMessages
from brokers.embedded.runtime.alarm import Alarm
from brokers.embedded.runtime.counters import Counters
from brokers.embedded.runtime.disk_guard import DiskGuard
from brokers.embedded.runtime.scan_scheduler import ScanScheduler
from brokers.embedded.runtime.steady_clock import CarefulClock, MonotonicWallClock
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.damaged_records import DamagedRecords
from brokers.embedded.storage.store import Store
from brokers.embedded.storage.store_metrics import store_figures
from brokers.embedded.transactions.half_messages import HalfMessages
from brokers.port import CheckHandler
from popgate.clock import Clock
from popgate.errors import BadRequest, BrokerTimeout, BrokerUnavailable, shown
from popgate.naming import DEAD_LETTER_PREFIX
from popgate.wire.messages.hosts import pack_host

_log = logging.getLogger(__name__)
_AFTER_TROUBLE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MACHINES = ("ledgers", "timers", "halves", "retention", "lites", "forgetting")
"""What happens at its time; what goes wrong in one of them keeps no other one back."""


class Engine:
    """Belongs to one loop. The parts are replaced on a failure: ask for them in every step."""

    catalogue: Catalog
    log: MessageLog
    parts: LedgerParts
    shares: GroupTopicIndex
    pending_resets: PendingResets
    timers: DelayedMessages
    halves: HalfMessages
    retention: Retention
    forgetting: Eviction
    repeats: Deduplication
    lites: LiteEngine

    def __init__(
        self,
        path: Path,
        clock: Clock,
        settings: EmbeddedSettings,
        make_store: Callable[..., Store] = Store,
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.store_host = pack_host(settings.store_host)
        self.store = make_store(
            path,
            clock,
            durability=settings.durability,
            sync_interval=settings.sync_interval_s,
            write_buffer_bytes=settings.write_buffer_bytes,
            cache_bytes=settings.cache_bytes,
        )
        self.waiting = WaitQueue(clock, settings)
        self.turns = ScanScheduler()
        self.steady = MonotonicWallClock(clock)
        self._careful = CarefulClock(clock)
        self.room = DiskGuard(
            *(path, self.store.free_bytes, self.store.disk_bytes), keep_bytes=settings.min_free_disk_bytes
        )
        self.damages = DamagedRecords(self.store)
        self.subscriptions = Subscriptions(clock, settings)
        self.locks = QueueLocks(clock, lock_ms=settings.lock_ms, most=settings.max_locks)
        self.tallies = Counters()
        self.check_handler: CheckHandler | None = None
        self.dead_letter_handler: DeadLetterHandler | None = None
        self.open = False
        self._alarm = Alarm(clock, self._tick)
        self._ticking: asyncio.Future[None] | None = None
        self._armed_due: int | None = None
        self._pauses: dict[str, tuple[float, float]] = {}
        """By machine: until when it rests after something went wrong, in loop seconds, and for how long."""
        self._make_parts()

    def __repr__(self) -> str:
        return f"<Engine {'open' if self.open else 'closed'} {self.store!r}>"

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises BrokerUnavailable with a sentence for the operator."""
        self.store.open()
        try:
            self._make_parts()
            self._load()
        except BaseException as error:
            self.store.close()
            if isinstance(error, BrokerUnavailable) or not isinstance(error, Exception):
                raise
            raise BrokerUnavailable(f"the store in {self.store.path} is damaged: {error}") from error
        self.store.on_failure = self._come_back
        self.store.on_reading = self._read_again
        self.open = True
        self.store.commit()
        self.arm()

    async def stop(self) -> None:
        if not self.open:
            return
        self.open = False
        self._alarm.off()
        self.halves.stop_asking()
        self.waiting.wake_all()
        self.waiting.close()
        try:
            await self.settled()
        except (BrokerUnavailable, BrokerTimeout):
            _log.warning("the last changes could not be written to %r", self.store)
        finally:
            self.store.close()

    # -- asked by the facets --------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises BrokerUnavailable when the broker is not running."""
        if not self.open:
            raise BrokerUnavailable(f"broker {self.settings.name} is not running")

    def check_writable(self) -> None:
        """Raises BrokerUnavailable when the broker is not running, or cannot write."""
        if not self.open or self.store.failing:
            self.check_open()
            raise BrokerUnavailable(
                f"broker {self.settings.name} can write nothing now: {self.store.trouble}"
            )

    def queue(self, topic: Topic, broker: str, queue_id: int) -> QueueState:
        """Raises BadRequest: no such queue."""
        if broker and broker != self.settings.name:
            raise BadRequest(f"topic {topic.name} has no queues on broker {shown(broker)}")
        if not 0 <= queue_id < len(topic.queues):
            raise BadRequest(
                f"topic {topic.name} has no queue {queue_id}, its queues are 0 to {len(topic.queues) - 1}"
            )
        return topic.queues[queue_id]

    def settled(self) -> asyncio.Future[None]:
        """A future of this turn's batch. The caller may cancel it without an effect on others."""
        return self.store.settled()

    def fall_due(self, now_ms: int) -> None:
        """Free the held messages whose time is over, a bounded number."""
        self.parts.schedule.tick(now_ms, self.settings.max_scan)

    def wake_freed(self) -> None:
        """Wake who may take what became free since the last call."""
        freed = self.parts.freed
        if not freed:
            return
        counts = list(freed.items())
        freed.clear()
        for ledger, count in counts:
            if ledger.has_work() or ledger.refused:
                queue, main = ledger.queue, ledger.share.main
                if main is None:
                    self.waiting.wake(queue.topic.id, ledger.group.id, queue.queue_id, count)
                else:  # every pop of the topic reads its retries, whichever queue it asks for
                    self.waiting.wake(main.topic.id, ledger.group.id, -1, count)

    def arm(self, name: str | None = None) -> None:
        """Set the alarm to the earliest thing that will happen; where only one machine can have got
        something to do, to what that one will.
        """
        if self._ticking is None:
            earliest = self._delay_ms() if name is None else self._delay_of(name)
            if earliest is not None:
                self._alarm.set(max(earliest, 0) / 1000)

    def abandon(self, error: Exception) -> None:
        """A step went wrong half-way: none of this turn's batch is written, memory is read again."""
        if not self.store.failing:
            _log.error("a step in %r went wrong half-way", self.store, exc_info=error)
            self.store.abandon(error)

    def arm_ledgers(self) -> None:
        """The same after a step that only ledgers know of: mostly there is nothing to do."""
        due = self.parts.schedule.deadline()
        if due != self._armed_due:
            self._armed_due = due
            self.arm()

    def figures(self) -> dict[str, float]:
        """Gauges for the metrics: plain names, no labels, cheap to read."""
        return {
            "topics": self.catalogue.topic_count,
            "groups": self.catalogue.group_count,
            "unfinished_deliveries": self.parts.unfinished,
            "waiting_pops": len(self.waiting),
            "disk_nearly_full": float(self.room.short),
            "damaged_records": len(self.damages),
            "half_messages": self.halves.pending,
            "lite_subscriptions": len(self.subscriptions),
            "known_sends": len(self.repeats),
            "repeat_window_seconds": self.repeats.known_ms / 1000,
            "repeat_window_configured_seconds": self.settings.dedup_window_ms / 1000,
            "repeated_sends_total": self.tallies.repeated,
            "redeliveries_total": self.tallies.redelivered,
            "dead_letters_total": self.tallies.dead_lettered,
            **store_figures(self.store),
        }

    # -- inside -------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        store, clock, settings = self.store, self.clock, self.settings
        self.catalogue = Catalog(store, settings)
        self.log = MessageLog(store, clock, self.damages)
        self.log.on_arrival = self._arrived
        dead_letters = DeadLetters(store, self.log, self.catalogue, clock)
        dead_letters.on_spent = self.dead_letter_handler
        self.parts = LedgerParts(store, self.log, InvisibilityHeap(), dead_letters, settings, self.tallies)
        self.shares = GroupTopicIndex(self.catalogue, self.parts)
        self.pending_resets = PendingResets(store)
        self.forgetting = Eviction(self.shares, self.waiting, clock, settings)
        self.timers = DelayedMessages(store, self.log, self.catalogue, settings)
        self.halves = HalfMessages(store, self.log, self.catalogue, clock, settings, self.timers)
        self.retention = Retention(store, self.log, self.catalogue, self._careful, settings)
        self.lites = LiteEngine(
            *(store, self.log, self.catalogue, dead_letters, self.subscriptions, self.waiting),
            *(clock, self.steady, settings, self.tallies),
        )
        self.repeats = Deduplication(
            store, self.log, self.catalogue, clock, settings, self.tallies, self.steady
        )
        self.log.on_turn = self.repeats.keep_up
        self.retention.on_floor = self._floor_raised
        if self.check_handler is not None:
            self.halves.on_check(self.check_handler)

    def _load(self) -> None:
        self.damages.load()
        self.catalogue.load()
        self.shares.load(self.steady.now_ms())
        self.pending_resets.load(self.steady.now_ms())
        self.timers.load()
        self.halves.load()
        self.retention.load()
        self.repeats.load()
        self.lites.load()

    def _come_back(self, error: BaseException) -> None:
        """The store works again after a failed write: rebuild memory from it."""
        _log.warning("reading %r again after a failed write: %s", self.store, error)
        self._read_again()
        self.store.commit()
        self.waiting.wake_all()
        self.arm()

    def _read_again(self) -> None:
        for share in self.shares:
            share.close()  # steps that are still under way find nothing in it
        self.halves.stop_asking()  # its answers would be counted beside what the new one does
        self._make_parts()
        self._load()

    def _arrived(self, queue: QueueState, count: int) -> None:
        """New messages can be read."""
        topic_id = queue.topic.id
        keys = self.waiting.keys(topic_id)
        if not keys:
            return
        try:
            for key in keys:
                if isinstance(key, int):
                    self._notice(topic_id, key, queue, count)
                elif key == pull_key(queue.queue_id):
                    self.waiting.wake_all(topic_id, key)
        except Exception:
            _log.exception("looking at new messages of %r failed", queue)
            self.waiting.wake_all(topic_id)
        self.wake_freed()

    def _floor_raised(self, topic: Topic, queue: QueueState) -> None:
        self.shares.raise_floor(topic, queue, self.steady.now_ms())
        if topic.name.startswith(DEAD_LETTER_PREFIX):
            forget_below(self.store, queue)

    def _notice(self, topic_id: int, group_id: int, queue: QueueState, count: int) -> None:
        share = self.shares.get(topic_id, group_id)
        ledger = share.ledgers.get(queue.queue_id) if share is not None else None
        if ledger is not None:
            ledger.notice(count)
        else:
            self.waiting.wake(topic_id, group_id, queue.queue_id, count)

    def _delay_ms(self) -> int | None:
        """How long until the next thing happens."""
        delays = [self._delay_of(name) for name in _MACHINES]
        return min((delay for delay in delays if delay is not None), default=None)

    def _delay_of(self, name: str) -> int | None:
        """How long until a machine has something to do, or may try again; ledgers go by the steady time."""
        if name == "ledgers":
            due, now_ms = self.parts.schedule.deadline(), self.steady.now_ms()
        else:
            machine: DelayedMessages | HalfMessages | Retention | LiteEngine | Eviction = getattr(self, name)
            due, now_ms = machine.deadline(), self._time_of(name)
        if due is None:
            return None
        pause = self._pauses.get(name)
        if pause is None:
            return due - now_ms
        return max(due - now_ms, int((pause[0] - self.clock.monotonic()) * 1000))

    def _time_of(self, name: str) -> int:
        """Wall time in ms; what deletes does not believe every clock."""
        return self._careful.now_ms() if name == "retention" else self.clock.now_ms()

    def _run(self, name: str) -> None:
        if name == "ledgers":
            self.fall_due(self.steady.now_ms())
        else:
            machine: DelayedMessages | HalfMessages | Retention | LiteEngine | Eviction = getattr(self, name)
            machine.tick(self._time_of(name))

    def _pause(self, name: str) -> None:
        """Let a machine rest in which something went wrong: the longer, the more often it does."""
        now = self.clock.monotonic()
        until, length = self._pauses.get(name, (now, 0.0))
        again = length and now < until + _LONGEST_PAUSE_S
        length = min(2 * length, _LONGEST_PAUSE_S) if again else _AFTER_TROUBLE_S
        self._pauses[name] = (now + length, length)

    def _tick(self) -> None:
        """What is due happens; the next tick comes after its batch. What goes wrong is tried later."""
        if not self.open or self._ticking is not None:
            return
        if self.store.failing:
            self._alarm.set(_AFTER_TROUBLE_S)
            return
        for name in _MACHINES:
            delay = self._delay_of(name)
            if delay is None or delay > 0:
                continue
            try:
                self._run(name)
            except Exception as error:
                self._pause(name)
                self.abandon(error)
                if self.store.failing:
                    self._alarm.set(_AFTER_TROUBLE_S)
                    return
        self.wake_freed()
        self._ticking = self.store.commit()
        self._ticking.add_done_callback(self._ticked)

    def _ticked(self, done: asyncio.Future[None]) -> None:
        self._ticking = None
        if not self.open:
            return
        if self.store.failing:
            self._alarm.set(_AFTER_TROUBLE_S)
        else:
            self.arm()


def pull_key(queue_id: int) -> tuple[str, int]:
    """What those wait for, in a topic's lines, who pull from a queue."""
    return ("pull", queue_id)
