"""The one port to storage: four facets of domain types, so that a reader sees what a function needs.

Rules that every implementation keeps, and `tests/contract` checks:

- An answer means done: what a method returned from survives the end of the process.
- A cancelled call leaves nothing half done. A cancelled `pop` holds nothing: what it had taken
  is free again at once and the attempt does not count where `Traits.returns_are_free`.
- Failures are `GatewayError`; anything else is a bug.
- No method retries a write whose outcome is unknown: it raises `BrokerTimeout`.

What may differ between brokers is declared in `Traits`, and each trait has its own test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, unique

from popgate.context import Context
from popgate.errors import GatewayError
from popgate.model import (
    Bounds,
    EndTransaction,
    Filter,
    GroupConfig,
    Message,
    Pop,
    Progress,
    Pulled,
    Route,
    Sent,
    StartFrom,
    StoredMessage,
    TopicConfig,
    TransactionCheck,
)


@unique
class OrderScope(Enum):
    """Within what an ordered group keeps order, and what one held message blocks."""

    MESSAGE_GROUP = "message group"
    QUEUE = "queue"


@dataclass(slots=True, frozen=True)
class Traits:
    """What may differ between brokers.

    `timer_precision_ms`: a delayed message is at most this late on an idle broker.
    `redelivery_lag_ms`: likewise for a message whose invisible time is over.
    `renewal_keeps_receipt`: the first handle still works after a change of invisible time.
    `returns_are_free`: giving back an undelivered message is no attempt.
    `ends_are_idempotent`: ending a transaction again the same way is answered alike, done once.
    `acks_are_checked`: an acknowledgement with an expired handle is refused, never silently dropped.
    `exact_message_groups`: one pop can be limited to one message of each message group.
    """

    order_scope: OrderScope
    timer_precision_ms: int
    redelivery_lag_ms: int
    renewal_keeps_receipt: bool
    returns_are_free: bool
    ends_are_idempotent: bool
    acks_are_checked: bool
    exact_message_groups: bool
    max_delay_ms: int


class Store(ABC):
    """Messages in, and out by pop."""

    @abstractmethod
    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        """Store messages, all of one topic; one result each, in order.

        A message with `deliver_at_ms` in the future is held back until then, one of type
        TRANSACTION until its transaction ends. Raises TopicNotFound, Forbidden (topic is not
        writable), DelayTooLong, BrokerUnavailable, BrokerTimeout when that is true of all.
        """

    @abstractmethod
    async def pop(self, context: Context, request: Pop) -> list[StoredMessage]:
        """Take messages that pass the filter and hide them; empty when none came in time.

        Each carries its receipt and its attempt (from 1). Messages that used up the group's
        attempts go to the dead-letter topic instead. In an ordered group, a repeated
        `attempt_id` returns the same messages while they are held. Raises TopicNotFound,
        GroupNotFound, Forbidden.
        """

    @abstractmethod
    async def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        """Finish deliveries; per receipt None or why not (IllegalReceipt, ReceiptExpired).

        Finishing what was finished is no error.
        """

    @abstractmethod
    async def change_invisible(
        self, context: Context, topic: str, group: str, receipt: str, invisible_ms: int
    ) -> str:
        """Hide a held message for `invisible_ms` from now (0: it is free at once); the handle to use on.

        Raises IllegalReceipt, ReceiptExpired.
        """

    @abstractmethod
    async def give_back(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> int:
        """Free messages that never reached a client; how many were freed. Unknown ones are skipped.

        No attempt is counted where `Traits.returns_are_free`. Never brings back a finished message.
        """

    @abstractmethod
    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        """Move a held message to the group's dead-letter topic, in one step.

        Raises IllegalReceipt, ReceiptExpired.
        """

    @abstractmethod
    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        """Take back a delayed message before its time; its message id.

        Raises BadRequest for a malformed handle, NotFound when it was delivered or recalled.
        """


class Offsets(ABC):
    """Reading by position: replay, order, look-up."""

    @abstractmethod
    async def pull(
        self,
        context: Context,
        topic: str,
        broker: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        passing: Filter,
        wait_until: float | None,
    ) -> Pulled:
        """Read from `offset` on without taking. Raises BadRequest ILLEGAL_OFFSET outside the bounds."""

    @abstractmethod
    async def bounds(self, context: Context, topic: str, broker: str, queue_id: int) -> Bounds: ...

    @abstractmethod
    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms`; the maximum when there is none."""

    @abstractmethod
    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        """Below this the group is done; None when it never read the queue."""

    @abstractmethod
    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        """Set the group's position, forwards or backwards; deliveries held on the queue are forgotten."""

    @abstractmethod
    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> list[tuple[str, str, int]]:
        """Lock (topic, broker, queue) for a client for 60 s, or renew; the ones it now has."""

    @abstractmethod
    async def unlock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> None: ...

    @abstractmethod
    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        """Every stored copy with this client message id or this offset message id; empty if none."""

    @abstractmethod
    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        """Messages with this key, stored in [begin_ms, end_ms], newest first, at most `limit`."""


CheckHandler = Callable[[TransactionCheck], bool]
"""Hands a check to a producer; False when none is there to ask."""


class Transactions(ABC):
    """Half messages and their ends."""

    @abstractmethod
    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        """Deliver or drop a half message.

        Raises IllegalTransactionId: unknown, forged, or ended the other way.
        """

    @abstractmethod
    def on_check(self, handler: CheckHandler) -> None:
        """Who is asked about half messages that nobody ended."""


class Directory(ABC):
    """Topics and groups, where their queues are, and how far groups have come."""

    @abstractmethod
    async def route(self, topic: str) -> Route:
        """Raises TopicNotFound, BrokerUnavailable."""

    @abstractmethod
    async def topic(self, name: str) -> TopicConfig:
        """Raises TopicNotFound."""

    @abstractmethod
    async def topics(self) -> list[TopicConfig]: ...

    @abstractmethod
    async def create_topic(self, config: TopicConfig) -> None:
        """Raises AlreadyExists."""

    @abstractmethod
    async def update_topic(self, config: TopicConfig) -> None:
        """Raises TopicNotFound, BadRequest (fewer queues than there are)."""

    @abstractmethod
    async def delete_topic(self, name: str) -> None:
        """Raises TopicNotFound."""

    @abstractmethod
    async def group(self, name: str) -> GroupConfig:
        """Raises GroupNotFound."""

    @abstractmethod
    async def groups(self) -> list[GroupConfig]: ...

    @abstractmethod
    async def create_group(self, config: GroupConfig) -> None:
        """Raises AlreadyExists."""

    @abstractmethod
    async def update_group(self, config: GroupConfig) -> None:
        """Raises GroupNotFound."""

    @abstractmethod
    async def delete_group(self, name: str) -> None:
        """Raises GroupNotFound."""

    @abstractmethod
    async def progress(self, group: str, topic: str) -> list[Progress]:
        """Per queue. Raises GroupNotFound, TopicNotFound."""

    @abstractmethod
    async def topics_of(self, group: str) -> list[str]:
        """The topics that the group has read. Raises GroupNotFound."""

    @abstractmethod
    async def reset(self, group: str, topic: str, to: StartFrom | int) -> None:
        """Set the group on every queue to the first, the last, or the offset at a wall time in ms.

        Raises GroupNotFound, TopicNotFound.
        """


class Broker(Store, Offsets, Transactions, Directory):
    """All four facets, with a life of its own."""

    name: str
    traits: Traits

    @abstractmethod
    async def start(self) -> None:
        """Raises BrokerUnavailable with a sentence for the operator."""

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Gauges for the metrics: plain names, no labels, cheap to read."""
