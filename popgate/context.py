"""The context of a request: its caller, its door and its deadline."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from popgate.model import GroupConfig


@dataclass(slots=True, frozen=True)
class Principal:
    """An authenticated caller; the anonymous one has an empty name."""

    name: str = ""


ANONYMOUS = Principal()


class Allowance(Protocol):
    """The bytes that a request may buffer. The opener of the request releases it at the end."""

    def for_group(self, group: str) -> None:
        """Attribute messages from here on to this consumer group."""
        ...

    def room(self) -> int:
        """How many bytes of messages may be taken now, at least 1. Raises TooManyRequests."""
        ...

    def take(self, size: int) -> None:
        """Hold these bytes too, if there is room for them. Raises TooManyRequests."""
        ...

    def add(self, size: int) -> None:
        """These bytes were taken; below 0: so many were let go again."""
        ...


@dataclass(slots=True, init=False)
class Context:
    """The context of one request.

    `deadline` is in loop seconds (None: the caller set none). `door` is the scheme of the listener, `peer`
    and `local` are the two ends of the connection as "host:port". `certificate` has the names in the
    client's certificate, for access rules, like ("CN:orders", "DNS:orders.example.com"); empty without a
    certificate issued by an authority of `tls.client_ca`. `traceparent` is the caller's W3C trace context,
    unparsed. A broker that pops messages for a request with an `allowance` reserves room in it in the same
    step, and reports the bytes of the popped messages. `group` has the settings of the request's consumer
    group where they were looked up a moment ago: a broker for which a look-up is work uses them, if they are
    of the group that it was asked about, instead of looking them up a second time.
    """

    client_id: str
    language: str
    client_version: str
    namespace: str
    door: str
    peer: str
    local: str
    deadline: float | None
    principal: Principal
    certificate: tuple[str, ...]
    connection: Hashable | None
    traceparent: str
    allowance: Allowance | None
    group: GroupConfig | None

    # Written out, because mypyc does not compile what a dataclass makes: there is one for every call.
    def __init__(
        self,
        client_id: str = "",
        language: str = "",
        client_version: str = "",
        namespace: str = "",
        door: str = "",
        peer: str = "",
        local: str = "",
        deadline: float | None = None,
        principal: Principal = ANONYMOUS,
        certificate: tuple[str, ...] = (),
        connection: Hashable | None = None,
        traceparent: str = "",
        allowance: Allowance | None = None,
        group: GroupConfig | None = None,
    ) -> None:
        self.client_id = client_id
        self.language = language
        self.client_version = client_version
        self.namespace = namespace
        self.door = door
        self.peer = peer
        self.local = local
        self.deadline = deadline
        self.principal = principal
        self.certificate = certificate
        self.connection = connection
        self.traceparent = traceparent
        self.allowance = allowance
        self.group = group

    @property
    def client_key(self) -> str:
        """By what registers of clients know the caller: its id with its account, as anybody may name an id.

        Without an account the id alone, which has no line's end in it.
        """
        if not self.principal.name and not self.certificate:
            return self.client_id
        return f"{self.client_id}\n\n{self.principal.name!r} {self.certificate!r}"
