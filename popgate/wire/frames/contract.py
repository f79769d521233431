"""The contract of every wire: a state machine without I/O.

`receive` takes bytes, `next_event` returns events, and `data_to_send` returns the bytes for the peer. A
machine with a timeout returns its deadline and is given the time. Invalid input from the peer raises
PeerWireError, misuse raises LocalWireError.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

TLS_FIRST: Final = b"\x16\x03"
"""How a client begins that speaks TLS: a record of the handshake, version 3 (RFC 8446 section 5.1)."""

Event_co = TypeVar("Event_co", covariant=True)


class Wire(Protocol[Event_co]):
    """A protocol's state for one direction or one connection."""

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes from the other side; `b""` is the end of the stream."""
        ...

    def next_event(self) -> Event_co | None:
        """The next event; None: more bytes are needed. Raises PeerWireError."""
        ...

    def data_to_send(self) -> list[bytes]:
        """Remove and return the bytes for the peer."""
        ...
