"""Memory while very many connections are held and idle, and while very many consumers wait."""

from __future__ import annotations

import resource
import time
from typing import Any

from benchmarks.beside.amounts import Amounts
from benchmarks.beside.driving import Load
from benchmarks.beside.processes import live_heap_mb, memory_mb
from benchmarks.beside.results import Results, Run
from benchmarks.beside.sides import OURS, Side, Town

FIRST_SHARE = 10
"""A tenth of the connections is there when counting begins: what only the first ones cost is not counted."""
LONGEST_WAIT_S = 20
"""Of one poll: more than the Java proxy grants as shipped would be cut; each is followed by the next."""


class Holding:
    def __init__(self, town: Town, load: Load, amounts: Amounts, results: Results) -> None:
        self._town = town
        self._load = load
        self._amounts = amounts
        self._results = results

    # -- connections ------------------------------------------------------------------------------

    def idle_connections(self) -> None:
        """Each has told its HTTP/2 settings and asked for a route, as a client with an id of its own."""
        count = self._amounts.connections
        if not _may_open(count + count // FIRST_SHARE + 500):
            self._results.note(
                f"idle_connections: left out, too few files may be open for {count} connections"
            )
            return
        for name in self._town.names:
            what = f"{self._town.tier}, idle_connections, {name}"
            with self._results.trying(what), self._town.start(name) as side:
                side.make((side.named("idle"),), ())
                self._load.until_routed(side.target, side.named("idle"))
                self._idle(side, count)

    def _idle(self, side: Side, count: int) -> None:
        first: dict[str, Any] = {}
        told: dict[str, Any] = {}
        few = max(count // FIRST_SHARE, 1)
        topic = side.named("idle")
        with self._load.holding(side.target, "idle", first, topic=topic, connections=few):
            before, heap_before = self._settled(side)
            with self._load.holding(side.target, "idle", told, topic=topic, connections=count) as held:
                after, heap_after = self._settled(side)
        figures = {
            "held": held,
            "pss_mb": after["pss_mb"],
            "pss_kib_each": (after["pss_mb"] - before["pss_mb"]) * 1024 / max(held, 1),
        }
        if heap_before is not None and heap_after is not None:
            figures["heap_kib_each"] = (heap_after - heap_before) * 1024 / max(held, 1)
        self._add(side, "idle_connections", figures, first, told, wanted=count, held=held)

    def _settled(self, side: Side) -> tuple[dict[str, float], float | None]:
        """Memory once nothing moves any more; for Java what is alive after a full collection, too."""
        time.sleep(self._amounts.settled_s)
        heap = None if side.name == OURS else live_heap_mb(side.pid)
        return memory_mb(side.pid), heap

    # -- polls ------------------------------------------------------------------------------------

    def polls(self) -> None:
        """Long polls without a message on few connections, before a broker that has stored very many."""
        if not _may_open(1_000):
            self._results.note("polls: left out, too few files may be open")
            return
        for name in self._town.names:
            what = f"{self._town.tier}, polls, {name}"
            with self._results.trying(what), self._town.start(name) as side:
                self._polls(side)

    def _polls(self, side: Side) -> None:
        amounts = self._amounts
        topics = [f"waited-{n}" for n in range(amounts.poll_topics)]
        side.make((*topics, "stored"), [f"waiters-{n}" for n in range(amounts.poll_topics)])
        if side.name != OURS:
            self._load.until_routed(side.target, "stored")
        figures = {"idle_mb": memory_mb(side.pid)["pss_mb"]}
        stored = self._load.run(
            side.target, "send", topic="stored", per_call=32, calls=8, messages=amounts.stored
        )
        for topic in topics:  # each is there, and has no message that anybody could receive
            self._load.run(side.target, "route", topic=topic, messages=1, calls=1, connections=1)
        figures |= _named("stored", self._settled(side)[0])
        told: dict[str, Any] = {}
        wanted = amounts.poll_connections * amounts.polls_each
        with self._load.holding(
            side.target,
            "polls",
            told,
            topic="waited",
            group="waiters",
            topics=amounts.poll_topics,
            wait=LONGEST_WAIT_S,
            connections=amounts.poll_connections,
            calls=amounts.polls_each,
            messages=len(topics),
        ) as held:
            figures |= _named("waiting", self._settled(side)[0])
            for topic in topics:
                self._load.run(
                    side.target, "send", topic=topic, messages=1, calls=1, connections=1, per_call=1
                )
        figures["held"] = held
        figures["woken"] = told.get("messages", 0)
        if figures["woken"] != len(topics):
            told["errors"] = told.get("errors", 0) + 1
            told["said"] = [
                *(told.get("said") or []),
                f"{figures['woken']} of {len(topics)} messages came to the waiting",
            ]
        self._add(side, "polls", figures, stored, told, wanted=wanted, held=held)

    # -- both -------------------------------------------------------------------------------------

    def _add(
        self, side: Side, part: str, figures: dict[str, float], *told: dict[str, Any], wanted: int, held: int
    ) -> None:
        said = [sentence for one in told for sentence in one.get("said") or ()]
        errors = sum(one.get("errors", 0) for one in told)
        if held != wanted:
            errors += 1
            said.append(f"{held} of {wanted} were held")
        self._results.add(Run(side.tier, part, side.name, 0, figures, errors, said))


def _named(name: str, memory: dict[str, float]) -> dict[str, float]:
    return {f"{name}_mb": memory["pss_mb"], f"{name}_files_mb": memory["files_mb"]}


def _may_open(files: int) -> bool:
    """Whether so many files may be open, here and in the programs started from here, which inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        highest = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        soft = highest
    return soft == resource.RLIM_INFINITY or soft >= files
