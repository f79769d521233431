"""What a broker's record says of its sender."""

from __future__ import annotations

from popgate.wire.hosts import host_text
from popgate.wire.properties import BORN_HOST, find_property
from popgate.wire.records import Record

_BORN_HOST = BORN_HOST.encode()


def born_host(record: Record) -> str:
    """Where the message was born: the stored host is whoever sent it to the broker (protocol facts 3.6)."""
    told = find_property(record.properties, _BORN_HOST)
    return host_text(record.born_host) if told is None else told.decode("utf-8", "replace")
