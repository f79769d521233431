"""Lite topics against a small model: nothing lost or held twice, each in its order, also over restarts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.lite import LITE_BIND_TOPIC, LiteAction, LiteSync
from popgate.model import GroupConfig, Message, MessageType, Pop, StoredMessage, TopicConfig
from popgate.testing.clock import MovableClock

NAMES = ("a", "b", "c")
CLIENTS = ("one", "two")
HOLD_MS = 10_000
SETTINGS = EmbeddedSettings(durability=Durability.NONE, max_lite_cached=2)
"""So few are kept in memory that most steps find their lite topic in the store."""


class LiteTopicsAndTheirModel(RuleBasedStateMachine):
    """The model: per lite topic the bodies that are not finished, in order; and who subscribes to what."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="popgate-lite-"))
        self.clock = MovableClock(now_ms=time.time_ns() // 1_000_000)
        self.unfinished: dict[str, list[str]] = defaultdict(list)
        self.attempts: dict[str, int] = defaultdict(int)
        self.held: dict[str, tuple[StoredMessage, int]] = {}
        self.subscribed: dict[str, set[str]] = defaultdict(set)
        self.sent = 0

    def do(self, work):
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.do(self.broker.stop())
        self.loop.close()
        shutil.rmtree(self.folder)

    async def _open(self) -> None:
        self.broker = EmbeddedBroker(self.folder / "store", clock=self.clock, settings=SETTINGS)
        await self.broker.start()

    @initialize()
    def begin(self) -> None:
        self.do(self._open())
        self.do(self.broker.create_topic(TopicConfig("t", (MessageType.LITE,), 2, 2)))
        group = GroupConfig("g", max_attempts=1_000, attributes={LITE_BIND_TOPIC: "t"})
        self.do(self.broker.create_group(group))
        self.subscribe("one", set(NAMES), LiteAction.ADD)

    def still_held(self) -> dict[str, StoredMessage]:
        now_ms = self.clock.now_ms()
        return {body: message for body, (message, until_ms) in self.held.items() if until_ms > now_ms}

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def send(self, name: str, count: int) -> None:
        bodies = [f"{name}{self.sent + n}" for n in range(count)]
        self.sent += count
        messages = [Message("t", body.encode(), lite_topic=name, type=MessageType.LITE) for body in bodies]
        self.do(self.broker.send(Context(), messages))
        self.unfinished[name] += bodies

    @rule(
        client=st.sampled_from(CLIENTS),
        names=st.sets(st.sampled_from(NAMES)),
        action=st.sampled_from([*LiteAction, LiteAction.ADD, LiteAction.ADD]),
    )
    def subscribe(self, client: str, names: set[str], action: LiteAction) -> None:
        sync = LiteSync("t", "g", action, tuple(names))
        self.do(self.broker.subscribe_lite(Context(client_id=client), sync))
        mine = self.subscribed[client]
        match action:
            case LiteAction.ADD:
                mine |= names
            case LiteAction.REMOVE:
                mine -= names
            case LiteAction.REPLACE:
                self.subscribed[client] = set(names)
            case LiteAction.CLEAR:
                mine.clear()
        assert self.broker.lite_subscriptions(client) == len(self.subscribed[client])

    @rule(client=st.sampled_from(CLIENTS), most=st.integers(1, 6))
    def pop(self, client: str, most: int) -> None:
        request = Pop("t", "g", EVERYTHING, HOLD_MS, max_messages=most)
        got = self.do(self.broker.pop_lite(Context(client_id=client), request))
        before = self.still_held()
        blocked = {body[0] for body in before}
        free = {name for name in self.subscribed[client] - blocked if self.unfinished[name]}
        expected = min(most, sum(len(self.unfinished[name]) for name in free))
        assert len(got) == expected, (got, free, self.unfinished)
        taken: dict[str, list[str]] = defaultdict(list)
        for message in got:
            body = message.body.decode()
            assert body[0] in free
            taken[body[0]].append(body)
            self.attempts[body] += 1
            assert message.attempt == self.attempts[body]
            self.held[body] = (message, self.clock.now_ms() + HOLD_MS)
        for name, bodies in taken.items():
            assert bodies == self.unfinished[name][: len(bodies)]

    @precondition(lambda self: self.still_held())
    @rule(data=st.data(), how=st.sampled_from(["ack", "give back", "nack", "suspend", "hold on"]))
    def settle(self, data, how: str) -> None:
        held = self.still_held()
        body = data.draw(st.sampled_from(sorted(held)))
        message, context = held[body], Context(client_id="one")
        if how == "ack":
            assert self.do(self.broker.ack(context, "t", "g", [message.receipt])) == [None]
            self.unfinished[body[0]].remove(body)
            del self.held[body]
        elif how == "give back":
            assert self.do(self.broker.give_back(context, "t", "g", [message.receipt])) == 1
            self.attempts[body] -= 1
            del self.held[body]
        elif how == "nack":
            self.do(self.broker.change_invisible(context, "t", "g", message.receipt, 0))
            del self.held[body]
        elif how == "suspend":
            self.do(self.broker.change_invisible(context, "t", "g", message.receipt, 0, suspend=True))
            self.attempts[body] -= 1
            del self.held[body]
        else:
            handle = self.do(self.broker.change_invisible(context, "t", "g", message.receipt, 2 * HOLD_MS))
            message.receipt = handle
            self.held[body] = (message, self.clock.now_ms() + 2 * HOLD_MS)

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def time_passes(self, seconds: int) -> None:
        async def pass_on() -> None:
            self.clock.advance(seconds)
            for _ in range(6):
                await asyncio.sleep(0)

        self.do(pass_on())
        self.held = {body: kept for body, kept in self.held.items() if kept[1] > self.clock.now_ms()}

    @rule()
    def restart(self) -> None:
        self.do(self.broker.stop())
        self.do(self._open())
        for client, names in self.subscribed.items():
            sync = LiteSync("t", "g", LiteAction.REPLACE, tuple(names))
            self.do(self.broker.subscribe_lite(Context(client_id=client), sync))


TestLiteTopics = LiteTopicsAndTheirModel.TestCase
TestLiteTopics.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
