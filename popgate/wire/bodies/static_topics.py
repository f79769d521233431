"""Static topics: their queues have numbers of their own, and several brokers hold them one after the other.

A logic queue is a list of pieces of physical queues. Its offsets continue where the previous piece ended:
logic offset = the piece's logic start + (physical offset - the piece's physical start).
Source: protocol facts 6.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from popgate.wire.json_syntax import parts

MOCK_BROKER = "__syslo__global__"
"""The broker name that clients see for logic queues of the scope `__global__`."""
MOST_LOGIC_QUEUES = 65_536


@dataclass(slots=True, frozen=True)
class QueuePiece:
    """A piece of a physical queue within a logic queue. Ends are -1 while it is written to; times are ms."""

    generation: int
    queue_id: int
    broker: str
    logic_offset: int
    start_offset: int = 0
    end_offset: int = -1
    started_ms: int = -1
    ended_ms: int = -1

    @property
    def placed(self) -> bool:
        """Whether it is known where the piece begins within the logic queue."""
        return self.logic_offset >= 0

    def logic(self, physical: int) -> int:
        return self.logic_offset + physical - self.start_offset

    def physical(self, logic: int) -> int:
        return logic - self.logic_offset + self.start_offset

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> QueuePiece:
        return cls(
            parts.number(part, "gen"),
            parts.number(part, "queueId"),
            parts.text(part, "bname"),
            parts.number(part, "logicOffset"),
            parts.number(part, "startOffset"),
            parts.number(part, "endOffset", -1),
            parts.number(part, "timeOfStart", -1),
            parts.number(part, "timeOfEnd", -1),
        )

    def table(self) -> dict[str, Any]:
        return {
            "bname": self.broker,
            "endOffset": self.end_offset,
            "gen": self.generation,
            "logicOffset": self.logic_offset,
            "queueId": self.queue_id,
            "startOffset": self.start_offset,
            "timeOfEnd": self.ended_ms,
            "timeOfStart": self.started_ms,
        }


@dataclass(slots=True, frozen=True)
class QueueMapping:
    """The logic queues that one broker leads: `current` has physical queue ids by logic ones.

    `epoch` grows with each remap. `hosted` has the pieces of each logic queue, and is returned only by the
    broker itself (TopicQueueMappingDetail), not in routes.
    """

    topic: str
    scope: str
    total_queues: int
    broker: str
    epoch: int
    dirty: bool = False
    current: Mapping[int, int] = field(default_factory=dict)
    hosted: Mapping[int, tuple[QueuePiece, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> QueueMapping:
        current = parts.table(part, "currIdMap")
        hosted = parts.table(part, "hostedQueues")
        return cls(
            parts.text(part, "topic"),
            parts.text(part, "scope", "__global__"),
            parts.number(part, "totalQueues", least=0, most=MOST_LOGIC_QUEUES),
            parts.text(part, "bname"),
            parts.number(part, "epoch"),
            parts.truth(part, "dirty"),
            MappingProxyType(
                {parts.whole(logic, "currIdMap"): parts.number(current, logic) for logic in current}
            ),
            MappingProxyType(
                {
                    parts.whole(logic, "hostedQueues"): parts.each(hosted, logic, QueuePiece.read)
                    for logic in hosted
                }
            ),
        )

    def table(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "bname": self.broker,
            "currIdMap": {str(logic): physical for logic, physical in self.current.items()},
            "dirty": self.dirty,
            "epoch": self.epoch,
            "scope": self.scope,
            "topic": self.topic,
            "totalQueues": self.total_queues,
        }
        if self.hosted:
            fields["hostedQueues"] = {
                str(logic): [piece.table() for piece in pieces] for logic, pieces in self.hosted.items()
            }
        return fields


def leaders(mappings: Iterable[QueueMapping]) -> dict[int, QueueMapping]:
    """The leader of each logic queue: of the brokers that map it, the one with the highest epoch.

    Ids without a mapping are missing in the result.
    """
    by_queue: dict[int, QueueMapping] = {}
    for mapping in sorted(mappings, key=lambda mapping: (mapping.epoch, mapping.total_queues)):
        for logic in mapping.current:
            if 0 <= logic < MOST_LOGIC_QUEUES:
                by_queue[logic] = mapping
    return by_queue
