"""The whole broker against a model: three groups, every kind of message, waiters, restarts, moved time.

The model says after every step who may have what: nothing is lost, nothing is held twice, what was
not finished comes back when its time is over, what was finished never does, a line keeps its order,
and nobody waits while there is something for him.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
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

from popgate.errors import (
    BrokerUnavailable,
    GatewayError,
    IllegalReceipt,
    IllegalTransactionId,
    NotFound,
    ReceiptExpired,
)
from popgate.model import EndTransaction, Resolution, StartFrom, StoredMessage

LANES = ("", "A", "B")
TAGS = ("", "red", "blue")
GROUPS = ("plain", "ordered", "red")
WRITES = (
    *("send", "send late", "send half", "pop", "ack", "hide", "give back", "dead letter", "end"),
    "reset",
)


@dataclass(eq=False)
class Sent:
    """A message as it was sent; `queue` and `offset` are known once it can be seen."""

    body: str
    lane: str
    tag: str
    message_id: str
    due: int = 0
    recall_handle: str = ""
    transaction_id: str = ""
    queue: int = -1
    offset: int = -1

    @property
    def seen(self) -> bool:
        return self.offset >= 0


@dataclass(eq=False)
class Share:
    """What one group has of one message."""

    sent: Sent
    attempt: int = 0
    due: int = 0
    delivery: int = 0
    held: bool = False
    over: bool = False
    returned: bool = False
    moved: int = 0
    """The delivery whose time was over when it became a dead letter; known until the store is read again."""


@dataclass
class Group:
    name: str
    kind: str
    max_attempts: int
    shares: dict[str, Share] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)

    def bury(self, share: Share) -> None:
        share.over = True
        self.dead.append(share.sent.body)

    def time_is(self, now: int) -> None:
        for share in self.shares.values():
            if not share.over and share.held and share.due <= now:
                share.held = False
                if share.attempt >= self.max_attempts:
                    share.moved = share.delivery
                    self.bury(share)

    def wants(self, sent: Sent) -> bool:
        return self.kind != "red" or sent.tag == "red"

    def ready(self, now: int) -> list[Share]:
        """What a pop may get now, in the order of each queue."""
        open_ = sorted(
            (s for s in self.shares.values() if not s.over), key=lambda s: (s.sent.queue, s.sent.offset)
        )
        if self.kind != "ordered":
            return [s for s in open_ if s.due <= now]
        blocked, free = set(), []
        for share in open_:
            line = share.sent.queue, share.sent.lane
            if share.due > now:
                blocked.add(line)
            elif line not in blocked:
                free.append(share)
        return free


@dataclass(eq=False)
class Waiter:
    group: Group
    until: int
    task: Any

    def __repr__(self) -> str:
        return f"<Waiter of {self.group.kind} until {self.until}>"


def step(**strategies: Any) -> Callable[[Any], Any]:
    """A rule that notes whether it went well, so that the end does not hide where it did not."""

    def decorate(function: Any) -> Any:
        @wraps(function)
        def noted(self: Any, **drawn: Any) -> None:
            self.fine = False
            function(self, **drawn)
            self.fine = True

        return rule(**strategies)(noted)

    return decorate


def make_machine(port: Any) -> type[RuleBasedStateMachine]:
    class WholeBroker(RuleBasedStateMachine):
        @initialize(max_attempts=st.integers(1, 3))
        def begin(self, max_attempts: int) -> None:
            port.begin()
            self.topic = port.topic(queues=2)
            self.count = 0
            self.groups = {
                kind: Group(
                    port.group(ordered=kind == "ordered", max_attempts=max_attempts), kind, max_attempts
                )
                for kind in GROUPS
            }
            self.messages: list[Sent] = []
            self.hidden: list[Sent] = []
            self.ended: dict[str, Resolution] = {}
            self.handles: dict[tuple[str, str], tuple[Share, int]] = {}
            self.foreign: list[tuple[str, str]] = []
            self.waiters: list[Waiter] = []
            self.answers: list[tuple[int, Waiter, list[StoredMessage]]] = []
            self.fine = True
            port.broker.on_check(lambda check: False)

        # -- sending ----------------------------------------------------------------------------

        def make(self, lane: str, tag: str, count: int = 1, **how: Any) -> Sent:
            """Send `count` messages at once, to the queue of their line."""
            bodies = [f"{lane}{self.count + n}" for n in range(count)]
            self.count += count
            messages = [port.message(self.topic, body, lane=lane, tag=tag, **how) for body in bodies]
            send = port.send_packed if count > 1 and not lane else port.send
            answers = send(*messages, queue_id=LANES.index(lane) % 2)
            for body, message, answer in zip(bodies, messages, answers, strict=True):
                sent = Sent(body, lane, tag, message.message_id, message.deliver_at_ms)
                sent.recall_handle, sent.transaction_id = answer.recall_handle, answer.transaction_id
                if answer.recall_handle or answer.transaction_id:
                    self.hidden.append(sent)
                else:
                    self.appear(sent, answer.queue_id, answer.offset)
            return sent

        def appear(self, sent: Sent, queue: int, offset: int) -> None:
            sent.queue, sent.offset = queue, offset
            self.messages.append(sent)
            for group in self.groups.values():
                if group.wants(sent):
                    group.shares[sent.body] = Share(sent)

        def look_up(self, sent: Sent) -> None:
            """What was held back can be seen now: exactly one of it."""
            (found,) = port.run(port.broker.find_by_id(port.context, self.topic, sent.message_id))
            self.hidden.remove(sent)
            self.appear(sent, found.queue_id, found.offset)

        @step(lane=st.sampled_from(LANES), tag=st.sampled_from(TAGS), count=st.integers(1, 3))
        def send(self, lane: str, tag: str, count: int) -> None:
            self.make(lane, tag, count)
            self.harvest()

        @step(lane=st.sampled_from(LANES), tag=st.sampled_from(TAGS), delay=st.sampled_from([1, 500, 20_000]))
        def send_late(self, lane: str, tag: str, delay: int) -> None:
            assert self.make(lane, tag, delay_ms=delay).recall_handle

        @step(lane=st.sampled_from(LANES), tag=st.sampled_from(TAGS))
        def send_half(self, lane: str, tag: str) -> None:
            assert self.make(lane, tag, half=True).transaction_id

        @precondition(lambda self: any(s.recall_handle for s in [*self.hidden, *self.messages]))
        @step(data=st.data())
        def recall(self, data: Any) -> None:
            late = [s for s in [*self.hidden, *self.messages] if s.recall_handle]
            sent = data.draw(st.sampled_from(late), label="late message")
            try:
                answer = port.run(port.broker.recall(port.context, self.topic, sent.recall_handle))
                assert answer == sent.message_id
                self.hidden.remove(sent)
            except NotFound:
                assert sent.seen

        @precondition(lambda self: any(s.transaction_id for s in [*self.hidden, *self.messages]))
        @step(data=st.data(), how=st.sampled_from(Resolution))
        def end(self, data: Any, how: Resolution) -> None:
            halves = [s for s in [*self.hidden, *self.messages] if s.transaction_id]
            sent = data.draw(st.sampled_from(halves), label="half message")
            before = self.ended.setdefault(sent.transaction_id, how)
            wanted = EndTransaction(self.topic, sent.transaction_id, sent.message_id, how)
            try:
                port.run(port.broker.end_transaction(port.context, wanted))
                assert before is how
            except IllegalTransactionId:
                assert before is not how
            if before is Resolution.COMMIT and not sent.seen:
                self.look_up(sent)
            self.harvest()

        # -- taking -----------------------------------------------------------------------------

        def request(self, group: Group, at_most: int, invisible_ms: int, **how: Any) -> Any:
            tags = "red" if group.kind == "red" else "*"
            ordered = group.kind == "ordered"
            return port.request(
                self.topic, group.name, at_most, invisible_ms, tags=tags, ordered=ordered, **how
            )

        def taken(self, group: Group, got: list[StoredMessage], invisible_ms: int, now: int) -> None:
            """Check one answer against what the model had ready, and note who has it now."""
            ready = {s.sent.body: s for s in group.ready(now)}
            for message in got:
                share = ready.pop(message.body.decode())
                if group.kind == "ordered":
                    line = (share.sent.queue, share.sent.lane)
                    assert not any(
                        (s.sent.queue, s.sent.lane) == line and s.sent.offset < share.sent.offset
                        for s in ready.values()
                    ), "an earlier message of the same line was left behind"
                share.attempt, share.held, share.due = share.attempt + 1, True, now + invisible_ms
                share.delivery, share.returned = share.delivery + 1, False
                assert (message.attempt, message.invisible_until_ms) == (share.attempt, share.due)
                assert (message.queue_id, message.offset) == (share.sent.queue, share.sent.offset)
                key = (group.kind, message.receipt)
                assert key not in self.handles
                self.handles[key] = (share, share.delivery)

        @step(lane=st.sampled_from(LANES), count=st.integers(2, 6), at_most=st.integers(1, 6))
        def send_and_pop(self, lane: str, count: int, at_most: int) -> None:
            """What happens most, and so more often than the rest."""
            self.make(lane, "red", count)
            self.harvest()
            for kind in GROUPS:
                type(self).pop(self, kind=kind, at_most=at_most, invisible_ms=60_000)

        @step(kind=st.sampled_from(GROUPS), count=st.integers(1, 4))
        def wait_together(self, kind: str, count: int) -> None:
            for _ in range(count):
                type(self).wait(self, kind=kind, at_most=1, max_bytes=1)

        @step(
            kind=st.sampled_from(GROUPS),
            at_most=st.integers(1, 5),
            invisible_ms=st.sampled_from([100, 5_000, 60_000]),
        )
        def pop(self, kind: str, at_most: int, invisible_ms: int) -> None:
            group = self.groups[kind]
            expected = min(at_most, len(group.ready(port.now())))
            got = port.run(port.broker.pop(port.context, self.request(group, at_most, invisible_ms)))
            assert len(got) == expected
            self.taken(group, got, invisible_ms, port.now())
            self.harvest()

        @step(
            kind=st.sampled_from(GROUPS), at_most=st.integers(1, 3), max_bytes=st.sampled_from([1, 1 << 20])
        )
        def wait(self, kind: str, at_most: int, max_bytes: int) -> None:
            group = self.groups[kind]
            waiter = Waiter(group, port.now() + 15_000, None)

            async def waits() -> None:
                request = self.request(group, at_most, 5_000, wait_ms=15_000, max_bytes=max_bytes)
                got = await port.broker.pop(port.context, request)
                self.answers.append((port.now(), waiter, got))

            waiter.task = port.start(waits())
            self.waiters.append(waiter)
            self.harvest()

        @precondition(lambda self: self.waiters)
        @step(data=st.data())
        def stop_waiting(self, data: Any) -> None:
            waiter = data.draw(st.sampled_from(self.waiters), label="waiter")
            self.waiters.remove(waiter)
            waiter.task.cancel()
            port.settle()
            assert waiter.task.cancelled()

        def harvest(self) -> None:
            """Note what waiting pops got since the last step; one that ended with nothing had its time."""
            port.settle()
            for at, waiter, got in self.answers:
                self.time_is(at)
                self.waiters.remove(waiter)
                assert got or at >= waiter.until
                self.taken(waiter.group, got, 5_000, at)
            self.answers.clear()
            assert not any(w.task.done() for w in self.waiters)

        def time_is(self, now: int) -> None:
            for group in self.groups.values():
                group.time_is(now)
            for sent in [s for s in self.hidden if s.recall_handle and s.due <= now]:
                self.look_up(sent)

        def end_waiters(self) -> None:
            """They end because what they wait for is gone."""
            port.settle()
            for waiter in self.waiters:
                assert waiter.task.done()
                assert waiter.task.exception() is None or isinstance(waiter.task.exception(), GatewayError)
            assert not any(got for _, _, got in self.answers)
            self.waiters.clear()
            self.answers.clear()

        # -- finishing --------------------------------------------------------------------------

        def holder(self, data: Any) -> tuple[Group, str, Share, bool]:
            """Any handle ever given out, more often a good one; its message, and whether it is good."""
            good = [key for key in self.handles if self.is_good(key)]
            stale = not good or data.draw(st.integers(0, 3), label="any") == 0
            key = data.draw(st.sampled_from(list(self.handles) if stale else good), label="handle")
            return self.groups[key[0]], key[1], self.handles[key][0], self.is_good(key)

        def is_good(self, key: tuple[str, str]) -> bool:
            share, delivery = self.handles[key]
            return not share.over and share.held and share.delivery == delivery

        @precondition(lambda self: self.handles)
        @step(data=st.data())
        def ack(self, data: Any) -> None:
            group, handle, share, good = self.holder(data)
            (answer,) = port.ack(self.topic, group.name, [handle])
            share.over = share.over or good
            if share.over and share.moved != self.handles[group.kind, handle][1]:
                assert answer is None
            else:
                assert isinstance(answer, ReceiptExpired if share.over else IllegalReceipt)
            self.harvest()

        @precondition(lambda self: self.handles)
        @step(kind=st.sampled_from(GROUPS))
        def ack_all(self, kind: str) -> None:
            group = self.groups[kind]
            good = [key for key in self.handles if key[0] == kind and self.is_good(key)]
            assert port.ack(self.topic, group.name, [handle for _, handle in good]) == [None] * len(good)
            for key in good:
                self.handles[key][0].over = True
            self.harvest()

        @precondition(lambda self: self.handles)
        @step(data=st.data(), ms=st.sampled_from([0, 100, 30_000]))
        def hide(self, data: Any, ms: int) -> None:
            group, handle, share, good = self.holder(data)
            answer = port.hide(self.topic, group.name, handle, ms)
            if not good:
                assert isinstance(answer, IllegalReceipt)
                return
            share.due = port.now() + ms
            key = (group.kind, answer)
            assert self.handles.setdefault(key, (share, share.delivery)) == (share, share.delivery)
            group.time_is(port.now())
            self.harvest()

        @precondition(lambda self: self.handles)
        @step(kind=st.sampled_from(GROUPS), keep=st.sets(st.integers(0, 5)))
        def free_most(self, kind: str, keep: set[int]) -> None:
            """Consumers leave: what they hold is free, but for some."""
            good = [key for key in self.handles if key[0] == kind and self.is_good(key)]
            freed = {id(self.handles[key][0]): key for n, key in enumerate(good) if n not in keep}
            for key in freed.values():
                assert isinstance(port.hide(self.topic, self.groups[kind].name, key[1], 0), str)
                self.handles[key][0].due = port.now()
                self.groups[kind].time_is(port.now())
                self.harvest()

        @precondition(lambda self: self.handles)
        @step(data=st.data())
        def give_back(self, data: Any) -> None:
            group, handle, share, _ = self.holder(data)
            delivery = self.handles[group.kind, handle][1]
            good = not share.over and not share.returned and share.delivery == delivery
            assert port.give_back(self.topic, group.name, [handle]) == good
            if good:
                share.returned = True
                share.attempt, share.held, share.due = share.attempt - 1, False, port.now()
            self.harvest()

        @precondition(lambda self: self.handles)
        @step(data=st.data())
        def dead_letter(self, data: Any) -> None:
            group, handle, share, good = self.holder(data)
            answer = port.dead_letter(self.topic, group.name, handle)
            assert answer is None if good else isinstance(answer, IllegalReceipt)
            if good:
                group.bury(share)
            self.harvest()

        @precondition(lambda self: self.foreign)
        @step(data=st.data())
        def use_a_handle_of_something_deleted(self, data: Any) -> None:
            kind, handle = data.draw(st.sampled_from(self.foreign), label="handle")
            name = self.groups[kind].name
            (answer,) = port.ack(self.topic, name, [handle])
            assert isinstance(answer, IllegalReceipt)
            assert isinstance(port.hide(self.topic, name, handle, 0), IllegalReceipt)
            assert isinstance(port.dead_letter(self.topic, name, handle), IllegalReceipt)
            assert port.give_back(self.topic, name, [handle]) == 0

        # -- the world --------------------------------------------------------------------------

        @step(ms=st.sampled_from([1, 99, 1_000, 6_000, 60_000]))
        def time_passes(self, ms: int) -> None:
            port.pass_ms(ms)
            self.harvest()
            self.time_is(port.now())

        @step(chance=st.integers(0, 3))
        def restart(self, chance: int) -> None:
            if chance:
                return
            port.restart()
            port.broker.on_check(lambda check: False)
            self.end_waiters()
            self.the_store_was_read()

        def the_store_was_read(self) -> None:
            for group in self.groups.values():
                for share in group.shares.values():
                    share.moved = 0

        @step(kind=st.sampled_from(GROUPS), to=st.sampled_from(StartFrom), chance=st.integers(0, 5))
        def reset(self, kind: str, to: StartFrom, chance: int) -> None:
            if chance:
                return
            group = self.groups[kind]
            port.run(port.broker.reset(group.name, self.topic, to))
            for share in group.shares.values():
                share.delivery, share.attempt, share.due = share.delivery + 1, 0, 0
                share.held, share.over = False, to is StartFrom.LAST
            self.harvest()
            port.pass_ms(1)
            self.harvest()
            self.time_is(port.now())

        @step(chance=st.integers(0, 5))
        def make_the_topic_again(self, chance: int) -> None:
            if chance:
                return
            config = port.run(port.broker.topic(self.topic))
            port.run(port.broker.delete_topic(self.topic))
            port.run(port.broker.create_topic(config))
            self.end_waiters()
            self.foreign += list(self.handles)
            self.messages, self.hidden, self.handles = [], [], {}
            for group in self.groups.values():
                group.shares.clear()

        @step(kind=st.sampled_from(GROUPS), chance=st.integers(0, 5))
        def make_a_group_again(self, kind: str, chance: int) -> None:
            if chance:
                return
            group = self.groups[kind]
            config = port.run(port.broker.group(group.name))
            port.run(port.broker.delete_group(group.name))
            port.run(port.broker.create_group(config))
            port.settle()
            for waiter in [w for w in self.waiters if w.group is group]:
                self.waiters.remove(waiter)
                assert waiter.task.done()
                assert waiter.task.exception() is None or isinstance(waiter.task.exception(), GatewayError)
            assert not any(got for _, w, got in self.answers if w.group is group)
            self.answers = [answer for answer in self.answers if answer[1].group is not group]
            for share in group.shares.values():
                share.delivery, share.attempt, share.due = share.delivery + 1, 0, 0
                share.held = share.over = False
            port.pass_ms(1)
            self.harvest()
            self.time_is(port.now())

        def one_held(self, kind: str) -> str:
            return next((key[1] for key in self.handles if key[0] == kind and self.is_good(key)), "")

        @step(kind=st.sampled_from(GROUPS), what=st.sampled_from(WRITES), chance=st.integers(0, 2))
        def a_write_fails(self, kind: str, what: str, chance: int) -> None:
            """Whoever is told that the broker was not available may be sure that nothing was done."""
            if chance:
                return
            group, held = self.groups[kind], self.one_held(kind)
            name, broker, context = group.name, port.broker, port.context
            half = next((s for s in self.hidden if s.transaction_id), None)
            if what == "send":
                work = broker.send(context, [port.message(self.topic, "never")])
            elif what == "send late":
                work = broker.send(context, [port.message(self.topic, "never", delay_ms=1)])
            elif what == "send half":
                work = broker.send(context, [port.message(self.topic, "never", half=True)])
            elif what == "pop" and group.ready(port.now()):
                work = broker.pop(context, self.request(group, 3, 60_000))
            elif what == "end" and half is not None and half.transaction_id not in self.ended:
                wanted = EndTransaction(self.topic, half.transaction_id, half.message_id, Resolution.COMMIT)
                work = broker.end_transaction(context, wanted)
            elif what == "ack" and held:
                work = broker.ack(context, self.topic, name, [held])
            elif what == "hide" and held:
                work = broker.change_invisible(context, self.topic, name, held, 0)
            elif what == "give back" and held:
                work = broker.give_back(context, self.topic, name, [held])
            elif what == "dead letter" and held:
                work = broker.dead_letter(context, self.topic, name, held)
            elif what == "reset":
                work = broker.reset(name, self.topic, StartFrom.FIRST)
            else:
                return
            port.fail_next_write()
            try:
                port.run(work)
            except BrokerUnavailable:
                pass
            else:
                raise AssertionError(f"{what} was answered, but not written")
            self.the_store_was_read()
            port.pass_ms(3_000)
            for waiter in list(self.waiters):
                if waiter.task.done() and isinstance(waiter.task.exception(), BrokerUnavailable):
                    self.waiters.remove(waiter)
            self.harvest()
            self.time_is(port.now())

        # -- what always holds --------------------------------------------------------------------

        @invariant()
        def agrees(self) -> None:
            if not hasattr(self, "fine"):
                return
            for group in self.groups.values():
                assert sorted(port.dead_letters(group.name)) == sorted(group.dead)
                ready = group.ready(port.now())
                assert not (ready and any(w.group is group for w in self.waiters)), "somebody waits in vain"
            ledgers = [one for share in port.broker._engine.shares for one in share.ledgers.values()]
            # Counted as it changes, and in the order of the offsets: both are relied on.
            assert port.broker.figures()["unfinished_deliveries"] == sum(len(one.entries) for one in ledgers)
            assert all(list(one.entries) == sorted(one.entries) for one in ledgers)

        def teardown(self) -> None:
            if not getattr(self, "fine", False):
                return
            for waiter in self.waiters:
                waiter.task.cancel()
            port.settle()
            self.waiters.clear()
            port.pass_ms(120_000)
            self.time_is(port.now())
            for group in self.groups.values():
                while ready := group.ready(port.now()):
                    request = self.request(group, 7, 60_000)
                    got = port.run(port.broker.pop(port.context, request))
                    assert len(got) == min(7, len(ready))
                    self.taken(group, got, 60_000, port.now())
                    port.ack(self.topic, group.name, [m.receipt for m in got])
                    for message in got:
                        group.shares[message.body.decode()].over = True
                assert port.run(port.broker.pop(port.context, self.request(group, 7, 1_000))) == []
                assert all(s.over for s in group.shares.values())
            for sent in list(self.hidden):
                if sent.transaction_id and sent.transaction_id not in self.ended:
                    how = EndTransaction(
                        self.topic, sent.transaction_id, sent.message_id, Resolution.ROLLBACK
                    )
                    port.run(port.broker.end_transaction(port.context, how))
            assert port.leftovers() == {}
            self.agrees()

    return WholeBroker


@pytest.mark.timeout(900)  # for when it fails: looking for the shortest way there takes minutes
def test_the_whole_broker_agrees_with_its_model(port: Any, stateful: Any) -> None:
    run_state_machine_as_test(make_machine(port), settings=stateful)
