"""The state of a cluster of brokers as a gateway sees it, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class NameServerView:
    """A name server. `trouble`: why it did not answer, empty if it did.

    `brokers`: the address of the master of each broker that it lists, empty for a broker without one.
    `in_use`: it is the preferred name server.
    """

    address: str
    trouble: str = ""
    answer_ms: float = 0.0
    in_use: bool = False
    brokers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class BrokerView:
    """One process of a broker, at the address that the name servers return.

    `role`: "master", "slave", or "acting master" (a slave that serves for its master). `trouble`: why it did
    not answer; then the other fields are empty. `links`: connections of the gateway to it. `version` as the
    broker reports it, "5.5.0". `clock_ahead_ms`: lower and upper bound by which its clock is ahead of the
    gateway's; None: unknown. `settings` are some of its settings, by the broker's names, empty with
    `settings_trouble` if it does not return them; `figures` are some of its statistics. Times are in ms.
    """

    cluster: str
    name: str
    number: int
    address: str
    role: str
    links: int = 0
    trouble: str = ""
    answer_ms: float = 0.0
    version: str = ""
    clock_ahead_ms: tuple[float, float] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    settings_trouble: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ClusterView:
    """`not_asked`: processes beyond the bound of one look. `refusals`: by address, why a broker does not
    take the heartbeats of this gateway's clients. `unserved`: by consumer group and broker, why the broker
    gave the group nothing lately."""

    name_servers: tuple[NameServerView, ...]
    brokers: tuple[BrokerView, ...]
    not_asked: int = 0
    refusals: Mapping[str, str] = field(default_factory=dict)
    unserved: Mapping[tuple[str, str], str] = field(default_factory=dict)
