"""The commit of a batch with a ledger, by the driver, after all tasks have reported their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from popgate.queue_client import HalfMessage
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.half_messages import Visible, commit_halves, drop_halves
from popgate.spark.guarantees.ledger import Ledger
from popgate.spark.guarantees.openings import Opened
from popgate.spark.guarantees.ownership import Ownership
from popgate.spark.options.sink_options import SinkOptions

_LAST_U64: Final = (1 << 64) - 1
_SENT_AGAIN: Final = {
    False: "some were sent again. With another sinkId the batch is sent as a whole, and what was sent of it"
    " is there again",
    True: "what was sent now is not committed. Start the query with the partitions that the batch had"
    " (minPartitions, maxRecordsPerPartition, repartition)",
}
"""The consequence for the sent rows, by whether they are half messages."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a task: its rows, the rows that it sent, and whether the batch was done before."""

    rows: int
    checksum: int
    sent: int
    skipped: bool = False
    halves: tuple[HalfMessage, ...] = ()
    highest: int = -1
    """The last partition of the batch of which a row identified by its contents was found; -1: none."""


@dataclass(frozen=True, slots=True)
class Part:
    """A task's opening of the batch, its query and batch number, and its result."""

    opened: Opened
    batch: tuple[str, int]
    outcome: Outcome


def commit_batch(
    options: SinkOptions,
    parts: Sequence[Part],
    *,
    make_ledger: Callable[[SinkOptions], Ledger] = Ledger,
    now: Callable[[], float] = time.monotonic,
    commit: Callable[[Sequence[HalfMessage], SinkOptions, Visible, Callable[[], None]], None] = commit_halves,
) -> None:
    """Write that the batch is done; half messages are delivered before. `now`: seconds that never go back.

    Raises SparkSourceError: another driver took over, the batch was done before with other rows, or it has
    fewer partitions than it had.
    """
    if not parts:
        return
    opened, (query, number) = parts[0].opened, parts[0].batch
    rows = sum(each.outcome.rows for each in parts)
    checksum = sum(each.outcome.checksum for each in parts) & _LAST_U64
    has_come = any(each.outcome.skipped for each in parts)
    # Of versions before the last one that is done nothing is known any more.
    if has_come and number == opened.batch and (rows, checksum) != (opened.rows, opened.checksum):
        raise SparkSourceError(
            Code.REPLAY,
            f"batch {number} was done with {opened.rows} rows, and comes again with {rows}, which are others:"
            " the checkpoint is older than what was written, the query makes other rows each time, or two"
            f" writes of one batch have the same sinkId ({options.sink_id}). Nothing of it was sent now; with"
            " another sinkId it is",
        )
    highest = max(each.outcome.highest for each in parts)
    if highest >= len(parts):
        raise SparkSourceError(
            Code.REPLAY,
            f"an earlier attempt of batch {number} sent rows of partition {highest}, and the batch has"
            f" {len(parts)} partitions now: nothing tells which rows of the others are there, and"
            f" {_SENT_AGAIN[options.transactional]}. With dedupeKeyColumn partitions do not matter",
        )
    if has_come and (opened.again or options.version >= 0):
        # A later batch may have been begun: for whoever repeats it, it stays so. For a version that is done
        # nothing was opened.
        return
    ledger = make_ledger(options)
    halves = [half for each in parts for half in each.outcome.halves]
    if halves:
        # Nobody sees them yet: a driver that was late leaves it so.
        commit(
            halves,
            options,
            lambda topics: _visible(options, opened, ledger, topics),
            Ownership(ledger, opened, now=now).check,
        )
    ledger.finish(opened, query, number, rows, checksum)


def drop_batch(options: SinkOptions, parts: Sequence[Part], warn: Callable[[str], object]) -> None:
    """Roll back the half messages of an aborted batch, possibly after a commit that failed half way.

    Committed messages stay. Never raises: the broker drops what is left.
    """
    halves = [half for each in parts for half in each.outcome.halves]
    try:
        left = drop_halves(halves, options) if halves else 0
    except SparkSourceError as error:
        warn(f"a write was given up, and its half messages were not dropped: {error}")
    else:
        warn(f"a write was given up; of its {len(halves)} half messages {left} could not be dropped")


def _visible(
    options: SinkOptions, opened: Opened, ledger: Ledger, topics: set[str]
) -> Mapping[str, set[str]]:
    # Here, so that a commit that goes well does not load Arrow.
    from popgate.spark.guarantees.scan import Scan

    scan = Scan(options, opened)
    if not options.topic:
        scan.begins_at(ledger.noted(opened).ends)
    scan.settle()
    return scan.ids(sorted(topics))
