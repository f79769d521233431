"""A group that pops, pulls, and pops again, whatever it left unfinished: every message is done exactly once.

It changes between the two as a mapped group does: what it had in hand is given back or not, what is
unfinished is moved to its retries, and it pulls from where it stands; then it pops from where it stands.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from popgate.filters.compiled import EVERYTHING

HOUR_MS = 3_600_000


def make_machine(port: Any) -> type[RuleBasedStateMachine]:
    class Switching(RuleBasedStateMachine):
        @initialize(queues=st.integers(1, 3))
        def begin(self, queues: int) -> None:
            port.begin()
            self.topic = port.topic(queues)
            self.group = port.group(max_attempts=1_000)
            self.retries = f"%RETRY%{self.group}"
            self.sent: list[str] = []
            self.done: list[str] = []
            self.held: dict[str, tuple[str, str]] = {}
            """Topic and body, by the newest handle of a delivery whose time is not over."""
            self.reading: dict[tuple[str, int], int] = {}
            self.pops = True

        def topics(self) -> list[str]:
            known = {one.name for one in port.run(port.broker.topics())}
            return [name for name in (self.topic, self.retries) if name in known]

        def places(self) -> list[tuple[str, str, int]]:
            return [
                (name, queue.broker, queue.queue_id)
                for name in self.topics()
                for queue in port.run(port.broker.route(name)).queues
            ]

        def reclaim(self, *, held: bool) -> None:
            for name in self.topics():
                more = True
                while more:
                    step = port.run(port.broker.reclaim(port.context, self.group, name, held=held))
                    more = step.more

        def chosen(self, data: Any) -> list[str]:
            handles = data.draw(st.lists(st.sampled_from(list(self.held)), unique=True), label="handles")
            for handle in handles:
                del self.held[handle]
            return handles

        def by_topic(self, handles: list[str], held: dict[str, tuple[str, str]]) -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            for handle in handles:
                found.setdefault(held[handle][0], []).append(handle)
            return found

        @rule(count=st.integers(1, 6))
        def send(self, count: int) -> None:
            bodies = [f"m{len(self.sent) + n}" for n in range(count)]
            port.send(*(port.message(self.topic, body) for body in bodies))
            self.sent += bodies

        # -- on pop -------------------------------------------------------------------------------

        @precondition(lambda self: self.pops)
        @rule(at_most=st.integers(1, 8), retries=st.booleans())
        def pop(self, at_most: int, retries: bool) -> None:
            name = self.retries if retries else self.topic
            if name in self.topics():
                for one in port.pop(name, self.group, at_most, HOUR_MS):
                    self.held[one.receipt] = name, one.body.decode()

        @precondition(lambda self: self.pops)
        @rule()
        def pop_much(self) -> None:
            self.pop(8, retries=False)

        @precondition(lambda self: self.held)
        @rule(data=st.data())
        def finish(self, data: Any) -> None:
            held = dict(self.held)
            for name, handles in self.by_topic(self.chosen(data), held).items():
                assert port.ack(name, self.group, handles) == [None] * len(handles)
                self.done += [held[handle][1] for handle in handles]

        @precondition(lambda self: self.held)
        @rule(data=st.data())
        def give_back(self, data: Any) -> None:
            held = dict(self.held)
            for name, handles in self.by_topic(self.chosen(data), held).items():
                assert port.give_back(name, self.group, handles) == len(handles)

        @precondition(lambda self: self.held)
        @rule(data=st.data(), rest_ms=st.sampled_from([0, 1_000, 30_000]))
        def fail(self, data: Any, rest_ms: int) -> None:
            """It comes again after a while."""
            held = dict(self.held)
            for name, handles in self.by_topic(self.chosen(data), held).items():
                for handle in handles:
                    assert isinstance(port.hide(name, self.group, handle, rest_ms), str)

        # -- on pull ------------------------------------------------------------------------------

        @precondition(lambda self: self.pops)
        @rule(data=st.data())
        def fall_back(self, data: Any) -> None:
            if self.held:
                self.give_back(data)
            self.held.clear()
            self.reclaim(held=True)
            for name, broker, queue_id in self.places():
                where = (name, broker, queue_id)
                position = port.run(port.broker.committed(port.context, self.group, *where))
                bounds = port.run(port.broker.bounds(port.context, *where))
                self.reading[name, queue_id] = bounds.minimum if position is None else position
            for one in port.run(port.broker.progress(self.group, self.topic)):
                assert (one.in_flight, one.waiting) == (0, 0)
                assert one.committed == one.frontier
            self.pops = False

        @precondition(lambda self: not self.pops)
        @rule(data=st.data())
        def pull_and_commit(self, data: Any) -> None:
            for place in self.places():
                name, _, queue_id = place
                begin = self.reading.setdefault((name, queue_id), 0)
                how = {"max_messages": 8, "max_bytes": 1 << 20, "passing": EVERYTHING, "wait_until": None}
                pulled = port.run(port.broker.pull(port.context, *place, begin, **how))
                count = data.draw(st.integers(0, len(pulled.messages)), label="finished")
                if count:
                    behind = pulled.messages[count - 1].offset + 1
                    port.run(port.broker.commit(port.context, self.group, *place, behind))
                    self.reading[name, queue_id] = behind
                    self.done += [one.body.decode() for one in pulled.messages[:count]]

        @precondition(lambda self: not self.pops)
        @rule()
        def come_back(self) -> None:
            self.pops = True

        # -- at any time ----------------------------------------------------------------------------

        @rule()
        def look_for_what_came_back(self) -> None:
            """Of a group that pops it is only what nobody has: that comes from its retries then."""
            self.reclaim(held=False)

        @rule(ms=st.sampled_from([10, 1_000, 40_000]))
        def pass_time(self, ms: int) -> None:
            port.pass_ms(ms)

        @rule()
        def restart(self) -> None:
            port.restart()

        @invariant()
        def nothing_is_done_twice(self) -> None:
            assert len(self.done) == len(set(self.done))

        def teardown(self) -> None:
            if not hasattr(self, "sent") or port.trouble:
                return
            port.pass_ms(2 * HOUR_MS)
            if not self.pops:
                self.reclaim(held=True)
            for _ in range(2):
                for name in self.topics():
                    while found := port.pop(name, self.group, 32, HOUR_MS):
                        port.ack(name, self.group, [one.receipt for one in found])
                        self.done += [one.body.decode() for one in found]
            assert sorted(self.done) == sorted(self.sent)
            assert port.leftovers() == {}

    return Switching


def test_switching_between_pop_and_pull_loses_nothing_and_doubles_nothing(port: Any, stateful: Any) -> None:
    run_state_machine_as_test(make_machine(port), settings=stateful)
