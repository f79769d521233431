"""The offsets of a streaming query, in the form that Spark stores in the checkpoint.

`{"v":1,"q":{"topic":{"broker":{"0":123}}},"from":{…},"new":{…},"at":…}`: `q` is the next offset of each
queue.
`from`, in the first end offset only, is the start of that batch: after a restart before the first commit
Spark requests the initial offset again, and the end would have moved by then. `new` has the start offsets of
queues that appeared in this batch. With both a replay plans the same ranges. `at` is the time of the request
to the gateway (ms since 1970): everything before `q` was stored by then, which reveals topics that were
recreated since. `tick` counts the ticks of an idle stream. Spark compares offsets as text, so keys are
sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from popgate.errors import shown
from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError

VERSION: Final = 1
LARGEST_OFFSET: Final = (1 << 63) - 1
LARGEST_QUEUE: Final = (1 << 31) - 1
_KEYS: Final = frozenset({"v", "q", "from", "new", "initial", "at", "tick"})

Offsets = Mapping[QueuePlace, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One offset of a query. `starts` is None but in the first end offset."""

    queues: Offsets
    starts: Offsets | None = None
    new: Offsets = field(default_factory=dict)
    initial: bool = False
    at_ms: int | None = None
    tick: int = 0

    def encode(self) -> dict[str, Any]:
        """For Spark, with keys in their one order, queue numbers by their value."""
        document: dict[str, Any] = {"v": VERSION, "q": nested(self.queues)}
        if self.starts is not None:
            document["from"] = nested(self.starts)
        if self.new:
            document["new"] = nested(self.new)
        if self.initial:
            document["initial"] = True
        if self.at_ms is not None:
            document["at"] = self.at_ms
        if self.tick:
            document["tick"] = self.tick
        return document

    @classmethod
    def decode(cls, document: object) -> StreamOffset:
        """Raises SparkSourceError (ILLEGAL_OFFSET): a checkpoint may be damaged, or of something else."""
        if not isinstance(document, Mapping):
            raise _illegal("it is no object")
        unknown = sorted(str(key) for key in document if key not in _KEYS)
        if document.get("v") != VERSION or document["v"] is True or unknown:
            difference = (
                f"the keys {', '.join(map(shown, unknown))}" if unknown else f"version {document.get('v')!r}"
            )
            raise _illegal(f"it has {difference}, this connector writes version {VERSION}")
        if not isinstance(document.get("initial", False), bool):
            raise _illegal("initial is no truth value")
        at_ms = document.get("at")
        if at_ms is not None and (isinstance(at_ms, bool) or not isinstance(at_ms, int)):
            raise _illegal("at is no time in ms")
        tick = document.get("tick", 0)
        if isinstance(tick, bool) or not isinstance(tick, int) or tick < 0:
            raise _illegal("tick is no number")
        return cls(
            flat(document.get("q")),
            flat(document["from"]) if "from" in document else None,
            flat(document["new"]) if "new" in document else {},
            document.get("initial", False),
            at_ms,
            tick,
        )


def started(start: StreamOffset, end: StreamOffset) -> dict[QueuePlace, int]:
    """Where the batch between two offsets begins, by queue of its end: as it was when it was planned first.

    Raises SparkSourceError for a queue of which neither offset knows where it began.
    """
    begins = end.starts if end.starts is not None else start.queues
    starts = {}
    for queue in end.queues:
        begin = begins.get(queue, end.new.get(queue))
        if begin is None:
            raise _illegal(f"it does not say where {named(queue)} began")
        starts[queue] = begin
    return starts


def nested(offsets: Offsets) -> dict[str, dict[str, dict[str, int]]]:
    """By topic, broker and queue number as text, in order."""
    by_topic: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return by_topic


def flat(document: object, *, least: int = 0) -> dict[QueuePlace, int]:
    """Parse the output of `nested`, or a user's text. Raises SparkSourceError (ILLEGAL_OFFSET)."""
    offsets = {}
    for topic, brokers in _entries(document, "the offsets"):
        for broker, queues in _entries(brokers, f"topic {shown(topic)}"):
            for number, offset in _entries(queues, f"broker {shown(broker)}"):
                place = f"queue {shown(number)} of {shown(topic)} on {shown(broker)}"
                if not (number.isascii() and number.isdigit() and len(number) <= 10):
                    raise _illegal(f"{place} is no number")
                if int(number) > LARGEST_QUEUE or str(int(number)) != number:
                    raise _illegal(f"{place} is no number of a queue")
                if isinstance(offset, bool) or not isinstance(offset, int):
                    raise _illegal(f"{place} has {shown(repr(offset))}, which is no offset")
                if not least <= offset <= LARGEST_OFFSET:
                    raise _illegal(f"{place} has the offset {offset}, at least {least} is possible")
                offsets[QueuePlace(topic, broker, int(number))] = offset
    return offsets


def named(queue: QueuePlace) -> str:
    """For sentences."""
    return f"queue {queue.queue_id} of {queue.topic} on {queue.broker}"


def _entries(document: object, subject: str) -> list[tuple[str, Any]]:
    if not isinstance(document, Mapping) or not all(isinstance(key, str) and key for key in document):
        raise _illegal(f"{subject} is no object with names")
    return list(document.items())


def _illegal(why: str) -> SparkSourceError:
    return SparkSourceError(Code.ILLEGAL_OFFSET, f"an offset cannot be read: {why}")
