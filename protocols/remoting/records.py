"""Messages as classic clients get them: stored records, one behind the other.

Bodies stay as they are, compressed ones unopened. Source: protocol facts 3.8 and 5.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from popgate.model import StoredMessage
from popgate.stored_records import StoredRecords
from popgate.wire.hosts import V4_SIZE, pack_host
from popgate.wire.records import STORE_HOST_AT, encode_record


def encode_stored(message: StoredMessage, *, store_host: str = "") -> bytes:
    """One record. `store_host` ("host:port"): told in the place of the broker's own; empty: that one.

    A client makes the message's id of the store host, and up to 4.9.4 sends back to it what it could not
    process: it must be an address that clients reach. Raises LocalWireError when a part does not fit.
    """
    return encode_record(
        message.topic.encode(),
        message.queue_id,
        message.offset,
        message.commit_offset,
        message.body,
        message.properties,
        message.sys_flag,
        message.flag,
        message.born_ms,
        pack_host(message.born_host),
        message.store_ms,
        pack_host(store_host or message.store_host),
        message.attempt - 1 if message.attempt > 0 else message.reconsume_times,
    )


def encode_all(messages: Iterable[StoredMessage], *, store_host: str = "") -> bytes:
    """The body of an answer with these messages. Raises as `encode_stored`."""
    if isinstance(messages, StoredRecords):
        host = pack_host(store_host) if store_host else b""
        if len(host) in (0, V4_SIZE):
            return _with_store_host(messages, host)
    return b"".join([encode_stored(message, store_host=store_host) for message in messages])


def _with_store_host(records: StoredRecords, host: bytes) -> bytes:
    """Records as they are, except for the address of their broker; empty: that, too."""
    if not host:
        return records.data
    data = bytearray(records.data)
    for start in records.starts:
        data[start + STORE_HOST_AT : start + STORE_HOST_AT + V4_SIZE] = host
    return bytes(data)


def encode_numbered(
    messages: Iterable[StoredMessage], numbers: Sequence[int], queue_id: int, *, store_host: str = ""
) -> bytes:
    """As `encode_all`, of popped messages that have other offsets for their client, in the queue it asked."""
    host = pack_host(store_host) if store_host else b""
    return b"".join(
        [
            encode_record(
                one.topic.encode(),
                queue_id,
                number,
                one.commit_offset,
                one.body,
                one.properties,
                one.sys_flag,
                one.flag,
                one.born_ms,
                pack_host(one.born_host),
                one.store_ms,
                host or pack_host(one.store_host),
                max(one.attempt - 1, 0),
            )
            for one, number in zip(messages, numbers, strict=True)
        ]
    )
