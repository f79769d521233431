"""A part of the broker's port, working on the state that all parts share."""

from __future__ import annotations

from brokers.embedded.engine.engine import Engine


class Facet:
    """Each facet implements some methods of `brokers.port.Broker`; `EmbeddedBroker` is all of them."""

    _engine: Engine
