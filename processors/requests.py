"""Request types for calls of the processor that would have too many plain arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace

from popgate.errors import IllegalReceipt
from popgate.model import FilterKind, GroupConfig, Queue, Route


@dataclass(slots=True)
class Receive:
    """A request for messages.

    `invisible_ms` None (or `auto_renew`): the group's consume timeout. `auto_renew`: the client processes a
    message for as long as it needs and leaves renewals to the gateway.
    `wait_s` is how long to wait for a first message; None: as long as the deadline of the
    request allows, up to the default. `attempt_id` identifies a receive that may be repeated.
    An empty `broker` and `queue_id` -1 leave the choice of the queue to the broker. `max_bytes` is what
    the door can send in one response; None: as much as the limits allow.
    """

    topic: str
    group: str
    filter_kind: FilterKind = FilterKind.TAG
    filter_expression: str = "*"
    max_messages: int = 32
    invisible_ms: int | None = None
    auto_renew: bool = False
    wait_s: float | None = None
    attempt_id: str = ""
    broker: str = ""
    queue_id: int = -1
    max_bytes: int | None = None


@dataclass(slots=True, frozen=True)
class Said:
    """What a client says of a delivery in addition to its receipt, which alone identifies the message.

    Kept for operators. `attempt` and `max_attempts` of a client that gives up; 0: not given.
    `contradiction`: the id or the lite topic is not that of the handle, so the door left the receipt blank;
    raised after all other checks.
    """

    message_id: str = ""
    lite_topic: str = ""
    attempt: int = 0
    max_attempts: int = 0
    contradiction: IllegalReceipt | None = None

    def bounded(self) -> Said:
        """A shortened copy, because nothing has checked its lengths."""
        return replace(self, message_id=self.message_id[:255], lite_topic=self.lite_topic[:255])


NOTHING_SAID = Said()


@dataclass(slots=True, frozen=True)
class LastSettled:
    """The last settlement in which a client sent details of the delivery, and these details.

    `what`: ack, change_invisible or dead_letter; `answer`: OK, or the name of the fault; `at_ms`: wall time.
    """

    what: str
    topic: str
    group: str
    said: Said
    answer: str
    at_ms: int


@dataclass(slots=True, init=False)
class Pull:
    """A request to read by offset, without taking.

    `wait_s` as in `Receive`, but None: no waiting. `group` None: a read without a group.
    """

    topic: str
    broker: str
    queue_id: int
    offset: int
    group: str | None
    filter_kind: FilterKind
    filter_expression: str
    max_messages: int
    max_bytes: int
    wait_s: float | None

    # Written out, because mypyc does not compile what a dataclass makes.
    def __init__(
        self,
        topic: str,
        broker: str,
        queue_id: int,
        offset: int,
        group: str | None = None,
        filter_kind: FilterKind = FilterKind.TAG,
        filter_expression: str = "*",
        max_messages: int = 32,
        max_bytes: int = 4 * 1024 * 1024,
        wait_s: float | None = None,
    ) -> None:
        self.topic = topic
        self.broker = broker
        self.queue_id = queue_id
        self.offset = offset
        self.group = group
        self.filter_kind = filter_kind
        self.filter_expression = filter_expression
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.wait_s = wait_s


@dataclass(slots=True, frozen=True)
class Assignments:
    """The queues that a consumer of `group` may receive from, and the group's settings."""

    route: Route
    group: GroupConfig
    queues: tuple[Queue, ...]
    """Of an ordered group every readable queue; else one entry per broker, with queue id -1."""
