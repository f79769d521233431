"""The ledger of sinks: which batch of a sink is done, and where the rows of the one that is open may lie.

It is a compacted topic with one queue, so that its offsets are an order of all that happens. Of a sink it has
three kinds of records, each superseding the one before it of its key:

- `open`: a driver is about to write a batch. It has a token of its own, what was done before, and where
  the queues ended before anything of the batch was sent. The last one is the sink's owner: tasks and
  commits of any other driver fail.
- `task`: an attempt of a task is about to send, so that the next attempt knows that it is not the first.
- `done`: the batch with that token was written as a whole. One with another token than the last `open` has
  is of a driver that was late, and counts for nothing.

A driver that opens while the last batch is not done takes over its places: rows are looked for from there on.
Whoever writes reads before and after: what came in between was written by another one at the same time.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from popgate.errors import GatewayError, PeerWireError, TopicNotFound, shown
from popgate.model import CLEANUP_POLICY, COMPACTION
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.connecting import client_of, passes
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.offsets import Offsets, flat, nested
from popgate.spark.sink_options import SinkOptions
from popgate.wire.codes import ResponseCode
from popgate.wire.properties import KEYS, UNIQ_KEY, encode_properties, find_property
from popgate.wire.records import Record, decode_records

T = TypeVar("T")
Connect = Callable[[SinkOptions], AbstractContextManager[QueueClient]]
_VERSION: Final = 1
_WINDOW: Final = 64
"""Offsets from the end of the ledger that are looked at first; then four times as many, and so on."""
_PULL: Final = 32
_MOST_OPENINGS: Final = 8
"""So often another driver may come first before this one gives up."""
_LONGEST_REST_S: Final = 5.0
_KIND: Final = re.compile("(open|done|task)(?:(?<=task):[0-9]+)?")
"""What a key has behind the name of its sink."""
_SKEW_MS: Final = 60_000
"""So far a broker's clock may be behind a driver's."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch that may be written; tasks get a copy. `query` empty and `batch` -1: none was done before."""

    token: str
    offset: int
    """Of its record in the ledger."""
    query: str
    batch: int
    rows: int
    """Of the last batch that was done."""
    checksum: int = 0
    """Of those rows."""
    begins: Offsets = field(default_factory=dict)
    """Ends of the queues of the option `topic` before anything was sent."""
    since_ms: int = 0
    """Before that nothing was sent to topics that rows name."""
    again: bool = False
    """Whether a batch was opened before that is not done: rows of this one may be there."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record of this sink. `told` None: it was deleted by a record without a body."""

    offset: int
    kind: str
    told: Mapping[str, Any] | None

    @property
    def token(self) -> str:
        return "" if self.told is None else str(self.told.get("token"))


class Ledger:
    """What one process knows of it. All methods raise SparkSourceError."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        connect: Connect = client_of,
        rest: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        make_token: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._options, self._connect, self._rest = options, connect, rest
        self._now_ms, self._make_token = now_ms, make_token
        self._prefix = f"{options.sink_id}:"

    # -- what happens to a batch ------------------------------------------------------------------

    def open(self) -> Opened:
        """Take the sink over, in the driver, before tasks begin."""
        return self._asked(self._open)

    def begin_task(self, opened: Opened, partition: int) -> bool:
        """Whether an attempt of this task was there before; this one is known from now on."""
        attempt = self._make_token()

        def begin(client: QueueClient) -> bool:
            queue = self._queue(client)
            end = client.maximums([queue])[queue]
            found = self._entries(client, queue, opened.offset + 1, end)
            told = {"token": opened.token, "partition": partition, "attempt": attempt}
            at = self._send(client, queue, "task", told, key=f"task:{partition}")
            found += self._entries(client, queue, end, at)
            self._check_owner(found, opened)
            return any(
                each.kind == "task"
                and each.told is not None
                and each.token == opened.token
                and each.told.get("partition") == partition
                and each.told.get("attempt") != attempt
                for each in found
            )

        return self._asked(begin)

    def check_owner(self, opened: Opened) -> None:
        """Raises SparkSourceError (LEDGER): another driver has opened a batch since."""

        def check(client: QueueClient) -> None:
            queue = self._queue(client)
            end = client.maximums([queue])[queue]
            self._check_owner(self._entries(client, queue, opened.offset + 1, end), opened)

        self._asked(check)

    def finish(self, opened: Opened, query: str, batch: int, rows: int, checksum: int) -> None:
        """Say that the batch is done. The driver's, when all tasks are."""

        def finish(client: QueueClient) -> None:
            queue = self._queue(client)
            end = client.maximums([queue])[queue]
            found = self._entries(client, queue, opened.offset + 1, end)
            self._check_owner(found, opened)
            told = {"token": opened.token, "query": query, "batch": batch, "rows": rows, "checksum": checksum}
            at = self._send(client, queue, "done", told)
            self._check_owner(self._entries(client, queue, end, at), opened)

        self._asked(finish)

    # -- inside -----------------------------------------------------------------------------------

    def _open(self, client: QueueClient) -> Opened:
        queue = self._queue(client)
        for _ in range(_MOST_OPENINGS):
            # Where the queues end is asked before the ledger is: what is sent by a batch that is open by then
            # lies behind that.
            begins, now_ms = self._ends(client), self._now_ms()
            state, end = self._state(client, queue)
            token = self._make_token()
            opened = _next(state, token, begins, now_ms - _SKEW_MS)
            told = {
                "token": token,
                "query": opened.query,
                "batch": opened.batch,
                "rows": opened.rows,
                "checksum": opened.checksum,
                "begins": nested(opened.begins),
                "since": opened.since_ms,
                "again": opened.again,
            }
            at = self._send(client, queue, "open", told)
            between = self._entries(client, queue, end, at)
            if not any(each.kind in ("open", "done") and each.token != token for each in between):
                return replace(opened, offset=at)
        raise self._wrong("several drivers write with this sinkId at the same time: one query has a sinkId")

    def _ends(self, client: QueueClient) -> dict[QueuePlace, int]:
        """Of the option `topic`; a topic that is not there yet has nothing of any batch."""
        if not self._options.topic:
            return {}
        try:
            return client.maximums(client.queues(self._options.topic))
        except TopicNotFound:
            return {}

    def _state(self, client: QueueClient, queue: QueuePlace) -> tuple[tuple[Opened, bool] | None, int]:
        """The last opening and whether it is done, None if there is none; and up to where was read."""
        minimum, end = client.minimums([queue])[queue], client.maximums([queue])[queue]
        size = _WINDOW
        while True:
            begin = max(end - size, minimum)
            found = self._entries(client, queue, begin, end)
            opens = [each for each in found if each.kind == "open"]
            if opens or begin == minimum:
                break
            size *= 4
        if not opens or (last := opens[-1]).told is None:
            return None, end
        opened = self._opened(last)
        for each in found:
            if each.kind == "done" and each.offset > last.offset and each.token == opened.token:
                return (self._done(opened, each), True), end
        return (opened, False), end

    def _opened(self, entry: _Entry) -> Opened:
        told = entry.told or {}
        try:
            return Opened(
                entry.token,
                entry.offset,
                _text(told["query"]),
                _number(told["batch"]),
                _number(told["rows"]),
                _number(told["checksum"]),
                flat(told["begins"]),
                _number(told["since"]),
                told["again"] is True,
            )
        except (KeyError, TypeError, SparkSourceError) as error:
            raise self._damaged(entry.offset, error) from error

    def _done(self, opened: Opened, entry: _Entry) -> Opened:
        told = entry.told or {}
        try:
            query, batch = _text(told["query"]), _number(told["batch"])
            rows, checksum = _number(told["rows"]), _number(told["checksum"])
        except (KeyError, TypeError) as error:
            raise self._damaged(entry.offset, error) from error
        return replace(opened, query=query, batch=batch, rows=rows, checksum=checksum)

    def _check_owner(self, found: list[_Entry], opened: Opened) -> None:
        for each in found:
            if each.kind == "open" and each.token != opened.token:
                raise self._wrong(
                    "another driver has opened a batch since this one was: this one is given up. One query at"
                    " a time writes with a sinkId, from one checkpoint"
                )

    # -- the topic --------------------------------------------------------------------------------

    def _queue(self, client: QueueClient) -> QueuePlace:
        """The queue of the ledger. Raises SparkSourceError for a topic that cannot be one."""
        topic = self._options.ledger_topic
        how = (
            f"make it with: popgate topic create {topic} --queues 1 --attribute {CLEANUP_POLICY}={COMPACTION}"
        )
        try:
            policy = client.topic_config(topic).attributes.get(CLEANUP_POLICY)
            queues = client.queues(topic)
        except TopicNotFound as error:
            raise self._wrong(f"the topic is not there, {how}") from error
        if policy != COMPACTION:
            raise self._wrong(
                f"the topic is not compacted, its records would go by age: name another one, and {how}"
            )
        if len(queues) != 1:
            raise self._wrong(
                f"the topic has {len(queues)} queues, and a ledger has one: name another one, and {how}"
            )
        return queues[0]

    def _send(
        self, client: QueueClient, queue: QueuePlace, kind: str, told: Mapping[str, Any], *, key: str = ""
    ) -> int:
        """The offset of the record, once it is stored."""
        body = json.dumps({"v": _VERSION, "kind": kind, **told}, separators=(",", ":")).encode()
        block = encode_properties({KEYS: self._prefix + (key or kind), UNIQ_KEY: uuid.uuid4().hex.upper()})
        return client.send(queue, [(body, block)], timeout_s=self._options.timeout_s).offset

    def _entries(self, client: QueueClient, queue: QueuePlace, begin: int, end: int) -> list[_Entry]:
        """Records of this sink at these offsets, in order."""
        found = []
        for record in self._records(client, queue, begin, end):
            key = (find_property(record.properties, KEYS.encode()) or b"").decode("utf-8", "replace")
            # Sinks may have names that begin alike.
            kind = _KIND.fullmatch(key.removeprefix(self._prefix)) if key.startswith(self._prefix) else None
            if kind is not None:
                found.append(self._entry(record, kind[1]))
        return found

    def _entry(self, record: Record, kind: str) -> _Entry:
        if not record.body:
            return _Entry(record.offset, kind, None)
        try:
            told = json.loads(record.body)
            if told["v"] != _VERSION or told["kind"] != kind:
                raise ValueError(f"it is of version {told['v']}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(record.offset, error) from error
        return _Entry(record.offset, kind, told)

    def _records(self, client: QueueClient, queue: QueuePlace, begin: int, end: int) -> Iterator[Record]:
        end_s = time.monotonic() + self._options.timeout_s
        at = begin
        while at < end:
            answer = client.pull(queue, at, most=_PULL, timeout_s=self._options.timeout_s)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                # It ends there or beyond: this replica has not heard of it yet.
                if time.monotonic() >= end_s:
                    raise self._wrong(
                        f"nothing is at offset {at}, though it ended at {end}: was it made anew?"
                    )
                self._rest(0.05)
                continue
            if answer.next_offset <= at:
                raise self._wrong(f"there is no offset {at} any more: it was made anew")
            try:
                for record in decode_records(answer.body):
                    if at <= record.offset < end:
                        yield record
            except PeerWireError as error:
                raise self._damaged(at, error) from error
            at = answer.next_offset

    # -- asking again, and failures ---------------------------------------------------------------

    def _asked(self, work: Callable[[QueueClient], T]) -> T:
        """Done again as a whole when it fails for now: records that are there twice count once."""
        numbers, times = self._options.numbers, 0
        while True:
            try:
                with self._connect(self._options) as client:
                    return work(client)
            except SparkSourceError as error:
                if not passes(error):
                    raise self._told(error) from error.__cause__
                if times == numbers["send.numRetries"]:
                    raise
                first_rest_s = numbers["send.retryIntervalMs"] / 1000
                self._rest(min(first_rest_s * 2 ** min(times, 20), _LONGEST_REST_S))
                times += 1

    def _told(self, error: SparkSourceError) -> SparkSourceError:
        """With the ledger's name, where the gateway refused something."""
        if error.code is Code.LEDGER or not isinstance(error.__cause__, GatewayError):
            return error
        return SparkSourceError(
            error.code, f"{error.sentence} (option ledgerTopic = {self._options.ledger_topic})"
        )

    def _wrong(self, sentence: str) -> SparkSourceError:
        return ledger_error(self._options, sentence)

    def _damaged(self, offset: int, error: Exception) -> SparkSourceError:
        return self._wrong(f"what stands at offset {offset} is no record of this connector: {error}")


def ledger_error(options: SinkOptions, sentence: str) -> SparkSourceError:
    """With the options that name the ledger and the sink in it."""
    return SparkSourceError(
        Code.LEDGER,
        f"{sentence} (option ledgerTopic = {options.ledger_topic}, option sinkId = {shown(options.sink_id)})",
    )


def _next(state: tuple[Opened, bool] | None, token: str, begins: Offsets, since_ms: int) -> Opened:
    """What is opened after that."""
    if state is None:
        return Opened(token, -1, "", -1, 0, 0, begins, since_ms)
    last, is_done = state
    if is_done:
        return Opened(token, -1, last.query, last.batch, last.rows, last.checksum, begins, since_ms)
    return replace(last, token=token, offset=-1, again=True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value
