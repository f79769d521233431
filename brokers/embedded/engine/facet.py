"""A part of the broker's port, working on the state that all parts share."""

from __future__ import annotations

from brokers.embedded.engine.engine import Engine
from popgate.context import Context


def bytes_for(context: Context, max_bytes: int) -> int:
    """How many bytes of messages a request may take at this moment. Raises TooManyRequests."""
    return max_bytes if context.allowance is None else min(max_bytes, context.allowance.room())


class Facet:
    """Each facet implements some methods of `brokers.port.Broker`; `EmbeddedBroker` is all of them."""

    _engine: Engine
