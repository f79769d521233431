"""A broker that tests of the sink's guarantees make up: queues, half messages, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from popgate.errors import BrokerUnavailable, GatewayError, IllegalTransactionId, TopicNotFound
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import Bounds
from popgate.queue_client import HalfMessage, PullAnswer, QueueClient, QueuePlace, SendAnswer
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.commit import Outcome, Part, commit_batch
from popgate.spark.guarantees.half_messages import commit_halves
from popgate.spark.guarantees.ledger import Ledger
from popgate.spark.guarantees.openings import Opened
from popgate.spark.guarantees.replay import written_once
from popgate.spark.guarantees.scan import Scan
from popgate.spark.options.sink_options import SinkOptions, read_sink_options
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.sender import Sender
from popgate.wire.bodies.configs import TopicConfig
from popgate.wire.bodies.routes import QueueData, TopicRoute
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.batches import decode_batch
from popgate.wire.messages.properties import KEYS, UNIQ_KEY, find_property
from popgate.wire.messages.records import encode_record

LEDGER, OUT = "ledger", "out"
_HOST = bytes((127, 0, 0, 1, 0, 0, 0, 80))


class Broker:
    """Records by queue, None where one was removed. It stores whatever it is sent, as RocketMQ's does."""

    def __init__(self, **topics: int) -> None:
        """Topics and how many queues they have; the ledger is there."""
        self.compacted = {LEDGER}
        self.queues: dict[QueuePlace, list[tuple[bytes, bytes] | None]] = {}
        self.minimums: dict[QueuePlace, int] = {}
        self.lacking: dict[QueuePlace, int] = {}
        """Queues whose master is gone, and how many of its last messages the slave lacks."""
        self.unread: set[QueuePlace] = set()
        """Queues, the last ones of their topic, that take messages and cannot be read."""
        self.stored_ms: dict[tuple[QueuePlace, int], int] = {}
        self.now_ms = 1_000_000
        self.now_s = 0.0
        """The time of tasks and commits."""
        self.halves: dict[int, tuple[QueuePlace, tuple[bytes, bytes]]] = {}
        self.ended: list[tuple[int, bool]] = []
        self.turn = -1
        """Of messages that come to any queue."""
        self.rests: list[float] = []
        self.once: list[bool] = []
        """What each send of messages asked for."""
        self.before: Callable[[str, Any], object] = lambda _name, _told: None
        """Called with each request; it may raise a GatewayError."""
        self.after: Callable[[str, Any], object] = lambda _name, _told: None
        """The same, when it was carried out."""
        for topic, count in {LEDGER: 1, **topics}.items():
            self.make(topic, count)

    def make(self, topic: str, count: int) -> None:
        for number in range(count):
            self.queues.setdefault(QueuePlace(topic, "b", number), [])

    @contextmanager
    def connect(self, _options: Any) -> Iterator[QueueClient]:
        try:
            self.before("connect", None)
            yield cast("QueueClient", Client(self))
        except GatewayError as error:
            raise SparkSourceError(Code.GATEWAY, f"{error.fault.name}: {error.sentence}") from error

    def append(self, queue: QueuePlace, body: bytes, block: bytes) -> int:
        self.now_ms += 1
        held = self.queues[queue]
        self.stored_ms[queue, len(held)] = self.now_ms
        held.append((body, block))
        return len(held) - 1

    def compact(self, topic: str) -> None:
        """Leave the newest message of each key."""
        for queue, held in self.queues.items():
            if queue.topic == topic:
                seen = set()
                for at in reversed(range(len(held))):
                    each = held[at]
                    key = each and find_property(each[1], KEYS.encode())
                    if key in seen:
                        held[at] = None
                    seen.add(key)

    def bodies(self, topic: str = OUT) -> list[str]:
        """What readers see, by queue."""
        return [
            each[0].decode()
            for queue, held in sorted(self.queues.items())
            for each in held
            if each is not None and queue.topic == topic
        ]

    def ids(self, topic: str = OUT) -> list[str]:
        found = [
            find_property(each[1], UNIQ_KEY.encode())
            for queue, held in sorted(self.queues.items())
            for each in held
            if each is not None and queue.topic == topic
        ]
        return [each.decode() for each in found if each is not None]

    # -- the connector in front of it ---------------------------------------------------------------

    def options(self, **given: str) -> SinkOptions:
        told = {"endpoints": "a:1", "topic": OUT, "sinkId": "s", "ledgerTopic": LEDGER, **given}
        if "txnAppId" in told:
            del told["sinkId"]
        return read_sink_options({"deliveryGuarantee": "effectively-once", "send.numRetries": "2", **told})

    def ledger(self, options: SinkOptions | None = None) -> Ledger:
        return Ledger(
            options or self.options(),
            connect=self.connect,
            rest=self.rests.append,
            now_ms=lambda: self.now_ms,
        )

    def scan(self, options: SinkOptions, opened: Opened) -> Scan:
        return Scan(options, opened, connect=self.connect, rest=self.rests.append)

    def sender(self, options: SinkOptions, partition: int, **given: Any) -> Sender:
        return Sender(options, partition, connect=self.connect, rest=self.rests.append, **given)

    def task(
        self,
        opened: Opened,
        rows: Sequence[Mapping[str, Any]],
        *,
        batch: int = 0,
        partition: int = 0,
        query: str = "q",
        **given: Any,
    ) -> Part:
        """One attempt of a task, with rows as columns by name."""
        options = self.options(**given)
        identity = Identity(("stream", query, str(batch)), options.sink_id, partition, by_contents=True)
        kinds = {"body": pa.string(), "key": pa.string(), "topic": pa.string(), "message_group": pa.string()}
        names = list(rows[0]) if rows else ["body"]
        columns = {
            name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in names
        }
        outcome = written_once(
            [pa.RecordBatch.from_pydict(columns)],
            options,
            identity,
            opened,
            (query, batch),
            make_ledger=self.ledger,
            make_scan=self.scan,
            make_sender=self.sender,
            now=lambda: self.now_s,
        )
        return Part(opened, (query, batch), outcome)

    def commit(self, *parts: Part, **given: str) -> None:
        commit_batch(
            self.options(**given),
            parts,
            make_ledger=self.ledger,
            now=lambda: self.now_s,
            commit=self._commit_halves,
        )

    def batch(self, number: int, *tasks: Sequence[str], query: str = "q", **given: Any) -> list[Outcome]:
        """A whole batch of one driver, a task for each list of bodies."""
        opened = self.ledger(self.options(**given)).open()
        parts = [
            self.task(opened, rows(*bodies), batch=number, partition=at, query=query, **given)
            for at, bodies in enumerate(tasks)
        ]
        self.commit(*parts, **given)
        return [part.outcome for part in parts]

    def _commit_halves(
        self, halves: Sequence[HalfMessage], options: SinkOptions, _visible: Any, check: Any
    ) -> None:
        def seen(topics: set[str]) -> dict[str, set[str]]:
            return {topic: set(self.ids(topic)) for topic in topics}

        commit_halves(halves, options, seen, check, connect=self.connect, rest=self.rests.append)


class Client:
    """In the place of a QueueClient, and of its connection."""

    is_open = True
    is_silent = False

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._answers: list[Any] = []

    @property
    def connection(self) -> Client:
        return self

    def close(self) -> None:
        pass

    def forget(self, opaque: int) -> None:
        pass

    def _ask(self, name: str, told: Any) -> None:
        self._broker.before(name, told)

    def topic_config(self, topic: str) -> TopicConfig:
        self._ask("config", topic)
        self._there(topic)
        policy = {"cleanup.policy": "COMPACTION"} if topic in self._broker.compacted else {}
        return TopicConfig(topic, attributes=policy)

    def _there(self, topic: str) -> list[QueuePlace]:
        found = sorted(queue for queue in self._broker.queues if queue.topic == topic)
        if not found:
            raise TopicNotFound(topic)
        return found

    def queues(self, topic: str) -> list[QueuePlace]:
        self._ask("queues", topic)
        return [queue for queue in self._there(topic) if queue not in self._broker.unread]

    def route(self, topic: str) -> TopicRoute:
        self._ask("route", topic)
        count = 2 if topic == "TBW102" else len(self._there(topic))
        unread = sum(queue.topic == topic for queue in self._broker.unread)
        return TopicRoute((QueueData("b", count - unread, count, perm=6 if unread < count else 2),), ())

    def minimums(self, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        return {queue: self._broker.minimums.get(queue, 0) for queue in queues}

    def maximums(self, queues: Sequence[QueuePlace], *, of_masters: bool = False) -> dict[QueuePlace, int]:
        self._ask("maximums", queues)
        lacking = self._broker.lacking
        if of_masters and not lacking.keys().isdisjoint(queues):
            raise BrokerUnavailable("broker b has no master now")
        return {queue: len(self._broker.queues[queue]) - lacking.get(queue, 0) for queue in queues}

    def offsets_at(self, times: Mapping[QueuePlace, int]) -> dict[QueuePlace, int]:
        stored = self._broker.stored_ms
        return {
            queue: next((at for at in range(end) if stored[queue, at] >= time_ms), end)
            for queue, time_ms in times.items()
            if (end := len(self._broker.queues[queue])) >= 0
        }

    def start_pull(self, queue: QueuePlace, offset: int, *, most: int, **_: Any) -> int:
        self._answers.append(self.pull(queue, offset, most=most))
        return len(self._answers) - 1

    def finish_pull(self, opaque: int, _queue: QueuePlace, **_: Any) -> Any:
        return self._answers[opaque]

    def pull(self, queue: QueuePlace, offset: int, *, most: int, **_: Any) -> PullAnswer:
        self._ask("pull", (queue, offset))
        held = self._broker.queues[queue]
        held = held[: len(held) - self._broker.lacking.get(queue, 0)]
        there = [at for at in range(offset, len(held)) if held[at] is not None][:most]
        bounds = Bounds(self._broker.minimums.get(queue, 0), len(held))
        if not there and offset > len(held) and queue in self._broker.lacking:
            # As a slave of RocketMQ.
            return PullAnswer(ResponseCode.PULL_RETRY_IMMEDIATELY, offset, bounds, b"")
        if not there:
            return PullAnswer(ResponseCode.PULL_NOT_FOUND, offset, bounds, b"")
        body = b"".join(self._record(queue, at) for at in there)
        return PullAnswer(ResponseCode.SUCCESS, there[-1] + 1, bounds, body)

    def _record(self, queue: QueuePlace, at: int) -> bytes:
        each = self._broker.queues[queue][at]
        assert each is not None
        stored_ms = self._broker.stored_ms[queue, at]
        head = (queue.topic.encode(), queue.queue_id, at, 0, *each, 0, 0, 0)
        return encode_record(*head, _HOST, stored_ms, _HOST)

    def send(self, queue: QueuePlace, messages: Sequence[tuple[bytes, bytes]], **_: Any) -> SendAnswer:
        return self.finish_send(self.start_send(queue, messages), queue)

    def start_send(
        self,
        queue: QueuePlace,
        messages: Sequence[tuple[bytes, bytes]],
        *,
        once: bool = False,
        half: bool = False,
    ) -> int:
        self._ask("send", (queue, messages))
        if queue.topic != LEDGER:
            self._broker.once.append(once)
        self._answers.append((queue, list(messages), half))
        return len(self._answers) - 1

    def start_send_batch(self, queue: QueuePlace, items: bytes, *, once: bool) -> int:
        return self.start_send(
            queue, [(item.body, item.properties) for item in decode_batch(items)], once=once
        )

    def finish_send(self, opaque: int, queue: QueuePlace, **_: Any) -> SendAnswer:
        broker = self._broker
        asked, messages, half = self._answers[opaque]
        if not any(each.topic == queue.topic for each in broker.queues):
            broker.make(queue.topic, 2)
        place = asked
        if asked.queue_id < 0:
            broker.turn += 1
            place = asked._replace(
                queue_id=broker.turn % sum(each.topic == asked.topic for each in broker.queues)
            )
        if half:
            at = len(broker.halves) + 100
            broker.halves[at] = place, messages[0]
            broker.after("send", (queue, messages))
            return SendAnswer((encode_offset_message_id("127.0.0.1:80", at),), place, at)
        offsets = [broker.append(place, *each) for each in messages]
        broker.after("send", (queue, messages))
        return SendAnswer((), place, offsets[0])

    def start_end(self, half: HalfMessage, *, commit: bool) -> int:
        self._ask("end", half)
        self._answers.append((half, commit))
        return len(self._answers) - 1

    def finish_end(self, opaque: int, half: HalfMessage, **_: Any) -> None:
        broker = self._broker
        _, commit = self._answers[opaque]
        at = half.commit_offset
        if at not in broker.halves:
            raise IllegalTransactionId("it is not open")
        # As RocketMQ's: an end that comes again delivers again.
        broker.ended.append((at, commit))
        if commit:
            broker.append(*broker.halves[at][:1], *broker.halves[at][1])
        broker.after("end", half)


def rows(*bodies: str) -> list[dict[str, str]]:
    return [{"body": body} for body in bodies]


def rows_name_topics(broker: Broker) -> None:
    """Its sinks have no option `topic`."""
    options = broker.options
    broker.options = lambda **given: replace(options(**given), topic="")  # type: ignore[method-assign]


class Death(Exception):
    """The process is gone: nothing catches this, and nothing is tidied up."""


def dying(name: str, times: int = 1) -> Callable[[str, Any], object]:
    """For `before` or `after`: the process dies at the request of this name for the so-manieth time."""
    left = [times]

    def die(asked: str, _told: Any) -> None:
        if asked == name:
            left[0] -= 1
            if left[0] == 0:
                raise Death

    return die


def gone(name: str, times: int) -> Callable[[str, Any], object]:
    """The first so many requests of this name find nobody."""
    left = [times]

    def fail(asked: str, _told: Any) -> None:
        if asked == name and left[0] > 0:
            left[0] -= 1
            raise BrokerUnavailable("gone")

    return fail
