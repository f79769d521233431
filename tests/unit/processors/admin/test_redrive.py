"""processors.admin.redrive: dead letters are found on all brokers, whatever one of them lacks."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from popgate.context import Context
from popgate.model import Bounds, GroupConfig, Permission, Pulled, Queue, Route, StoredMessage
from popgate.wire.messages.properties import encode_properties
from processors.admin.redrive import DeadLetters


class Cluster:
    """Two brokers with a dead letter each. A slave answers for the first, and does not have it yet."""

    def capability(self, kind: type) -> None:
        return None

    async def group(self, name: str) -> GroupConfig:
        return GroupConfig(name)

    async def route(self, topic: str) -> Route:
        return Route(topic, (), tuple(Queue(broker, 0, Permission.READ) for broker in ("a", "b")))

    async def bounds(self, context: Context, topic: str, broker: str, queue_id: int) -> Bounds:
        return Bounds(0, 1)

    async def pull(
        self, context: Context, topic: str, broker: str, queue_id: int, offset: int, **rest: Any
    ) -> Pulled:
        if broker == "a":
            return Pulled([], offset, Bounds(0, 0))
        block = encode_properties({"DLQ_ORIGIN_TOPIC": "orders", "UNIQ_KEY": "ID"})
        host = "10.0.0.1:1"
        letter = StoredMessage(topic, broker, 0, offset, 0, 0, 0, 1, host, 2, host, b"body", block)
        return Pulled([letter], offset + 1, Bounds(0, 1))


async def test_a_queue_that_does_not_go_on_does_not_hide_those_behind_it() -> None:
    broker: Any = Cluster()
    letters = DeadLetters(broker, lambda *_, **__: None, Mock())
    heaps = await letters.heaps(Context(), "readers")
    assert {topic: heap.count for topic, heap in heaps.items()} == {"orders": 1}
