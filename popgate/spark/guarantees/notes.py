"""End offsets that tasks record in the ledger before they send to topics that rows name.

A queue that is missing in one of the notes of its topic did not exist for that task, whose rows may be
anywhere in it: that queue is read from the time at which the batch was opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from popgate.queue_client import QueuePlace
from popgate.spark.offsets import Offsets, flat, nested


@dataclass(frozen=True, slots=True)
class Note:
    """Of one task, before it sends to these topics."""

    partition: int
    number: int
    """Which one of this task."""
    topics: frozenset[str] | None
    """None: the record is from before they were noted, and any topic may be one that was not there."""
    ends: Offsets
    """Of the queues of these topics that were there."""
    attempt: int = -1
    """Where the ledger has the record of the attempt that noted it; later ones lie behind. -1: not known."""

    @property
    def key(self) -> str:
        """Of its record: one with the same takes its place."""
        return f"ends:{self.partition}.{self.number}"

    def encode(self) -> dict[str, Any]:
        """As a record of the ledger has it."""
        fields = {"partition": self.partition, "number": self.number, "ends": nested(self.ends)}
        return (
            fields if self.topics is None else {**fields, "topics": sorted(self.topics), "at": self.attempt}
        )

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> Note:
        """Raises KeyError, TypeError, and SparkSourceError for ends that are none."""
        topics = fields.get("topics")
        if topics is not None and not (isinstance(topics, list) and all(isinstance(_, str) for _ in topics)):
            raise TypeError(f"{topics!r} are no topics")
        return cls(
            number_of(fields["partition"]),
            number_of(fields["number"]),
            None if topics is None else frozenset(topics),
            flat(fields["ends"]),
            number_of(fields.get("at", -1)),
        )


@dataclass(frozen=True, slots=True)
class Noted:
    """The combined content of all notes of a batch."""

    ends: Offsets
    """Of queues before anything of the batch was sent to them; of others the time of the opening counts."""
    topics: frozenset[str]
    """Those that need no other note."""
    counts: Mapping[int, int]
    """How many notes each task has."""


def noted(notes: Iterable[Note]) -> Noted:
    """All notes together."""
    by_topic: dict[str, list[Offsets]] = {}
    counts: dict[int, int] = {}
    whole = True
    for note in notes:
        counts[note.partition] = max(counts.get(note.partition, 0), note.number + 1)
        whole = whole and note.topics is not None
        for topic in note.topics or ():
            of_topic = {queue: at for queue, at in note.ends.items() if queue.topic == topic}
            by_topic.setdefault(topic, []).append(of_topic)
    ends = {queue: at for each in by_topic.values() for queue, at in _in_all(each).items()} if whole else {}
    return Noted(ends, frozenset(by_topic), counts)


def number_of(value: object) -> int:
    """Raises TypeError for anything but a number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value


def _in_all(ends: list[Offsets]) -> dict[QueuePlace, int]:
    """The least of each queue that is in all of them."""
    queues = set(ends[0]).intersection(*ends[1:])
    return {queue: min(each[queue] for each in ends) for queue in queues}
