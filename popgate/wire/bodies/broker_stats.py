"""Statistics that brokers return to tools: producers, rates, offsets of all groups, consume queues.

Source: RocketMQ 5.5.0's ProducerTableInfo, BrokerStatsData, ConsumeStatsList and
QueryConsumeQueueResponseBody, the answers to GET_ALL_PRODUCER_INFO, VIEW_BROKER_STATS_DATA,
GET_BROKER_CONSUME_STATS and QUERY_CONSUME_QUEUE. Also the lists of configurations
that tools send in one request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popgate.errors import PeerWireError
from popgate.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from popgate.wire.bodies.heartbeats import Connection, SubscriptionData
from popgate.wire.bodies.offset_stats import ConsumeStats
from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps

MOST_CONFIGS: Final = 4_096
"""In one list."""


def encode_producers(producers: Mapping[str, Iterable[tuple[Connection, int]]]) -> bytes:
    """By group: each connection, and when it was last heard of, in ms."""
    return dumps(
        {
            "data": {
                group: [
                    {
                        "clientId": connection.client_id,
                        "language": connection.language or "OTHER",
                        "lastUpdateTimestamp": seen_ms,
                        "remoteIP": connection.address,
                        "version": connection.version,
                    }
                    for connection, seen_ms in connections
                ]
                for group, connections in producers.items()
            }
        }
    )


def decode_producers(body: bytes) -> dict[str, tuple[tuple[Connection, int], ...]]:
    """Decode the output of `encode_producers`, without duplicates. Raises PeerWireError."""
    table = parts.table(parts.load_object(body, "the producers of a broker"), "data")
    return {group: parts.each(table, group, _producer) for group in table if group.__class__ is str}


def _producer(part: Mapping[str, Any]) -> tuple[Connection, int]:
    connection = Connection(
        parts.text(part, "clientId"),
        parts.text(part, "remoteIP"),
        parts.text(part, "language"),
        parts.number(part, "version"),
    )
    return connection, parts.number(part, "lastUpdateTimestamp")


@dataclass(slots=True, frozen=True)
class Rate:
    """How much went through in a minute, an hour or a day: how many, per second, and for each call."""

    total: int = 0
    per_second: float = 0.0
    per_call: float = 0.0

    @classmethod
    def read(cls, part: Mapping[str, Any], name: str) -> Rate:
        fields = parts.as_object(part.get(name) or {}, name)
        rate = cls(parts.number(fields, "sum"), parts.real(fields, "tps"), parts.real(fields, "avgpt"))
        if not (math.isfinite(rate.per_second) and math.isfinite(rate.per_call)):
            raise PeerWireError(f"{name} has a rate without end")
        return rate

    def table(self) -> dict[str, Any]:
        return {"avgpt": self.per_call, "sum": self.total, "tps": self.per_second}


@dataclass(slots=True, frozen=True)
class Rates:
    """RocketMQ's BrokerStatsData, the answer to VIEW_BROKER_STATS_DATA."""

    minute: Rate = Rate()
    hour: Rate = Rate()
    day: Rate = Rate()

    @classmethod
    def decode(cls, body: bytes) -> Rates:
        """Raises PeerWireError."""
        part = parts.load_object(body, "the rates of a broker")
        return cls(*(Rate.read(part, name) for name in ("statsMinute", "statsHour", "statsDay")))

    def encode(self) -> bytes:
        rates = {"statsDay": self.day, "statsHour": self.hour, "statsMinute": self.minute}
        return dumps({name: rate.table() for name, rate in rates.items()})


def encode_all_standings(
    groups: Mapping[str, Sequence[ConsumeStats]], address: str, *, left: int, in_flight: int
) -> bytes:
    """The topics of each group; `left` messages are unfinished, `in_flight` of them pulled."""
    encoded_groups = b",".join(
        b"{%b:[%b]}" % (dumps(group), b",".join([standing.encode() for standing in standings]))
        for group, standings in groups.items()
    )
    return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
        dumps(address),
        encoded_groups,
        left,
        in_flight,
    )


@dataclass(slots=True, frozen=True)
class IndexEntry:
    """An entry of a consume queue: place and size of the message in the log, and its tag code."""

    commit_offset: int
    size: int
    tag_code: int

    def table(self) -> dict[str, Any]:
        return {
            "eval": False,
            "physicOffset": self.commit_offset,
            "physicSize": self.size,
            "tagsCode": self.tag_code,
        }


def encode_index(
    entries: Iterable[IndexEntry],
    minimum: int,
    maximum: int,
    *,
    subscription: SubscriptionData | None = None,
    note: str = "",
) -> bytes:
    """Some entries of a queue's index, with the bounds of the queue; `note` is shown in place of a filter."""
    fields: dict[str, Any] = {"filterData": note} if note else {}
    fields |= {
        "maxQueueIndex": maximum,
        "minQueueIndex": minimum,
        "queueData": [queue_entry.table() for queue_entry in entries],
    }
    if subscription is not None:
        fields["subscriptionData"] = subscription.table()
    return dumps(fields)


def decode_topic_list(body: bytes) -> tuple[TopicConfig, ...]:
    """Topics to be made or changed at once. Raises PeerWireError."""
    return _bounded(parts.each(parts.load_object(body, "topics"), "topicConfigList", TopicConfig.read))


def decode_subscription_group_list(body: bytes) -> tuple[SubscriptionGroupConfig, ...]:
    """Groups to be made or changed at once. Raises PeerWireError."""
    part = parts.load_object(body, "groups")
    return _bounded(parts.each(part, "groupConfigList", SubscriptionGroupConfig.read))


def _bounded(configs: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(configs) > MOST_CONFIGS:
        raise PeerWireError(f"a list has {len(configs)} configurations, the limit is {MOST_CONFIGS}")
    return configs
