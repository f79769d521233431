"""The capability of a broker to take a producer's batch unchanged, in one piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from popgate.context import Context

MOST_BYTES = 4 * 1024 * 1024
"""Of a batch, with its properties: brokers store no message that is larger."""
MOST_MESSAGES = 32_767
"""Of a batch: a broker moves its queue on by a signed 16 bit number.
Source: RocketMQ 5.3.3, CommitLog.asyncPutMessages."""


@dataclass(slots=True, frozen=True)
class Batch:
    """Messages of one producer for one queue, as the body of a request has them (protocol facts 5.7).

    The caller has checked that all are of type NORMAL, and that the properties of each have its id, and
    the time and place of its birth. `body_bytes`: of all bodies. `born_ms`: of the request.
    """

    topic: str
    broker: str
    queue_id: int
    data: bytes
    count: int
    body_bytes: int
    sys_flag: int = 0
    producer_group: str = ""
    born_ms: int = 0


@dataclass(slots=True, frozen=True)
class StoredBatch:
    """Where a batch is stored: the offset of its first message, which the others follow.

    `broker`: the one that has it, also where the batch named the queue of a static topic.
    `offset_message_ids`: of all its messages in order, as its broker reports them; empty where it does not.
    """

    broker: str
    queue_id: int
    offset: int
    offset_message_ids: tuple[str, ...]


class ForwardsBatches(ABC):
    """A broker that stores a batch at once, and as one."""

    @abstractmethod
    async def forward_batch(self, context: Context, batch: Batch) -> StoredBatch:
        """Store all of the batch in the queue that it names, or nothing. Raises as `Store.send`."""
