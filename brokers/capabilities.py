"""What a broker may be able to do beside the port, found by `Broker.capability` where it is used.

The broker itself or one of its parts implements the class. Where neither does, `capability` returns None, and
what needs it raises Unsupported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from popgate.cluster import ClusterView
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.lite import LiteSync, LiteTopicState
from popgate.model import Message, Pop, Reading, Sent, StoredMessage


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
    which the group's pops of that topic read as well; its attempts begin at 1 anew. One that a classic
    consumer had sent back is stored in `%RETRY%group`, where those pull it from. The dead letter
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
class Reclaimed:
    """How many messages one step moved, and whether there may be more to move now."""

    moved: int
    more: bool


class ReclaimsRetries(ABC):
    """Moves what pops of a group left unfinished to where its classic consumers pull from.

    What comes again to a group that pops lies where only pops look. One that pulls from now on would
    never see it, or (where the position stands before all that is unfinished) all that came after it
    once more. So it is moved into `%RETRY%group`, which classic consumers pull, too.
    """

    @abstractmethod
    async def reclaim(self, context: Context, group: str, topic: str, *, held: bool = False) -> Reclaimed:
        """Move some of what came back to the group from its pops of the topic into `%RETRY%group`.

        Each copy has the body, flags, sender, time of birth, properties and id of its message, RETRY_TOPIC
        (the topic), ORIGIN_MESSAGE_ID and WAIT=false; its `reconsume_times` are the deliveries that it
        had, but never so many that it would be a dead letter before it was delivered once more. What
        rests may be seen when it would have come. Copying and finishing is one step where the broker can
        do that; one that cannot stores first and finishes then, so that the end of the process in between
        makes a second copy, and never loses one. Several may ask at once: none is moved twice.

        `held`: also what consumers of the group hold now, where that is known (`Traits.tells_deliveries`);
        else it is moved once it came back. Nothing is moved of a group that takes lite topics of the topic,
        or is a broadcast group; of an ordered group only what was redriven. Done again until there is no
        `more`, the position of the group stands where its pops stood. Raises GroupNotFound, TopicNotFound.
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


@dataclass(slots=True, frozen=True)
class BrokerPlace:
    """A broker by its name; `numbers` are those of its processes that are known, 0 that of the master."""

    cluster: str
    name: str
    numbers: tuple[int, ...] = (0,)


class TellsBrokers(ABC):
    """A broker that is many, by names that clients may use."""

    @abstractmethod
    async def known_brokers(self) -> Sequence[BrokerPlace]:
        """Those of all clusters, cheaply: as they were told last. Raises BrokerUnavailable: none is known."""


class FindsByPlace(ABC):
    """Finds a message by its place in a broker's log alone, as the ids of classic clients name it."""

    @abstractmethod
    async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
        """The message that begins there, whatever its topic. Raises NotFound, BadRequest (no such broker)."""


class TellsCluster(ABC):
    """A broker that is many: who runs them wants to know how each is."""

    @abstractmethod
    async def cluster(self) -> ClusterView:
        """Ask every name server and broker now, each within one request's time; never raises for one of them.

        Raises BrokerUnavailable: no broker is known, and no name server tells of any.
        """


class TellsAbsence(ABC):
    """A broker that is somewhere else, and may not be there."""

    @abstractmethod
    def missing(self) -> str:
        """What cannot be reached for long enough that somebody should know; empty: nothing."""


LiteGoneHandler = Callable[[str, str, str, str], None]
"""Told that a client (its `client_key`) of a group is subscribed no longer to a topic's lite topic."""


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
    def leave_lite(self, client_key: str, *, said_so: bool) -> None:
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
    def lite_subscriptions(self, client_key: str) -> int:
        """To how many lite topics a client subscribes now."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A consumer of a group, as the broker knows it.

    `gateway`: whether it surely comes through a gateway; `reading` is known of those only.
    """

    client_id: str
    gateway: bool
    reading: Reading


class TellsConsumers(ABC):
    """A broker that knows consumers of other gateways too, or of none: who shares the queues of a group."""

    @abstractmethod
    async def consumers(self, group: str) -> list[str]:
        """The ids of the clients that are consumers of the group, also of those that this replica told it.

        Empty when there is none. Raises BrokerUnavailable, BrokerTimeout.
        """

    @abstractmethod
    async def members(self, group: str) -> list[GroupMember]:
        """The same clients with how each comes and reads; one that comes by two ways is told twice.

        Empty when there is none. Raises BrokerUnavailable, BrokerTimeout.
        """

    @abstractmethod
    def on_members(self, handler: Callable[[str], None]) -> None:
        """Who is told the group whose consumers changed elsewhere, or how they read; the last one counts."""


class TellsReaders(ABC):
    """A broker that knows who reads a topic; elsewhere every group is asked what it reads."""

    @abstractmethod
    async def readers(self, topic: str) -> list[str]:
        """The groups that have read the topic, or subscribe to it now, sorted; none where it is not there.

        Raises BrokerUnavailable, BrokerTimeout.
        """


@dataclass(slots=True, frozen=True)
class AssignedQueue:
    """A queue that a consumer is to read; `popped`: by pop, and then the queue id -1 is any of the broker."""

    broker: str
    queue_id: int
    popped: bool = False


class LeasesQueues(ABC):
    """A broker at which a lock says more of a group than who reads a queue.

    Elsewhere `lock` does for leases, too, under a name that no group has.

    A RocketMQ takes a group that holds locks for one that reads in order, and buries what is sent to its
    retries (SendMessageProcessor, `isLockAllExpired`).
    """

    @abstractmethod
    async def lease(
        self, context: Context, group: str, owner: str, queues: Sequence[tuple[str, str, int]]
    ) -> list[tuple[str, str, int]]:
        """Have queues (topic, broker, number) for 60 s, or renew; those that the owner has now.

        Raises BrokerUnavailable when no broker of them can be reached.
        """

    @abstractmethod
    async def end_lease(
        self, context: Context, group: str, owner: str, queues: Sequence[tuple[str, str, int]]
    ) -> None:
        """Give queues up; those of others stay. Raises BrokerUnavailable, BrokerTimeout."""


class AssignsQueues(ABC):
    """A broker that decides itself which queues a classic consumer reads, and whether by pull or by pop."""

    @abstractmethod
    async def assigned(
        self, context: Context, topic: str, group: str, client_id: str, strategy: str, *, broadcast: bool
    ) -> list[AssignedQueue]:
        """What this client is to read. Raises TopicNotFound, BrokerUnavailable, BrokerTimeout."""

    @abstractmethod
    async def set_popped(self, context: Context, topic: str, group: str, popped: bool, share: int) -> None:
        """Have the group read the topic by pop, or by pull; `share`: clients that share a queue, 0: all."""


ReplyHandler = Callable[[str, StoredMessage], bool | Awaitable[bool]]
"""Hands a reply to the client of this id that waits for it; False when it is not here, or did not take it."""


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


class ReportsTls(ABC):
    """Says what is wrong with the revocation lists of its connections."""

    @abstractmethod
    def tls_warnings(self) -> list[str]:
        """Sentences about lists that are missing, expired, near their end, or refused."""
