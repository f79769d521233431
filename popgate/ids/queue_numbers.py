"""Queue numbers across several brokers, for clients that know queues by number only.

A number is assigned once and never reused for another queue: numbers are appended and keep their queue, even
if the queue is deleted. This module does no I/O; its callers store the text that encodes the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final

Numbered = tuple[str, int]
"""A queue by its broker and its id there."""

MOST_NUMBERS: Final = 65_536
"""Queues of one topic that may ever have a number."""
_LONGEST_TEXT: Final = 1 << 20
_LONGEST_NAME: Final = 255
_LONGEST_TOLD_NAME: Final = 1024
"""Characters of a name as a record has it: with names of strange characters a record would have no room."""
_LARGEST_ID: Final = (1 << 31) - 1
_DEEPEST: Final = "[[["


class QueueNumbers:
    """Which queue has which number, from 0 on. It does not change; `grown` and `joined` make other ones."""

    __slots__ = ("_numbers", "queues")

    def __init__(self, queues: Iterable[Numbered] = ()) -> None:
        """Raises ValueError: a queue is named twice, or there are too many."""
        self.queues: Sequence[Numbered] = tuple(queues)
        """By their numbers."""
        self._numbers = {queue: number for number, queue in enumerate(self.queues)}
        if len(self._numbers) != len(self.queues):
            raise ValueError("a queue has two numbers")
        if len(self.queues) > MOST_NUMBERS:
            raise ValueError(f"{len(self.queues)} queues are to have numbers, {MOST_NUMBERS} may")

    def __repr__(self) -> str:
        return f"<QueueNumbers {self.encode()}>"

    def __len__(self) -> int:
        return len(self.queues)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueueNumbers) and other.queues == self.queues

    def __hash__(self) -> int:
        return hash(self.queues)

    @property
    def are_plain(self) -> bool:
        """Whether all are of one broker, and their numbers there are the same."""
        first = self.queues[0][0] if self.queues else ""
        return all(queue == (first, number) for number, queue in enumerate(self.queues))

    def number_of(self, broker: str, queue_id: int) -> int | None:
        return self._numbers.get((broker, queue_id))

    def queue_of(self, number: int) -> Numbered | None:
        return self.queues[number] if 0 <= number < len(self.queues) else None

    def has_all(self, queues: Iterable[Numbered]) -> bool:
        return all(queue in self._numbers for queue in queues)

    def grown(self, queues: Iterable[Numbered]) -> QueueNumbers:
        """Assign numbers to queues without one, in the order of their brokers' names and their ids.

        So all gateways that see the same queues assign the same numbers. Raises ValueError: there are too
        many.
        """
        fresh = sorted({queue for queue in queues if queue not in self._numbers})
        return QueueNumbers((*self.queues, *fresh)) if fresh else self

    def joined(self, other: QueueNumbers) -> QueueNumbers:
        """Merge two records, in any order. If one extends the other, the result is the longer one.

        If they conflict (two gateways assigned numbers at once, before each saw the other's record) the
        longer one wins, of equally long ones the first by name, and queues that only the other one has are
        appended: all readers of both compute the same result.
        """
        winner, loser = sorted((self, other), key=lambda record: (-len(record), record.queues))
        return winner.grown(loser.queues)

    def begins(self, other: QueueNumbers) -> bool:
        """Whether the other one only has more."""
        return other.queues[: len(self.queues)] == self.queues

    # -- as a text --------------------------------------------------------------------------------

    def encode(self) -> str:
        """JSON: for each run of numbers a broker, its first queue, and how many follow each other."""
        runs: list[list[str | int]] = []
        for broker, queue_id in self.queues:
            last = runs[-1] if runs else None
            if last is not None and last[0] == broker and int(last[1]) + int(last[2]) == queue_id:
                last[2] = int(last[2]) + 1
            else:
                runs.append([broker, queue_id, 1])
        return json.dumps(runs, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> QueueNumbers:
        """Raises ValueError for a text that `encode` cannot have written."""
        if len(text) > _LONGEST_TEXT or _DEEPEST in text:
            raise ValueError("it is no record of queues: it is too long, or too deep")
        try:
            runs = json.loads(text)
        except RecursionError as error:
            raise ValueError("it is no record of queues: it is too deep") from error
        if not isinstance(runs, list):
            raise ValueError("it is no list of queues")
        queues: list[Numbered] = []
        for run in runs:
            broker, first, count = _run(run)
            if len(queues) + count > MOST_NUMBERS:
                raise ValueError(f"more than {MOST_NUMBERS} queues have numbers")
            queues += [(broker, first + more) for more in range(count)]
        return cls(queues)


def may_be_numbered(broker: str) -> bool:
    """Whether a record can contain the broker name. Any peer may register a broker under any name."""
    return (
        0 < len(broker) <= _LONGEST_NAME
        and _DEEPEST not in broker
        and len(json.dumps(broker)) <= _LONGEST_TOLD_NAME
    )


def joined(records: Iterable[QueueNumbers]) -> QueueNumbers:
    """Merge all of them, in any order."""
    ordered = sorted(records, key=lambda record: (-len(record), record.queues))
    return reduce(QueueNumbers.joined, ordered, QueueNumbers())


def _run(run: object) -> tuple[str, int, int]:
    """Raises ValueError."""
    match run:
        case [str(broker), int(first), int(count)] if (
            0 < len(broker) <= _LONGEST_NAME
            and not isinstance(first, bool)
            and not isinstance(count, bool)
            and 0 <= first <= _LARGEST_ID
            and 0 < count <= MOST_NUMBERS
        ):
            return broker, first, count
    raise ValueError("it names no queues")
