"""Small JSON bodies: queues, locks, lists of names, assignments, batched acknowledgements.

Heartbeats are in `heartbeats`, configurations in `configs`, offsets in `offset_stats`, reports of
clients in `consumer_info`, routes in `routes`. Source: protocol facts 4.4 and 5.14.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from popgate.errors import PeerWireError
from popgate.wire.bodies.pop_info import decode_bits, encode_bits
from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps


@dataclass(slots=True, frozen=True)
class MessageQueue:
    """A queue by its names."""

    topic: str
    broker: str
    queue_id: int

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> MessageQueue:
        return cls(parts.text(part, "topic"), parts.text(part, "brokerName"), parts.number(part, "queueId"))

    @classmethod
    def of_key(cls, key: object) -> MessageQueue:
        """Out of the key of an object whose keys are queues. Raises PeerWireError."""
        try:
            return cls.read(dict(key))  # type: ignore[call-overload]
        except (TypeError, ValueError) as error:
            raise PeerWireError("a key of a JSON body is no queue") from error

    def table(self) -> dict[str, Any]:
        return {"brokerName": self.broker, "queueId": self.queue_id, "topic": self.topic}


@dataclass(slots=True, frozen=True)
class QueueLocks:
    """The request to lock or unlock queues for a client of a group."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    only_this_broker: bool = False

    @classmethod
    def decode(cls, body: bytes) -> QueueLocks:
        part = parts.load_object(body, "locks")
        return cls(
            parts.text(part, "consumerGroup"),
            parts.text(part, "clientId"),
            parts.each(part, "mqSet", MessageQueue.read),
            parts.truth(part, "onlyThisBroker"),
        )

    def encode(self) -> bytes:
        return dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.group,
                "mqSet": [queue.table() for queue in self.queues],
                "onlyThisBroker": self.only_this_broker,
            }
        )


def decode_locked(body: bytes) -> tuple[MessageQueue, ...]:
    """The queues that were locked."""
    return parts.each(parts.load_object(body, "locked queues"), "lockOKMQSet", MessageQueue.read)


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    return dumps({"lockOKMQSet": [queue.table() for queue in queues]})


def decode_consumer_list(body: bytes) -> tuple[str, ...]:
    """The client ids of a group."""
    return parts.texts(parts.load_object(body, "the clients of a group"), "consumerIdList")


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    return dumps({"consumerIdList": list(client_ids)})


def decode_group_list(body: bytes) -> tuple[str, ...]:
    return parts.texts(parts.load_object(body, "groups"), "groupList")


def encode_group_list(groups: Iterable[str]) -> bytes:
    return dumps({"groupList": list(groups)})


@dataclass(slots=True, frozen=True)
class TopicList:
    """Names of topics; `address` is that of the broker where the list is of one."""

    topics: tuple[str, ...]
    address: str = ""

    @classmethod
    def decode(cls, body: bytes) -> TopicList:
        part = parts.load_object(body, "topics")
        return cls(parts.texts(part, "topicList"), parts.text(part, "brokerAddr"))

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"brokerAddr": self.address} if self.address else {}
        return dumps({**fields, "topicList": list(self.topics)})


def decode_kv_table(body: bytes) -> dict[str, str]:
    """Figures of a broker, or settings, by name."""
    return parts.text_table(parts.load_object(body, "a table"), "table")


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    return dumps({"table": dict(table)})


@dataclass(slots=True, frozen=True)
class AssignmentQuery:
    """Which queues shall a client read? `strategy` is a name as AVG, `model` one as CLUSTERING."""

    topic: str
    group: str
    client_id: str
    strategy: str = "AVG"
    model: str = "CLUSTERING"

    @classmethod
    def decode(cls, body: bytes) -> AssignmentQuery:
        part = parts.load_object(body, "a query for an assignment")
        return cls(
            parts.text(part, "topic"),
            parts.text(part, "consumerGroup"),
            parts.text(part, "clientId"),
            parts.text(part, "strategyName", "AVG"),
            parts.text(part, "messageModel", "CLUSTERING"),
        )

    def encode(self) -> bytes:
        return dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.group,
                "messageModel": self.model,
                "strategyName": self.strategy,
                "topic": self.topic,
            }
        )


@dataclass(slots=True, frozen=True)
class Assignment:
    """A queue that a client shall read, by PULL or POP."""

    queue: MessageQueue
    mode: str = "PULL"
    attachments: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> Assignment:
        return cls(
            MessageQueue.read(parts.table(part, "messageQueue")),
            parts.text(part, "mode", "PULL"),
            parts.text_table(part, "attachments"),
        )

    def table(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"attachments": dict(self.attachments)} if self.attachments else {}
        return {**fields, "messageQueue": self.queue.table(), "mode": self.mode}


def decode_assignments(body: bytes) -> tuple[Assignment, ...]:
    return parts.each(parts.load_object(body, "assignments"), "messageQueueAssignments", Assignment.read)


def encode_assignments(assignments: Iterable[Assignment]) -> bytes:
    return dumps({"messageQueueAssignments": [each.table() for each in assignments]})


@dataclass(slots=True, init=False)
class BatchAck:
    """The acknowledgement of messages of one check point: same queue, same pop, same start.

    `retry` is the kind of topic (`handles.OF_TOPIC` ...), `topic` the name of the topic itself,
    `offsets` are queue offsets from `start` on.
    """

    group: str
    topic: str
    retry: int
    start: int
    queue_id: int
    revive_queue: int
    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]

    # Written out, because mypyc does not compile what a dataclass makes: there may be one for every message.
    def __init__(
        self,
        group: str,
        topic: str,
        retry: int,
        start: int,
        queue_id: int,
        revive_queue: int,
        pop_ms: int,
        invisible_ms: int,
        offsets: tuple[int, ...],
    ) -> None:
        self.group = group
        self.topic = topic
        self.retry = retry
        self.start = start
        self.queue_id = queue_id
        self.revive_queue = revive_queue
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.offsets = offsets

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> BatchAck:
        def name(short: str, long: str) -> str:
            return long if part.get(short) is None else short

        start = parts.number(part, name("so", "startOffset"), least=0)
        return cls(
            parts.text(part, name("c", "consumerGroup")),
            parts.text(part, name("t", "topic")),
            parts.number(part, name("r", "retry"), least=0, most=2),
            start,
            parts.number(part, name("q", "queueId")),
            parts.number(part, name("rq", "reviveQueueId")),
            parts.number(part, name("pt", "popTime")),
            parts.number(part, name("it", "invisibleTime")),
            tuple(decode_bits(parts.text(part, name("b", "bitSet")), start)),
        )

    def table(self) -> dict[str, Any]:
        """Raises LocalWireError for offsets that are too far apart."""
        return {
            "b": encode_bits(self.offsets, self.start),
            "c": self.group,
            "it": self.invisible_ms,
            "pt": self.pop_ms,
            "q": self.queue_id,
            "r": str(self.retry),
            "rq": self.revive_queue,
            "so": self.start,
            "t": self.topic,
        }


def decode_batch_acks(body: bytes) -> tuple[str, tuple[BatchAck, ...]]:
    """The broker's name, and the acknowledged messages."""
    part = parts.load_object(body, "acknowledgements")
    return parts.text(part, "brokerName"), parts.each(part, "acks", BatchAck.read)


def encode_batch_acks(broker: str, acks: Iterable[BatchAck]) -> bytes:
    return dumps({"acks": [ack.table() for ack in acks], "brokerName": broker})
