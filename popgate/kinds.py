"""The policies: objects with one method, selected by name in the settings.

They are synchronous and fast; one that needs remote data caches it and decides from the cache. `now` is in
seconds of the event loop. The defaults and the registry are in `processors.policies`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Protocol

from popgate.context import Context, Principal
from popgate.model import Message, Queue


@unique
class Action(Enum):
    """An action on a resource. Source: protocol facts 8.4."""

    PUBLISH = "Pub"
    SUBSCRIBE = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


@unique
class ResourceKind(Enum):
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


@dataclass(slots=True, frozen=True)
class Resource:
    """What is acted upon; an empty name means all of the kind."""

    kind: ResourceKind
    name: str


@dataclass(slots=True, frozen=True)
class Credentials:
    """The credentials of a caller, as far as its protocol carries them.

    A signature is over `signed` with the secret of `access_key`; a password or a token
    stands for itself. `extra` has further data of the door (e.g. the subject of a certificate).
    """

    access_key: str = ""
    signature: bytes = b""
    signed: bytes = b""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    extra: Mapping[str, str] = field(default_factory=dict)

    def proves(self, secret: str) -> bool:
        """Whether the signature was made with this secret, by HMAC-SHA1, as clients of every door sign.

        The comparison takes constant time. A missing signature and an empty secret prove nothing.
        Source: protocol facts 1.3 and 5.12.
        """
        if not self.signature or not secret:
            return False
        return hmac.compare_digest(hmac.digest(secret.encode(), self.signed, "sha1"), self.signature)


NO_CREDENTIALS = Credentials()


class Authenticator(Protocol):
    """Authenticates callers."""

    def authenticate(self, context: Context, credentials: Credentials, now: float) -> Principal:
        """The caller; raises Unauthenticated.

        Clients are told apart by its name and their ids: it should stay while a client is open.
        """
        ...


class Authorizer(Protocol):
    """May they?"""

    def allows(self, context: Context, action: Action, resource: Resource, now: float) -> bool:
        """Whether `context.principal`, from `context.peer`, may do that."""
        ...


class RateLimit(Protocol):
    """Is it too much?"""

    def take(self, context: Context, action: Action, resource: Resource, amount: int, now: float) -> float:
        """Take `amount` messages (1 for another request): 0 when granted, else seconds until the next try."""
        ...


class Backoff(Protocol):
    """How long until the next try?"""

    def delay(self, attempt: int, now: float) -> float:
        """Seconds to wait after try number `attempt` (from 1) failed."""
        ...


class QueuePicker(Protocol):
    """Which queue takes a message?"""

    def pick(self, message: Message, queues: Sequence[Queue], now: float) -> Queue:
        """One of `queues`, which are writable, sorted and at least one."""
        ...
