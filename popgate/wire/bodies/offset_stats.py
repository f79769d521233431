"""Offsets of topics and groups, as brokers return them to administrators: objects whose keys are queues.

Source: protocol facts 5.8 and 5.14; GET_TOPIC_STATS_INFO and GET_CONSUME_STATS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps_keyed, object_key


@dataclass(slots=True, frozen=True)
class QueueOffsets:
    """The offsets that a queue has; `updated_ms` is when its last message came."""

    minimum: int
    maximum: int
    updated_ms: int = 0

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> QueueOffsets:
        return cls(
            parts.number(part, "minOffset"),
            parts.number(part, "maxOffset"),
            parts.number(part, "lastUpdateTimestamp"),
        )

    def table(self) -> dict[str, Any]:
        return {
            "lastUpdateTimestamp": self.updated_ms,
            "maxOffset": self.maximum,
            "minOffset": self.minimum,
        }


@dataclass(slots=True, frozen=True)
class QueueProgress:
    """Where a group stands on a queue: the queue's end, the group's committed and pulled offsets.

    `last_ms` is the store time of the message that was consumed last.
    """

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    last_ms: int = 0

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> QueueProgress:
        return cls(
            parts.number(part, "brokerOffset"),
            parts.number(part, "consumerOffset"),
            parts.number(part, "pullOffset"),
            parts.number(part, "lastTimestamp"),
        )

    def table(self) -> dict[str, Any]:
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_ms,
            "pullOffset": self.pull_offset,
        }


@dataclass(slots=True, frozen=True)
class TopicStats:
    """The queues of a topic on one broker; `put_rate` is in messages per second."""

    offsets: Mapping[MessageQueue, QueueOffsets]
    put_rate: float = 0.0

    @classmethod
    def decode(cls, body: bytes) -> TopicStats:
        part = parts.load_object(body, "the offsets of a topic")
        table = parts.table(part, "offsetTable")
        return cls(
            {
                MessageQueue.of_key(key): QueueOffsets.read(parts.as_object(value, "offsetTable"))
                for key, value in table.items()
            },
            parts.real(part, "topicPutTps"),
        )

    def encode(self) -> bytes:
        return dumps_keyed(
            {
                "offsetTable": {
                    object_key(queue.table()): each.table() for queue, each in self.offsets.items()
                },
                "topicPutTps": self.put_rate,
            }
        )


@dataclass(slots=True, frozen=True)
class ConsumeStats:
    """Where a group stands on one broker; `rate` is in messages per second."""

    standings: Mapping[MessageQueue, QueueProgress]
    rate: float = 0.0

    @classmethod
    def decode(cls, body: bytes) -> ConsumeStats:
        part = parts.load_object(body, "the standing of a group")
        table = parts.table(part, "offsetTable")
        return cls(
            {
                MessageQueue.of_key(key): QueueProgress.read(parts.as_object(value, "offsetTable"))
                for key, value in table.items()
            },
            parts.real(part, "consumeTps"),
        )

    def encode(self) -> bytes:
        return dumps_keyed(
            {
                "consumeTps": self.rate,
                "offsetTable": {
                    object_key(queue.table()): each.table() for queue, each in self.standings.items()
                },
            }
        )
