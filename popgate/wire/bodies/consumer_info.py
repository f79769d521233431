"""What a client reports at a broker's request: its state, the result of a message, offsets to reset.

Source: protocol facts 5.14; GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY,
RESET_CONSUMER_CLIENT_OFFSET, GET_CONSUMER_STATUS_FROM_CLIENT, INVOKE_BROKER_TO_GET_CONSUMER_STATUS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from popgate.wire.bodies.heartbeats import SubscriptionData
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps, dumps_keyed, object_key

NAME_SERVERS: Final = "PROP_NAMESERVER_ADDR"
THREADS: Final = "PROP_THREADPOOL_CORE_SIZE"
ORDERED: Final = "PROP_CONSUMEORDERLY"
CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
STARTED: Final = "PROP_CONSUMER_START_TIMESTAMP"
SUCCESS, LATER, EXCEPTION = "CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"


@dataclass(slots=True, frozen=True)
class PulledQueue:
    """A queue that a client pulls. `dropped` is written `droped` on the wire; times are ms."""

    commit_offset: int = 0
    cached_minimum: int = 0
    cached_maximum: int = 0
    cached_count: int = 0
    cached_mib: int = 0
    locked: bool = False
    unlock_tries: int = 0
    locked_ms: int = 0
    dropped: bool = False
    pulled_ms: int = 0
    consumed_ms: int = 0

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> PulledQueue:
        return cls(
            parts.number(part, "commitOffset"),
            parts.number(part, "cachedMsgMinOffset"),
            parts.number(part, "cachedMsgMaxOffset"),
            parts.number(part, "cachedMsgCount"),
            parts.number(part, "cachedMsgSizeInMiB"),
            parts.truth(part, "locked"),
            parts.number(part, "tryUnlockTimes"),
            parts.number(part, "lastLockTimestamp"),
            parts.truth(part, "droped"),
            parts.number(part, "lastPullTimestamp"),
            parts.number(part, "lastConsumeTimestamp"),
        )

    def table(self) -> dict[str, Any]:
        return {
            "cachedMsgCount": self.cached_count,
            "cachedMsgMaxOffset": self.cached_maximum,
            "cachedMsgMinOffset": self.cached_minimum,
            "cachedMsgSizeInMiB": self.cached_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.consumed_ms,
            "lastLockTimestamp": self.locked_ms,
            "lastPullTimestamp": self.pulled_ms,
            "locked": self.locked,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": self.unlock_tries,
        }


@dataclass(slots=True, frozen=True)
class PoppedQueue:
    """A queue that a client pops."""

    waiting: int = 0
    dropped: bool = False
    popped_ms: int = 0

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> PoppedQueue:
        return cls(
            parts.number(part, "waitAckCount"),
            parts.truth(part, "droped"),
            parts.number(part, "lastPopTimestamp"),
        )

    def table(self) -> dict[str, Any]:
        return {"droped": self.dropped, "lastPopTimestamp": self.popped_ms, "waitAckCount": self.waiting}


@dataclass(slots=True, frozen=True)
class ConsumeStatus:
    """How a topic goes: times in ms, rates in messages per second, failures of the last hour."""

    pull_ms: float = 0.0
    pull_rate: float = 0.0
    consume_ms: float = 0.0
    consume_rate: float = 0.0
    failure_rate: float = 0.0
    failures: int = 0

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> ConsumeStatus:
        return cls(
            parts.real(part, "pullRT"),
            parts.real(part, "pullTPS"),
            parts.real(part, "consumeRT"),
            parts.real(part, "consumeOKTPS"),
            parts.real(part, "consumeFailedTPS"),
            parts.number(part, "consumeFailedMsgs"),
        )

    def table(self) -> dict[str, Any]:
        return {
            "consumeFailedMsgs": self.failures,
            "consumeFailedTPS": self.failure_rate,
            "consumeOKTPS": self.consume_rate,
            "consumeRT": self.consume_ms,
            "pullRT": self.pull_ms,
            "pullTPS": self.pull_rate,
        }


@dataclass(slots=True, frozen=True)
class ConsumerRunningInfo:
    """The running state of a consumer. `properties` are by the names above."""

    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...] = ()
    pulled: Mapping[MessageQueue, PulledQueue] = field(default_factory=dict)
    popped: Mapping[MessageQueue, PoppedQueue] = field(default_factory=dict)
    statuses: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    user_info: Mapping[str, str] = field(default_factory=dict)
    stacks: str = ""

    @classmethod
    def decode(cls, body: bytes) -> ConsumerRunningInfo:
        part = parts.load_object(body, "a running consumer")
        return cls(
            {name: str(value) for name, value in parts.table(part, "properties").items()},
            parts.each(part, "subscriptionSet", SubscriptionData.read),
            {
                MessageQueue.of_key(key): PulledQueue.read(parts.as_object(value, "mqTable"))
                for key, value in parts.table(part, "mqTable").items()
            },
            {
                MessageQueue.of_key(key): PoppedQueue.read(parts.as_object(value, "mqPopTable"))
                for key, value in parts.table(part, "mqPopTable").items()
            },
            parts.each_of(part, "statusTable", ConsumeStatus.read),
            parts.text_table(part, "userConsumerInfo"),
            parts.text(part, "jstack"),
        )

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"jstack": self.stacks} if self.stacks else {}
        return dumps_keyed(
            {
                **fields,
                "mqPopTable": {
                    object_key(queue.table()): each.table() for queue, each in self.popped.items()
                },
                "mqTable": {object_key(queue.table()): each.table() for queue, each in self.pulled.items()},
                "properties": dict(self.properties),
                "statusTable": {topic: each.table() for topic, each in self.statuses.items()},
                "subscriptionSet": [each.table() for each in self.subscriptions],
                "userConsumerInfo": dict(self.user_info),
            }
        )


@dataclass(slots=True, frozen=True)
class ConsumeResult:
    """How the one message went that a client was given for a test; `result` is CR_SUCCESS and so on."""

    result: str
    remark: str = ""
    spent_ms: int = 0
    ordered: bool = False
    auto_commit: bool = True

    @classmethod
    def decode(cls, body: bytes) -> ConsumeResult:
        part = parts.load_object(body, "how a message went")
        return cls(
            parts.text(part, "consumeResult"),
            parts.text(part, "remark"),
            parts.number(part, "spentTimeMills"),
            parts.truth(part, "order"),
            parts.truth(part, "autoCommit", True),
        )

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"remark": self.remark} if self.remark else {}
        return dumps(
            {
                "autoCommit": self.auto_commit,
                "consumeResult": self.result,
                "order": self.ordered,
                **fields,
                "spentTimeMills": self.spent_ms,
            }
        )


def decode_offsets(body: bytes, name: str = "offsetTable") -> dict[MessageQueue, int]:
    """Offsets by queue: those to reset to, or with the name `messageQueueTable` where a client stands."""
    return _offsets(parts.load_object(body, "offsets"), name)


def encode_offsets(offsets: Mapping[MessageQueue, int], name: str = "offsetTable") -> bytes:
    return dumps_keyed({name: {object_key(queue.table()): offset for queue, offset in offsets.items()}})


def decode_positions(body: bytes) -> dict[str, dict[MessageQueue, int]]:
    """Where clients stand, by their ids: the answer to INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""
    tables = parts.table(parts.load_object(body, "positions of clients"), "consumerTable")
    return {client_id: _offsets(tables, client_id) for client_id in tables if client_id.__class__ is str}


def encode_positions(positions: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    return dumps_keyed(
        {
            "consumerTable": {
                client_id: {object_key(queue.table()): offset for queue, offset in offsets.items()}
                for client_id, offsets in positions.items()
            }
        }
    )


def _offsets(part: Mapping[str, Any], name: str) -> dict[MessageQueue, int]:
    table = parts.table(part, name)
    return {MessageQueue.of_key(key): parts.number(table, key) for key in table}
