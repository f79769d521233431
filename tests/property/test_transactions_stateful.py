"""Transactions against a small model: delivered at most once, asked about on time, ended one way.

Steps share a turn of the store until `commit`; turns are abandoned, parts begin anew from the
store, the producer comes and goes, the clock is moved.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from brokers.embedded.catalog.catalog import Catalog
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.produce.delayed_messages import DelayedMessages
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import CHECKS, ENDED, HALF, SPACES
from brokers.embedded.storage.store import Durability, Store
from brokers.embedded.transactions.half_messages import HalfMessages
from popgate.errors import IllegalTransactionId
from popgate.model import EndTransaction, Message, MessageType, Resolution, TopicConfig, TransactionCheck
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import decode_record, encode_record, pack_host

HOST = pack_host("10.0.0.1:1")
FIRST_MS, INTERVAL_MS, CHECKS_ALLOWED, AGE_MS, KEPT_MS = 60, 100, 2, 1000, 500
SETTINGS = EmbeddedSettings(
    durability=Durability.NONE,
    max_due=3,
    transaction_check_after_ms=FIRST_MS,
    transaction_check_interval_ms=INTERVAL_MS,
    transaction_max_checks=CHECKS_ALLOWED,
    transaction_max_age_ms=AGE_MS,
    transaction_end_kept_ms=KEPT_MS,
)
OPEN, GIVEN_UP, FORGOTTEN = "open", "given up", "ended long ago"
ENDS = {Resolution.COMMIT: "committed", Resolution.ROLLBACK: "rolled back"}
GRAVE = "TRANS_CHECK_MAX_TIME_TOPIC"


@dataclass
class One:
    """One transaction, as it should be."""

    began: int
    check_at: int
    deliver_at: int
    state: str = OPEN
    asked: int = 0
    forget_at: int = 0
    delivered: bool = False

    def end(self, how: str, now: int) -> None:
        self.state, self.forget_at = how, now + KEPT_MS
        self.delivered = how == ENDS[Resolution.COMMIT]

    def time_is(self, now: int, somebody: bool) -> None:
        """What a tick that has nothing left to do has done."""
        if self.state == OPEN and self.check_at <= now:
            if self.asked >= CHECKS_ALLOWED or now - self.began >= AGE_MS:
                self.end(GIVEN_UP, now)
                return
            self.asked += somebody
            self.check_at = now + INTERVAL_MS
        elif self.state not in (OPEN, FORGOTTEN) and self.forget_at <= now:
            self.state = FORGOTTEN


@dataclass
class Model:
    all: dict[str, One] = field(default_factory=dict)
    graves: set[str] = field(default_factory=set)


class TransactionsMachine(RuleBasedStateMachine):
    store: Store
    """Open, and emptied for every example: opening costs more than all steps of one."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = MovableClock()
        self.model, self.committed = Model(), Model()
        self.names: dict[str, str] = {}
        self.somebody = True
        self.asked: Counter[str] = Counter()
        for space in SPACES:
            self.store.delete_range(space, b"", b"\xff" * 32)
        self.store.write_now()
        self.open()
        self.catalogue.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
        self.commit()

    def open(self) -> None:
        self.catalogue = Catalog(self.store, SETTINGS)
        self.log = MessageLog(self.store, self.clock)
        self.timers = DelayedMessages(self.store, self.log, self.catalogue, SETTINGS)
        self.halves = HalfMessages(self.store, self.log, self.catalogue, self.clock, SETTINGS, self.timers)
        self.halves.on_check(self.ask)
        self.load()

    def load(self) -> None:
        for part in (self.catalogue, self.timers, self.halves):
            part.load()

    def teardown(self) -> None:
        self.loop.close()

    def ask(self, check: TransactionCheck) -> bool:
        if not self.somebody:
            return False
        name = check.message.body.decode()
        assert check.transaction_id == self.names[name]
        assert self.model.all[name].state == OPEN
        self.asked[name] += 1
        return True

    @initialize(somebody=st.booleans())
    def producer(self, somebody: bool) -> None:
        self.somebody = somebody

    # -- what happens -------------------------------------------------------------------------

    @rule(recovery_ms=st.sampled_from([0, 0, 10, 300]), delay_ms=st.sampled_from([0, 0, 50, 2000]))
    def begin(self, recovery_ms: int, delay_ms: int) -> None:
        now = self.clock.now_ms()
        name = f"m{len(self.names)}"
        message = Message("T", name.encode(), name, MessageType.TRANSACTION, recovery_ms=recovery_ms)
        message.deliver_at_ms = now + delay_ms if delay_ms else 0
        record = encode_record(
            *(b"T", 0, 0, 0, message.body, encode_properties({"UNIQ_KEY": name, "TRAN_MSG": "true"})),
            sys_flag=0,
            flag=0,
            born_ms=now,
            born_host=HOST,
            store_ms=0,
            store_host=HOST,
        )
        self.names[name] = self.halves.add(self.catalogue.topic("T"), 0, record, message)
        self.model.all[name] = One(now, now + (recovery_ms or FIRST_MS), message.deliver_at_ms)

    @precondition(lambda self: self.committed.all)
    @rule(data=st.data(), how=st.sampled_from(Resolution))
    def end_it(self, data: st.DataObject, how: Resolution) -> None:
        """By the id that the producer was given, at any time, any number of times."""
        self.end(data, how)

    def end(self, data: st.DataObject, how: Resolution) -> None:
        name = data.draw(st.sampled_from(sorted(self.committed.all)))
        one = self.model.all[name]
        ending = EndTransaction("T", self.names[name], name, how)
        if one.state == OPEN:
            self.halves.end(ending)
            one.end(ENDS[how], self.clock.now_ms())
        elif one.state == ENDS[how]:
            self.halves.end(ending)
        else:
            with pytest.raises(IllegalTransactionId, match=one.state):
                self.halves.end(ending)

    @precondition(lambda self: self.committed.all)
    @rule(data=st.data(), how=st.sampled_from(Resolution))
    def forge(self, data: st.DataObject, how: Resolution) -> None:
        """One character of an id that was given out is another one."""
        name = data.draw(st.sampled_from(sorted(self.committed.all)))
        real = self.names[name]
        at = data.draw(st.integers(0, len(real) - 1))
        forged = real[:at] + ("0" if real[at] != "0" else "1") + real[at + 1 :]
        with pytest.raises(IllegalTransactionId):
            self.halves.end(EndTransaction("T", forged, "", how))

    @rule()
    def come_or_go(self) -> None:
        self.somebody = not self.somebody

    @rule(ms=st.sampled_from([1, 10, 60, 100, 100, 500]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms / 1000)
        self.settle()

    @rule()
    def settle(self) -> None:
        """Tick as the broker does, in the turn of whatever came before; then what is due was done."""
        now = self.clock.now_ms()
        self.halves.tick(now)
        self.commit_only()
        self.tick_to_rest(now, self.commit_only)
        while (due := self.timers.deadline()) is not None and due <= now:
            self.timers.tick(now)
            self.commit_only()
        self.time_is(now)
        self.committed = deepcopy(self.model)
        due = {name for name, one in self.model.all.items() if one.delivered and one.deliver_at <= now}
        assert set(self.bodies("T")) == due
        assert self.asked == Counter({name: one.asked for name, one in self.model.all.items() if one.asked})

    def tick_to_rest(self, now: int, after_each: Callable[[], None]) -> None:
        ticks = 0
        while (due := self.halves.deadline()) is not None and due <= now:
            self.halves.tick(now)
            after_each()
            ticks += 1
            assert ticks < 1000, "it never comes to rest"

    def time_is(self, now: int) -> None:
        for name, one in self.model.all.items():
            before = one.state
            one.time_is(now, self.somebody)
            if one.state == GIVEN_UP != before:
                self.model.graves.add(name)

    @precondition(lambda self: self.committed.all)
    @rule(data=st.data(), how=st.sampled_from(Resolution), ms=st.sampled_from([0, 60, 100]))
    def end_behind_checks(self, data: st.DataObject, how: Resolution, ms: int) -> None:
        """The producer's word comes in the very turn in which it is asked."""
        self.commit()
        self.clock.advance(ms / 1000)
        now = self.clock.now_ms()
        self.tick_to_rest(now, lambda: None)
        self.time_is(now)
        self.end(data, how)

    @rule()
    def commit(self) -> None:
        self.commit_only()
        self.committed = deepcopy(self.model)

    def commit_only(self) -> None:
        async def write() -> None:
            await self.store.commit()

        self.loop.run_until_complete(write())

    @rule()
    def abandon(self) -> None:
        """The turn cannot be written: nothing of it happened."""
        self.store.abandon(OSError("full"))
        self.load()
        self.model = deepcopy(self.committed)
        # Who was asked was asked; that it counts is what is forgotten.
        self.asked = Counter({name: one.asked for name, one in self.model.all.items() if one.asked})
        self.names = {name: text for name, text in self.names.items() if name in self.model.all}

    @rule()
    def restart(self) -> None:
        self.commit()
        self.open()

    # -- what always holds ----------------------------------------------------------------------

    def bodies(self, topic_name: str) -> list[str]:
        topic = self.catalogue.find_topic(topic_name)
        if topic is None:
            return []
        read = self.log.read(topic, 0, 0, topic.queues[0].visible)
        return [decode_record(data).body.decode() for _, data in read]

    @invariant()
    def what_was_committed_is_delivered_once_and_nothing_else(self) -> None:
        came = self.bodies("T")
        assert len(came) == len(set(came)), "delivered twice"
        now = self.clock.now_ms()
        allowed = {name for name, one in self.model.all.items() if one.delivered}
        required = {
            name
            for name, one in self.committed.all.items()
            if one.delivered and one.deliver_at <= one.forget_at - KEPT_MS
        }
        assert required <= set(came) <= allowed
        assert all(self.model.all[name].deliver_at <= now for name in came)

    @invariant()
    def what_was_given_up_is_where_it_can_be_found(self) -> None:
        assert sorted(self.bodies(GRAVE)) == sorted(self.committed.graves)

    @invariant()
    def nothing_is_left_of_what_was_forgotten(self) -> None:
        states = Counter(one.state for one in self.committed.all.values())
        remembered = len(self.committed.all) - states[OPEN] - states[FORGOTTEN]
        count = {space: sum(1 for _ in self.store.scan(space, b"")) for space in (HALF, ENDED, CHECKS)}
        assert count == {HALF: 2 * states[OPEN], ENDED: remembered, CHECKS: states[OPEN] + remembered}


def test_every_transaction_ends_one_way_and_its_producer_is_asked_on_time(
    stateful: settings, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store", MovableClock(), durability=Durability.NONE)
    store.open()
    machine = type("Machine", (TransactionsMachine,), {"store": store})
    run_state_machine_as_test(machine, settings=stateful)
    store.close()
