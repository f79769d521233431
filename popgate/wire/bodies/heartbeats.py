"""Heartbeats of clients with their groups and subscriptions, and lists of connections.

Names of types are RocketMQ's: consumeType CONSUME_ACTIVELY, CONSUME_PASSIVELY, CONSUME_POP; messageModel
CLUSTERING, BROADCASTING, LITE_SELECTIVE; consumeFromWhere CONSUME_FROM_LAST_OFFSET,
CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_TIMESTAMP. Unknown ones are passed on. Source: protocol facts
5.9 and 5.14.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps

ACTIVELY, PASSIVELY, POP = "CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"
CLUSTERING, BROADCASTING, LITE_SELECTIVE = "CLUSTERING", "BROADCASTING", "LITE_SELECTIVE"
FROM_LAST, FROM_FIRST = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET"
FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(slots=True, frozen=True)
class SubscriptionData:
    """The subscription of a group to a topic. `version` is the time of the last change, in ms.

    `tags` and `codes`, Java's hashes of them, are empty for all messages and for SQL92.
    """

    topic: str
    expression: str = "*"
    kind: str = "TAG"
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    version: int = 0
    class_filter: bool = False

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> SubscriptionData:
        return cls(
            parts.text(part, "topic"),
            parts.text(part, "subString"),
            parts.text(part, "expressionType", "TAG"),
            parts.texts(part, "tagsSet"),
            parts.numbers(part, "codeSet"),
            parts.number(part, "subVersion"),
            parts.truth(part, "classFilterMode"),
        )

    def table(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter,
            "codeSet": list(self.codes),
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


@dataclass(slots=True, frozen=True)
class ConsumerData:
    """A consumer group of a client."""

    group: str
    subscriptions: tuple[SubscriptionData, ...] = ()
    consume_type: str = PASSIVELY
    model: str = CLUSTERING
    start_from: str = FROM_LAST
    unit_mode: bool = False

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> ConsumerData:
        return cls(
            parts.text(part, "groupName"),
            parts.each(part, "subscriptionDataSet", SubscriptionData.read),
            parts.text(part, "consumeType", PASSIVELY),
            parts.text(part, "messageModel", CLUSTERING),
            parts.text(part, "consumeFromWhere", FROM_LAST),
            parts.truth(part, "unitMode"),
        )

    def table(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.start_from,
            "consumeType": self.consume_type,
            "groupName": self.group,
            "messageModel": self.model,
            "subscriptionDataSet": [each.table() for each in self.subscriptions],
            "unitMode": self.unit_mode,
        }


@dataclass(slots=True, frozen=True)
class HeartbeatData:
    """A heartbeat. `fingerprint` other than 0 and `without_subscriptions` belong to heartbeats v2."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_subscriptions: bool = False

    @classmethod
    def decode(cls, body: bytes) -> HeartbeatData:
        part = parts.load_object(body, "a heartbeat")
        return cls(
            parts.text(part, "clientID"),
            parts.each(part, "producerDataSet", lambda each: parts.text(each, "groupName")),
            parts.each(part, "consumerDataSet", ConsumerData.read),
            parts.number(part, "heartbeatFingerprint"),
            parts.truth(part, "withoutSub"),
        )

    def encode(self) -> bytes:
        return dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [each.table() for each in self.consumers],
                "heartbeatFingerprint": self.fingerprint,
                "producerDataSet": [{"groupName": group} for group in self.producer_groups],
                "withoutSub": self.without_subscriptions,
            }
        )


@dataclass(slots=True, frozen=True)
class ClientCheck:
    """The question whether a subscription is understood (CHECK_CLIENT_CONFIG)."""

    client_id: str
    group: str
    subscription: SubscriptionData
    namespace: str = ""

    @classmethod
    def decode(cls, body: bytes) -> ClientCheck:
        part = parts.load_object(body, "a client to be checked")
        return cls(
            parts.text(part, "clientId"),
            parts.text(part, "group"),
            SubscriptionData.read(parts.table(part, "subscriptionData")),
            parts.text(part, "namespace"),
        )

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"namespace": self.namespace} if self.namespace else {}
        return dumps(
            {
                "clientId": self.client_id,
                "group": self.group,
                **fields,
                "subscriptionData": self.subscription.table(),
            }
        )


@dataclass(slots=True, frozen=True)
class Connection:
    """A client that is connected; `address` is "ip:port", `language` one of RocketMQ's names."""

    client_id: str
    address: str = ""
    language: str = ""
    version: int = 0

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> Connection:
        return cls(
            parts.text(part, "clientId"),
            parts.text(part, "clientAddr"),
            parts.text(part, "language"),
            parts.number(part, "version"),
        )

    def table(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"language": self.language} if self.language else {}
        return {"clientAddr": self.address, "clientId": self.client_id, **fields, "version": self.version}


@dataclass(slots=True, frozen=True)
class ConsumerConnection:
    """The clients of a group, with its subscriptions by topic."""

    connections: tuple[Connection, ...]
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = PASSIVELY
    model: str = CLUSTERING
    start_from: str = FROM_LAST

    @classmethod
    def decode(cls, body: bytes) -> ConsumerConnection:
        part = parts.load_object(body, "the connections of a group")
        return cls(
            parts.each(part, "connectionSet", Connection.read),
            parts.each_of(part, "subscriptionTable", SubscriptionData.read),
            parts.text(part, "consumeType"),
            parts.text(part, "messageModel"),
            parts.text(part, "consumeFromWhere"),
        )

    def encode(self) -> bytes:
        return dumps(
            {
                "connectionSet": [each.table() for each in self.connections],
                "consumeFromWhere": self.start_from,
                "consumeType": self.consume_type,
                "messageModel": self.model,
                "subscriptionTable": {topic: each.table() for topic, each in self.subscriptions.items()},
            }
        )


def decode_producer_connections(body: bytes) -> tuple[Connection, ...]:
    return parts.each(
        parts.load_object(body, "the connections of producers"), "connectionSet", Connection.read
    )


def encode_producer_connections(connections: tuple[Connection, ...]) -> bytes:
    return dumps({"connectionSet": [each.table() for each in connections]})
