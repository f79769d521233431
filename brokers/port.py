"""The one port to storage: four facets of domain types, so that a reader sees what a function needs.

Rules that every implementation keeps, and `tests/contract` checks:

- An answer means done: what a method returned from survives the end of the process, and every
  later call sees it.
- A cancelled call is done or not done, never half. A cancelled `pop` holds nothing: what it had
  taken is free again at once and the attempt does not count where `Traits.returns_are_free`.
- Failures are `GatewayError`; anything else is a bug.
- No method retries a write whose outcome is unknown: it raises `BrokerTimeout`.
- Names of topics, groups and brokers, ids and handles come from outside: any text is answered.

What may differ between brokers is declared in `brokers.traits`, and each trait has a test on both sides.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from brokers.traits import Traits
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.messages.packed_messages import PackedMessages
from popgate.model import (
    Bounds,
    EndTransaction,
    Filter,
    GroupConfig,
    GroupStatus,
    Held,
    Message,
    Pop,
    Progress,
    Pulled,
    QueueOffsets,
    Route,
    SendBack,
    Sent,
    StartFrom,
    StoredMessage,
    TopicConfig,
    TransactionCheck,
)


class Store(metaclass=ABCMeta):
    """Messages in, and out by pop."""

    @abstractmethod
    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        """Store messages, all of one topic; one result each, in order.

        A message with `deliver_at_ms` in the future is held back until then, one of type TRANSACTION until
        its transaction ends; nobody sees it before, in no way, and the `offset` of its `Sent` means nothing.
        The first gets a `recall_handle`, the second a `transaction_id`. A delivery time that is over means at
        once. With `queue_id` -1 the broker chooses among the writable queues. Order: messages of one queue,
        one after the other in `messages`, have growing offsets.

        Where `Traits.repeats_known_ms` a message whose id and topic were sent before is answered
        as it was then, whatever else differs, and only once that is done; also twice in one call.

        What is wrong with one message is its result, the others are stored. Raises TopicNotFound,
        Forbidden (topic is not writable), BadRequest (no such queue), DelayTooLong,
        BrokerUnavailable, BrokerTimeout when that is true of all.
        """

    async def send_packed(self, context: Context, packed: PackedMessages) -> Sequence[Sent | GatewayError]:
        """`send` for messages that are packed, which a broker may store as they are."""
        return await self.send(context, packed.unpack())

    @abstractmethod
    async def pop(self, context: Context, request: Pop) -> list[StoredMessage]:
        """Take messages that pass the filter and hide them; empty when none came in time.

        Each carries its receipt, its attempt (from 1) and `invisible_until_ms`; messages of one queue that
        come for the first time come in the order of their offsets. At most `max_messages`, and no more than
        fit `max_bytes`, but always the first. New messages that do not pass the filter are done for this
        group; a redelivery that does not pass is kept where `Traits.keeps_filtered_redeliveries`.

        A message whose last allowed delivery ends unacknowledged (its time is over, or it is
        freed by `change_invisible`) becomes a dead letter: it is moved to `%DLQ%group`, once, also when
        nobody pops, with its body and properties as they were.

        Ordered groups (`request.ordered` is the group's setting) get the messages of one `Traits.order_scope`
        in their order, never one while an earlier one is not finished, but in the same answer; a held scope
        does not keep others back. A repeated `attempt_id` returns what it held and did not finish again: same
        attempt, same handles where `Traits.repeats_keep_receipts`; any other id gets other messages or none.

        A waiting pop ends early when its topic or group is deleted or the broker stops: with nothing, or with
        the error that a new call would get. One new message ends one waiting pop; a pop that is woken and
        takes nothing goes on waiting, and another one is woken. Raises TopicNotFound, GroupNotFound,
        Forbidden (topic not readable, group not enabled), BadRequest (no such queue).
        """

    @abstractmethod
    async def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        """Finish deliveries; per receipt None or why not, in order; one bad receipt spoils no other.

        IllegalReceipt: malformed, or for a message this group was never given (another topic or broker, a
        topic since deleted and made again). ReceiptExpired: its time is over, it was given back, or the
        message was delivered again. Finishing what was finished is no error. Raises TopicNotFound,
        GroupNotFound.
        """

    @abstractmethod
    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> str:
        """Hide a held message for `invisible_ms` from now (0: it is free at once); the handle to use on.

        May be longer or shorter than what was left. The delivery counts as an attempt; with `suspend` it does
        not, the next one has the same number, and the handle is worth nothing on. Raises IllegalReceipt,
        ReceiptExpired (also when the message is finished), TopicNotFound, GroupNotFound.
        """

    @abstractmethod
    async def give_back(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> int:
        """Free messages that never reached a client; how many were freed. Unknown ones are skipped.

        No attempt is counted where `Traits.returns_are_free`: the next delivery has the same number, and the
        last allowed attempt is not used up, also when the time of the delivery is over, as long as nobody
        else got the message. The receipts are worth nothing afterwards. Never brings back a finished message.
        Ordered groups get freed messages in order.
        """

    @abstractmethod
    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        """Move a held message to the group's dead-letter topic `%DLQ%group`, in one step.

        Raises IllegalReceipt, ReceiptExpired (also when the message is finished), TopicNotFound,
        GroupNotFound.
        """

    @abstractmethod
    async def send_back(self, context: Context, request: SendBack) -> None:
        """Store a message that was pulled once more, for its group to pull again later.

        The copy lies in `%RETRY%group`, which is made with one queue when it is not there; it has the body,
        flags, sender and time of birth of the message, and its properties with RETRY_TOPIC (the topic that it
        was sent to), ORIGIN_MESSAGE_ID (the offset message id of the first of them all) and WAIT=false added;
        its `reconsume_times` is one higher. It can be seen after the delay of RocketMQ's level: 1 s, 5 s,
        10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h for 1 to 18; 0 counts as 3 and the times it had come
        back before.

        It goes to `%DLQ%group` instead, at once, when `max_attempts` deliveries were made, this one included,
        or the level is below 0. The answer comes when the copy is stored. The message itself stays where it
        is, and so does the group's position: a message that is sent back twice comes twice. Raises
        GroupNotFound, NotFound (no message is there, or no more), BadRequest (no such broker).
        Source: protocol facts 7.8, CONSUMER_SEND_MSG_BACK.
        """

    @abstractmethod
    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        """Take back a delayed message before its time; its message id.

        Raises BadRequest for a malformed handle, NotFound when it was delivered or recalled.
        """


class Offsets(metaclass=ABCMeta):
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
        """Read from `offset` on without taking, in order; messages that do not pass are left out.

        `next_offset` is behind the last message looked at, so that it also passes those left out. At most
        `max_messages`, no more than fit `max_bytes`, but always the first. At the maximum it waits until
        `wait_until` (loop seconds; None: not at all) for a message. Raises IllegalOffset outside [minimum,
        maximum], BadRequest (no such queue), TopicNotFound, Forbidden (topic is not readable).
        """

    @abstractmethod
    async def bounds(
        self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
    ) -> Bounds:
        """The queue's offsets, of what can be read. Raises TopicNotFound, BadRequest (no such queue).

        `of_master`: raises BrokerUnavailable where only a slave could tell: it may lack the last messages.
        """

    @abstractmethod
    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms`; else the maximum. Raises as `bounds`."""

    @abstractmethod
    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        """Below this the group is done; None when it never read the queue.

        A message that is held or rests is not done. Raises GroupNotFound, TopicNotFound, BadRequest.
        """

    @abstractmethod
    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        """Set the group's position, forwards or backwards; deliveries held on the queue are forgotten.

        Messages from `offset` on come as if for the first time, those below never; handles of before finish
        nothing. Raises IllegalOffset outside the bounds, BadRequest, GroupNotFound, TopicNotFound.
        """

    @abstractmethod
    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> list[tuple[str, str, int]]:
        """Lock (topic, broker, queue) for a client for 60 s, or renew; those of `queues` it now has.

        A lock binds only those who ask for it: pops do not look at it.
        """

    @abstractmethod
    async def unlock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> None:
        """Give up locks; those of others stay."""

    @abstractmethod
    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        """Every stored copy in the topic with this client message id or offset message id; empty if none.

        A broker may bound the bytes of an answer, as in `find_by_key`.
        """

    @abstractmethod
    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        """Messages with this key, stored in [begin_ms, end_ms], newest first, at most `limit`.

        Fewer may be returned, because a broker bounds the bytes of an answer: then the newest of
        them, and always the first. Older ones are found by asking up to the last one's store time.
        """


CheckHandler = Callable[[TransactionCheck], bool | Awaitable[bool]]
"""Hands a check to a producer; False when none is there to ask. Other processes may have to be asked,
and then it is known later."""


class Transactions(metaclass=ABCMeta):
    """Half messages and their ends."""

    @abstractmethod
    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        """Deliver or drop a half message, for good.

        The id of the first `Sent` ends it also after checks, and those of the checks do too; so
        does the `place` that they tell in numbers, but where `Traits.stands_apart` only the newest.
        Raises IllegalTransactionId: unknown, forged, of another topic or message, or ended the
        other way; the sentence says which.
        """

    @abstractmethod
    def on_check(self, handler: CheckHandler) -> None:
        """Who is asked about half messages that nobody ended; the last one set counts.

        The first check comes after the message's `recovery_ms`, else after the broker's own
        time; a check nobody could be asked does not count. After too many, or too long, the
        message goes to `TRANS_CHECK_MAX_TIME_TOPIC` and its transaction is over.
        """


class Directory(metaclass=ABCMeta):
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
        """Change the settings; new queues are read from their first message by groups that read the topic.

        Raises TopicNotFound, BadRequest (fewer queues than there are).
        """

    @abstractmethod
    async def delete_topic(self, name: str) -> None:
        """Forget its messages, also those held back, and every group's position. Raises TopicNotFound.

        A topic of the same name made later has nothing to do with it: old handles, recalls and
        transactions reach nothing in it.
        """

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
        """Forget its positions and deliveries; a group made later begins anew. Raises GroupNotFound."""

    @abstractmethod
    async def progress(self, group: str, topic: str) -> list[Progress]:
        """Per queue. Raises GroupNotFound, TopicNotFound."""

    @abstractmethod
    async def topics_of(self, group: str) -> list[str]:
        """The topics that the group has read. Raises GroupNotFound."""

    @abstractmethod
    async def held(self, group: str, topic: str, limit: int) -> list[Held]:
        """What the group has in its hands of a topic, longest held first, at most `limit`.

        To free one is `change_invisible(…, 0)` with its receipt: refused when it was finished or
        delivered again meanwhile, where `Traits.acks_are_checked`. Raises GroupNotFound, TopicNotFound.
        """

    @abstractmethod
    async def standing(self, group: str, topic: str) -> GroupStatus:
        """Where a group stands with a topic, also with one it never read. Raises as `held`."""

    @abstractmethod
    async def standings(self, start: int, queues: int) -> tuple[list[GroupStatus], int | None]:
        """Where groups stand, from number `start` on, about `queues` queues' worth; where to go on.

        None: that was the last one. The numbers may shift when topics and groups come and go, so
        one may be left out or told twice. For metrics: of very long queues some figures are estimates.
        """

    @abstractmethod
    async def reset(self, group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        """Set the group on every queue to the first, the last, or the offset at a wall time in ms.

        On every queue like `commit`, also on those it never read. What was set: asked for later, the group
        may have read on from there. Raises GroupNotFound, TopicNotFound.
        """


Capability = TypeVar("Capability")


class Broker(Store, Offsets, Transactions, Directory):
    """All four facets, with a life of its own."""

    name: str
    traits: Traits

    def capability(self, kind: type[Capability]) -> Capability | None:
        """What it can do beside the port, by its class (see `brokers.capabilities`); None: it cannot."""
        return self if isinstance(self, kind) else None

    @abstractmethod
    async def start(self) -> None:
        """Raises BrokerUnavailable with a sentence for the operator."""

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Gauges for the metrics: plain names, no labels, cheap to read."""
