"""Messages through the gateways: warmed up, as fast as they go in turns, then at one rate for both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.beside.amounts import AT_A_RATE, CALLS_AT_A_RATE, WORKS, Amounts, Work
from benchmarks.beside.driving import Load
from benchmarks.beside.processes import cpu_s, memory_mb, standing_still
from benchmarks.beside.results import Results, Run, middle
from benchmarks.beside.sides import JAVA, JAVA_SMALL, OURS, Side, Town

AHEAD = 4_096
"""More messages are there than a receiving run takes, so that none of its calls waits."""
CALLS_BATCHED = 8
KEPT_UP_FROM = 0.95
QUARTERS = 4
"""Parts in which a gateway is warmed up, so that what the last one cost shows whether it is warm."""


class Working:
    """The works of one tier, one gateway after the other, another one first in every round."""

    def __init__(self, town: Town, load: Load, amounts: Amounts, results: Results) -> None:
        self._town = town
        self._load = load
        self._amounts = amounts
        self._results = results
        self._sides: list[Side] = []
        """Those that run now."""

    def run(self, parts: list[str]) -> None:
        works = [WORKS[name] for name in WORKS if name in parts]
        with self._town.sides() as sides:
            self._sides = sides
            for side in sides:
                time.sleep(self._amounts.settled_s)
                self._memory(side, "memory_idle")
                self._warm(side)
            for turn in range(self._amounts.rounds):
                for work in works:
                    for side in _in_turn(sides, turn):
                        with self._trying(side, work.name):
                            self._once(side, work, turn)
            if "rate" in parts:
                self._at_a_rate(sides, works or [WORKS[name] for name in AT_A_RATE])
            for side in sides:
                self._memory(side, "memory_loaded")
        if "memory" in parts and self._town.tier == "own" and JAVA in self._town.names:
            with self._results.trying(f"{self._town.tier}, memory, {JAVA_SMALL}"):
                self._small_heap(works)

    def _small_heap(self, works: list[Work]) -> None:
        """The Java proxy with a heap of 512 MB, for its memory: warmed up the same, and one round."""
        with self._town.start(JAVA_SMALL) as side:
            self._sides = [side]
            time.sleep(self._amounts.settled_s)
            self._memory(side, "memory_idle")
            self._warm(side)
            for work in works:
                self._once(side, work, 0)
            self._memory(side, "memory_loaded")

    def _trying(self, side: Side, part: str) -> AbstractContextManager[None]:
        return self._results.trying(f"{side.tier}, {part}, {side.name}")

    @contextmanager
    def _alone(self, side: Side) -> Iterator[None]:
        """The other gateway stands still, after a moment in which it does what is due.

        A minute after messages were received RocketMQ's broker looks whether they were acknowledged: for a
        second or two that takes much of both cores, and would be in the latencies of the other gateway. Ours
        merges later what was stored.
        """
        others = [other.pid for other in self._sides if other is not side]
        if others:
            time.sleep(self._amounts.awake_s)
        with standing_still(others):
            yield

    # -- one thing --------------------------------------------------------------------------------

    def _warm(self, side: Side) -> None:
        """The same number of messages through each gateway, by each kind of call."""
        side.make((_sent(side), _taken(side)), (_group(side),))
        for topic in (_sent(side), _taken(side)):
            if side.name == OURS and side.tier == "embedded":
                self._load.run(side.target, "send", messages=1, topic=topic, group=_group(side))
            self._load.until_routed(side.target, topic, group=_group(side))
        amounts = self._amounts
        self._stock(side, amounts.warm_batched + amounts.warm_single_received)
        for name, messages in (
            ("receive_32", amounts.warm_batched),
            ("send_1", amounts.warm_single),
            ("receive_1", amounts.warm_single_received),
        ):
            work = WORKS[name]
            for quarter in range(QUARTERS):
                if work.kind == "receive":
                    # Calls in flight take more than was asked for, each time.
                    self._stock(side, messages // QUARTERS)
                before = cpu_s(side.pid)
                told = self._do(side, work, messages=messages // QUARTERS, calls=work.calls)
                used = cpu_s(side.pid) - before
                figures = {"cpu_us": used / max(told["messages"], 1) * 1e6, "seconds": told["seconds"]}
                self._told(side, f"{name}.warm_up", quarter, told, figures)

    def _once(self, side: Side, work: Work, turn: int) -> None:
        messages = max(int(work.messages * self._amounts.share), work.per_call * work.calls)
        if work.kind == "receive":
            self._stock(side, messages)
        with self._alone(side):
            broker = cpu_s(side.broker_pid) if side.broker_pid else 0.0
            before = cpu_s(side.pid)
            told = self._do(side, work, messages=messages, seconds=self._amounts.seconds, calls=work.calls)
            used = cpu_s(side.pid) - before
        done = max(told["messages"], 1)
        figures = {
            "cpu_us": used / done * 1e6,
            "rate": told["rate"],
            "per_core": done / max(used, 0.01),
            "cores": used / told["seconds"],
        }
        if side.broker_pid:
            figures["broker_us"] = (cpu_s(side.broker_pid) - broker) / done * 1e6
        self._told(side, work.name, turn, told, {**figures, **_latencies(told), **_of_load(told)})

    def _at_a_rate(self, sides: list[Side], works: list[Work]) -> None:
        """Half of what the Java proxy did at most; what was late is counted from when it was due."""
        wanted = [work for work in works if work.name in AT_A_RATE]
        judge = next((side for side in sides if side.name == JAVA), sides[0])
        for work in wanted:
            if not self._results.of(judge.tier, work.name, judge.name):
                with self._trying(judge, work.name):
                    self._once(judge, work, 0)
        for turn in range(self._amounts.rate_rounds):
            for work in wanted:
                most = middle(self._results.of(judge.tier, work.name, judge.name), "rate")
                if not most:
                    continue
                for side in _in_turn(sides, turn):
                    with self._trying(side, f"{work.name}.rate"):
                        self._paced(side, work, most / 2, turn)

    def _paced(self, side: Side, work: Work, rate: float, turn: int) -> None:
        seconds = self._amounts.rate_seconds
        messages = int(rate * seconds)
        if work.kind == "receive":
            self._stock(side, messages)
        with self._alone(side):
            before = cpu_s(side.pid)
            told = self._do(
                side, work, messages=messages, seconds=seconds, calls=CALLS_AT_A_RATE, rate=f"{rate:.1f}"
            )
            used = cpu_s(side.pid) - before
        figures = {
            "wanted": rate,
            "rate": told["rate"],
            "cpu_us": used / max(told["messages"], 1) * 1e6,
            **_latencies(told),
            **_of_load(told),
        }
        kept = told["messages"] >= KEPT_UP_FROM * messages and told["rate"] >= KEPT_UP_FROM * rate
        self._told(side, f"{work.name}.rate", turn, told, figures, kept_up=kept)

    # -- the load ---------------------------------------------------------------------------------

    def _do(self, side: Side, work: Work, *, calls: int, **options: Any) -> dict[str, Any]:
        topic = _taken(side) if work.kind == "receive" else _sent(side)
        told = self._load.run(
            side.target,
            work.kind,
            topic=topic,
            group=_group(side),
            per_call=work.per_call,
            connections=work.connections,
            calls=calls,
            **options,
        )
        if work.kind == "receive":
            side.stored[topic] -= told["messages"]
        return told

    def _stock(self, side: Side, messages: int) -> None:
        """Have so many messages wait for the consumers of a side, and some more."""
        there = side.stored.get(_taken(side), 0)
        missing = messages + AHEAD - there
        if missing > 0:
            told = self._load.run(
                side.target,
                "send",
                topic=_taken(side),
                per_call=32,
                calls=CALLS_BATCHED,
                messages=missing,
            )
            side.stored[_taken(side)] = there + told["messages"]
            self._told(side, "stock", 0, told, {"seconds": told["seconds"]})

    def _memory(self, side: Side, part: str) -> None:
        self._results.add(Run(side.tier, part, side.name, 0, memory_mb(side.pid)))

    def _told(
        self,
        side: Side,
        part: str,
        turn: int,
        told: dict[str, Any],
        figures: dict[str, float],
        *,
        kept_up: bool = True,
    ) -> None:
        said = told["said"] or []
        self._results.add(Run(side.tier, part, side.name, turn, figures, told["errors"], said, kept_up))


def _in_turn(sides: list[Side], turn: int) -> list[Side]:
    return sides if turn % 2 == 0 else sides[::-1]


def _sent(side: Side) -> str:
    return side.named("sent")


def _taken(side: Side) -> str:
    return side.named("taken")


def _group(side: Side) -> str:
    return side.named("group")


def _latencies(told: dict[str, Any]) -> dict[str, float]:
    """Of a call: of receiving one, from its begin to the answer of the acknowledgement."""
    figures = {f"{name}_ms": value for name, value in told.get("call_ms", {}).items()}
    for kind in ("receive", "ack"):
        if f"{kind}_ms" in told:
            figures[f"{kind}_p99_ms"] = told[f"{kind}_ms"]["p99"]
    return figures


def _of_load(told: dict[str, Any]) -> dict[str, float]:
    """What the load itself took, and how much it saw that is no error: empty answers, late turns."""
    return {"load_cpu_s": told["own_cpu_s"], "empty": told["empty"], "behind": told["behind"]}
