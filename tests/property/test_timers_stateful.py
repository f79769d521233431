"""Delayed messages against a model of ten lines: what was added is held, delivered or recalled, once.

Steps share a turn of the store until `commit`, so that what one step did in a batch that is not
written yet meets the next step; turns are abandoned, parts are restarted, the clock is moved.
"""

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from brokers.embedded.catalog.catalog import Catalog, Topic
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.produce.delayed_messages import DelayedMessages, RecallHandle
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import SPACES
from brokers.embedded.storage.store import Durability, Store
from popgate.errors import NotFound
from popgate.model import TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties, find_property
from popgate.wire.messages.records import Record, decode_record, encode_record, pack_host

HOST = pack_host("10.0.0.1:1")
SETTINGS = EmbeddedSettings(durability=Durability.NONE, max_due=3)


@dataclass
class Model:
    """Every copy that was added: when it is due, its name, and whether it was taken back."""

    due: dict[int, int] = field(default_factory=dict)
    name: dict[int, str] = field(default_factory=dict)
    recalled: set[int] = field(default_factory=set)

    def copies(self, due: int, name: str) -> set[int]:
        return {copy for copy, its in self.name.items() if its == name and self.due[copy] == due}

    def must_be_delivered(self, now_ms: int) -> set[int]:
        return {copy for copy, due in self.due.items() if due <= now_ms} - self.recalled


class TimersMachine(RuleBasedStateMachine):
    store: Store
    """Open, and emptied for every example: opening costs more than all steps of one."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = MovableClock()
        self.model = Model()
        self.committed = Model()
        self.serials = count()
        self.claims: list[tuple[set[int], int]] = []
        """Copies that a recall was about, and the queue's end when it took back what was left of them."""
        self.nothing_left: list[tuple[set[int], int]] = []
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
        self.load()

    def load(self) -> None:
        self.catalogue.load()
        self.timers.load()

    def teardown(self) -> None:
        self.loop.close()

    # -- what happens -------------------------------------------------------------------------

    @rule(delay_ms=st.sampled_from([0, 1, 2, 5, 20]), name=st.sampled_from("ab"))
    def add(self, delay_ms: int, name: str) -> None:
        due, serial = self.clock.now_ms() + delay_ms, next(self.serials)
        record = encode_record(
            *(b"T", 0, 0, 0, b"%d" % serial, encode_properties({"UNIQ_KEY": name})),
            sys_flag=0,
            flag=0,
            born_ms=0,
            born_host=HOST,
            store_ms=0,
            store_host=HOST,
        )
        handle = self.timers.add(self.topic(), 0, record, due, name.encode())
        assert handle == RecallHandle("T", SETTINGS.name, due, name).encode()
        self.model.due[serial], self.model.name[serial] = due, name

    @precondition(lambda self: self.committed.due)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        """A client knows the handles that it was given, so what is committed."""
        chosen = data.draw(st.sampled_from(sorted(self.committed.due)))
        due, name = self.model.due[chosen], self.model.name[chosen]
        # Copies of this very turn are seen by nobody yet, and stay.
        copies = self.model.copies(due, name) & set(self.committed.due)
        handle = RecallHandle("T", SETTINGS.name, due, name).encode()
        end = self.topic().queues[0].maximum
        try:
            assert self.timers.recall(self.topic(), handle) == name
        except NotFound:
            # Nothing was left: every copy was delivered, or taken back before.
            self.nothing_left.append((copies - self.model.recalled, end))
            return
        assert copies - self.model.recalled
        self.claims.append((copies - self.model.recalled, end))
        try:
            self.timers.recall(self.topic(), handle)
        except NotFound:
            return
        raise AssertionError("it was taken back twice")

    @rule()
    def tick(self) -> None:
        self.timers.tick(self.clock.now_ms())

    @rule(ms=st.sampled_from([1, 2, 5, 20]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms / 1000)

    @rule()
    def commit(self) -> None:
        async def write() -> None:
            await self.store.commit()

        self.loop.run_until_complete(write())
        places = self.places()
        for copies, end in self.claims:
            self.model.recalled |= {copy for copy in copies if not places.get(copy, end) < end}
        for copies, end in self.nothing_left:
            assert all(places[copy] < end for copy in copies - self.model.recalled)
        self.claims, self.nothing_left = [], []
        self.committed = deepcopy(self.model)

    @rule()
    def abandon(self) -> None:
        """The turn cannot be written: nothing of it happened."""
        self.store.abandon(OSError("full"))
        self.load()
        self.claims, self.nothing_left = [], []
        self.model = deepcopy(self.committed)

    @rule()
    def restart(self) -> None:
        self.commit()
        self.open()

    @rule()
    def settle(self) -> None:
        """Tick as the broker does; then exactly what is due has come."""
        self.commit()
        ticks = 0
        while (due := self.timers.deadline()) is not None and due <= self.clock.now_ms():
            self.timers.tick(self.clock.now_ms())
            self.commit()
            ticks += 1
            assert ticks < 1000, "it never comes to rest"
        assert set(self.places()) == self.model.must_be_delivered(self.clock.now_ms())

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def nothing_comes_early_twice_or_after_its_recall(self) -> None:
        places = self.places()
        for record in self.records():
            serial = int(record.body)
            assert record.store_ms >= self.model.due[serial]
            assert find_property(record.properties, b"UNIQ_KEY") == self.model.name[serial].encode()
        assert not set(places) & self.model.recalled

    @invariant()
    def the_deadline_is_never_after_what_is_held(self) -> None:
        claimed = {copy for copies, _ in self.claims for copy in copies}
        taken = {int(record.body) for record in self.records()}
        moved = self.topic().queues[0].maximum - self.topic().queues[0].visible
        held = set(self.model.due) - self.model.recalled - taken - claimed
        if len(held) > moved:
            latest = sorted(self.model.due[copy] for copy in held)[moved]
            deadline = self.timers.deadline()
            assert deadline is not None
            assert deadline <= latest

    # -- what is there ----------------------------------------------------------------------------

    def topic(self) -> Topic:
        return self.catalogue.topic("T")

    def records(self) -> list[Record]:
        return [
            decode_record(data)
            for _, data in self.log.read(self.topic(), 0, 0, self.topic().queues[0].visible)
        ]

    def places(self) -> dict[int, int]:
        """Where each copy stands in the queue; each at most once."""
        records = self.records()
        places = {int(record.body): record.offset for record in records}
        assert len(places) == len(records), "delivered twice"
        return places


def test_every_delayed_message_is_delivered_once_or_recalled(stateful: settings, tmp_path: Path) -> None:
    store = Store(tmp_path / "store", MovableClock(), durability=Durability.NONE)
    store.open()
    machine = type("Machine", (TimersMachine,), {"store": store})
    run_state_machine_as_test(machine, settings=stateful)
    store.close()
