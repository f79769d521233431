"""Routes: the responses of name servers about topics and clusters, and the maps of static topics.

Source: protocol facts 5.8, 6.2 and 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from popgate.errors import PeerWireError, shown
from popgate.wire.bodies.static_topics import QueueMapping
from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps

PERM_PRIORITY, PERM_READ, PERM_WRITE, PERM_INHERIT = 8, 4, 2, 1
MASTER_ID: Final = 0
MOST_QUEUES: Final = 65_536
"""Of one topic on one broker, because readers of a route enumerate them."""
_LARGEST_INT = (1 << 31) - 1
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(slots=True, frozen=True)
class QueueData:
    """How many queues of a topic one broker has, with RocketMQ's perm bits."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    topic_sys_flag: int = 0

    @property
    def readable(self) -> bool:
        return self.perm & PERM_READ != 0

    @property
    def writable(self) -> bool:
        return self.perm & PERM_WRITE != 0

    @property
    def read_numbers(self) -> range:
        """The queues that can be read."""
        return range(self.read_queues if self.readable else 0)

    @property
    def unread_numbers(self) -> range:
        """The queues that take messages and cannot be read."""
        return range(len(self.read_numbers), self.write_queues if self.writable else 0)

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> QueueData:
        return cls(
            parts.text(part, "brokerName"),
            parts.number(part, "readQueueNums", least=0, most=MOST_QUEUES),
            parts.number(part, "writeQueueNums", least=0, most=MOST_QUEUES),
            parts.number(part, "perm", least=0, most=_LARGEST_INT),
            parts.number(part, "topicSysFlag", least=-_LARGEST_INT - 1, most=_LARGEST_INT),
        )

    def table(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queues,
        }


@dataclass(slots=True, frozen=True)
class BrokerData:
    """A broker name with the addresses ("host:port") of its members by id; id 0 is the master.

    `acting_master`: a slave may act as the master. The name server then lists the slave's address
    as id 0 in routes of topics that cannot be written to.
    """

    cluster: str
    name: str
    addresses: Mapping[int, str]
    zone: str = ""
    acting_master: bool = False
    master: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "master", self.addresses.get(MASTER_ID))

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> BrokerData:
        addresses = {}
        for key, address in parts.table(part, "brokerAddrs").items():
            if address.__class__ is not str:
                raise PeerWireError("an address of a broker is no text")
            addresses[parts.whole(key, "brokerAddrs")] = address
        return cls(
            parts.text(part, "cluster"),
            parts.text(part, "brokerName"),
            MappingProxyType(addresses),
            parts.text(part, "zoneName"),
            parts.truth(part, "enableActingMaster"),
        )

    def table(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "brokerAddrs": {str(number): self.addresses[number] for number in sorted(self.addresses)},
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
        }
        if self.zone:
            fields["zoneName"] = self.zone
        return fields


@dataclass(slots=True, frozen=True)
class TopicRoute:
    """The response of a name server about one topic.

    `order_conf` is "broker:queues;broker:queues" if the name server has one for ordered topics.
    `mappings` is by broker name, for static topics only. Brokers may be listed without queues, and
    queues without their broker. `readable` has the queues that can be read from by broker, in the order of
    the brokers' names; routes are read far more often than they change.
    """

    queues: tuple[QueueData, ...] = ()
    brokers: tuple[BrokerData, ...] = ()
    order_conf: str = ""
    mappings: Mapping[str, QueueMapping] = field(default_factory=lambda: _NOTHING)
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NOTHING)
    readable: Mapping[str, QueueData] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        queues = sorted(self.queues, key=lambda data: data.broker)
        readable = {data.broker: data for data in queues if data.readable and data.read_queues}
        object.__setattr__(self, "readable", MappingProxyType(readable))

    def broker(self, name: str) -> BrokerData | None:
        return next((broker for broker in self.brokers if broker.name == name), None)

    def order_queues(self) -> dict[str, int]:
        """Queues by broker name as `order_conf` says. Raises PeerWireError for a text of another form."""
        queues = {}
        for entry in filter(None, self.order_conf.split(";")):
            broker, colon, count = entry.rpartition(":")
            number = parts.whole(count, "orderTopicConf")
            if not colon or not 0 <= number <= MOST_QUEUES:
                raise PeerWireError(f"orderTopicConf has the entry {shown(entry)}")
            queues[broker] = number
        return queues

    @classmethod
    def decode(cls, body: bytes) -> TopicRoute:
        """Raises PeerWireError."""
        part = parts.load_object(body, "a route")
        return cls(
            parts.each(part, "queueDatas", QueueData.read),
            parts.each(part, "brokerDatas", BrokerData.read),
            parts.text(part, "orderTopicConf"),
            MappingProxyType(parts.each_of(part, "topicQueueMappingByBroker", QueueMapping.read)),
            MappingProxyType(parts.texts_of(part, "filterServerTable")),
        )

    def encode(self) -> bytes:
        """Standard JSON, with keys in quotes and in the order that name servers write."""
        fields: dict[str, Any] = {
            "brokerDatas": [broker.table() for broker in self.brokers],
            "filterServerTable": {name: list(servers) for name, servers in self.filter_servers.items()},
        }
        if self.order_conf:
            fields["orderTopicConf"] = self.order_conf
        fields["queueDatas"] = [queue.table() for queue in self.queues]
        if self.mappings:
            fields["topicQueueMappingByBroker"] = {name: each.table() for name, each in self.mappings.items()}
        return dumps(fields)


@dataclass(slots=True, frozen=True)
class ClusterInfo:
    """All brokers that a name server knows, by name, and the names of each cluster's brokers."""

    brokers: Mapping[str, BrokerData] = field(default_factory=lambda: _NOTHING)
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NOTHING)

    @classmethod
    def decode(cls, body: bytes) -> ClusterInfo:
        """Raises PeerWireError."""
        part = parts.load_object(body, "the clusters")
        return cls(
            MappingProxyType(parts.each_of(part, "brokerAddrTable", BrokerData.read)),
            MappingProxyType(parts.texts_of(part, "clusterAddrTable")),
        )

    def encode(self) -> bytes:
        return dumps(
            {
                "brokerAddrTable": {name: broker.table() for name, broker in self.brokers.items()},
                "clusterAddrTable": {name: list(brokers) for name, brokers in self.clusters.items()},
            }
        )


def decode_route(body: bytes) -> TopicRoute:
    """Raises PeerWireError."""
    return TopicRoute.decode(body)


def encode_route(route: TopicRoute) -> bytes:
    return route.encode()
