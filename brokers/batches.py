"""The capability of a broker to take what a producer sends as it is: a batch in one piece, or one message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from popgate.context import Context
from popgate.model import Sent

MOST_BYTES = 4 * 1024 * 1024
"""Of a batch, with its properties: brokers store no message that is larger."""
MOST_MESSAGES = 32_767
"""Of a batch: a broker moves its queue on by a signed 16 bit number.
Source: RocketMQ 5.3.3, CommitLog.asyncPutMessages."""


@dataclass(slots=True, init=False)
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
    sys_flag: int
    producer_group: str
    born_ms: int

    # Written out, as those below, because mypyc does not compile what a dataclass makes by itself.
    def __init__(
        self,
        topic: str,
        broker: str,
        queue_id: int,
        data: bytes,
        count: int,
        body_bytes: int,
        sys_flag: int = 0,
        producer_group: str = "",
        born_ms: int = 0,
    ) -> None:
        self.topic = topic
        self.broker = broker
        self.queue_id = queue_id
        self.data = data
        self.count = count
        self.body_bytes = body_bytes
        self.sys_flag = sys_flag
        self.producer_group = producer_group
        self.born_ms = born_ms


@dataclass(slots=True, init=False)
class StoredBatch:
    """Where a batch is stored: the offset of its first message, which the others follow.

    `broker`: the one that has it, also where the batch named the queue of a static topic.
    `offset_message_ids`: of all its messages in order, as its broker reports them, with commas between;
    empty where it does not.
    """

    broker: str
    queue_id: int
    offset: int
    offset_message_ids: str

    def __init__(self, broker: str, queue_id: int, offset: int, offset_message_ids: str) -> None:
        self.broker = broker
        self.queue_id = queue_id
        self.offset = offset
        self.offset_message_ids = offset_message_ids


@dataclass(slots=True, init=False)
class Single:
    """One message of a producer for one queue, under the same conditions as those of a `Batch`.

    `properties`: the block that is stored.
    """

    topic: str
    broker: str
    queue_id: int
    body: bytes
    message_id: str
    properties: bytes
    sys_flag: int
    flag: int
    producer_group: str
    born_ms: int

    def __init__(
        self,
        topic: str,
        broker: str,
        queue_id: int,
        body: bytes,
        message_id: str,
        properties: bytes,
        sys_flag: int = 0,
        flag: int = 0,
        producer_group: str = "",
        born_ms: int = 0,
    ) -> None:
        self.topic = topic
        self.broker = broker
        self.queue_id = queue_id
        self.body = body
        self.message_id = message_id
        self.properties = properties
        self.sys_flag = sys_flag
        self.flag = flag
        self.producer_group = producer_group
        self.born_ms = born_ms


class ForwardsBatches(ABC):
    """A broker that stores a batch at once, and as one; a single message costs less in this way, too."""

    @abstractmethod
    async def forward_batch(self, context: Context, batch: Batch) -> StoredBatch:
        """Store all of the batch in the queue that it names, or nothing. Raises as `Store.send`."""

    @abstractmethod
    async def forward_message(self, context: Context, message: Single) -> Sent:
        """Store the message in the queue that it names. Raises as `Store.send`."""
