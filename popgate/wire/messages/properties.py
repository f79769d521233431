"""The properties block of a message: key 0x01 value 0x02, repeated, in UTF-8.

The block is kept as bytes until a property is needed: `find_property` reads one value without building a
dict. Reading is lenient, as RocketMQ's own parser is: the last 0x02 may be missing, entries
without a key or without a value are skipped, the last of several entries with one key counts.
Source: protocol facts 3.3 and 3.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from popgate.errors import LocalWireError

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
BUYER_ID = "BUYER_ID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
UNIQ_KEY = "UNIQ_KEY"
EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
CONSUME_START_TIME = "CONSUME_START_TIME"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
DUP_INFO = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
CLUSTER = "CLUSTER"
MSG_TYPE = "MSG_TYPE"
POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"
FIRST_POP_TIME = "1ST_POP_TIME"
SHARDING_KEY = "__SHARDINGKEY"
FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT = "REDIRECT"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TRACE_CONTEXT = "TRACE_CONTEXT"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
CRC32 = "__CRC32#"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
REDRIVE_COUNT = "REDRIVE_COUNT"
"""Our own: how often a message was redriven from the dead letters; consumers see it."""
RETRY_MEMBER = "RETRY_MEMBER"
"""Our own, of a retry: the client of a broadcast group, by its member group, that it comes to again alone."""
LITE_TOPIC = "__LITE_TOPIC"
PRIORITY = "_SYS_MSG_PRIORITY_"
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
"""Names that begin so are never stored."""

RESERVED: frozenset[str] = frozenset(
    {
        *(KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QID, TRAN_MSG, PGROUP),
        *(MIN_OFFSET, MAX_OFFSET, BUYER_ID, ORIGIN_MESSAGE_ID, TRANSFER_FLAG, CORRECTION_FLAG, MQ2_FLAG),
        *(RECONSUME_TIME, MAX_RECONSUME_TIMES, MSG_REGION, TRACE_ON, UNIQ_KEY, EXTEND_UNIQ_INFO),
        *(CONSUME_START_TIME, DUP_INFO, TRAN_PREPARED_QUEUE_OFFSET, INSTANCE_ID),
        *(CORRELATION_ID, REPLY_TO_CLIENT, TTL, ARRIVE_TIME, PUSH_REPLY_TIME, CLUSTER, MSG_TYPE),
        *(POP_CK, POP_CK_OFFSET, FIRST_POP_TIME, INNER_MULTI_QUEUE_OFFSET),
        *(TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS),
        *(TIMER_ROLL_TIMES, TIMER_OUT_MS, TIMER_DEL_UNIQKEY, TIMER_DELAY_LEVEL),
        *(BORN_HOST, BORN_TIMESTAMP, CRC32, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID),
        *(LITE_TOPIC, PRIORITY),
    }
)
"""Names that a user must not give a property, and that no user property of a delivery shows."""

LONGEST_BLOCK = 32_767
"""Bytes: a stored record has the block's length as a signed 16-bit number."""
LONGEST_IN_BATCH = LONGEST_BLOCK - 1024
"""Bytes of one message of a batch. Brokers up to 5.3.3 add properties of their own, CLUSTER among them, and
newer ones maybe a checksum, without a look at the sum: a record with a negative length is never delivered,
though it counts as stored. Source: RocketMQ 5.3.3, MessageExtEncoder.encode(MessageExtBatch)."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The block of these properties; pairs with an empty key or value are left out, as the format has none.

    Raises LocalWireError for a separator (0x01, 0x02) inside a key or a value: names and
    values from outside are checked before.
    """
    pairs = [f"{key}\x01{value}" for key, value in properties.items() if key and value]
    if not pairs:
        return b""
    text = "\x02".join(pairs) + "\x02"
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs):
        raise LocalWireError("a property holds one of the separators 0x01 and 0x02")
    return text.encode("utf-8", "replace")


def decode_properties(block: bytes) -> dict[str, str]:
    """All properties; whatever is damaged is left out, bytes that are no UTF-8 become U+FFFD."""
    properties: dict[str, str] = {}
    for entry in block.decode("utf-8", "replace").split("\x02"):
        key, _, value = entry.partition("\x01")
        if key and value:
            properties[key] = value
    return properties


def split_properties(block: bytes) -> dict[bytes, bytes]:
    """All properties as they stand in the block; what `decode_properties` leaves out is left out."""
    properties: dict[bytes, bytes] = {}
    for entry in block.split(b"\x02"):
        key, _, value = entry.partition(b"\x01")
        if key and value:
            properties[key] = value
    return properties


def find_property(block: bytes, name: bytes) -> bytes | None:
    """One value, without reading the others; None when it is not there."""
    key = name + b"\x01"
    at = block.rfind(key)
    if at < 0:
        return None
    # Most often this is the entry itself, not the end of a longer key, and it has a value.
    if not at or block[at - 1] == 2:
        begin = at + len(key)
        end = block.find(b"\x02", begin)
        if end > begin:
            return block[begin:end]
    return _find_carefully(block, key)


def _find_carefully(block: bytes, key: bytes) -> bytes | None:
    for entry in reversed(block.split(b"\x02")):
        if entry.startswith(key) and len(entry) > len(key):
            return entry[len(key) :]
    return None


def set_property(block: bytes, name: bytes, value: bytes) -> bytes:
    """The block with this property at its end, and no other of the name. Name and value are not empty.

    Raises LocalWireError when they are, or when they hold a separator.
    """
    if not name or not value or b"\x02" in value or b"\x01" in value or b"\x01" in name or b"\x02" in name:
        raise LocalWireError("a property needs a key and a value without the separators 0x01 and 0x02")
    if b"%b\x01" % name in block:
        block = drop_properties(block, (name,))
    if block and block[-1] != 2:
        block += b"\x02"
    return b"%b%b\x01%b\x02" % (block, name, value)


def set_if_room(block: bytes, name: bytes, value: bytes) -> bytes:
    """As `set_property`, but the block as it was where a stored record has no room for the property."""
    longer = set_property(block, name, value)
    return longer if len(longer) <= LONGEST_BLOCK else block


def drop_properties(block: bytes, names: Iterable[bytes]) -> bytes:
    """The block without the properties of these names; the others stay in their order.

    It never becomes longer: a block that ends without a separator and has none of them stays as it is.
    """
    unwanted = frozenset(names)
    entries = [entry for entry in block.split(b"\x02") if entry]
    kept = [entry for entry in entries if entry.partition(b"\x01")[0] not in unwanted]
    if len(kept) == len(entries):
        return block
    return b"\x02".join(kept) + b"\x02" if kept else b""
