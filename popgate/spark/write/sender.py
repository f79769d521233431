"""Sends the rows of a task in batches, several in flight, each until it is acknowledged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Final, TypeVar

from popgate.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    Fault,
    GatewayError,
    LocalWireError,
    TopicNotFound,
)
from popgate.queue_client import HalfMessage, QueueClient, QueuePlace
from popgate.spark.connections import PASSING, client_of
from popgate.spark.errors import Code, PartlyStored, SparkSourceError
from popgate.spark.options.sink_options import SinkOptions
from popgate.spark.write.lots import Lot, half_of, key_of
from popgate.spark.write.outgoing_rows import Outgoing, PackedRows, illegal_row
from popgate.spark.write.queue_selector import (
    ANY,
    brokers_of_new_topics,
    is_compacted,
    named_queue,
    queue_of_group,
    writable_queues,
)
from popgate.wire.frames.remoting import LARGEST_FRAME
from popgate.wire.messages.batches import size_in_batch

_REFUSALS: Final = frozenset({Fault.BROKER_BUSY, Fault.TOO_MANY_REQUESTS})
"""After these nothing was carried out."""
_LONGEST_REST_S: Final = 5.0
_MOST_HELD: Final = 16 << 20
"""Bytes of rows in batches that are not full yet, over all queues."""
_LARGEST_SEND: Final = 4 << 20
"""Bytes of one that brokers take by default. Source: RocketMQ's MessageStoreConfig.maxMessageSize."""
T = TypeVar("T")
Connect = Callable[[SinkOptions], AbstractContextManager[QueueClient]]
FindSent = Callable[[str], set[str]]


class Sender:
    """Takes rows and sends them. All methods raise SparkSourceError; after that nothing more is sent."""

    def __init__(
        self,
        options: SinkOptions,
        partition: int,
        *,
        connect: Connect = client_of,
        rest: Callable[[float], None] = time.sleep,
        again: bool = True,
        find_sent: FindSent | None = None,
        check: Callable[[], None] = lambda: None,
        begin_topics: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """`partition`: each starts at another queue. `rest` takes seconds.

        `again`: an earlier attempt may have sent the same rows.
        `find_sent`: returns the ids stored in a topic; requests without a response are looked up before they
        are repeated. `check`: called before each send; if it raises SparkSourceError, nothing more is sent.
        `begin_topics`: called with topics before the first send to them, with the same contract as `check`.
        """
        numbers = options.numbers
        self._rows = numbers["sendBatchRows"]
        # What each message needs beside its body and its properties counts for the broker, too.
        self._bytes = min(numbers["sendBatchBytes"], _LARGEST_SEND - size_in_batch(self._rows))
        self._depth, self._retries = numbers["sendInFlight"], numbers["send.numRetries"]
        self._first_rest_s = numbers["send.retryIntervalMs"] / 1000
        self._options, self._partition = options, partition
        self._connect, self._rest = connect, rest
        self._connected = ExitStack()
        self._client: QueueClient | None = None
        self._queues: dict[str, tuple[QueuePlace, ...]] = {}
        """Of topics that are there."""
        self._compacted: dict[str, bool] = {}
        """Whether topics that are there are compacted."""
        self._turn = partition
        self._filling: dict[Hashable, Lot] = {}
        self._held = 0
        self._under_way: deque[Lot] = deque()
        self._acknowledged = 0
        self._half, self._again = options.transactional, again
        self._find_sent, self._check = find_sent, check
        self._begin_topics = begin_topics
        self._begun: set[str] = set()
        """Topics with which it was called."""
        self._looked: tuple[QueueClient, str, set[str]] | None = None
        """The ids found in a topic after a connection was closed with an unanswered request."""
        self.halves: list[HalfMessage] = []
        """Those that are stored, of a transactional sink."""

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._leave()
        self._connected.close()

    def add(self, row: Outgoing) -> None:
        """Take a row; it goes out when there are enough for a batch, or in `finish`."""
        topic = row.topic
        queues = self._queues.get(topic) or self._find(row)
        if not queues:
            self._make_topic(row)
            return
        # A compaction leaves the last message of a key in a queue: where that is must not be chance.
        group = row.group or (key_of(row) if self._compacted.get(topic) else "")
        ordered = group != "" and not self._half
        plain = group == "" and row.queue_id is None
        place = None if plain and not row.alone else self._place(row, group, queues)
        key: Hashable = topic if place is None else (place, ordered)
        size = len(row.body) + len(row.block)
        lot = self._filling.get(key)
        if lot is not None and (row.alone or lot.size + size > self._bytes):
            self._close(key)
            lot = None
        if lot is None:
            lot = self._filling[key] = Lot(topic, place, ordered, row.number)
        lot.add(row)
        self._held += size
        if row.alone or lot.count >= self._rows:
            self._close(key)
        elif self._held > _MOST_HELD:
            self._close_all()

    def add_all(self, pieces: Iterable[Outgoing | PackedRows]) -> None:
        """Take rows, one after the other."""
        for piece in pieces:
            if isinstance(piece, PackedRows):
                self._add_packed(piece)
            else:
                self.add(piece)

    def _add_packed(self, rows: PackedRows) -> None:
        """`add` for each of them, many at a time."""
        topic, at = rows.topic, 0
        while at < len(rows):
            if self._compacted.get(topic) or not self._queues.get(topic):
                self.add(rows.row(at))
                at += 1
                continue
            lot = self._filling.get(topic) or Lot(topic, None, ordered=False, first=rows.first + at)
            stop = min(rows.fitting(at, self._bytes - lot.size), at + self._rows - lot.count)
            if stop == at and lot.count:
                self._close(topic)
                continue
            # One that is too large for any batch goes in one of its own, and one goes beyond what is held.
            stop = min(max(stop, at + 1), rows.fitting(at, _MOST_HELD - self._held) + 1)
            self._filling[topic] = lot
            lot.add_packed(rows, at, stop)
            self._held += rows.size(at, stop)
            at = stop
            if lot.count >= self._rows:
                self._close(topic)
            elif self._held > _MOST_HELD:
                self._close_all()

    def finish(self) -> int:
        """Send the rest, and wait for every acknowledgement; how many rows were sent in all."""
        self._close_all()
        self._drain()
        return self._acknowledged

    # -- where to ---------------------------------------------------------------------------------

    def _place(self, row: Outgoing, group: str, queues: tuple[QueuePlace, ...]) -> QueuePlace:
        if row.queue_id is not None:
            queue_or_reason = named_queue(queues, row.broker, row.queue_id)
            if isinstance(queue_or_reason, str):
                raise illegal_row(row.number, self._partition, "queue_id", queue_or_reason)
            return queue_or_reason
        if group:
            return queue_of_group(group, queues)
        # A priority, or a lite topic, is a queue of its own.
        return QueuePlace(row.topic, self._next(queues).broker, ANY)

    def _next(self, queues: tuple[QueuePlace, ...]) -> QueuePlace:
        self._turn += 1
        return queues[self._turn % len(queues)]

    def _find(self, row: Outgoing) -> tuple[QueuePlace, ...]:
        """The queues of its topic; none: the first message makes it."""
        queues = self._asked(lambda client, row: writable_queues(client, row.topic), row)
        if queues:
            self._queues[row.topic] = queues
            if row.topic not in self._compacted:
                self._compacted[row.topic] = self._asked(self._is_compacted, row)
        return queues

    def _is_compacted(self, client: QueueClient, row: Outgoing) -> bool:
        """Raises GatewayError."""
        try:
            return is_compacted(client, row.topic)
        except TopicNotFound:
            # Its route is there, and it is no more, or not yet. A scan takes it for that as well.
            return False
        except GatewayError as error:
            # Without a ledger an account that may only send is enough, and a broker that does not tell it.
            if self._options.has_ledger or (error.fault in PASSING and error.fault is not Fault.INTERNAL):
                raise
            return False

    def _make_topic(self, row: Outgoing) -> None:
        """Send the first message of a topic alone: its queues are unknown before."""
        brokers = self._asked(lambda client, _row: brokers_of_new_topics(client), row)
        if not brokers:
            raise self._failed(TopicNotFound(row.topic), f"row {row.number}", row.topic, 1)
        broker = row.broker or brokers[self._partition % len(brokers)]
        queue_id = ANY if row.queue_id is None else row.queue_id
        lot = Lot(row.topic, QueuePlace(row.topic, broker, queue_id), row.group != "", row.number)
        lot.add(row)
        self._send(lot)
        self._drain()

    # -- sending ----------------------------------------------------------------------------------

    def _close_all(self) -> None:
        for key in list(self._filling):
            self._close(key)

    def _close(self, key: Hashable) -> None:
        lot = self._filling.pop(key)
        self._held -= lot.size
        self._send(lot)

    def _send(self, lot: Lot) -> None:
        if self._begin_topics is not None and lot.topic not in self._begun:
            # Those that are about to go out as well, so that it is called for many at a time.
            topics = {lot.topic, *(each.topic for each in self._filling.values())} - self._begun
            self._begin_topics(sorted(topics))
            self._begun |= topics
        while len(self._under_way) >= self._depth or (lot.ordered and self._has_ordered(lot.place)):
            self._finish_oldest()
        self._begin(lot)
        self._under_way.append(lot)

    def _has_ordered(self, place: QueuePlace | None) -> bool:
        return any(other.ordered and other.place == place for other in self._under_way)

    def _drain(self) -> None:
        while self._under_way:
            self._finish_oldest()

    def _begin(self, lot: Lot) -> None:
        """Send it; a temporary failure is reported when its response is awaited."""
        lot.times += 1
        lot.client = None
        try:
            client = self._reached()
            lot.to = lot.place or self._next(self._known(client, lot.topic))
            # Behind all that takes time: another one may have come meanwhile.
            self._check()
            # A half message that was dropped does not come again under its id. And of an earlier attempt the
            # broker may know later rows alone: in a compacted topic an older one would be the last one.
            once = not (self._half or (self._again and self._compacted.get(lot.topic)))
            lot.opaque = lot.start(client, lot.to, once=once, half=self._half)
            lot.client = client
        except GatewayError as error:
            if not self._may_pass(error, lot):
                raise self._lost(error, lot) from error
            lot.why = error
        except LocalWireError as error:
            body, _ = lot.messages()[0]
            # The properties of one message are in the header, which takes less.
            column = "body" if len(body) > LARGEST_FRAME // 2 else "properties"
            raise illegal_row(lot.first, self._partition, column, f"is too large: {error}") from error

    def _known(self, client: QueueClient, topic: str) -> tuple[QueuePlace, ...]:
        """Raises GatewayError."""
        queues = self._queues.get(topic) or writable_queues(client, topic)
        if not queues:
            raise TopicNotFound(topic)
        self._queues[topic] = queues
        return queues

    def _finish_oldest(self) -> None:
        """Wait until the first that is under way is acknowledged, and send it again where that may help."""
        lot = self._under_way.popleft()
        # The rest of a request may go out while its answer is awaited, and rows may have taken long to come.
        self._check()
        while True:
            try:
                if lot.client is None or lot.to is None:
                    raise lot.why or BrokerUnavailable("the gateway was not reached")
                answer = lot.client.finish_send(lot.opaque, lot.to, timeout_s=self._options.timeout_s)
            except GatewayError as error:
                if not self._may_pass(error, lot) or lot.times > self._retries:
                    raise self._lost(error, lot) from error
                if isinstance(error, PartlyStored):
                    self._acknowledged += lot.leave_out(error.message_ids)
                # What went by a connection that another one has replaced need not rest.
                if lot.client is None or lot.client is self._client:
                    self._rest_after(error, lot.times)
                    self._queues.pop(lot.topic, None)
                if error.fault not in _REFUSALS and self._leave_out_sent(lot):
                    return
                self._begin(lot)
            else:
                if self._half:
                    self.halves.append(half_of(answer, lot.messages()[0][1]))
                self._acknowledged += lot.count
                return

    def _leave_out_sent(self, lot: Lot) -> bool:
        """Whether all of it is stored already: after a request without a response the outcome is unknown."""
        # In a compacted topic what was sent may be gone, and what is found may be of an earlier attempt.
        if self._find_sent is None or lot.client is None or self._compacted.get(lot.topic):
            return False
        # Before the look: what comes by a connection that is open then may come behind it.
        is_open, last_look = lot.client.connection.is_open, self._looked
        if is_open or last_look is None or last_look[:2] != (lot.client, lot.topic):
            last_look = lot.client, lot.topic, self._find_sent(lot.topic)
        # By a connection that is closed nothing comes any more: one look is enough for all that went there.
        self._looked = None if is_open else last_look
        self._acknowledged += lot.leave_out(last_look[2])
        return not lot.count

    # -- the connection ---------------------------------------------------------------------------

    def _reached(self) -> QueueClient:
        """Raises GatewayError."""
        if self._client is not None and not self._client.connection.is_open:
            self._leave()
        if self._client is None:
            try:
                self._client = self._connected.enter_context(self._connect(self._options))
            except SparkSourceError as error:
                if isinstance(error.__cause__, GatewayError):
                    raise error.__cause__ from None
                raise
        return self._client

    def _leave(self) -> None:
        if self._client is not None:
            self._client.connection.close()
            self._client = None
        self._connected.close()

    def _rest_after(self, error: GatewayError, times: int) -> None:
        if isinstance(error, BrokerTimeout):
            self._leave()  # nobody knows whether this connection still leads anywhere
        self._rest(min(self._first_rest_s * 2 ** min(times - 1, 20), _LONGEST_REST_S))

    def _asked(self, work: Callable[[QueueClient, Outgoing], T], row: Outgoing) -> T:
        """The result of `work`, which is retried after temporary failures."""
        times = 0
        while True:
            times += 1
            try:
                return work(self._reached(), row)
            except GatewayError as error:
                if error.fault not in PASSING or times > self._retries:
                    raise self._failed(error, f"row {row.number}", row.topic, times) from error
                self._rest_after(error, times)

    # -- failures ---------------------------------------------------------------------------------

    def _may_pass(self, error: GatewayError, lot: Lot) -> bool:
        # A topic that was there is not while all of its brokers are away, as when they restart.
        return error.fault in PASSING or (isinstance(error, TopicNotFound) and lot.topic in self._compacted)

    def _lost(self, error: GatewayError, lot: Lot) -> SparkSourceError:
        rows = f"row {lot.first}" if lot.first == lot.last else f"rows {lot.first} to {lot.last}"
        return self._failed(error, rows, lot.topic, lot.times)

    def _failed(self, error: GatewayError, rows: str, topic: str, times: int) -> SparkSourceError:
        tried = f", tried {times} times (option send.numRetries)" if times > 1 else ""
        return SparkSourceError(
            Code.GATEWAY,
            f"{error.fault.name}: {error.sentence} ({rows} of partition {self._partition} to topic"
            f" {topic}{tried}, {self._options.gateway.told(error.fault)})",
        )
