"""The capability of a broker whose cluster knows the clients of this replica and can send them requests.

It is found by `Broker.capability`, as those of `brokers.capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from popgate.groups.verdict import Verdict
from popgate.model import FilterKind, Reading, StoredMessage


@dataclass(slots=True, frozen=True)
class ConnectedClient:
    """A client of this replica, as a cluster's own tools are to see it.

    `group`: of a consumer; empty: a producer of `topics`, each of which is its producer group too
    (protocol facts 9.3, 39), and of `producer_groups`. `pushed`: a consumer that does not decide
    itself when it takes; `broadcast`: that every client of the group gets every message.
    `subscriptions`: a consumer's topics with their filters. `language` and `version` are its own
    words, "JAVA" and "5.0.7", or the number of RocketMQ's MQVersion. `key`: what it is kept by,
    its client id when it is not said; classic clients have one id for many groups. `reading`: how a
    consumer reads, and `may_map`: whether this replica would map its group onto pop, so that other
    replicas must know how it reads.
    """

    client_id: str
    group: str = ""
    pushed: bool = False
    topics: frozenset[str] = frozenset()
    producer_groups: frozenset[str] = frozenset()
    subscriptions: Mapping[str, tuple[FilterKind, str]] = field(default_factory=dict)
    language: str = ""
    version: str = ""
    broadcast: bool = False
    key: str = ""
    reading: Reading = Reading.NEUTRAL
    may_map: bool = False

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.client_id)


class AsksClients(Protocol):
    """What the cluster's operators ask of a client of this replica, by way of a broker."""

    async def stack(self, client_id: str) -> str:
        """What its threads are doing. Raises ClientNotFound, ClientTimeout, BadRequest, Unsupported."""
        ...

    async def running_info(self, client_id: str, group: str, *, with_stacks: bool) -> bytes | None:
        """What a consumer says that it runs: an encoded `ConsumerRunningInfo`. None: it is no classic one.

        Raises as `stack`.
        """
        ...

    async def consume(self, client_id: str, group: str, message: StoredMessage) -> Verdict:
        """Make it consume a message outside of all order. Raises as `stack`."""
        ...


class RegistersClients(ABC):
    """A broker whose cluster knows its clients: for its tools, and for checks of transactions.

    Told of every client that comes, changes and goes; it never says no, and nothing waits for it.
    """

    @abstractmethod
    def client_is_here(self, client: ConnectedClient) -> None:
        """A client came, or it is now as told here; one that is known already is not an error."""

    @abstractmethod
    def client_left(self, key: str) -> None:
        """It is not here any more, or can be asked nothing; unknown ones are not an error."""

    @abstractmethod
    def on_question(self, asker: AsksClients) -> None:
        """Who asks clients what the cluster wants to know; the last one set counts."""
