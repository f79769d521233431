"""Configurations of topics and groups, and the form in which a broker registers them.

Unknown fields of a newer RocketMQ are kept in `more`, so that a configuration that is read, changed and
written back loses nothing. Source: protocol facts 6.4 and 6.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.bodies.routes import MOST_QUEUES
from popgate.wire.bodies.static_topics import QueueMapping
from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps

MESSAGE_TYPE: Final = "message.type"
QUEUE_TYPE: Final = "queue.type"
CUSTOMIZED, EXPONENTIAL = "CUSTOMIZED", "EXPONENTIAL"

Item = TypeVar("Item")


def _more(part: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Unknown fields, kept as they are. Raises PeerWireError for a value that could not be written again."""
    more = {name: value for name, value in part.items() if isinstance(name, str) and name not in known}
    try:
        dumps(more)
    except LocalWireError as error:
        raise PeerWireError(f"a configuration has a field that is no standard JSON: {error}") from error
    return more


@dataclass(slots=True, frozen=True)
class TopicConfig:
    """A topic on one broker; `attributes` are by plain names (`message.type`)."""

    topic: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = 6
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    mapping: QueueMapping | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> TopicConfig:
        mapping = parts.table(part, "mappingDetail")
        config = cls(
            parts.text(part, "topicName"),
            parts.number(part, "readQueueNums", 16, least=0, most=MOST_QUEUES),
            parts.number(part, "writeQueueNums", 16, least=0, most=MOST_QUEUES),
            parts.number(part, "perm", 6),
            parts.text(part, "topicFilterType", "SINGLE_TAG"),
            parts.number(part, "topicSysFlag"),
            parts.truth(part, "order"),
            parts.text_table(part, "attributes"),
            QueueMapping.read(mapping) if mapping else None,
        )
        object.__setattr__(config, "more", _more(part, {**config.table(), "mappingDetail": None}))
        return config

    def table(self) -> dict[str, Any]:
        fields = {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.topic,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }
        if self.mapping is not None:
            fields["mappingDetail"] = self.mapping.table()
        return {**self.more, **fields}

    @classmethod
    def decode(cls, body: bytes) -> TopicConfig:
        return cls.read(parts.load_object(body, "a topic"))

    def encode(self) -> bytes:
        return dumps(self.table())


def encode_attributes(attributes: Mapping[str, str], removed: tuple[str, ...] = ()) -> str:
    """The ext field `attributes` of a request to create or change a topic: "+message.type=FIFO,-other"."""
    return ",".join(
        [f"+{name}={value}" for name, value in attributes.items()] + [f"-{name}" for name in removed]
    )


@dataclass(slots=True, frozen=True)
class RetryPolicy:
    """When messages of a group come back: after times of a list, or by a rule; both in ms."""

    kind: str = CUSTOMIZED
    delays_ms: tuple[int, ...] = ()
    initial_ms: int = 5_000
    most_ms: int = 7_200_000
    multiplier: int = 2

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> RetryPolicy:
        rule = parts.table(part, "exponentialRetryPolicy")
        listed = parts.items(parts.table(part, "customizedRetryPolicy"), "next")
        return cls(
            parts.text(part, "type", CUSTOMIZED),
            tuple(parts.number({"next": delay}, "next") for delay in listed),
            parts.number(rule, "initial", 5_000),
            parts.number(rule, "max", 7_200_000),
            parts.number(rule, "multiplier", 2),
        )

    def table(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": self.kind}
        if self.kind == EXPONENTIAL:
            fields["exponentialRetryPolicy"] = {
                "initial": self.initial_ms,
                "max": self.most_ms,
                "multiplier": self.multiplier,
            }
        elif self.delays_ms:
            fields["customizedRetryPolicy"] = {"next": list(self.delays_ms)}
        return fields


@dataclass(slots=True, frozen=True)
class SubscriptionGroupConfig:
    """A consumer group on one broker. Subscriptions that are fixed there are in `more`."""

    group: str
    consume_enabled: bool = True
    consume_from_minimum: bool = True
    broadcast_enabled: bool = True
    ordered: bool = False
    retry_queues: int = 1
    most_retries: int = 16
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    broker_id: int = 0
    slow_broker_id: int = 1
    notify_changes: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> SubscriptionGroupConfig:
        config = cls(
            parts.text(part, "groupName"),
            parts.truth(part, "consumeEnable", True),
            parts.truth(part, "consumeFromMinEnable", True),
            parts.truth(part, "consumeBroadcastEnable", True),
            parts.truth(part, "consumeMessageOrderly"),
            parts.number(part, "retryQueueNums", 1),
            parts.number(part, "retryMaxTimes", 16),
            RetryPolicy.read(parts.table(part, "groupRetryPolicy")),
            parts.number(part, "brokerId"),
            parts.number(part, "whichBrokerWhenConsumeSlowly", 1),
            parts.truth(part, "notifyConsumerIdsChangedEnable", True),
            parts.number(part, "groupSysFlag"),
            parts.number(part, "consumeTimeoutMinute", 15),
            parts.text_table(part, "attributes"),
        )
        object.__setattr__(config, "more", _more(part, config.table()))
        return config

    def table(self) -> dict[str, Any]:
        fields = {
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.broadcast_enabled,
            "consumeEnable": self.consume_enabled,
            "consumeFromMinEnable": self.consume_from_minimum,
            "consumeMessageOrderly": self.ordered,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.group,
            "groupRetryPolicy": self.retry_policy.table(),
            "groupSysFlag": self.sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_changes,
            "retryMaxTimes": self.most_retries,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.slow_broker_id,
        }
        return {**self.more, **fields}

    @classmethod
    def decode(cls, body: bytes) -> SubscriptionGroupConfig:
        return cls.read(parts.load_object(body, "a group"))

    def encode(self) -> bytes:
        return dumps(self.table())


@dataclass(slots=True, frozen=True)
class DataVersion:
    """Which state of a table this is; the counter grows with each change, `ms` is when that was."""

    counter: int = 0
    ms: int = 0
    state: int = 0

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> DataVersion:
        return cls(
            parts.number(part, "counter"), parts.number(part, "timestamp"), parts.number(part, "stateVersion")
        )

    def table(self) -> dict[str, Any]:
        return {"counter": self.counter, "stateVersion": self.state, "timestamp": self.ms}


def decode_topic_configs(body: bytes) -> tuple[dict[str, TopicConfig], DataVersion]:
    """The answer to GET_ALL_TOPIC_CONFIG: topics by name."""
    return _decode_configs(body, "topicConfigTable", TopicConfig.read)


def decode_group_configs(body: bytes) -> tuple[dict[str, SubscriptionGroupConfig], DataVersion]:
    """The answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups by name."""
    return _decode_configs(body, "subscriptionGroupTable", SubscriptionGroupConfig.read)


def encode_topic_configs(topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
    return dumps(_configs("topicConfigTable", topics, version))


def encode_group_configs(groups: Mapping[str, SubscriptionGroupConfig], version: DataVersion) -> bytes:
    return dumps(_configs("subscriptionGroupTable", groups, version))


def encode_registration(topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
    """The body of REGISTER_BROKER, not compressed."""
    wrapped = _configs("topicConfigTable", topics, version)
    for name in ("topicQueueMappingInfoMap", "topicQueueMappingDetailMap"):
        wrapped[name] = {}
    wrapped["mappingDataVersion"] = version.table()
    return dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapped})


def _decode_configs(
    body: bytes, name: str, read: Callable[[Mapping[str, Any]], Item]
) -> tuple[dict[str, Item], DataVersion]:
    part = parts.load_object(body, "configurations")
    return parts.each_of(part, name, read), DataVersion.read(parts.table(part, "dataVersion"))


def _configs(
    name: str, configs: Mapping[str, TopicConfig | SubscriptionGroupConfig], version: DataVersion
) -> dict[str, Any]:
    return {
        "dataVersion": version.table(),
        name: {each: config.table() for each, config in configs.items()},
    }
