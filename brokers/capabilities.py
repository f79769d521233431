"""What a broker may be able to do beside the port: found by `isinstance`, where it is used.

A broker implements the classes of what it can do, in addition to `brokers.port.Broker`. Who needs
one asks whether the broker is one, and says Unsupported when it is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from popgate.context import Context
from popgate.errors import GatewayError


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
        not say where it came from), TopicNotFound (that topic is gone). Raises GroupNotFound,
        TopicNotFound (the group has no dead letters), BadRequest (no such queue).
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
