"""The domain: messages, queues, topics, groups, and what is asked of a broker about them.

Everything here is plain data. Doors convert into it, brokers convert out of it, and the
floors between speak nothing else. Times called `_ms` are milliseconds, wall clock or duration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntFlag, unique
from typing import Protocol

PRIORITY_FACTOR = "priority.factor"
"""Attribute of a group: how many pops of a hundred go by priority; 100 when it is not said."""


@unique
class MessageType(Enum):
    """The types a topic can accept; values are those of the topic attribute `message.type`."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    LITE = "LITE"
    PRIORITY = "PRIORITY"


class Permission(IntFlag):
    """What a topic allows; the values are RocketMQ's perm bits."""

    NONE = 0
    WRITE = 2
    READ = 4
    READ_WRITE = 6


@unique
class StartFrom(Enum):
    """Where a consumer group begins on a queue it has never read."""

    FIRST = "first"
    LAST = "last"


@unique
class FilterKind(Enum):
    TAG = "TAG"
    SQL92 = "SQL92"


class Filter(Protocol):
    """A compiled filter expression; made by `popgate.filters.compile_filter`."""

    kind: FilterKind
    expression: str
    everything: bool
    """True when every message passes, so that nobody needs to look."""

    def matches(self, properties: bytes) -> bool:
        """Whether a message with this stored properties block passes."""
        ...


@dataclass(slots=True)
class Message:
    """A message on its way in.

    A door fills in the fields; `processors.producing` checks them and makes `properties`, the
    block that is stored. A door that has the block already (remoting) gives it, and lifts the
    fields that decide something out of it. `queue_id` -1 and an empty `broker` leave the choice
    of the queue to the gateway. `deliver_at_ms` 0: at once. `sys_flag` has RocketMQ's bits.
    `lite_topic`: the light queue within the topic that it goes to. `priority` None: it has none.
    """

    topic: str
    body: bytes
    message_id: str = ""
    type: MessageType = MessageType.NORMAL
    tag: str = ""
    keys: tuple[str, ...] = ()
    message_group: str = ""
    deliver_at_ms: int = 0
    recovery_ms: int = 0
    user_properties: Mapping[str, str] = field(default_factory=dict)
    trace_context: str = ""
    born_ms: int = 0
    born_host: str = ""
    sys_flag: int = 0
    flag: int = 0
    attempt: int = 0
    producer_group: str = ""
    properties: bytes = b""
    broker: str = ""
    queue_id: int = -1
    lite_topic: str = ""
    priority: int | None = None


@dataclass(slots=True)
class StoredMessage:
    """A message as a broker has it. `properties` is the stored block, untouched until asked for.

    `attempt` counts deliveries from 1 (0: not delivered, e.g. pulled or looked up).
    `receipt` is the handle of this delivery, empty when there is none. Hosts are "ip:port".
    `invisible_until_ms` is the wall time at which a popped message comes back.
    """

    topic: str
    broker: str
    queue_id: int
    offset: int
    commit_offset: int
    sys_flag: int
    flag: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    body: bytes
    properties: bytes
    attempt: int = 0
    receipt: str = ""
    invisible_until_ms: int = 0


@dataclass(slots=True)
class Sent:
    """The broker has it. `transaction_id` and `recall_handle` are empty where they do not apply."""

    message_id: str
    broker: str
    queue_id: int
    offset: int
    transaction_id: str = ""
    recall_handle: str = ""


@dataclass(slots=True, frozen=True)
class Queue:
    """One queue of a topic's route."""

    broker: str
    queue_id: int
    permission: Permission


@dataclass(slots=True, frozen=True)
class Route:
    """Where a topic's queues are and what they take; an empty `message_types` takes every type."""

    topic: str
    message_types: tuple[MessageType, ...]
    queues: tuple[Queue, ...]

    @property
    def writable(self) -> tuple[Queue, ...]:
        return tuple(q for q in self.queues if q.permission & Permission.WRITE)

    @property
    def readable(self) -> tuple[Queue, ...]:
        return tuple(q for q in self.queues if q.permission & Permission.READ)


@dataclass(slots=True, frozen=True)
class TopicConfig:
    """A topic's settings. An empty `message_types` accepts every type; retention None: the default."""

    name: str
    message_types: tuple[MessageType, ...] = ()
    read_queues: int = 8
    write_queues: int = 8
    permission: Permission = Permission.READ_WRITE
    retention_ms: int | None = None
    retention_bytes: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def queues(self) -> int:
        return max(self.read_queues, self.write_queues)


class RetryPolicy(Protocol):
    """How long a message rests after a failed delivery."""

    def delay_ms(self, attempt: int) -> int:
        """The rest after delivery number `attempt` (from 1) failed."""
        ...


_LADDER_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@dataclass(slots=True, frozen=True)
class CustomizedRetry:
    """A list of rests; RocketMQ's default ladder from 1 s to 2 h. A retry starts two steps up.

    Source: RocketMQ's subscription group retry policy CUSTOMIZED: next[min(retries + 2, last)].
    """

    delays_ms: tuple[int, ...] = tuple(s * 1000 for s in _LADDER_SECONDS)
    first_step: int = 2

    def delay_ms(self, attempt: int) -> int:
        return self.delays_ms[min(max(attempt, 1) - 1 + self.first_step, len(self.delays_ms) - 1)]


@dataclass(slots=True, frozen=True)
class ExponentialRetry:
    """initial × multiplier^(attempt-1), at most `max_ms`. Source: RocketMQ's EXPONENTIAL policy."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: float = 2.0

    def delay_ms(self, attempt: int) -> int:
        return int(min(self.max_ms, self.initial_ms * self.multiplier ** min(max(attempt, 1) - 1, 32)))


DEFAULT_RETRY = CustomizedRetry()


BROADCAST_GROUP = "popgate.broadcast.group"
"""The attribute of a group that belongs to one client of a broadcast group: that group's name."""


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """A consumer group's settings. `max_attempts` counts deliveries, the first included.

    `broadcast`: every client gets every message, by a cursor of its own.
    """

    name: str
    ordered: bool = False
    max_attempts: int = 17
    retry: CustomizedRetry | ExponentialRetry = DEFAULT_RETRY
    consume_timeout_ms: int = 900_000
    start_from: StartFrom = StartFrom.FIRST
    consume_enabled: bool = True
    attributes: Mapping[str, str] = field(default_factory=dict)
    broadcast: bool = False


@dataclass(slots=True)
class Pop:
    """A request for messages, held for `invisible_ms` each.

    `wait_until` is in loop seconds: how long the broker may wait for a first message (None: not
    at all). `queue_id` -1: any queue. `attempt_id` names a receive that may be repeated (ordered
    groups). `one_per_message_group`: never two messages of one message group in an answer.
    """

    topic: str
    group: str
    filter: Filter
    invisible_ms: int
    max_messages: int = 32
    max_bytes: int = 64 * 1024 * 1024
    ordered: bool = False
    wait_until: float | None = None
    attempt_id: str = ""
    one_per_message_group: bool = False
    broker: str = ""
    queue_id: int = -1


@dataclass(slots=True, frozen=True)
class Bounds:
    """A queue's offsets: the first kept and the one the next message will get."""

    minimum: int
    maximum: int


@dataclass(slots=True)
class Pulled:
    """Messages read by offset; the next pull starts at `next_offset`."""

    messages: list[StoredMessage]
    next_offset: int
    bounds: Bounds


@dataclass(slots=True, frozen=True)
class Progress:
    """How far a group is on one queue.

    `committed`: everything below is done. `frontier`: the first offset never delivered.
    `in_flight`: delivered and held; `waiting`: delivered before, free again or resting.
    `retry`: a queue of the group's own retry topic, which its pops of the topic read too.
    """

    broker: str
    queue_id: int
    committed: int
    frontier: int
    in_flight: int
    waiting: int
    bounds: Bounds
    retry: bool = False

    @property
    def lag(self) -> int:
        """Messages not done yet: never delivered, held, or resting."""
        return max(self.bounds.maximum - self.frontier, 0) + self.in_flight + self.waiting


@dataclass(slots=True, frozen=True)
class Standing:
    """How a group stands with a topic, for operators and metrics; retries of the topic count with it.

    `lag` is all that is not done: `unread`, never looked at; `free`, can be delivered again, or first;
    `in_flight`, delivered and invisible; `behind`, kept back by earlier messages of its message group.
    `refused`: those of `free` that passed the filter of nobody who looked. `receivers`: pops that wait now.
    `full`: so much is unfinished that nothing new is given out. `redelivered` and `dead_lettered` count
    since the broker started.
    """

    group: str
    topic: str
    lag: int
    unread: int
    free: int
    in_flight: int
    behind: int
    refused: int
    receivers: int
    full: bool
    redelivered: int
    dead_lettered: int


@dataclass(slots=True, frozen=True)
class Held:
    """A message that was delivered and is invisible: who has it, since when, and what waits behind it.

    `receipt` is good for it now. `holder`: the client id of the receive that took it; a very long one
    stands by its hash, `#…`. `until_ms`: when it comes back by itself. `renewals`: how often its time
    was changed since, by the client or by the gateway (63 and more are told as 63). `waiting_behind`:
    messages that cannot be delivered before this one is finished, as far as the broker has looked.
    `lite_topic`: of a group that takes lite topics the one that it is of; then also the others wait there.
    """

    topic: str
    broker: str
    queue_id: int
    offset: int
    message_id: str
    message_group: str
    tag: str
    keys: tuple[str, ...]
    receipt: str
    holder: str
    since_ms: int
    until_ms: int
    attempt: int
    renewals: int
    waiting_behind: int
    lite_topic: str = ""


@unique
class Resolution(Enum):
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(slots=True, frozen=True)
class EndTransaction:
    """A producer's word on a half message; `from_check` when the broker had asked."""

    topic: str
    transaction_id: str
    message_id: str
    resolution: Resolution
    from_check: bool = False


@dataclass(slots=True)
class TransactionCheck:
    """A broker's question: what became of this half message? `checks` counts them, this one included.

    `message` is as it will be delivered: its own topic, body and properties.
    """

    topic: str
    producer_group: str
    transaction_id: str
    message: StoredMessage
    checks: int
