"""Ordered groups against a model: each message group is a line, and only its head moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from popgate.errors import IllegalReceipt, ReceiptExpired

LANES = ("A", "B", "")


@dataclass
class Known:
    """What the model knows of one message."""

    body: str
    lane: str
    offset: int
    attempt: int = 0
    due: int = 0
    delivery: int = 0
    held: bool = False
    over: bool = False
    returned: bool = False
    moved: int = 0
    """The delivery whose time was over when it became a dead letter; a broker that starts forgets it."""
    attempt_id: str = ""
    repeats: int = 0
    """How many more times its receive was given it, as it was repeated; a broker that starts forgets it."""


@dataclass
class Model:
    max_attempts: int
    messages: list[Known] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    def prefix(self, lane: str, now: int) -> list[Known]:
        """What may be delivered of a line: from its head on, up to the first that is held or rests."""
        ready = []
        for m in self.messages:
            if m.lane == lane and not m.over:
                if m.due > now:
                    break
                ready.append(m)
        return ready

    def holding(self, attempt_id: str) -> list[Known]:
        return [
            m for m in self.messages if attempt_id and m.held and not m.over and m.attempt_id == attempt_id
        ]

    def time_is(self, now: int) -> None:
        for m in self.messages:
            if not m.over and m.held and m.due <= now:
                m.held = False
                if m.attempt >= self.max_attempts:
                    m.moved = m.delivery
                    self.bury(m)

    def bury(self, m: Known) -> None:
        m.over = True
        self.dead.append(m.body)


def make_machine(port: Any) -> type[RuleBasedStateMachine]:
    class OrderedGroup(RuleBasedStateMachine):
        @initialize(max_attempts=st.integers(1, 4))
        def begin(self, max_attempts: int) -> None:
            port.begin()
            self.topic = port.topic()
            self.group = port.group(ordered=True, max_attempts=max_attempts)
            self.where = (self.topic, self.group)
            self.model = Model(max_attempts)
            self.handles: dict[str, tuple[Known, int]] = {}

        def holder(self, data: Any) -> tuple[str, Known, bool]:
            """Any handle ever given out, more often a good one; its message, and whether it is good."""
            good = [h for h in self.handles if self.is_good(h)]
            stale = not good or data.draw(st.integers(0, 3), label="any") == 0
            handle = data.draw(st.sampled_from(list(self.handles) if stale else good), label="handle")
            return handle, self.handles[handle][0], self.is_good(handle)

        def is_good(self, handle: str) -> bool:
            m, delivery = self.handles[handle]
            return not m.over and m.held and m.delivery == delivery

        @rule(lanes=st.lists(st.sampled_from(LANES), min_size=1, max_size=6))
        def send(self, lanes: list[str]) -> None:
            begin = len(self.model.messages)
            bodies = [f"{lane}{begin + n}" for n, lane in enumerate(lanes)]
            sent = port.send(
                *(port.message(self.topic, b, lane=x) for b, x in zip(bodies, lanes, strict=True))
            )
            self.model.messages += [
                Known(b, x, s.offset) for b, x, s in zip(bodies, lanes, sent, strict=True)
            ]

        @rule(
            at_most=st.integers(1, 7),
            invisible_ms=st.sampled_from([100, 1_000, 10_000]),
            attempt_id=st.sampled_from(["", "x", "y"]),
            one_each=st.booleans(),
        )
        def pop(self, at_most: int, invisible_ms: int, attempt_id: str, one_each: bool) -> None:
            now = port.now()
            mine = self.model.holding(attempt_id)
            got = port.pop(
                *self.where,
                at_most,
                invisible_ms,
                ordered=True,
                attempt_id=attempt_id,
                one_per_message_group=one_each,
            )
            if mine:
                self.pop_again(mine, got, at_most)
                return
            ready = {lane: self.model.prefix(lane, now)[: 1 if one_each else None] for lane in LANES}
            assert len(got) == min(at_most, sum(map(len, ready.values())))
            for lane in LANES:
                taken = [g.body.decode() for g in got if self.lane_of(g) == lane]
                assert taken == [m.body for m in ready[lane][: len(taken)]]
            for g in got:
                m = next(m for m in self.model.messages if m.offset == g.offset)
                m.attempt, m.held, m.due = m.attempt + 1, True, now + invisible_ms
                m.delivery, m.returned, m.repeats = m.delivery + 1, False, 0
                m.attempt_id = attempt_id
                assert (g.attempt, g.invisible_until_ms) == (m.attempt, m.due)
                assert g.receipt not in self.handles
                self.handles[g.receipt] = (m, m.delivery)

        @rule(lanes=st.lists(st.sampled_from(LANES), min_size=3, max_size=6))
        def send_and_pop(self, lanes: list[str]) -> None:
            """What happens most, and so twice as often as the rest."""
            self.send(lanes)
            self.pop(5, 10_000, "x", False)

        def lane_of(self, message: Any) -> str:
            return next(m.lane for m in self.model.messages if m.offset == message.offset)

        def pop_again(self, mine: list[Known], got: list[Any], at_most: int) -> None:
            """The same receive repeated: the same messages, deliveries and working handles."""
            assert [g.body.decode() for g in got] == [m.body for m in mine[:at_most]]
            for g, m in zip(got, mine, strict=False):
                assert (g.attempt, g.invisible_until_ms) == (m.attempt, m.due)
                assert self.handles.setdefault(g.receipt, (m, m.delivery)) == (m, m.delivery)
                m.repeats += 1

        @precondition(lambda self: self.handles)
        @rule(data=st.data())
        def ack(self, data: Any) -> None:
            handle, m, good = self.holder(data)
            (answer,) = port.ack(*self.where, [handle])
            if good:
                m.over = True
            if m.over and m.moved != self.handles[handle][1]:
                assert answer is None
            else:
                assert isinstance(answer, ReceiptExpired if m.over else IllegalReceipt)

        @precondition(lambda self: self.handles)
        @rule(data=st.data(), ms=st.sampled_from([0, 100, 5_000, 50_000]))
        def hide(self, data: Any, ms: int) -> None:
            handle, m, good = self.holder(data)
            answer = port.hide(*self.where, handle, ms)
            if not good:
                assert isinstance(answer, IllegalReceipt)
                return
            assert isinstance(answer, str)
            m.due = port.now() + ms
            assert self.handles.setdefault(answer, (m, m.delivery)) == (m, m.delivery)
            self.model.time_is(port.now())

        @precondition(lambda self: self.handles)
        @rule(keep=st.sets(st.integers(0, 5)))
        def free_most(self, keep: set[int]) -> None:
            """Consumers leave: what they hold is free, but for some."""
            good = [h for h in self.handles if self.is_good(h)]
            freed = {id(self.handles[h][0]): h for n, h in enumerate(good) if n not in keep}
            for handle in freed.values():
                assert isinstance(port.hide(*self.where, handle, 0), str)
                self.handles[handle][0].due = port.now()
            self.model.time_is(port.now())

        @precondition(lambda self: self.handles)
        @rule(data=st.data())
        def give_back(self, data: Any) -> None:
            handle, m, _ = self.holder(data)
            good = not m.over and not m.returned and m.delivery == self.handles[handle][1]
            freed = good and not m.repeats
            assert port.give_back(*self.where, [handle]) == freed
            if good and not freed:
                m.repeats -= 1
            if freed:
                m.returned = True
                m.attempt, m.held, m.due, m.attempt_id = m.attempt - 1, False, port.now(), ""

        @precondition(lambda self: self.handles)
        @rule(data=st.data())
        def dead_letter(self, data: Any) -> None:
            handle, m, good = self.holder(data)
            answer = port.dead_letter(*self.where, handle)
            if good:
                assert answer is None
                self.model.bury(m)
            else:
                assert isinstance(answer, IllegalReceipt)

        @precondition(lambda self: self.model.messages)
        @rule(data=st.data(), chance=st.integers(0, 3))
        def seek(self, data: Any, chance: int) -> None:
            if chance:
                return
            messages = self.model.messages
            at = data.draw(st.integers(0, len(messages)), label="position")
            offset = messages[at].offset if at < len(messages) else messages[-1].offset + 1
            broker = port.broker
            port.run(broker.commit(port.context, self.group, self.topic, broker.name, 0, offset))
            for m in messages:
                m.over, m.held, m.attempt, m.due = m.offset < offset, False, 0, 0
                m.delivery += 1
            port.pass_ms(1)

        @rule(ms=st.sampled_from([1, 99, 1_000, 9_000, 60_000]))
        def time_passes(self, ms: int) -> None:
            port.pass_ms(ms)
            self.model.time_is(port.now())

        @rule(chance=st.integers(0, 7))
        def restart(self, chance: int) -> None:
            if chance == 0:
                port.restart()
                for m in self.model.messages:
                    m.moved = m.repeats = 0

        @invariant()
        def agrees(self) -> None:
            if not hasattr(self, "model"):
                return
            assert sorted(port.dead_letters(self.group)) == sorted(self.model.dead)
            (progress,) = port.run(port.broker.progress(self.group, self.topic))
            unfinished = [m for m in self.model.messages if not m.over]
            assert progress.in_flight == sum(m.held for m in unfinished)
            assert progress.lag == len(unfinished)

    return OrderedGroup


@pytest.mark.timeout(900)  # for when it fails: looking for the shortest way there takes minutes
def test_an_ordered_group_agrees_with_its_model(port: Any, stateful: Any) -> None:
    run_state_machine_as_test(make_machine(port), settings=stateful)
