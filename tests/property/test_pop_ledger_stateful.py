"""The pop ledger of an unordered group against a model: who may have which message, and when."""

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

TIMES = st.sampled_from([0, 1, 100, 1_000, 10_000])


@dataclass
class Known:
    """What the model knows of one message."""

    body: str
    offset: int
    attempt: int = 0
    due: int = 0
    delivery: int = 0
    held: bool = False
    over: bool = False
    returned: bool = False
    moved: int = 0
    """The delivery whose time was over when it became a dead letter; a broker that starts forgets it."""


@dataclass
class Model:
    max_attempts: int
    messages: list[Known] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    def free(self, now: int) -> list[Known]:
        return [m for m in self.messages if not m.over and m.due <= now]

    def bury(self, m: Known) -> None:
        m.over = True
        self.dead.append(m.body)

    def time_is(self, now: int) -> None:
        """Deliveries whose time is over: free again, or dead when they were the last allowed."""
        for m in self.messages:
            if not m.over and m.held and m.due <= now:
                m.held = False
                if m.attempt >= self.max_attempts:
                    m.moved = m.delivery
                    self.bury(m)


def make_machine(port: Any) -> type[RuleBasedStateMachine]:
    class PopLedger(RuleBasedStateMachine):
        @initialize(max_attempts=st.integers(1, 4))
        def begin(self, max_attempts: int) -> None:
            port.begin()
            self.topic = port.topic()
            self.group = port.group(max_attempts=max_attempts)
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

        def note(self, handle: str, m: Known) -> None:
            assert self.handles.setdefault(handle, (m, m.delivery)) == (m, m.delivery)

        @rule(count=st.integers(1, 5), packed=st.booleans())
        def send(self, count: int, packed: bool) -> None:
            bodies = [f"m{len(self.model.messages) + n}" for n in range(count)]
            send = port.send_packed if packed else port.send
            sent = send(*(port.message(self.topic, body) for body in bodies))
            self.model.messages += [Known(b, s.offset) for b, s in zip(bodies, sent, strict=True)]

        @rule(at_most=st.integers(1, 6), invisible_ms=st.sampled_from([1, 100, 1_000, 10_000]))
        def pop(self, at_most: int, invisible_ms: int) -> None:
            free = {m.body: m for m in self.model.free(port.now())}
            got = port.pop(*self.where, at_most, invisible_ms)
            assert len(got) == min(at_most, len(free))
            assert len({g.receipt for g in got}) == len(got)
            new = [free[g.body.decode()].offset for g in got if free[g.body.decode()].delivery == 0]
            assert new == sorted(new)
            for g in got:
                m = free.pop(g.body.decode())
                m.attempt, m.held, m.due = m.attempt + 1, True, port.now() + invisible_ms
                m.delivery, m.returned = m.delivery + 1, False
                assert (g.attempt, g.offset, g.invisible_until_ms) == (m.attempt, m.offset, m.due)
                assert g.receipt not in self.handles
                self.note(g.receipt, m)

        @rule(count=st.integers(1, 5), packed=st.booleans())
        def send_and_pop(self, count: int, packed: bool) -> None:
            """What happens most, and so twice as often as the rest."""
            self.send(count, packed)
            self.pop(6, 10_000)

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
        @rule(data=st.data(), ms=TIMES)
        def hide(self, data: Any, ms: int) -> None:
            handle, m, good = self.holder(data)
            answer = port.hide(*self.where, handle, ms)
            if not good:
                assert isinstance(answer, IllegalReceipt)
                return
            assert isinstance(answer, str)
            m.due = port.now() + ms
            self.note(answer, m)
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
            assert port.give_back(*self.where, [handle]) == good
            if good:
                m.returned = True
                m.attempt, m.held, m.due = m.attempt - 1, False, port.now()

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
                assert not m.over or isinstance(answer, ReceiptExpired)

        @precondition(lambda self: self.model.messages)
        @rule(data=st.data(), chance=st.integers(0, 3))
        def seek(self, data: Any, chance: int) -> None:
            """Set the position: from there on everything is new, below it is over."""
            if chance:
                return
            messages = self.model.messages
            at = data.draw(st.integers(0, len(messages)), label="position")
            offset = messages[at].offset if at < len(messages) else messages[-1].offset + 1
            broker = port.broker
            port.run(broker.commit(port.context, self.group, self.topic, broker.name, 0, offset))
            for m in messages:
                m.over, m.held, m.attempt, m.due = m.offset < offset, False, 0, 0
                m.delivery += bool(m.delivery)
            port.pass_ms(1)
            self.model.time_is(port.now())

        @rule(ms=st.sampled_from([1, 99, 1_000, 9_000, 20_000]))
        def time_passes(self, ms: int) -> None:
            port.pass_ms(ms)
            self.model.time_is(port.now())

        @rule(chance=st.integers(0, 7))
        def restart(self, chance: int) -> None:
            if chance == 0:
                port.restart()
                for m in self.model.messages:
                    m.moved = 0

        @invariant()
        def agrees(self) -> None:
            if not hasattr(self, "model"):
                return
            assert sorted(port.dead_letters(self.group)) == sorted(self.model.dead)
            (progress,) = port.run(port.broker.progress(self.group, self.topic))
            unfinished = [m for m in self.model.messages if not m.over]
            assert progress.in_flight == sum(m.held for m in unfinished)
            assert progress.lag == len(unfinished)

    return PopLedger


@pytest.mark.timeout(900)  # for when it fails: looking for the shortest way there takes minutes
def test_the_pop_ledger_agrees_with_its_model(port: Any, stateful: Any) -> None:
    run_state_machine_as_test(make_machine(port), settings=stateful)
