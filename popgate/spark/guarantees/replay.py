"""A task of a sink with a ledger: rows that an earlier attempt has sent are left out.

The first attempt of a task, in the first attempt of a batch, sends at once. Any other one collects all its
rows first, looks for those that are stored, and sends the rest.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Final, Protocol

import pyarrow as pa

from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.commit import Outcome
from popgate.spark.guarantees.ledger import TAKE_OVER_S, Attempt, Ledger
from popgate.spark.guarantees.ledger_topic import ledger_error
from popgate.spark.guarantees.openings import Opened
from popgate.spark.guarantees.ownership import Ownership
from popgate.spark.guarantees.scan import Scan
from popgate.spark.options.sink_options import SinkOptions
from popgate.spark.write.encoder import Encoder
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.outgoing_rows import Outgoing
from popgate.spark.write.sender import FindSent, Sender
from popgate.wire.messages.properties import UNIQ_KEY, find_property

_IN_MEMORY: Final = 64 << 20
"""Bytes of rows that wait; more of them go to a file."""
_TOPICS_OF_A_NOTE: Final = 200
"""A record of the ledger has the queues of so many topics at most."""
_UNIQ: Final = UNIQ_KEY.encode()


class _MakeSender(Protocol):
    def __call__(
        self,
        options: SinkOptions,
        partition: int,
        *,
        again: bool = True,
        find_sent: FindSent | None = None,
        check: Callable[[], None] = ...,
        begin_topics: Callable[[Sequence[str]], None] | None = None,
    ) -> AbstractContextManager[Sender]: ...


def written_once(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    identity: Identity,
    opened: Opened,
    batch: tuple[str, int],
    *,
    make_ledger: Callable[[SinkOptions], Ledger] = Ledger,
    make_scan: Callable[[SinkOptions, Opened], Scan] = Scan,
    make_sender: _MakeSender = Sender,
    now: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Everything acknowledged, each row once. `batch`: query and number. Raises SparkSourceError.

    `now` is in seconds and never goes back.
    """
    encoder = Encoder(options, identity)
    pieces = chain.from_iterable(map(encoder.pieces, batches))
    if _is_done(options, opened, batch):
        deque(pieces, maxlen=0)
        return Outcome(encoder.count, encoder.checksum, 0, skipped=True)
    scan = make_scan(options, opened)

    def find_sent(topic: str) -> set[str]:
        scan.settle()
        return scan.ids([topic])[topic]

    # Of half messages that are there twice one is delivered.
    looks = None if options.transactional else find_sent
    ledger, began = make_ledger(options), now()
    attempt = ledger.begin_task(opened, identity.partition)
    check = Ownership(ledger, opened, attempt, since=began, now=now).check
    notes = _Notes(ledger, opened, attempt, scan, check)
    note = None if options.topic else notes.note
    if not (opened.again or attempt.came_before):
        with make_sender(
            options, identity.partition, again=False, find_sent=looks, check=check, begin_topics=note
        ) as sender:
            sender.add_all(pieces)
            sent = sender.finish()
            return Outcome(encoder.count, encoder.checksum, sent, halves=tuple(sender.halves))
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        pickler, topics = pickle.Pickler(file), {options.topic} - {""}
        for message in chain.from_iterable(map(encoder.messages, batches)):
            topics.add(message.topic)
            pickler.dump(tuple(message))
            pickler.clear_memo()
        file.seek(0)
        rows = _kept(file, encoder.count)
        if attempt.came_before:
            scan.settle(TAKE_OVER_S)
        if not options.topic:
            notes.load()
        rest = _Rest(identity, scan, sorted(topics))
        again = [rest.is_there(each) for each in rows]
        rest.check()
        file.seek(0)
        with make_sender(
            options,
            identity.partition,
            find_sent=looks,
            check=check,
            begin_topics=note,
        ) as sender:
            for there, message in zip(again, _kept(file, encoder.count), strict=True):
                if not there:
                    sender.add(message)
            sent = sender.finish()
            halves = tuple(sender.halves)
            return Outcome(encoder.count, encoder.checksum, sent, halves=halves, highest=rest.highest)


def _is_done(options: SinkOptions, opened: Opened, batch: tuple[str, int]) -> bool:
    """Raises SparkSourceError for a batch that cannot be the next one of this sink."""
    query, number = batch
    if opened.query and opened.query != query:
        raise ledger_error(
            options,
            f"the sink was written by the query {opened.query}, and this is the query {query}: it has a"
            " checkpoint of its own, and counts its batches anew. Give it another sinkId",
        )
    if number < opened.batch and options.version < 0:
        raise ledger_error(
            options,
            f"batch {number} comes again, though batch {opened.batch} is done: the checkpoint is older than"
            " what was written, and nothing tells whether its batches are the same. Give the query another"
            " sinkId",
        )
    return number <= opened.batch


def _kept(file: tempfile.SpooledTemporaryFile[bytes], count: int) -> Iterator[Outgoing]:
    unpickler = pickle.Unpickler(file)  # noqa: S301 - this process has written it
    for _ in range(count):
        yield Outgoing(*unpickler.load())


class _Notes:
    """Where queues ended before anything of the batch went to their topic, which is one that rows name."""

    def __init__(
        self, ledger: Ledger, opened: Opened, attempt: Attempt, scan: Scan, check: Callable[[], None]
    ) -> None:
        self._ledger, self._opened, self._attempt, self._scan = ledger, opened, attempt, scan
        self._check = check
        self._number = 0
        self._topics: set[str] = set()

    def load(self) -> None:
        """Load the notes of earlier attempts. Raises SparkSourceError."""
        known = self._ledger.noted(self._opened)
        self._number = known.counts.get(self._attempt.partition, 0)
        self._topics = set(known.topics)
        self._scan.begins_at(known.ends)

    def note(self, topics: Sequence[str]) -> None:
        """Before something is sent to these. Raises SparkSourceError."""
        new = [topic for topic in topics if topic not in self._topics]
        for at in range(0, len(new), _TOPICS_OF_A_NOTE):
            lot = new[at : at + _TOPICS_OF_A_NOTE]
            # Where it was looked for rows there may be some: they lie behind where the look began.
            looked = [self._scan.looked_from(topic) for topic in lot]
            ends = self._ledger.ends_of(
                [topic for topic, begins in zip(lot, looked, strict=True) if begins is None]
            )
            for begins in looked:
                ends.update(begins or {})
            # One that was replaced meanwhile would take the place of what its successor noted.
            self._check()
            self._ledger.note_ends(self._opened, self._attempt, self._number, lot, ends)
            self._scan.begins_at(ends)
            self._number += 1
            self._topics |= set(lot)


class _Rest:
    """Finds the rows of a task that are stored already."""

    def __init__(self, identity: Identity, scan: Scan, topics: Sequence[str]) -> None:
        self._identity = identity
        # Where an earlier row may be gone because of a later one, all are sent again in their order.
        self._found = scan.ids([topic for topic in topics if not scan.is_compacted(topic)])
        self._own = {
            (topic, each)
            for topic, ids in self._found.items()
            for each in ids
            if each.startswith(identity.tag)
        }
        self.highest = max(
            (partition for ids in self._found.values() for partition in identity.partitions_of(ids)),
            default=-1,
        )
        """The last partition of this batch of which a row was found; -1: none."""

    def is_there(self, message: Outgoing) -> bool:
        message_id = (find_property(message.block, _UNIQ) or b"").decode("utf-8", "replace")
        self._own.discard((message.topic, message_id))
        return message_id in self._found.get(message.topic, ())

    def check(self) -> None:
        """After all rows. Raises SparkSourceError: an earlier attempt sent others."""
        if self._own:
            raise SparkSourceError(
                Code.REPLAY,
                f"an earlier attempt sent {len(self._own)} rows of partition {self._identity.partition} that"
                " it does not have now: the query makes others each time, or shares them out to other"
                " partitions, and nothing tells which rows are there. With dedupeKeyColumn the key tells it;"
                " with another sinkId the batch is sent as a whole, and what was sent of it already is there"
                " twice",
            )
