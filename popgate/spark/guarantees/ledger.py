"""The ledger of sinks: which batch of a sink is done, and where rows of the open batch may be stored.

It is a compacted topic with one queue, so its offsets define a total order. A sink has four kinds of
records, each superseding the previous one with its key:

- `open`: a driver is about to write a batch. It has its own token, what was done before, and the end
  offsets of the queues before anything of the batch was sent. The last one is the owner of the sink: tasks
  and commits of any other driver fail.
- `task`: an attempt of a task is about to send, so that the next attempt knows that it is not the first.
- `ends`: an attempt is about to send to topics that rows name, and these are their end offsets. The records
  of all attempts of a batch count, by any driver that opened it: rows may be in each queue that all records
  of its topic contain, from the lowest offset on. In the other queues of these topics rows may be from the
  time of the first opening on.
- `done`: the batch with that token was written completely. A record with another token than the last `open`
  comes from a superseded driver, and is ignored.

A driver that opens a batch while the previous attempt is unfinished takes over its offsets: it looks for rows
from there on. Every writer reads before and after its write, to detect a concurrent writer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from popgate.errors import TopicNotFound
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.connections import client_of
from popgate.spark.errors import SparkSourceError
from popgate.spark.guarantees.ledger_topic import GONE, Connect, Entry, LedgerTopic
from popgate.spark.guarantees.notes import Note, Noted, noted, number_of
from popgate.spark.guarantees.openings import Opened, text_of
from popgate.spark.offsets import Offsets
from popgate.spark.options.sink_options import BY_VERSION, SinkOptions

TAKE_OVER_S: Final = 3.0
"""The delay of a successor before it looks for rows: its predecessor has noticed it by then, and the rows
that the predecessor has sent are visible."""
_WINDOW: Final = 64
"""Offsets from the end of the ledger that are looked at first; then four times as many, and so on."""
_MOST_OPENINGS: Final = 8
"""So often another driver may come first before this one gives up."""
_SKEW_MS: Final = 60_000
"""So far a broker's clock may be behind a driver's."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a task that is about to send."""

    partition: int
    token: str
    offset: int
    """Of its record in the ledger."""
    came_before: bool
    """Whether there was another one of this task."""


class Ledger:
    """One process's view of the ledger. All methods raise SparkSourceError."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        connect: Connect = client_of,
        rest: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        make_token: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._options, self._rest = options, rest
        self._now_ms, self._make_token = now_ms, make_token
        self._topic = LedgerTopic(options, connect, rest)

    # -- what happens to a batch ------------------------------------------------------------------

    def open(self) -> Opened:
        """Take the sink over, in the driver, before tasks begin. Tasks of the driver before end by then."""
        # Of openings of this call, also where it is done again after a failure.
        tokens: set[str] = set()
        opened = self._topic.asked(lambda client: self._open(client, tokens))
        if opened.again:
            self._rest(TAKE_OVER_S)
        return opened

    def begin_task(self, opened: Opened, partition: int) -> Attempt:
        """An attempt of this task is known from now on."""
        token = self._make_token()
        # Also where this is done again: a compaction may have left the record of this attempt alone by then.
        others, ends = set[str](), list[int]()

        def begin(client: QueueClient) -> Attempt:
            queue, entries, end = self._since(client, opened)
            self._check_whole(entries, opened)
            # Whichever driver's: a compaction leaves one record, and that may be of one that was late.
            others.update(each.of_task(partition) for each in entries)
            ends.append(end)
            fields = {"token": opened.token, "partition": partition, "attempt": token}
            at = self._topic.send(client, queue, "task", fields, key=f"task:{partition}")
            entries += self._topic.entries(client, queue, end, at)
            self._check_owner(entries, opened)
            others.update(each.of_task(partition) for each in entries)
            # This record may have taken the place of one that came after the first look.
            is_gone = any(each.kind == GONE and each.offset >= ends[0] for each in entries)
            return Attempt(partition, token, at, came_before=is_gone or not others <= {"", token})

        return self._topic.asked(begin)

    def noted(self, opened: Opened) -> Noted:
        """The recorded end offsets of topics that rows name, from before any send of the batch."""

        def read(client: QueueClient) -> Noted:
            queue = self._topic.queue(client)
            end = self._topic.end(client, queue, opened.offset)
            entries = self._topic.entries(client, queue, opened.first_offset, end)
            return noted(
                self._note(each)
                for each in entries
                if each.kind == "ends" and each.fields and each.fields.get("first") == opened.first
            )

        return self._topic.asked(read)

    def note_ends(
        self, opened: Opened, attempt: Attempt, number: int, topics: Iterable[str], ends: Offsets
    ) -> None:
        """Record the end offsets for `noted`, before any send there; `number`: the task's number of the note.

        Raises SparkSourceError (LEDGER) as `check_owner`; a record that took this one's place stays valid.
        """
        note = Note(attempt.partition, number, frozenset(topics), ends, attempt.offset)
        fields = {"first": opened.first, **note.encode()}

        def write(client: QueueClient) -> None:
            queue = self._topic.queue(client)
            at = self._topic.send(client, queue, "ends", fields, key=note.key)
            entries = self._topic.entries(client, queue, attempt.offset + 1, at)
            try:
                self._check_owner(entries, opened)
                self._check_attempt(entries, opened, attempt)
            except SparkSourceError:
                self._restore_note(client, queue, note, entries, at)
                raise

        self._topic.asked(write)

    def ends_of(self, topics: Sequence[str]) -> dict[QueuePlace, int]:
        """Where their queues end now."""
        return self._topic.asked(
            lambda client: {queue: at for topic in topics for queue, at in _ends(client, topic).items()}
        )

    def check_owner(self, opened: Opened, attempt: Attempt | None = None, begin: int | None = None) -> int:
        """Up to where the ledger was read, from `begin` on or from where the batch was opened.

        Raises SparkSourceError (LEDGER): another driver has opened a batch since, or another attempt of the
        task has begun.
        """

        def check(client: QueueClient) -> int:
            _, entries, end = self._since(client, opened, begin)
            (self._check_whole if begin is None else self._check_owner)(entries, opened)
            if attempt is not None:
                self._check_attempt(entries, opened, attempt)
            return end

        return self._topic.asked(check)

    def finish(self, opened: Opened, query: str, batch: int, rows: int, checksum: int) -> None:
        """Say that the batch is done. The driver's, when all tasks are."""
        fields = {"token": opened.token, "query": query, "batch": batch, "rows": rows, "checksum": checksum}

        def finish(client: QueueClient) -> None:
            queue, entries, end = self._since(client, opened)
            try:
                self._check_whole(entries, opened)
                at = self._topic.send(client, queue, "done", fields)
                entries += [*self._topic.entries(client, queue, end, at), Entry(at, "done", fields)]
                self._check_owner(entries, opened)
            except SparkSourceError:
                self._restore(client, queue, entries)
                raise

        self._topic.asked(finish)

    # -- inside -----------------------------------------------------------------------------------

    def _since(
        self, client: QueueClient, opened: Opened, begin: int | None = None
    ) -> tuple[QueuePlace, list[Entry], int]:
        """The queue, its entries from the opening of the batch (or `begin`) on, and its end offset.

        Raises SparkSourceError (LEDGER): the topic ends before that, because it was recreated.
        """
        queue = self._topic.queue(client)
        end = self._topic.end(client, queue, opened.offset)
        entries = self._topic.entries(client, queue, opened.offset if begin is None else begin, end)
        return queue, entries, end

    def _check_whole(self, entries: list[Entry], opened: Opened) -> None:
        """Of all that is there from the opening on. Raises SparkSourceError (LEDGER)."""
        self._check_owner(entries, opened)
        if not any(each.kind == "open" for each in entries):
            raise self._topic.made_anew("its record is not there", opened.offset)

    def _restore(self, client: QueueClient, queue: QueuePlace, entries: list[Entry]) -> None:
        """Write the owner's `done` again where one that was late is the last: a compaction leaves that."""
        while (right := _hidden(entries)) is not None:
            at = self._topic.send(client, queue, "done", right)
            more = self._topic.entries(client, queue, entries[-1].offset + 1, at)
            entries = [*entries, *more, Entry(at, "done", right)]

    def _restore_note(
        self, client: QueueClient, queue: QueuePlace, note: Note, entries: list[Entry], at: int
    ) -> None:
        """Write the latest attempt's note again where `note`, which lies at `at`, took its place."""
        while True:
            ends = [each for each in entries if each.kind == "ends" and each.fields]
            notes = [(self._note(each), each.fields) for each in ends]
            later = [each for each in notes if each[0].key == note.key and each[0].attempt > note.attempt]
            if not later:
                return
            note, fields = max(later, key=lambda each: each[0].attempt)
            begin, at = at + 1, self._topic.send(client, queue, "ends", fields or {}, key=note.key)
            entries = self._topic.entries(client, queue, begin, at)

    def _open(self, client: QueueClient, tokens: set[str]) -> Opened:
        queue = self._topic.queue(client)
        for _ in range(_MOST_OPENINGS):
            # Where the queues end is asked before the ledger is: what is sent by a batch that is open by then
            # lies behind that.
            topic = self._options.topic
            begins, now_ms = _ends(client, topic) if topic else {}, self._now_ms()
            state, end = self._state(client, queue, tokens)
            left = None if state is None else self._left(*state)
            # A record of this call hides the one of the driver that came first: it is written again then.
            if left is None or tokens:
                token = self._make_token()
                tokens.add(token)
                opened = _next(state, token, begins, now_ms - _SKEW_MS)
                if left is None and self._options.version >= 0:
                    opened = replace(opened, version=self._options.version)
                at = self._topic.send(client, queue, "open", opened.encode())
                between = self._topic.entries(client, queue, end, at)
                # What is gone may be an opening, whose place this one took.
                if any(each.kind in ("open", "done", GONE) and each.token not in tokens for each in between):
                    continue
                if left is None:
                    first_offset = opened.first_offset if opened.again else at
                    return replace(opened, offset=at, first_offset=first_offset)
            if isinstance(left, Opened):
                return left
            raise left
        raise self._topic.wrong(
            "several drivers write with this sinkId at the same time: one query has a sinkId"
        )

    def _left(self, last: Opened, is_done: bool) -> Opened | SparkSourceError | None:
        """None: a batch may be opened. That opening: this version, or a higher one, is done.

        SparkSourceError (LEDGER): another version has to be done first, or a query numbered the batches.
        """
        version = self._options.version
        if version < 0:
            return None
        if last.query not in ("", BY_VERSION):
            return self._topic.wrong(
                f"the sink was written by the query {last.query}, which numbers its batches itself: give"
                " another txnAppId"
            )
        if version <= last.batch:
            return last
        if not is_done and last.version not in (-1, version):
            consequence = f"; version {version} counts as done then" if version < last.version else ""
            return self._topic.wrong(
                f"version {last.version} was begun, and is not done, so version {version} is not written:"
                f" write version {last.version} again first, with the same rows{consequence}"
            )
        return None

    def _state(
        self, client: QueueClient, queue: QueuePlace, own: set[str]
    ) -> tuple[tuple[Opened, bool] | None, int]:
        """The last opening and whether it is done, None if there is none; and the offset read up to.

        A record whose driver lost a race contains the state before another one came. It counts only
        where it is alone, because a compaction removed the others.
        """
        # The minimum that a RocketMQ broker tells is that of a log beside, which retention shortens.
        end, size = self._topic.end(client, queue), _WINDOW
        while True:
            begin = max(end - size, 0)
            entries, end = self._topic.entries_now(client, queue, begin, end)
            all_opens = [each for each in entries if each.kind == "open"]
            opens = [each for each in all_opens if each.token not in own]
            if opens or begin == 0:
                break
            size *= 4
        opens = opens or all_opens
        if not opens or (last := opens[-1]).fields is None:
            return None, end
        opened = self._opened(last)
        for each in entries:
            if each.kind == "done" and each.offset > last.offset and each.token == opened.token:
                return (self._done(opened, each), True), end
        return (opened, False), end

    def _opened(self, entry: Entry) -> Opened:
        try:
            return Opened.decode(entry.fields or {}, entry.offset)
        except (KeyError, TypeError, SparkSourceError) as error:
            raise self._topic.damaged(entry.offset, error) from error

    def _note(self, entry: Entry) -> Note:
        try:
            return Note.decode(entry.fields or {})
        except (KeyError, TypeError, SparkSourceError) as error:
            raise self._topic.damaged(entry.offset, error) from error

    def _done(self, opened: Opened, entry: Entry) -> Opened:
        fields = entry.fields or {}
        try:
            query, batch = text_of(fields["query"]), number_of(fields["batch"])
            rows, checksum = number_of(fields["rows"]), number_of(fields["checksum"])
        except (KeyError, TypeError) as error:
            raise self._topic.damaged(entry.offset, error) from error
        return replace(opened, query=query, batch=batch, rows=rows, checksum=checksum)

    def _check_owner(self, entries: list[Entry], opened: Opened) -> None:
        for each in entries:
            if each.kind == "open" and each.token != opened.token:
                raise self._topic.wrong(
                    "another driver has opened a batch since this one was: this one is given up. One query at"
                    " a time writes with a sinkId, from one checkpoint"
                )

    def _check_attempt(self, entries: list[Entry], opened: Opened, attempt: Attempt) -> None:
        if any(
            each.offset > attempt.offset
            and each.token == opened.token
            and each.of_task(attempt.partition) not in ("", attempt.token)
            for each in entries
        ):
            raise self._topic.wrong(
                f"another attempt of task {attempt.partition} has begun since this one did: this one is given"
                " up"
            )


def _next(state: tuple[Opened, bool] | None, token: str, begins: Offsets, since_ms: int) -> Opened:
    """The next opening after that one."""
    if state is None:
        return Opened(token, -1, "", -1, 0, 0, begins, since_ms, first=token)
    last, is_done = state
    if is_done:
        done = last.query, last.batch, last.rows, last.checksum
        return Opened(token, -1, *done, begins, since_ms, first=token)
    return replace(last, token=token, offset=-1, again=True)


def _ends(client: QueueClient, topic: str) -> dict[QueuePlace, int]:
    """Of its queues; a topic that is not there yet has nothing of any batch. Raises GatewayError."""
    try:
        return client.maximums(client.queues(topic))
    except TopicNotFound:
        return {}


def _hidden(entries: list[Entry]) -> Mapping[str, object] | None:
    """The `done` record of the last opening, if one of another driver was written after it."""
    opens = [each for each in entries if each.kind == "open"]
    done = [each for each in entries if each.kind == "done" and each.fields is not None]
    if not opens or not done or done[-1].token == opens[-1].token:
        return None
    return next((each.fields for each in reversed(done) if each.token == opens[-1].token), None)
