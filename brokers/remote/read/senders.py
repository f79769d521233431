"""The sender of a message, as a broker's record has it."""

from __future__ import annotations

from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.properties import BORN_HOST, BORN_TIMESTAMP, find_property
from popgate.wire.messages.records import Record

_BORN_HOST, _BORN_TIMESTAMP = BORN_HOST.encode(), BORN_TIMESTAMP.encode()


def born_host(record: Record) -> str:
    """The birth host of the message: the stored one is that of the broker's client (protocol facts 3.6)."""
    text = find_property(record.properties, _BORN_HOST)
    return host_text(record.born_host) if text is None else text.decode("utf-8", "replace")


def born_ms(record: Record) -> int:
    """When the message was born: of a batch the stored time is that of the request (protocol facts 5.7)."""
    text = find_property(record.properties, _BORN_TIMESTAMP)
    return int(text) if text is not None and len(text) < 16 and text.isdigit() else record.born_ms
