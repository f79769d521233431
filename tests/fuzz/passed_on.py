"""What goes through the gateway without being decoded: mutated, it is decoded instead, or is what it was."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from brokers.remote.produce.send_request import complete
from brokers.remote.read.pull import stored
from brokers.remote.read.record_scan import scan_records
from popgate.errors import PeerWireError
from popgate.filters.compiled import compile_filter
from popgate.ids.queue_numbers import QueueNumbers
from popgate.messages.stored_records import StoredRecords
from popgate.model import FilterKind, MessageType
from popgate.wire.messages.batches import BatchItem, decode_batch, encode_batch
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import decode_record, decode_records, encode_record, pack_host
from processors.limits import Limits
from processors.produce.message_checks import check_message
from protocols.remoting.codec.marks import Marks, Origin
from protocols.remoting.codec.messages import Head, message_in
from protocols.remoting.codec.producer_batch import pack_batch, plain_message
from protocols.remoting.codec.records import encode_all

BROKER = pack_host("10.0.0.1:10911")
NAMED = {
    "UNIQ_KEY": "01" * 17,
    "__BORNHOST": "10.1.2.3:40000",
    "BORN_TIMESTAMP": "1690000000000",
    "TAGS": "a",
}
RECORDS = b"".join(
    encode_record(
        topic.encode(), 1, at, at, b"body" * at, encode_properties(named), 0, 0, 1, BROKER, 2, BROKER
    )
    for at, (topic, named) in enumerate(
        [("T", NAMED), ("t" * 127, {}), ("t" * 128, NAMED), ("T", NAMED), ("T", NAMED), ("T", NAMED)]
    )
)
BATCH = encode_batch(
    [
        BatchItem(at, b"body" * at, f"UNIQ_KEY\x01ID{at}\x02WAIT\x01true{end}".encode())
        for at, end in enumerate(["", "\x02", "\x02TAGS\x01a\x02"], 1)
    ]
    + [BatchItem(0, b"alike", f"UNIQ_KEY\x01IE{at}\x02WAIT\x01true\x02".encode()) for at in range(3)]
)
BLOCK = b"UNIQ_KEY\x01ID\x02WAIT\x01true\x02TAGS\x01a\x02own_one\x01DELAY\x02"
HEAD = Head("makers", "orders", 2, 0, 7, 0, b"", 0, None, True, "broker-a", False)
ORIGINS = Origin("10.0.0.9:8080"), Origin("10.0.0.9:8080", Marks(QueueNumbers([("a", 0), ("b", 0)])))
EVERYTHING = compile_filter(FilterKind.TAG, "*")


def read_scanned(data: bytes) -> None:
    """Records of a pull."""
    scan = scan_records(data, 0, EVERYTHING, 100, 1 << 20)
    if scan is None:
        raise PeerWireError("it is to be decoded")
    records = StoredRecords(
        scan.data,
        scan.starts,
        scan.body_bytes,
        "b",
        lambda part, at: stored(decode_record(part, at), "b", 1, 0),
    )
    ends = [*scan.starts, len(scan.data)]
    assert all(begin < end for begin, end in pairwise(ends))
    try:
        messages = [stored(record, "b", 1, 0) for record in decode_records(data) if record.offset >= 0]
        passed = list(records)
    except PeerWireError as error:
        raise AssertionError("it was passed on, and cannot be decoded") from error
    assert passed == messages
    for origin in ORIGINS:
        assert len(encode_all(records, origin)) == len(scan.data)


def read_forwarded(data: bytes) -> None:
    """A producer's batch."""
    packed = pack_batch(HEAD, data, topic="orders", born_host="10.1.2.3:4", now_ms=1, limits=Limits())
    if packed is None:
        raise PeerWireError("its messages are to be looked at")
    try:
        before, after = decode_batch(data), decode_batch(packed.batch.data)
    except PeerWireError as error:
        raise AssertionError("it was forwarded, and cannot be decoded") from error
    assert [(item.flag, item.body) for item in before] == [(item.flag, item.body) for item in after]
    assert packed.batch.count == len(before)
    for item, forwarded in zip(before, after, strict=True):
        assert forwarded.properties.startswith(item.properties)


def read_single(data: bytes) -> None:
    """The properties of a producer's message."""
    head, limits = replace(HEAD, batch=False, properties=data), Limits()
    single = plain_message(head, b"body", topic="orders", born_host="10.1.2.3:4", now_ms=1, limits=limits)
    if single is None:
        raise PeerWireError("it is to be looked at")
    item = BatchItem(0, b"body", data)
    message = message_in(head, item, topic="orders", born_host="10.1.2.3:4", now_ms=1, limits=limits)
    check_message(message, limits, now_ms=1, max_delay_ms=1)
    complete(message)
    assert message.type is MessageType.NORMAL
    assert (single.message_id, single.properties) == (message.message_id, message.properties)
