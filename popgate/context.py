"""Who asks, by which door, and until when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Principal:
    """An authenticated caller; the anonymous one has an empty name."""

    name: str = ""


ANONYMOUS = Principal()


@dataclass(slots=True)
class Context:
    """The circumstances of one request.

    `deadline` is in loop seconds (None: the caller set none). `door` is the scheme of the
    listener, `peer` and `local` are the two ends of the connection as "host:port".
    """

    client_id: str = ""
    language: str = ""
    client_version: str = ""
    namespace: str = ""
    door: str = ""
    peer: str = ""
    local: str = ""
    deadline: float | None = None
    principal: Principal = ANONYMOUS
    connection: object = None
