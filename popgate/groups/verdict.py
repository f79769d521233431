"""The result of a message that a client was asked to consume directly. Source: protocol facts 1.7."""

from __future__ import annotations

from enum import Enum, unique


@unique
class Verdict(Enum):
    """The result of a message that a client was asked to consume."""

    CONSUMED = "consumed"
    FAILED = "failed"
    """The listener returned failure, or raised."""
    CORRUPTED = "corrupted"
    """The client could not read the message."""
