"""The domain: messages, queues, topics, groups, and the arguments of broker operations.

All classes are plain data. Doors convert into them, brokers convert out of them, and the
floors between use nothing else. Names with `_ms` are milliseconds, of the wall clock or of a duration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntFlag, unique
from typing import Protocol

from popgate.groups.group_config import GroupConfig as GroupConfig
from popgate.groups.group_config import StartFrom as StartFrom
from popgate.groups.group_status import Bounds as Bounds
from popgate.groups.group_status import GroupStatus as GroupStatus
from popgate.groups.group_status import Held as Held
from popgate.groups.group_status import Progress as Progress
from popgate.groups.group_status import Reading as Reading
from popgate.groups.retry_policy import DEFAULT_RETRY as DEFAULT_RETRY
from popgate.groups.retry_policy import CustomizedRetry as CustomizedRetry
from popgate.groups.retry_policy import ExponentialRetry as ExponentialRetry
from popgate.groups.retry_policy import RetryPolicy as RetryPolicy


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
    """The permission of a topic; the values are RocketMQ's perm bits."""

    NONE = 0
    WRITE = 2
    READ = 4
    READ_WRITE = 6


@unique
class FilterKind(Enum):
    TAG = "TAG"
    SQL92 = "SQL92"


class Filter(Protocol):
    """A compiled filter expression; made by `popgate.filters.compiled.compile_filter`."""

    kind: FilterKind
    expression: str
    everything: bool
    """Whether every message passes, so that evaluation can be skipped."""

    def matches(self, properties: bytes) -> bool:
        """Whether a message with this stored properties block passes."""
        ...


@dataclass(slots=True)
class Message:
    """A message on its way in.

    A door fills in the fields; `processors.produce.message_checks` checks them and makes `properties`, the
    block that is stored. A door that has the block already (remoting) gives it, and lifts the fields that
    decide something out of it. `queue_id` -1 and an empty `broker` leave the choice of the queue to the
    gateway. `deliver_at_ms` 0: at once. `sys_flag` has RocketMQ's bits. `lite_topic`: the light queue within
    the topic that it goes to. `priority` None: none. `may_come_again`: one more under its id is stored, too.
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
    may_come_again: bool = False


@dataclass(slots=True, init=False)
class StoredMessage:
    """A message as a broker has it. `properties` is the stored block, untouched until asked for.

    `attempt` counts deliveries from 1 (0: not delivered, e.g. pulled or looked up).
    `receipt` is the handle of this delivery, empty when there is none. Hosts are "ip:port".
    `invisible_until_ms`: wall time at which a popped one comes back. `reconsume_times`: sent back so often.
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
    attempt: int
    receipt: str
    invisible_until_ms: int
    reconsume_times: int

    # Written out, as below: mypyc does not compile what a dataclass makes, which takes twice as long.
    def __init__(
        self,
        topic: str,
        broker: str,
        queue_id: int,
        offset: int,
        commit_offset: int,
        sys_flag: int,
        flag: int,
        born_ms: int,
        born_host: str,
        store_ms: int,
        store_host: str,
        body: bytes,
        properties: bytes,
        attempt: int = 0,
        receipt: str = "",
        invisible_until_ms: int = 0,
        reconsume_times: int = 0,
    ) -> None:
        self.topic = topic
        self.broker = broker
        self.queue_id = queue_id
        self.offset = offset
        self.commit_offset = commit_offset
        self.sys_flag = sys_flag
        self.flag = flag
        self.born_ms = born_ms
        self.born_host = born_host
        self.store_ms = store_ms
        self.store_host = store_host
        self.body = body
        self.properties = properties
        self.attempt = attempt
        self.receipt = receipt
        self.invisible_until_ms = invisible_until_ms
        self.reconsume_times = reconsume_times


@dataclass(slots=True, init=False)
class Sent:
    """The broker has stored the message. `transaction_id` and `recall_handle` are empty if they do not apply.

    `commit_offset`: its place in the log of `store_host`; -1 and empty if unknown.
    """

    message_id: str
    broker: str
    queue_id: int
    offset: int
    transaction_id: str
    recall_handle: str
    commit_offset: int
    store_host: str

    # Written out, as that of `StoredMessage`.
    def __init__(
        self,
        message_id: str,
        broker: str,
        queue_id: int,
        offset: int,
        transaction_id: str = "",
        recall_handle: str = "",
        commit_offset: int = -1,
        store_host: str = "",
    ) -> None:
        self.message_id = message_id
        self.broker = broker
        self.queue_id = queue_id
        self.offset = offset
        self.transaction_id = transaction_id
        self.recall_handle = recall_handle
        self.commit_offset = commit_offset
        self.store_host = store_host


@dataclass(slots=True, frozen=True)
class Queue:
    """One queue of a topic's route."""

    broker: str
    queue_id: int
    permission: Permission


QueueOffsets = dict[tuple[str, int], int]
"""An offset for each queue of a topic, by broker and queue id."""


@dataclass(slots=True, frozen=True)
class Route:
    """The queues of a topic and the message types that it accepts; empty `message_types`: all types.

    `tombstones`: it is compacted: messages have keys, and one without a body deletes that of its key.
    """

    topic: str
    message_types: tuple[MessageType, ...]
    queues: tuple[Queue, ...]
    tombstones: bool = False

    @property
    def writable(self) -> tuple[Queue, ...]:
        return tuple(q for q in self.queues if q.permission & Permission.WRITE)

    @property
    def readable(self) -> tuple[Queue, ...]:
        return tuple(q for q in self.queues if q.permission & Permission.READ)


CLEANUP_POLICY = "cleanup.policy"
"""The attribute of a topic that says how old messages go."""
COMPACTION = "COMPACTION"
"""Its value for topics that keep the newest message of each key; the other one is DELETE, the default."""


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

    @property
    def compacted(self) -> bool:
        """Whether only the newest message of each key is kept. Source: RocketMQ's attribute of that name."""
        return self.attributes.get(CLEANUP_POLICY) == COMPACTION


@dataclass(slots=True, init=False)
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
    max_messages: int
    max_bytes: int
    ordered: bool
    wait_until: float | None
    attempt_id: str
    one_per_message_group: bool
    broker: str
    queue_id: int

    def __init__(
        self,
        topic: str,
        group: str,
        filter: Filter,  # noqa: A002 - the name of the field
        invisible_ms: int,
        max_messages: int = 32,
        max_bytes: int = 64 * 1024 * 1024,
        ordered: bool = False,
        wait_until: float | None = None,
        attempt_id: str = "",
        one_per_message_group: bool = False,
        broker: str = "",
        queue_id: int = -1,
    ) -> None:
        self.topic = topic
        self.group = group
        self.filter = filter
        self.invisible_ms = invisible_ms
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.ordered = ordered
        self.wait_until = wait_until
        self.attempt_id = attempt_id
        self.one_per_message_group = one_per_message_group
        self.broker = broker
        self.queue_id = queue_id


@dataclass(slots=True, frozen=True)
class SendBack:
    """A consumer failed to process a message that it pulled: it is redelivered from `%RETRY%group`.

    `broker` and `commit_offset` are where it was pulled. `delay_level`: RocketMQ's, from 1; 0: 3 plus the
    number of earlier redeliveries; below 0: it becomes a dead letter. `max_attempts`: total number of
    deliveries; None: the group's. The origin fields are the consumer's and unverified. `store_host`: where
    clients find the broker, if not at its own address. `member`: the property RETRY_MEMBER of the copy.
    """

    group: str
    broker: str
    commit_offset: int
    delay_level: int = 0
    max_attempts: int | None = None
    origin_topic: str = ""
    origin_message_id: str = ""
    store_host: str = ""
    member: str = ""


@dataclass(slots=True)
class Pulled:
    """Messages read by offset; the next pull starts at `next_offset`."""

    messages: Sequence[StoredMessage]
    next_offset: int
    bounds: Bounds


@unique
class Resolution(Enum):
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(slots=True, frozen=True)
class HalfPlace:
    """Where a half message is, in the numbers that classic producers end it with.

    They are those of its `Sent` (`broker`, `commit_offset`, and `offset`, which RocketMQ calls the tran
    state table offset here), and after a check those of the check. `producer_group` as it was sent.
    """

    broker: str
    producer_group: str
    commit_offset: int
    queue_offset: int


@dataclass(slots=True, frozen=True)
class EndTransaction:
    """A producer's decision on a half message; `from_check` if the broker had asked.

    With a `place` that identifies the message, `transaction_id` is ignored; `topic` may be empty then.
    """

    topic: str
    transaction_id: str
    message_id: str
    resolution: Resolution
    from_check: bool = False
    place: HalfPlace | None = None


@dataclass(slots=True)
class TransactionCheck:
    """A broker's question for the state of a half message. `checks` counts them, this one included.

    `message` is as it will be delivered: its own topic, body and properties. `place`: the numbers with
    which a classic producer ends it; `transaction_id` works as well.
    """

    topic: str
    producer_group: str
    transaction_id: str
    message: StoredMessage
    checks: int
    place: HalfPlace | None = None
