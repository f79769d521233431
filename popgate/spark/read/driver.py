"""Plans the batches of a query from the gateway's responses: a batch query at once, a stream per trigger.

It does not depend on Spark: offsets are the JSON that Spark stores, plans are lists of ranges, one per task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from popgate.errors import Fault, GatewayError, TopicNotFound
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.connections import client_of, passes
from popgate.spark.errors import SparkSourceError, data_loss
from popgate.spark.offsets import StreamOffset, named, started
from popgate.spark.options.source_options import SourceOptions, Where
from popgate.spark.read.compaction import minimums_of
from popgate.spark.read.positions import earliest, ends_of, queues_of, starts_of, sure_ends
from popgate.spark.read.read_plan import Range, Warn, check_ends, checked, planned, ranges_of
from popgate.spark.read.recreated_queues import made_anew
from popgate.spark.read.trigger_limits import Limits

T = TypeVar("T")
Connect = Callable[[SourceOptions], AbstractContextManager[QueueClient]]
Plan = list[list[Range]]
_LONGEST_REST_S: Final = 5.0
_MISSING_REST_S: Final = 1.0
"""Before it is looked again whether a topic is there."""
_AWAY_S: Final = 60.0
"""A topic does not exist either while all of its brokers are away, as when they restart."""


def batch_plan(options: SourceOptions, warn: Warn, *, connect: Connect = client_of) -> Plan:
    """The plan of a batch query, from the current offsets. Raises SparkSourceError."""

    def ask(client: QueueClient) -> Plan:
        queues = queues_of(client, options)
        begins, ends = starts_of(client, options, queues), ends_of(client, options, queues)
        if options.start.where is Where.GROUP:
            # No end by offset or by time explains that a group is behind all that is there.
            check_ends(begins, sure_ends(client, begins, client.maximums(queues)))
        # An end by offset or by time may lie before the start: then there is nothing to read.
        ends = {queue: max(end, begins[queue]) for queue, end in ends.items()}
        return _plan(client, begins, ends, options, warn)

    return asked(options, ask, connect=connect, wait_s=options.wait_for_topic_s)


class Stream:
    """One run of a streaming query. All methods raise SparkSourceError."""

    def __init__(
        self,
        options: SourceOptions,
        warn: Warn,
        *,
        connect: Connect = client_of,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_ms` is the time of day, `now` is in seconds and never goes back."""
        self._options, self._warn, self._connect, self._now_ms = options, warn, connect, now_ms
        self._limits = Limits(options, now)
        self._now, self._idle_since = now, now()
        self._seen: set[QueuePlace] = set()
        """The queues that were there when that was asked last."""
        self._committed: dict[QueuePlace, int] = {}
        """Where the group was set to."""
        self._initial: dict[str, Any] | None = None
        self._last: dict[QueuePlace, int] | None = None
        """Where everything ends, once `end_here` was called."""
        self.reported: dict[str, Any] | None = None
        """Where the queues ended when that was asked last."""

    def initial(self) -> dict[str, Any]:
        """Where a query begins that has no checkpoint yet. Spark asks twice, and it is resolved once."""
        if self._initial is None:
            starts = self._ask(lambda client: starts_of(client, self._options, self._queues(client)))
            self._initial = StreamOffset(starts, initial=True).encode()
        return self._initial

    def end_here(self) -> None:
        """Ignore later messages and new queues from now on."""
        self._last = self._ask(lambda client: client.maximums(self._queues(client)))

    def latest(self, start: dict[str, Any], *, whole: bool = False) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is nothing new, or too little yet.

        It keeps to the limits of the options, unless `whole`: then everything that is there is taken.
        The first end is never `start`, so that the checkpoint has the beginning even of a query that found
        nothing yet: otherwise "latest" would be another place after a restart.
        """
        before = StreamOffset.decode(start)
        # A tick must not be later than a message that lies behind these bounds.
        tick_ms, bounds = self._ask(lambda client: (self._now_ms(), self._bounds(client, before)))
        (begins, new, ends), at_ms = bounds, self._now_ms()
        self.reported = StreamOffset(ends).encode()
        if not before.initial and not new and ends == dict(before.queues) and self._is_idle():
            self._idle_since = self._now()
            self._limits.began()
            return StreamOffset(ends, at_ms=tick_ms, tick=before.tick + 1).encode()
        if not whole:
            # What ends somewhere is waited for by nobody.
            if self._last is None and not before.initial and self._limits.waits(begins, ends):
                return start
            ends = self._ask(lambda client: self._limits.applied(client, begins, ends))
        # Spark writes this end into the checkpoint before it is planned, and would plan it for ever.
        check_ends(begins, ends)
        if before.initial:
            self._limits.began()
            return StreamOffset(ends, starts=begins, at_ms=at_ms).encode()
        if not new and ends == dict(before.queues):
            return start
        self._idle_since = self._now()
        self._limits.began()
        return StreamOffset(ends, new=new, at_ms=at_ms, tick=before.tick).encode()

    def _is_idle(self) -> bool:
        """Whether it is time to say that nothing came; a stream that ends somewhere never does."""
        after_s = self._options.idle_tick_s
        return bool(after_s) and self._last is None and self._now() - self._idle_since >= after_s

    def tick(self, start: dict[str, Any], end: dict[str, Any]) -> int | None:
        """When it was (ms since 1970) that nothing had come for a while, of a batch that says so."""
        after = StreamOffset.decode(end)
        return after.at_ms if after.tick > StreamOffset.decode(start).tick else None

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> Plan:
        """The plan between two offsets: the same ranges each time it is requested."""
        after = StreamOffset.decode(end)
        begins, ends = started(StreamOffset.decode(start), after), dict(after.queues)

        def ask(client: QueueClient) -> Plan:
            # A batch that a process before this one began: nobody has looked at its queues since.
            unseen = [queue for queue, at in ends.items() if at > begins[queue] and queue not in self._seen]
            self._check_age(client, after, unseen)
            self._seen |= set(unseen)
            return _plan(client, begins, ends, self._options, self._warn)

        passes_over = not self._options.fail_on_data_loss
        while True:
            try:
                return self._ask(ask, wait_s=_AWAY_S if passes_over else 0.0)
            except SparkSourceError as error:
                cause = error.__cause__
                if not isinstance(cause, TopicNotFound):
                    raise
                topic = cause.topic
                sentence = (
                    f"topic {topic}, of which a batch was begun, does not exist, or its brokers are away"
                )
                if not passes_over:
                    raise data_loss(f"{sentence}: start the query again when it is there") from cause
                self._warn(sentence)
                ends = {queue: at for queue, at in ends.items() if queue.topic != topic}

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the end of a batch as the group's positions, so that its lag can be monitored.

        Nothing is read from these positions, so failures are only reported to `warn`. Spark reports the end
        of a batch one batch late, never that of the last one, and possibly twice: positions never go back.
        """
        if not self._options.commit_offsets:
            return
        ends = StreamOffset.decode(end).queues
        # Of a queue that is gone no position can be moved, and none needs to be.
        ahead = {
            queue: at
            for queue, at in ends.items()
            if queue in self._seen and at > self._committed.get(queue, -1)
        }
        if not ahead:
            return
        try:
            with self._connect(self._options) as client:
                client.commit(self._options.group, ahead)
        except SparkSourceError as error:
            cause = error.__cause__
            # A group is made on first use by who reads under it, which nobody may have done yet.
            if not (isinstance(cause, GatewayError) and cause.fault is Fault.GROUP_NOT_FOUND):
                self._warn(f"the positions of group {self._options.group} could not be moved: {error}")
        else:
            self._committed |= ahead

    def _bounds(
        self, client: QueueClient, before: StreamOffset
    ) -> tuple[dict[QueuePlace, int], dict[QueuePlace, int], dict[QueuePlace, int]]:
        """The start of the batch, the start of new queues, and the end of the queues.

        Queues that are gone keep their last offset.
        """
        queues = self._queues(client)
        self._check_age(client, before, [queue for queue in queues if queue not in self._seen])
        self._seen = set(queues)
        if self._last is not None:
            queues = [queue for queue in queues if queue in self._last]
        new = earliest(client, [queue for queue in queues if queue not in before.queues])
        begins = {**before.queues, **new}
        if self._last is not None:
            # Where these begin was asked after where everything ends, and messages came in between.
            asked_later = begins if before.initial else new
            late = [queue for queue, begin in asked_later.items() if begin > self._last.get(queue, begin)]
            self._last |= {queue: min(end, begins[queue]) for queue, end in client.maximums(late).items()}
        ends = client.maximums(queues) if self._last is None else {each: self._last[each] for each in queues}
        ends = sure_ends(client, begins, ends)
        if self._last is not None:
            self._last |= ends
        return begins, new, {queue: ends.get(queue, begin) for queue, begin in begins.items()}

    def _check_age(self, client: QueueClient, before: StreamOffset, queues: list[QueuePlace]) -> None:
        """Check queues that did not exist a moment ago, or that are not known yet.

        They may have been recreated while the query did not run, or while the topic did not exist.
        """
        begins = {queue: at for queue in queues if (at := before.queues.get(queue, 0)) > 0}
        if before.at_ms is None or before.initial or not begins:
            return
        for queue in made_anew(client, begins, before.at_ms):
            sentence = (
                f"{named(queue)} was read up to {begins[queue]}, and everything in it was stored since then:"
                " it was made anew, and needs a checkpoint, or a start, of its own"
            )
            if self._options.fail_on_data_loss:
                raise data_loss(sentence)
            self._warn(sentence)

    def _queues(self, client: QueueClient) -> list[QueuePlace]:
        return queues_of(client, self._options, running=self.reported is not None)

    def _ask(self, work: Callable[[QueueClient], T], *, wait_s: float = 0.0) -> T:
        # A topic that was there and is gone ends the query.
        wait_s = max(wait_s, 0.0 if self._seen else self._options.wait_for_topic_s)
        return asked(self._options, work, connect=self._connect, wait_s=wait_s)


def asked(
    options: SourceOptions,
    work: Callable[[QueueClient], T],
    *,
    connect: Connect = client_of,
    rest: Callable[[float], None] = time.sleep,
    wait_s: float = 0.0,
) -> T:
    """The result of `work`, which only reads, so that it is retried after temporary failures.

    For up to `wait_s` it is also retried while a topic does not exist.

    The pause doubles each time: by default a gateway has one minute to restart. `rest` takes
    seconds. Raises SparkSourceError.
    """
    retries, times, waited_s = options.number("fetchOffset.numRetries"), 0, 0.0
    first_rest_s = options.number("fetchOffset.retryIntervalMs") / 1000
    while True:
        try:
            with connect(options) as client:
                return work(client)
        except SparkSourceError as error:
            if isinstance(error.__cause__, TopicNotFound) and waited_s < wait_s:
                rest(min(_MISSING_REST_S, wait_s - waited_s))
                waited_s += _MISSING_REST_S
                continue
            if times == retries or not passes(error):
                raise
            rest(min(first_rest_s * 2 ** min(times, 20), max(first_rest_s, _LONGEST_REST_S)))
            times += 1


def _plan(
    client: QueueClient,
    begins: Mapping[QueuePlace, int],
    ends: Mapping[QueuePlace, int],
    options: SourceOptions,
    warn: Warn,
) -> Plan:
    ranges = ranges_of(begins, ends)
    minimums = minimums_of(client, {each.queue: each.begin for each in ranges})
    kept = checked(ranges, minimums, fail=options.fail_on_data_loss, warn=warn)
    return planned(
        kept,
        partitions=options.numbers["minPartitions"],
        largest=options.numbers["maxRecordsPerPartition"],
        least=options.numbers["minRecordsPerPartition"],
    )
