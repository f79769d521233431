"""The remoting door: RocketMQ's classic clients, 4.x and 5.x, and its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from protocols.adapter import Adapter, AdapterContext, Listen

FIRST_BYTES: Final = frozenset((0, 1))
"""A frame begins with its length, 4 bytes: 16 MiB at most (`popgate.wire.frames.remoting.LARGEST_FRAME`)."""
ALPN: Final = ""
"""Clients agree on nothing inside of TLS."""


def make_adapter(listen: Listen, adapter_context: AdapterContext) -> Adapter:
    """A remoting server for this address, not started. Raises ValueError for options it does not know."""
    # Not at the top: whoever needs the words of the door alone should not load a server.
    from protocols.remoting.adapter import RemotingAdapter

    return RemotingAdapter(listen, adapter_context)


def listens_by_itself(_listen: Listen) -> bool:
    """It takes connections that somebody else accepted."""
    return False


def load(_listen: Listen) -> None:
    """Load what serves this address."""
    import protocols.remoting.adapter  # noqa: F401
