"""Official clients under load, a kit for each program: a producer, its consumers, and the ledger of both.

A kit has topics and groups of its own, so that each has a row of its own in the table. The ledgers are those
of `tests/replicas`, and so are the processes of the Python and the classic Java clients; the others play the
scenario `drained` of `tests/conformance`, which sends and consumes until it is told that all is over.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from popgate.testing.client_programs import Driver, Facts
from tests.classic.conftest import command_of as classic_command_of
from tests.conformance.drivers import command_of
from tests.crash.records import Send
from tests.replicas.books import Took
from tests.replicas.classic import ClassicClients, ClassicLedger
from tests.replicas.clients import Official, Stage
from tests.replicas.ledger import Delivery, Fate, Ledger
from tests.rolls.excuses import AT_A_DRAIN_S, WHILE_IT_DRAINS_S, Stamped

HOLD_S = 30
"""The invisible time of simple consumers: longer than a machine stands still, and what a killed gateway took
for them comes again within a minute."""
PUSH_HOLD_S = 60.0
"""RocketMQ counts it in minutes. What Go's client drops, which is all of an answer that a kill cut off, comes
again after it."""
_FAIL_BY_THEMSELVES = {"rust": "transport error|connection error received: not a result of an error"}
"""Rust's client makes no call anew that it began in the moment in which its connection was told to go."""
_TOLD_NOTHING = "4.9.4"
_FAILS_WHEN_ENDED = r"send request to <.*> failed|wait response on the channel|Send \[1\] times, still failed"
"""Classic clients before 5.3 cannot be told to go: what one of their threads sends in the moment in which
their connection is ended fails. Their driver has two that send, and no retries, to see it."""
_HOLDS_S = {"rust": 10.0}
"""The invisible time of clients whose driver has a simple consumer, and tells of its acknowledgements."""
_UNDER_WAY_S = 1.0
"""For so long after a message came its acknowledgement may be under way."""


@dataclass
class Kit:
    """Clients of one program. `groups`: what each consumer group reads."""

    name: str
    prefix: str
    ledger: Ledger
    failures: Stamped = field(default_factory=Stamped)
    groups: dict[str, str] = field(default_factory=dict)
    took: Took | None = None
    """What the broker's own books say, where a client does not tell all."""
    fails_by_itself: str = ""
    """A pattern of failures that no gateway can keep from its users, for it makes them itself,"""
    fails_within_s: float = AT_A_DRAIN_S
    """and how long after the beginning of a drain it may."""
    all_sent: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing is sent any more, and `ledger` has all that was."""

    def named(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def progress(self) -> Counter[str]:
        """Counts of all that must go on."""
        raise NotImplementedError

    async def run(self) -> None:
        """Work until `stop`."""
        raise NotImplementedError

    def stop(self) -> None:
        """Send no more, and finish what was sent; `all_sent` says when the last has been answered."""
        raise NotImplementedError

    async def produce(self, producing: Awaitable[None]) -> None:
        """Wait for what sends, to its end."""
        try:
            await producing
        finally:
            self.all_sent.set()

    def end(self) -> None:
        """Leave, as clients do."""

    def killed(self, began: float, ended: float) -> None:
        """A gateway was killed between two moments, and is out of the balancer since the second."""

    def row(self) -> tuple[int, int, int, int, int, int]:
        """Sent, received, acknowledged, errors, lost and duplicates, so far.

        A push consumer tells nobody of its acknowledgements: what it consumed counts as acknowledged, and
        is a duplicate if it comes again before the run ends.
        """
        ledger = self.ledger
        acked = sum(one.fate is Fate.DONE or one in ledger.proven for one in ledger.deliveries)
        twice = len(ledger.deliveries) - len({(one.group, one.body) for one in ledger.deliveries})
        return len(ledger.sends), len(ledger.deliveries), acked, len(self.failures), len(self.lost()), twice

    def lost(self) -> set[str]:
        """Bodies that were answered and are not consumed, or not stored where that was looked up."""
        stored = {one.body for one in self.ledger.stored}
        gone = {*self.ledger.sends} - stored if stored else set()
        return gone | {body for _, body in self.ledger.missing()}


class PythonKit(Kit):
    """The official Python client: a producer and a simple consumer, with `push` also a push consumer."""

    def __init__(self, prefix: str, balanced: str, replicas: Sequence[str], *, push: bool) -> None:
        super().__init__("Python", prefix, Ledger(rocketmq=True))
        stage = self._stage = Stage(self.ledger, replicas, balanced, prefix, 1)
        stage.official_hold_s, stage.consume_timeout_s = HOLD_S, PUSH_HOLD_S
        roles = {"producer": "official", "simple": "simple"} | ({"push": "push"} if push else {})
        self._officials = [Official(stage, role, "plain", name) for role, name in roles.items()]
        for one in self._officials:
            one.failures = self.failures
        self.groups = {self.named(name): self.named("plain") for role, name in roles.items() if role == name}
        self.ledger.readers = dict(self.groups)

    def progress(self) -> Counter[str]:
        counts, roles = self.ledger.counts, [one.role for one in self._officials]
        return Counter(
            {role: counts[f"official {role} {'sent' if role == 'producer' else 'acked'}"] for role in roles}
        )

    async def run(self) -> None:
        producer, *consumers = self._officials
        await asyncio.gather(self.produce(producer.run()), *(one.run() for one in consumers))

    def stop(self) -> None:
        self._stage.sending = False

    def end(self) -> None:
        self._stage.receiving = False
        self._stage.over.set()


class ClassicKit(Kit):
    """A version of RocketMQ's classic Java client: a producer, and concurrent and orderly consumers."""

    ledger: ClassicLedger

    def __init__(self, version: str, prefix: str, balanced: str, folder: Path, *, orderly: bool) -> None:
        super().__init__(f"classic Java {version}", prefix, ClassicLedger(rocketmq=True))
        if version == _TOLD_NOTHING:
            self.fails_by_itself, self.fails_within_s = _FAILS_WHEN_ENDED, WHILE_IT_DRAINS_S
        java = [*classic_command_of(version)[:-1], "popgate.classic.Worker"]
        plain, ordered = self.named("plain"), self.named("ordered")
        readers = {"concurrent": plain} | ({"orderly": ordered} if orderly else {})
        self.groups = {self.named(group): topic for group, topic in readers.items()}
        self.ledger.readers = dict(self.groups)
        self.ledger.ordered = {self.named("orderly")} if orderly else set()
        lanes = {"ordered": ordered, "lanes": 4} if orderly else {}
        sends = {"names": "good", "rest_ms": 30, "topic": plain, "timeout_ms": 20_000, **lanes}
        crowd = [self._clients(java, "producer", sends, balanced, folder)]
        for group, topic in readers.items():
            params = {"topic": topic, "group": self.named(group), "instance": group}
            crowd.append(self._clients(java, group, params, balanced, folder, self.named(group)))
        self._crowd = crowd
        self._sent, self._over = asyncio.Event(), asyncio.Event()

    def _clients(
        self, java: list[str], role: str, params: dict[str, Any], balanced: str, folder: Path, group: str = ""
    ) -> ClassicClients:
        pairs = [f"{key}={value}" for key, value in params.items()]
        found = ClassicClients(self.ledger, [*java, role, *pairs, balanced], folder, role, group)
        found.failures = self.failures
        return found

    def progress(self) -> Counter[str]:
        counts = self.ledger.counts
        done = {one.role: counts[f"{one.role} done"] for one in self._crowd[1:]}
        return Counter({"producer": counts["producer sent"], **done})

    async def run(self) -> None:
        producer, *consumers = self._crowd
        consuming = (one.run(self._over) for one in consumers)
        await asyncio.gather(self.produce(producer.run(self._sent)), *consuming)

    def stop(self) -> None:
        self._sent.set()

    def end(self) -> None:
        self._sent.set()
        self._over.set()

    def killed(self, began: float, ended: float) -> None:
        self.ledger.ended.append((began, ended))


class DrivenKit(Kit):
    """The client of a language whose driver plays `drained`: it tells what its API tells a user, no more.

    What was under way when a gateway was killed is found by the moments of its facts.
    """

    _RUN = "it"

    def __init__(self, client: str, prefix: str, balanced: str, folder: Path) -> None:
        super().__init__(client, prefix, Ledger(rocketmq=True))
        self.fails_by_itself = _FAIL_BY_THEMSELVES.get(client, "")
        self.groups = {self.named("group"): self.named("topic")}
        self.ledger.readers = dict(self.groups)
        self._command = command_of(client)
        self._balanced, self._folder = balanced, folder / f"driver-{client}"
        self._driver: Driver | None = None
        self._kills: list[tuple[float, float]] = []
        self._noted = 0
        self._hold_s = _HOLDS_S.get(client)
        self._acked: dict[tuple[str, int], float] = {}
        """When acknowledgements of a simple consumer were answered, by the message's id and attempt."""
        self._last_sent = time.monotonic()
        self._wall_s = time.time() - time.monotonic()
        self._stopped = asyncio.Event()

    def progress(self) -> Counter[str]:
        facts = self._facts()
        return Counter({"sent": len(facts.of("sent")), "received": len(facts.of("received"))})

    def row(self) -> tuple[int, int, int, int, int, int]:
        self._note()
        return super().row()

    async def run(self) -> None:
        await self.produce(self._drive())

    async def _drive(self) -> None:
        driver = self._driver = Driver(self._command, self._balanced, self._folder)
        try:
            params = {"topic": self.named("topic"), "group": self.named("group")}
            driver.run(self._RUN, "drained", params)
            await self._stopped.wait()
            driver.go(self._RUN)
            await asyncio.to_thread(driver.wait, self._RUN, lambda facts: bool(facts.of("finished")))
            self._note()
            facts = self._facts()
            if not facts.of("finished"):
                told = f"{facts[-5:]}, {driver.last_words()}"
                self.ledger.odd.append(f"the run of {self.name} did not come to its end: {told}")
        finally:
            await asyncio.to_thread(driver.close)

    def stop(self) -> None:
        self._stopped.set()

    def killed(self, began: float, ended: float) -> None:
        self._kills.append((began, ended))

    def _facts(self) -> Facts:
        return Facts() if self._driver is None else self._driver.wait(self._RUN, lambda _: True)

    def _note(self) -> None:
        """Write down the facts that came since the last time."""
        for fact in self._facts()[self._noted :]:
            self._noted += 1
            at = fact["at"] / 1000 - self._wall_s
            match fact["fact"]:
                case "sent":
                    self._note_sent(fact, at)
                case "received":
                    self._note_received(fact, at)
                case "acked":
                    self._acked[fact["id"], fact["attempt"]] = at
                case "unanswered":
                    self.failures.append(str(fact["error"]), at)
        self._judge()

    def _note_sent(self, fact: dict[str, Any], at: float) -> None:
        body, ledger = fact["body"], self.ledger
        # Numbers of messages have no gap: those before it were tried, too.
        ledger.tried |= {f"m{number}" for number in range(1, int(body[1:]) + 1)}
        ledger.sends[body] = Send(self.named("topic"), body, fact["id"])
        # It repeats a send by itself, and tells nobody of the first answer that was lost.
        ledger.lost_answers[body] += self._storms(self._last_sent, at)
        self._last_sent = at

    def _note_received(self, fact: dict[str, Any], at: float) -> None:
        (group,) = self.groups
        hold_s = PUSH_HOLD_S if self._hold_s is None else self._hold_s
        place = (at, at, fact["id"], 0, hold_s)
        one = Delivery(group, fact["body"], fact["attempt"], self.name, *place)
        # When it was asked for is not told: its time may be over before it seems to be.
        one.acking, one.settled, one.renewed = at, at, True
        self.ledger.deliveries.append(one)

    def _judge(self) -> None:
        """Of what came as a gateway was killed the acknowledgement may have been under way.

        A driver that tells of acknowledgements tells of those that failed, too: each of these is judged as a
        failure, and what became of the message is not known.
        """
        for one in self.ledger.deliveries:
            if self._hold_s is None:
                doubtful = self._storms(one.arrived, one.arrived + _UNDER_WAY_S) > 0
            else:
                acked_at = self._acked.get((str(one.answer), one.attempt))
                doubtful = acked_at is None
                one.settled = one.arrived if acked_at is None else acked_at
            one.fate = Fate.DOUBTFUL if doubtful else Fate.DONE
            (self.ledger.doubted.add if doubtful else self.ledger.doubted.discard)(one)

    def _storms(self, began: float, ended: float) -> int:
        return sum(first <= ended and began <= last for first, last in self._kills)


def new_prefix() -> str:
    """Of the names of a kit: others use the same RocketMQ."""
    return f"roll{uuid.uuid4().hex[:8]}"
