"""Classic clients of a run before several replicas, in processes of their own, and what must hold of them.

A classic consumer acknowledges nothing: it tells positions. What it consumed comes again where a queue is
read anew from a position that was written down before; of a mapped group where the gateway that held it for
the client was ended. Both have names here, and are looked for in what the clients told of their positions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.records import Send
from tests.replicas.ledger import SENT_AGAIN, Delivery, Fate, Ledger

_CONFIRMED_S = 5.0
"""A position that was answered so long before its gateway ended is written down: it was one request more."""
_WRITTEN_EVERY_S = 1.1
BACK_WITHIN_S = 120.0
"""What a gateway held for clients of a mapped group when it ended comes back within a minute; and another one
for a client that is late on a busy machine."""
_SENT_BACK_WITHIN_S = 30.0
"""So long after a message came its client sends it back at the latest: its listener is quick to fail, and a
classic client waits 5 s for the answer before it stores a copy itself."""
_MOST_ENDED = 2
"""So many replicas end at the same time, and lose an answer each."""
VIRTUAL = 1 << 60

READ_ANEW = "its queue was read anew from a position that was written down before it was consumed"
TOLD_LOWER = "its queue was read anew, and a member that had it before told its own, lower position"
GATEWAY_ENDED = "its gateway ended, or the client left it, before its end was written down"
SENT_BACK_AGAIN = "its client sent it back again because an answer was lost"
FAILED = "its listener failed, and sent it back"


@dataclass(slots=True)
class Position:
    """A position as one client said or heard it. `kind`: told, confirmed, began or asked."""

    kind: str
    client: str
    at: float
    offset: int


@dataclass(slots=True)
class Place:
    """Where a delivery came from. `queue`: topic and queue id."""

    client: str
    queue: tuple[str, int]
    offset: int


@dataclass
class ClassicLedger(Ledger):
    """A ledger of classic consumers. `ends`: when replicas ended, each as (first, last) moment."""

    positions: dict[tuple[str, tuple[str, int]], list[Position]] = field(default_factory=dict)
    """By group and queue, as they came."""
    places: dict[Delivery, Place] = field(default_factory=dict)
    ended: list[tuple[float, float]] = field(default_factory=list)

    def _cause(self, delivery: Delivery, earlier: list[Delivery], copies: int) -> str:
        if len(earlier) < copies and self.lost_answers[delivery.body]:
            return SENT_AGAIN
        if self._is_retry(delivery, earlier):
            return FAILED
        return (
            self._of_virtual(delivery, earlier)
            or self._of_position(delivery, earlier)
            or self._of_sending_back(delivery, earlier)
        )

    def _compared(self, one: Delivery, other: Delivery) -> float:
        """A position that is read anew gives out the first attempt again, after the others."""
        return one.arrived - other.arrived

    def _is_sure(self, one: Delivery) -> bool:
        """What a listener consumed is consumed: no broker answers with OK what it dropped."""
        return True

    def _is_retry(self, delivery: Delivery, earlier: Sequence[Delivery]) -> bool:
        """Each failure makes one more copy, with one attempt more; of a mapped message it makes none."""
        failures = sum(one.fate is Fate.FREED and one.attempt == delivery.attempt - 1 for one in earlier)
        copies = self._places_of(earlier, delivery.attempt)
        place = self.places[delivery]
        return (place.queue, place.offset) not in copies and len(copies) < failures

    def _of_virtual(self, delivery: Delivery, earlier: Sequence[Delivery]) -> str:
        """A replica ended after it came and before what its client said of it was surely written down."""
        for one in earlier:
            place = self.places[one]
            if place.offset < VIRTUAL:
                continue
            surely = min(
                (
                    told.at + _CONFIRMED_S
                    for told in self.positions.get((one.group, place.queue), ())
                    if told.kind == "confirmed" and told.client == place.client and told.offset > place.offset
                ),
                default=float("inf"),
            )
            if any(
                last >= one.arrived
                and first <= min(surely, delivery.arrived)
                and delivery.arrived <= last + BACK_WITHIN_S
                for first, last in self.ended
            ):
                return GATEWAY_ENDED
        return ""

    def _of_position(self, delivery: Delivery, earlier: Sequence[Delivery]) -> str:
        """Its client had begun the queue at or before it, and knew no better."""
        place = self.places[delivery]
        same = [one for one in earlier if self._is_at(one, place)]
        own = max((one.arrived for one in same if one.client == delivery.client), default=0.0)
        told = self.positions.get((delivery.group, place.queue), [])
        began = [
            one
            for one in told
            if one.kind == "began" and one.client == place.client and one.at <= delivery.arrived
        ]
        if not same or not began or began[-1].at < own or began[-1].offset > place.offset:
            return ""
        asked = max(
            (
                one.at
                for one in told
                if one.kind == "asked" and one.client == place.client and one.at <= began[-1].at
            ),
            default=began[-1].at,
        )
        above = _written(told, place.offset)
        if above >= asked:
            return READ_ANEW
        lower = [
            one
            for one in told
            if one.kind in ("told", "confirmed") and one.offset <= place.offset and one.at >= above
        ]
        return TOLD_LOWER if lower else ""

    def _of_sending_back(self, delivery: Delivery, earlier: Sequence[Delivery]) -> str:
        """A client that hears nothing of what it sent back stores another copy itself."""
        if delivery.attempt < 2 or any(self._is_at(one, self.places[delivery]) for one in earlier):
            return ""
        failed = [one for one in earlier if one.fate is Fate.FREED and one.attempt == delivery.attempt - 1]
        lost = _MOST_ENDED * sum(
            last >= one.arrived and first <= min(one.arrived + _SENT_BACK_WITHIN_S, delivery.arrived)
            for one in failed
            for first, last in self.ended
        )
        before = len(self._places_of(earlier, delivery.attempt))
        return SENT_BACK_AGAIN if before < len(failed) + lost else ""

    def _places_of(self, deliveries: Sequence[Delivery], attempt: int) -> set[tuple[tuple[str, int], int]]:
        """Queues and offsets of an attempt: its copies."""
        places = [self.places[one] for one in deliveries if one.attempt == attempt]
        return {(one.queue, one.offset) for one in places}

    def _is_at(self, one: Delivery, place: Place) -> bool:
        return (self.places[one].queue, self.places[one].offset) == (place.queue, place.offset)


class ClassicClients:
    """A process with one or more classic clients of one kind. `command`: how to start it, in `folder`."""

    def __init__(
        self, ledger: ClassicLedger, command: Sequence[str], folder: Path, role: str, group: str = ""
    ) -> None:
        self.ledger = ledger
        self.role, self.group = role, group
        self.failures: list[str] = []
        self._command = command
        self._folder = folder
        self._held: dict[str, Delivery] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, over: asyncio.Event) -> None:
        """Until `over`; then they leave as clients do."""
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self._folder,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        ending = asyncio.create_task(self._end_in_time(over))
        async for line in process.stdout:
            if line.startswith(b"{") and line.endswith(b"\n"):
                self._note(json.loads(line))
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        if await process.wait():
            self.ledger.odd.append(f"the process of classic {self.role} ended with {process.returncode}")

    async def _end_in_time(self, over: asyncio.Event) -> None:
        await over.wait()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _note(self, fact: Mapping[str, Any]) -> None:
        ledger, kind = self.ledger, fact["fact"]
        ledger.counts[f"{self.role} {kind}"] += 1
        match kind:
            case "trying":
                ledger.tried.add(fact["body"])
            case "sent":
                lane, number = fact["lane"], fact["number"]
                ledger.sends[fact["body"]] = Send(
                    fact["topic"], fact["body"], fact["id"], lane=lane, number=number
                )
            case "attempt lost":
                ledger.lost_answers[fact["body"]] += 1
                self.failures.append(fact["why"])
            case "got":
                self._note_delivery(fact)
            case "done" | "failed":
                delivery = self._held[fact["delivery"]]
                delivery.fate = Fate.DONE if kind == "done" else Fate.FREED
                if kind == "done":
                    delivery.acking = delivery.settled = fact["at"]
            case "told" | "confirmed" | "began" | "asked":
                self._note_position(kind, fact)

    def _note_delivery(self, fact: Mapping[str, Any]) -> None:
        at = fact["at"]
        delivery = Delivery(
            *(self.group, fact["body"], fact["attempt"], fact["client"]), *(at, at, fact["delivery"], 0, 0.0)
        )
        self._held[fact["delivery"]] = delivery
        self.ledger.places[delivery] = Place(fact["client"], _queue_of(fact), fact["offset"])
        self.ledger.deliveries.append(delivery)
        self.ledger.counts[f"{self.role} mapped"] += fact["offset"] >= VIRTUAL

    def _note_position(self, kind: str, fact: Mapping[str, Any]) -> None:
        positions = self.ledger.positions.setdefault((self.group, _queue_of(fact)), [])
        positions.append(Position(kind, fact["client"], fact["at"], fact["offset"]))


def _written(told: Sequence[Position], offset: int) -> float:
    """When a position above an offset was surely written down.

    A gateway writes down one of those that pulls of a queue bring within a second; the next pull begins when
    the one before it was answered.
    """
    moments: dict[str, list[float]] = {}
    for one in told:
        if one.kind == "confirmed" and one.offset > offset:
            moments.setdefault(one.client, []).append(one.at)
    return min(
        (
            at
            for answers in moments.values()
            for before, at in itertools.pairwise(answers)
            if before - answers[0] >= _WRITTEN_EVERY_S
        ),
        default=float("inf"),
    )


def _queue_of(fact: Mapping[str, Any]) -> tuple[str, int]:
    return fact["topic"], fact["queue"]
