"""How much is done, and so how long a run takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    kind: str
    per_call: int
    connections: int
    calls: int
    messages: int
    """In each round, or fewer when `Amounts.seconds` are over."""


CLIENTS = 4
WORKS = {
    work.name: work
    for work in (
        Work("send_1", "send, one per call", "send", 1, CLIENTS, 32, 60_000),
        Work("send_32", "send, 32 per call", "send", 32, CLIENTS, 8, 300_000),
        Work("receive_32", "receive and acknowledge, 32 per call", "receive", 32, CLIENTS, 8, 80_000),
        Work("receive_1", "receive and acknowledge, one per call", "receive", 1, CLIENTS, 32, 12_000),
        Work("route", "query route", "route", 1, CLIENTS, 32, 80_000),
        Work("alone", "send, one call at a time", "send", 1, 1, 1, 8_000),
    )
}
AT_A_RATE = ("send_1", "send_32", "receive_32", "receive_1")
"""Those whose latencies are compared at the same rate, too."""
CALLS_AT_A_RATE = 256
"""May be in flight on each connection, so that a slow answer does not hold up the calls after it."""

OTHER_PARTS = ("rate", "memory", "idle_connections", "polls", "ready", "nghttpd")
PARTS = (*WORKS, *OTHER_PARTS)


def chosen_from(parts: Collection[str]) -> Callable[[str], list[str]]:
    """For an argument that names some of them, with commas between.

    What it returns raises ArgumentTypeError for a part that nobody knows.
    """

    def chosen(words: str) -> list[str]:
        wanted = [word.strip() for word in words.split(",") if word.strip()]
        unknown = [word for word in wanted if word not in parts]
        if unknown or not wanted:
            known = ", ".join(parts)
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: there are {known}")
        return wanted

    return chosen


@dataclass(frozen=True)
class Amounts:
    rounds: int = 5
    seconds: float = 5.0
    """The longest that a work takes in a round."""
    share: float = 1.0
    """Of the messages of each work."""
    warm_batched: int = 400_000
    """Messages sent and received through each gateway, 32 per call, before anything is counted: the first
    100,000 cost a Java proxy three to six times as much."""
    warm_single: int = 400_000
    """Sent one per call after that: other code than that of batches, which is not warm by those."""
    warm_single_received: int = 40_000
    """Received and acknowledged one per call after that."""
    rate_rounds: int = 3
    rate_seconds: float = 6.0
    connections: int = 10_000
    poll_connections: int = 100
    polls_each: int = 100
    poll_topics: int = 20
    stored: int = 1_000_000
    settled_s: float = 3.0
    """From the last thing done until memory is read."""
    awake_s: float = 1.0
    """What the other gateway gets before it is stopped, each time that one is measured."""
    starts: int = 3
    plain_rounds: int = 3


QUICK = Amounts(
    rounds=1,
    seconds=2.0,
    share=0.02,
    warm_batched=2_000,
    warm_single=200,
    warm_single_received=40,
    rate_rounds=1,
    rate_seconds=1.0,
    connections=200,
    poll_connections=4,
    polls_each=10,
    poll_topics=2,
    stored=2_000,
    settled_s=0.2,
    awake_s=0.0,
    starts=1,
    plain_rounds=1,
)

_START_S = {"own": 25.0, "embedded": 15.0}
"""Name server, broker and both gateways, and their end."""
_WARM_MS = {"own": (0.19, 0.2, 0.5), "embedded": (0.1, 0.15, 0.3)}
"""Of the slower of the two for each message: sent and received in batches, sent, received one per call."""


def seconds_of(amounts: Amounts, parts: Collection[str], tiers: Sequence[str], *, java: bool = True) -> float:
    """How long a run takes, roughly: for a person who waits."""
    sides = 2 if java else 1
    total = 0.0
    for tier in tiers:
        warmed = (amounts.warm_batched, amounts.warm_single, amounts.warm_single_received)
        warm = sum(ms * count / 1e3 for ms, count in zip(_WARM_MS[tier], warmed, strict=True))
        works = [work for work in WORKS.values() if work.name in parts]
        once = sum(min(amounts.seconds, 0.3 + work.messages * amounts.share / 3_000) for work in works)
        once += 3.0 * amounts.share * any(work.kind == "receive" for work in works)
        if works or {"rate", "memory"} & set(parts):
            others = (sides - 1) * amounts.awake_s
            total += _START_S[tier] + sides * (warm + amounts.rounds * (once + others * len(works)))
        if "rate" in parts:
            each = amounts.rate_seconds + 3 + amounts.awake_s
            total += amounts.rate_rounds * sides * each * len(AT_A_RATE)
        if "memory" in parts and tier == "own" and java:
            total += 10 + warm + once
        if "idle_connections" in parts and tier == "own":
            total += _START_S[tier] + sides * (15 + 2 * amounts.settled_s + amounts.connections / 700)
        if "polls" in parts and tier == "embedded":
            total += _START_S[tier] + sides * (amounts.stored / 40_000 + 10 + amounts.settled_s)
        if "ready" in parts:
            total += 5 + amounts.starts * (13 if java else 2)
    if "nghttpd" in parts:
        total += 3 + amounts.plain_rounds * 2 * min(amounts.seconds, 5)
    return total
