"""What a broker may be able to do beside the port: found by `isinstance`, where it is used.

A broker implements the classes of what it can do, in addition to `brokers.port.Broker`. Who needs
one asks whether the broker is one, and says Unsupported when it is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from popgate.cluster import ClusterView
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.lite import LiteSync, LiteTopicState
from popgate.model import FilterKind, Message, Pop, Sent, StoredMessage
from popgate.verdict import Verdict


@dataclass(slots=True, frozen=True)
class Redriven:
    """A dead letter that its group gets again: of which topic, and the place of the new copy."""

    message_id: str
    topic: str
    retry_topic: str
    offset: int


class RedrivesDeadLetters(ABC):
    """Gives dead letters to their group again, and to nobody else.

    A redriven message is stored in a retry topic of the group and of the topic that it came from,
    which the group's pops of that topic read as well; its attempts begin at 1 anew. The dead letter
    itself stays where it is, and is remembered as redriven.

    Storing the copy and remembering it is one step where the broker can do that (the embedded one:
    one batch). A broker that cannot stores first and remembers then: the end of the process in
    between lets the message be redriven a second time, and never loses it.
    """

    @abstractmethod
    async def redriven(
        self, group: str, broker: str, queue_id: int, begin: int, end: int
    ) -> Mapping[int, int]:
        """Offsets in [begin, end) of `%DLQ%group` that were redriven, each with the wall time in ms.

        Raises TopicNotFound, BadRequest (no such queue).
        """

    @abstractmethod
    async def redrive(
        self, context: Context, group: str, broker: str, queue_id: int, offsets: Sequence[int]
    ) -> list[Redriven | GatewayError]:
        """Redrive dead letters of one queue of `%DLQ%group`; one result each, in order.

        Results: NotFound (none is there), AlreadyExists (it was redriven before), BadRequest (it does
        not say where it came from), TopicNotFound (that topic is gone), Unsupported (the group takes
        lite topics of that topic). Raises GroupNotFound, TopicNotFound (the group has no dead letters),
        BadRequest (no such queue), Unsupported (a broadcast group).
        """


@dataclass(slots=True, frozen=True)
class Backup:
    """A finished backup. `taken_ms` is wall time: the store is as it was at one moment before it."""

    path: Path
    taken_ms: int
    files: int
    size: int
    facts: Mapping[str, object]
    """What the manifest says: versions, the store's id, counts."""


class TakesBackups(ABC):
    """Copies its store while it works."""

    @abstractmethod
    async def take_backup(self, target: Path) -> Backup:
        """A consistent copy of the store as the folder `target`: a complete one, or none at all.

        What was answered before the call is in it. Raises AlreadyExists, BrokerUnavailable (with
        the reason, such as no room).
        """


class TellsCluster(ABC):
    """A broker that is many: who runs them wants to know how each is."""

    @abstractmethod
    async def cluster(self) -> ClusterView:
        """Ask every name server and broker now, each within one request's time; never raises for one of them.

        Raises BrokerUnavailable: no broker is known, and no name server tells of any.
        """


LiteGoneHandler = Callable[[str, str, str, str], None]
"""Told that a client (its id) of a group is subscribed no longer to a topic's lite topic."""


class LiteTopics(ABC):
    """A capability that a broker may have beside the four facets: light queues within a topic.

    A message with `lite_topic` goes to that lite topic of its topic, which is made by its first
    message. A group whose attribute `lite.bind.topic` names the topic pops by `pop_lite`; every
    client gets the messages of those lite topics only that it subscribes to. What a group has of
    a lite topic lasts; subscriptions need not, clients repeat them. `ack`, `change_invisible`,
    `give_back` and `dead_letter` of such a group are for what it got in this way.
    """

    @abstractmethod
    async def subscribe_lite(self, context: Context, sync: LiteSync) -> None:
        """Change what the client of the context subscribes to; for REMOVE and CLEAR never refused.

        A quota binds what is added only, and what is to go goes also when the rest is refused.
        Raises TopicNotFound, GroupNotFound, LiteSubscriptionQuotaExceeded, LiteTopicQuotaExceeded,
        BadRequest (the group is not bound to the topic).
        """

    @abstractmethod
    async def pop_lite(self, context: Context, request: Pop) -> list[StoredMessage]:
        """As `Store.pop`, from the lite topics that the client of the context subscribes to.

        Order per lite topic: none of its messages while an earlier one is not finished, but in
        the same answer. The filter and the queue of the request do not count. Raises as `pop`.
        """

    @abstractmethod
    def leave_lite(self, client_id: str, *, said_so: bool) -> None:
        """The client is gone: all that it subscribes to is forgotten.

        Of one that did not say so within a minute, unless it comes back; what only one client of
        a group may have is anybody's at once.
        """

    @abstractmethod
    def on_lite_gone(self, handler: LiteGoneHandler) -> None:
        """Who is told that a lite topic went or was taken from a client; the last one set counts."""

    @abstractmethod
    async def lite_topics(self, topic: str, after: str, limit: int) -> list[LiteTopicState]:
        """Lite topics of a topic by name, from behind `after` on. Raises TopicNotFound."""

    @abstractmethod
    async def delete_lite_topic(self, topic: str, lite_topic: str) -> None:
        """Forget a lite topic, its messages and every group's place in it. Raises NotFound, TopicNotFound."""

    @abstractmethod
    def lite_subscriptions(self, client_id: str) -> int:
        """To how many lite topics a client subscribes now."""


@dataclass(slots=True, frozen=True)
class ConnectedClient:
    """A client of this replica, as a cluster's own tools are to see it.

    `group`: of a consumer; empty: a producer of `topics`, each of which is its producer group too
    (protocol facts 9.3, 39), and of `producer_groups`. `pushed`: a consumer that does not decide
    itself when it takes. `subscriptions`: a consumer's topics with their filters. `language` and
    `version` are its own words, "JAVA" and "5.0.7".
    """

    client_id: str
    group: str = ""
    pushed: bool = False
    topics: frozenset[str] = frozenset()
    producer_groups: frozenset[str] = frozenset()
    subscriptions: Mapping[str, tuple[FilterKind, str]] = field(default_factory=dict)
    language: str = ""
    version: str = ""


class AsksClients(Protocol):
    """What the cluster's operators ask of a client of this replica, by way of a broker."""

    async def stack(self, client_id: str) -> str:
        """What its threads are doing. Raises ClientNotFound, ClientTimeout, BadRequest, Unsupported."""
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
    def client_left(self, client_id: str) -> None:
        """It is not here any more, or can be asked nothing; unknown ones are not an error."""

    @abstractmethod
    def on_question(self, asker: AsksClients) -> None:
        """Who asks clients what the cluster wants to know; the last one set counts."""


ReplyHandler = Callable[[str, StoredMessage], bool]
"""Hands a reply to the client of this id that waits for it; False when it is not here."""


class CarriesReplies(ABC):
    """Answers to request messages: they go to the one client that waits, by way of its broker.

    Source: protocol facts 7.6. A client that waits is known to the broker as `RegistersClients` says.
    """

    @abstractmethod
    async def send_reply(self, context: Context, message: Message) -> Sent:
        """Hand a reply to the client that its property REPLY_TO_CLIENT names.

        The topic is `<cluster>_REPLY_TOPIC`. Raises NotFound (that client is not known to the
        broker, or did not take it), BrokerUnavailable, BrokerTimeout.
        """

    @abstractmethod
    def on_reply(self, handler: ReplyHandler) -> None:
        """Who is handed replies for clients of this replica; the last one set counts."""
