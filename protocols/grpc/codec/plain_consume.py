"""Reads ordinary receives and acknowledgements without protobuf's library, or only once by it.

A consumer repeats its receives byte by byte but for the attempt id, so what one says is remembered by its
bytes. Of an acknowledgement each entry is new: it is plain when it names a group, a topic, and for each
message an id before a handle, all in ASCII. Compiled, reading and answering it here costs a quarter of what
the library takes; interpreted it costs more, so that `request_reader` reads acknowledgements so in the
compiled form only. As in `plain_send`, errors are left to the library and to those who read what it read.
Field numbers are those of `service.proto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from popgate.errors import GatewayError
from popgate.pb import service_pb2 as rpc
from popgate.wire.checksum import crc32
from processors.requests import Receive
from protocols.grpc.codec.convert import receive_in
from protocols.grpc.codec.errors import OK
from protocols.grpc.codec.plain_request import PlainRequest, read_size
from protocols.grpc.codec.received_message import encode_length

if TYPE_CHECKING:
    from mypy_extensions import i64

_LONGEST_RECEIVE: Final = 512
"""Bytes. With what is made of them some thousand receives are remembered in 3 MB at most."""
_ATTEMPT: Final = b"\x42\x24"
"""The field `attempt_id` with 36 characters: a UUID, as official clients send it, behind all other fields."""
_ATTEMPT_SIZE: Final = 38
MOST_ENTRIES: Final = 1024
"""Of one acknowledgement; larger ones are left to the library, and to the limits."""
_OK: Final = OK.SerializeToString()
_STATUS: Final = b"\x0a%b%b" % (encode_length(len(_OK)), _OK)
_ENTRY_STATUS: Final = b"\x1a%b%b" % (encode_length(len(_OK)), _OK)
"""The status of an answer, and that of each of its entries, whose other fields are those of the request's."""


class PlainReceive(PlainRequest[rpc.ReceiveMessageRequest]):
    """A receive whose like was read before."""

    __slots__ = ("receive",)

    def __init__(self, data: bytes, receive: Receive) -> None:
        self.data = data
        self._kind = rpc.ReceiveMessageRequest
        self.topic = receive.topic
        self.group = receive.group
        self.receive = receive


def read_receive(data: bytes) -> PlainReceive | None:
    """A receive; None: it is unusual, or wrong."""
    size = len(data)
    if size > _LONGEST_RECEIVE + _ATTEMPT_SIZE:
        return None
    attempt_id = ""
    known = data
    if size > _ATTEMPT_SIZE and data.startswith(_ATTEMPT, size - _ATTEMPT_SIZE):
        text = data[size - 36 :]
        if text.isascii():
            # If all before it is a request, then this is a field, which comes last and counts.
            attempt_id, known = text.decode("ascii"), data[: size - _ATTEMPT_SIZE]
    if len(known) > _LONGEST_RECEIVE:
        return None
    try:
        like = _known_receive(known)
    except (DecodeError, GatewayError, _NamespacedError):
        return None
    if not attempt_id and like.wait_s is not None:  # nothing of it is filled in
        return PlainReceive(data, like)
    receive = Receive(
        like.topic,
        like.group,
        like.filter_kind,
        like.filter_expression,
        like.max_messages,
        like.invisible_ms,
        like.auto_renew,
        like.wait_s,
        attempt_id or like.attempt_id,
        like.broker,
    )
    return PlainReceive(data, receive)


class _NamespacedError(Exception):
    """A request names a namespace."""


@lru_cache(maxsize=1024)
def _known_receive(data: bytes) -> Receive:
    """What these bytes say.

    Raises DecodeError, GatewayError (a wrong request) and _NamespacedError. What raises takes no place among
    those that are remembered: nobody has been asked yet who sent it.
    """
    request = rpc.ReceiveMessageRequest.FromString(data)
    if request.message_queue.topic.resource_namespace or request.group.resource_namespace:
        raise _NamespacedError
    return receive_in(request)


class PlainAck(PlainRequest[rpc.AckMessageRequest]):
    """An acknowledgement of at least one message: each list has one entry for each, in their order."""

    __slots__ = ("entries", "handles", "message_ids")

    def __init__(self, data: bytes) -> None:
        super().__init__(data, rpc.AckMessageRequest)
        self.entries: list[bytes] = []
        """As they came."""
        self.handles: list[str] = []
        self.message_ids: list[str] = []

    def receipts(self) -> list[str] | None:
        """The receipts in the handles; None: not all of them have the mark of their message alone."""
        receipts: list[str] = []
        for at, handle in enumerate(self.handles):
            # As `handles.id_sum`, of ids in ASCII.
            mark = " %x" % crc32(self.message_ids[at][-32:].encode())  # noqa: UP031 - faster
            if not handle.endswith(mark):
                return None
            receipts.append(handle[: len(handle) - len(mark)])
        return receipts


def read_ack(data: bytes) -> PlainAck | None:
    """An acknowledgement; None: it is not plain."""
    ack = PlainAck(data)
    try:
        return ack if _read_ack(ack) else None
    except UnicodeDecodeError:
        return None


def _read_ack(ack: PlainAck) -> bool:
    """Raises UnicodeDecodeError for text that is not ASCII."""
    data = ack.data
    tag: i64
    size: i64
    after: i64
    at: i64 = 0
    end: i64 = len(data)
    while at < end:
        tag = data[at]
        size, at = read_size(data, at + 1, end)
        if size < 0:
            return False
        after = at + size
        if tag == 0x1A:
            if not _read_entry(ack, at, after):
                return False
        elif tag == 0x0A and not ack.group:
            ack.group = _name(data, at, after)
            if not ack.group:
                return False
        elif tag == 0x12 and not ack.topic:
            ack.topic = _name(data, at, after)
            if not ack.topic:
                return False
        else:
            return False
        at = after
    return bool(ack.group and ack.topic and ack.entries)


def _read_entry(ack: PlainAck, at: i64, end: i64) -> bool:
    data = ack.data
    size: i64
    after: i64
    begin: i64 = at
    if at >= end or data[at] != 0x0A or len(ack.entries) >= MOST_ENTRIES:
        return False
    size, at = read_size(data, at + 1, end)
    after = at + size
    if size < 1 or after >= end or data[after] != 0x12:
        return False
    message_id = data[at:after].decode("ascii")
    size, at = read_size(data, after + 1, end)
    if size < 1 or at + size != end:
        return False
    ack.entries.append(data[begin:end])
    ack.message_ids.append(message_id)
    ack.handles.append(data[at:end].decode("ascii"))
    return True


def _name(data: bytes, at: i64, end: i64) -> str:
    """The name of a resource that has nothing else; empty for any other."""
    size: i64
    if at >= end or data[at] != 0x12:
        return ""
    size, at = read_size(data, at + 1, end)
    return data[at:end].decode("ascii") if size > 0 and at + size == end else ""


def encode_acked(entries: Sequence[bytes]) -> bytes:
    """The AckMessageResponse to a `PlainAck` with these entries, all of which were finished."""
    parts = [_STATUS]
    for entry in entries:
        parts += (b"\x12", encode_length(len(entry) + len(_ENTRY_STATUS)), entry, _ENTRY_STATUS)
    return b"".join(parts)
