"""The plan of a batch: ranges of offsets, checked, limited, split, and packed into tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError, data_loss
from popgate.spark.offsets import Offsets, named

Warn = Callable[[str], object]
_LEAST: Final = 20_000
"""Offsets of a task, unless options say so: below that a task's own costs are most of it."""


class Range(NamedTuple):
    """Offsets of a queue from `begin` up to, and without, `end`."""

    queue: QueuePlace
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def check_ends(begins: Offsets, ends: Offsets) -> None:
    """Raises SparkSourceError for an end before its begin.

    A queue whose end decreased was deleted and recreated: its old messages are lost, and its new ones unread.
    """
    for queue, end in sorted(ends.items()):
        begin = begins[queue]
        if end < begin:
            raise SparkSourceError(
                Code.DATA_LOSS,
                f"{named(queue)} ends at {end}, and was read up to {begin} already: it was made anew,"
                " and needs a checkpoint, or a start, of its own",
            )


def ranges_of(begins: Offsets, ends: Offsets) -> list[Range]:
    """The non-empty ranges, ordered by queue. Raises as `check_ends`."""
    check_ends(begins, ends)
    return [Range(queue, begins[queue], end) for queue, end in sorted(ends.items()) if end > begins[queue]]


def checked(ranges: Iterable[Range], minimums: Offsets, *, fail: bool, warn: Warn) -> list[Range]:
    """The ranges without offsets that the queues no longer keep.

    Raises SparkSourceError (DATA_LOSS) for missing offsets if `fail` is set; otherwise reports each gap to
    `warn`.
    """
    readable = []
    for each in ranges:
        minimum = minimums.get(each.queue, each.begin)
        if each.begin >= minimum:
            readable.append(each)
            continue
        gone = min(minimum, each.end)
        sentence = f"{named(each.queue)} keeps nothing before {minimum}: {each.begin} to {gone - 1} are gone"
        if fail:
            raise data_loss(sentence)
        warn(sentence)
        if gone < each.end:
            readable.append(each._replace(begin=gone))
    return readable


def limited(begins: Offsets, ends: Offsets, most: int) -> dict[QueuePlace, int]:
    """Ends for about `most` offsets in total, in proportion to the backlog: at least one per queue."""
    total = sum(max(end - begins[queue], 0) for queue, end in ends.items())
    if total <= most:
        return dict(ends)
    limited_ends = {}
    for queue, end in ends.items():
        size = end - begins[queue]
        limited_ends[queue] = begins[queue] + max(size * most // total, 1) if size > 0 else end
    return limited_ends


def split(ranges: Iterable[Range], *, largest: int | None) -> list[Range]:
    """Ranges of at most `largest` offsets, of each range as even as can be."""
    pieces = []
    for each in ranges:
        parts = 1 if largest is None else -(-each.size // largest)
        edges = [each.begin + each.size * number // parts for number in range(parts + 1)]
        pieces += [Range(each.queue, *pair) for pair in pairwise(edges)]
    return pieces


def packed(ranges: Iterable[Range], *, least: int, most: int | None = None) -> list[list[Range]]:
    """Partitions of whole ranges in order, each closed as soon as it has `least` offsets.

    With `most` it is closed before it has more than that, unless one range alone has.
    """
    tasks: list[list[Range]] = []
    size = least
    for each in ranges:
        if size >= least or (most is not None and size + each.size > most):
            tasks.append([])
            size = 0
        tasks[-1].append(each)
        size += each.size
    return tasks


def planned(
    ranges: Sequence[Range], *, partitions: int | None, largest: int | None, least: int | None
) -> list[list[Range]]:
    """Partitions for ranges, each of `largest` offsets at most if that is given.

    With `partitions` there are at least so many, as far as there are so many offsets; without it ranges are
    packed until there are `least` offsets, or 20,000. With both they are split into so many, but none that
    has less than `least` offsets: there may be fewer then.
    """
    total = sum(each.size for each in ranges)
    if not total:
        return []
    if least is None:
        least = _LEAST if partitions is None else 1
    parts = largest
    if partitions is not None:
        share = max(total // partitions, least)
        parts = share if largest is None else min(share, largest)
    return packed(split(ranges, largest=parts), least=least, most=largest)
