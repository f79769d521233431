"""Queues that tests of the Spark connector make up, instead of a gateway's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from popgate.model import CLEANUP_POLICY, COMPACTION
from popgate.queue_client import QueuePlace
from popgate.wire.bodies.configs import TopicConfig

A, B, C = (QueuePlace("t", "broker-a", number) for number in range(3))


class Queues:
    """Begin and end by queue, which the test may move. Offset n was stored at n ms."""

    is_compacted = False

    def __init__(self, **bounds: tuple[int, int]) -> None:
        self.bounds = {{"A": A, "B": B, "C": C}[name]: each for name, each in bounds.items()}

    def queues(self, topic: str) -> list[QueuePlace]:
        return sorted(queue for queue in self.bounds if queue.topic == topic)

    def topics(self) -> list[str]:
        return sorted({queue.topic for queue in self.bounds})

    def topic_config(self, topic: str) -> TopicConfig:
        return TopicConfig(topic, attributes={CLEANUP_POLICY: COMPACTION} if self.is_compacted else {})

    def minimums(self, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
        return {queue: self.bounds[queue][0] for queue in queues}

    def maximums(self, queues: Sequence[QueuePlace], *, of_masters: bool = False) -> dict[QueuePlace, int]:
        return {queue: self.bounds[queue][1] for queue in queues}

    def offsets_at(self, times_ms: Mapping[QueuePlace, int]) -> dict[QueuePlace, int]:
        return {
            queue: min(max(at, self.bounds[queue][0]), self.bounds[queue][1])
            for queue, at in times_ms.items()
        }
