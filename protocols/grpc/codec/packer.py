"""Fast path for ordinary sends: from a request straight to the batch that a broker stores.

A message of type NORMAL with nothing but a tag, keys, and properties in plain ASCII needs no other check: it
is checked here by the rules of `processors.produce.message_checks`, all of its texts at once, and encoded in
the same form. For anything else (another field, an exceeded limit, a fault) the packer
returns None for the whole request, which then takes the general path; only that path decides on errors.
Sources: protocol facts 1.10, 2.2, 3.5 and 5.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from popgate.context import Context
from popgate.errors import GatewayError
from popgate.messages.packed_messages import PackedMessages, SentTogether
from popgate.model import Sent
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.wire.messages.properties import LONGEST_IN_BATCH
from processors.limits import Limits
from protocols.grpc.codec.convert import tell_sent
from protocols.grpc.codec.errors import OK, joint_status, status_of
from protocols.grpc.codec.plain_send import PRINTABLE, PlainSend
from protocols.grpc.codec.received_message import HIDDEN, LATEST_MS, NOT_LAST, varint

_MOST_PROPERTIES: Final = 32
_PAIRS: Final = [b"\x01\x02" * count for count in range(_MOST_PROPERTIES + 7)]
"""What a block has besides printable characters, by how many properties it has: this, or it is none."""
_SYSTEM: Final = frozenset(name.decode() for name in HIDDEN)
_PLAIN: Final = frozenset((0, 1))
"""Type and encoding: nothing said, or NORMAL and IDENTITY, for which that is taken."""
_MOST_BYTES: Final = 1 << 30
_STATUS_FIELD: Final = b"\x0a%b%b" % (varint(OK.ByteSize()), OK.SerializeToString())
"""The status of an answer, and that of each of its entries: both have the number 1."""
_Entry = tuple[bytes, bytes, bytes, tuple[int, str], tuple[bytes, ...]]
"""Of a message: its id, its body, its properties, when and where it was born, its keys."""


class Packer:
    """Packs requests within the limits of a gateway."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._read()

    def _read(self) -> None:
        """Copies, each of which is looked at for every message."""
        limits = self._limits
        self._generation = limits.generation
        self._refuses_empty = limits.refuse_empty_bodies
        self._max_body = limits.max_body_bytes if limits.max_body_bytes > 0 else _MOST_BYTES
        self._max_properties = min(limits.max_properties, _MOST_PROPERTIES)
        self._max_text = limits.max_properties_bytes
        self._max_id = limits.max_message_id_bytes
        self._max_messages = limits.max_messages_per_send

    def __repr__(self) -> str:
        return f"<Packer of at most {self._max_messages} messages>"

    def pack(
        self, request: rpc.SendMessageRequest | PlainSend, peer: str, now_ms: int
    ) -> PackedMessages | None:
        """The messages of a request; None when they are not all plain, or not right.

        Who does not say where or when a message was born is `peer`, and was so at `now_ms`.
        """
        if self._limits.generation != self._generation:
            self._read()
        if isinstance(request, PlainSend):
            return self._pack_plain(request, peer, now_ms)
        messages = request.messages
        if not 0 < len(messages) <= self._max_messages:
            return None
        topic = messages[0].topic
        name = topic.name
        if not name or topic.resource_namespace:
            return None
        entries = []
        for message in messages:
            if message.topic != topic:
                return None
            entry = self._entry(message, name, peer, now_ms)
            if entry is None:
                return None
            entries.append(entry)
        ids, bodies, blocks, origins, keys = zip(*entries, strict=True)
        return PackedMessages(name, ids, bodies, blocks, [0] * len(entries), 0, name, origins, keys)

    def _pack_plain(self, send: PlainSend, peer: str, now_ms: int) -> PackedMessages | None:
        """The same for messages that are all plain: limits are looked at once for all of them."""
        count = len(send.message_ids)
        if (
            count > self._max_messages
            or send.largest_body > self._max_body
            or (not send.smallest_body and self._refuses_empty)
            or send.most_properties > self._max_properties
            or send.longest_text > self._max_text
            or send.longest_id > self._max_id
            or not (peer.isascii() and peer.isprintable())
        ):
            return None
        blocks: list[bytes] = []
        origins: list[tuple[int, str]] = []
        origin = (-1, "")
        tail = b""
        heads, times, hosts = send.heads, send.born_ms, send.hosts
        for at in range(count):
            ms = times[at] if 0 < times[at] <= LATEST_MS else now_ms
            host = hosts[at] or peer
            if ms != origin[0] or host != origin[1]:  # most of a batch were born together
                origin = (ms, host)
                tail = f"__BORNHOST\x01{host}\x02BORN_TIMESTAMP\x01{ms}\x02".encode()
            block = heads[at] + tail
            if len(block) > LONGEST_IN_BATCH:
                return None
            blocks.append(block)
            origins.append(origin)
        name = send.topic
        return PackedMessages(
            name, send.message_ids, send.bodies, blocks, [0] * count, 0, name, origins, send.keys
        )

    def _entry(self, message: pb.Message, topic: str, peer: str, now_ms: int) -> _Entry | None:
        """What is stored of a message; None: it is not plain."""
        # Each look into a protobuf message costs: every field is read once.
        body, system = message.body, message.system_properties
        has = system.HasField
        if (
            len(body) > self._max_body
            or (not body and self._refuses_empty)
            or system.message_type not in _PLAIN
            or system.body_encoding not in _PLAIN
            or system.message_group
            or system.trace_context
            or system.priority
            or has("delivery_timestamp")
            or has("lite_topic")
            or has("body_digest")
        ):
            return None
        message_id, tag = system.message_id, system.tag
        user = message.user_properties
        count = len(user)
        first = tags = named = ""
        if count:
            if count > self._max_properties:
                return None
            for key in user:
                value = user[key]
                if not (key and value) or key[0] == "_" or key in _SYSTEM:
                    return None
                first += f"{key}\x01{value}\x02"
        text = len(first) - 2 * count + len(tag)
        count += 4
        if tag:
            if " " in tag or "|" in tag:
                return None
            count += 1
            tags = f"TAGS\x01{tag}\x02"
        keys = _keys(system)
        if keys is None:
            return None
        if keys:
            joined = keys[0] if len(keys) == 1 else " ".join(keys)
            text += len(joined) - len(keys) + 1
            count += 1
            named = f"KEYS\x01{joined}\x02"
        born = system.born_timestamp
        born_ms = born.seconds * 1000 - (-born.nanos // 1_000_000)
        if not 0 < born_ms <= LATEST_MS:
            born_ms = now_ms
        host = system.born_host or peer
        block = (
            f"{first}UNIQ_KEY\x01{message_id}\x02PGROUP\x01{topic}\x02{tags}{named}"
            f"__BORNHOST\x01{host}\x02BORN_TIMESTAMP\x01{born_ms}\x02"
        ).encode()
        if (
            not 0 < len(message_id) <= self._max_id
            or " " in message_id
            or text > self._max_text
            or len(block) > LONGEST_IN_BATCH
            or block.translate(None, PRINTABLE) != _PAIRS[count]
        ):
            return None
        return message_id.encode(), body, block, (born_ms, host), tuple([key.encode() for key in keys])


def _keys(system: pb.SystemProperties) -> tuple[str, ...] | None:
    """The keys of a message; None when one of them is blank."""
    keys = system.keys
    if not keys:
        return ()
    if len(keys) > 1:
        names = tuple(keys)
        return None if any(not key or key.isspace() for key in names) else names
    key = keys[0]
    return None if not key or key.isspace() else (key,)


class EncodedAnswer:
    """An answer that is bytes already, in the place of a protobuf message, and says OK."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def status(self) -> pb.Status:
        return OK

    def SerializeToString(self) -> bytes:  # noqa: N802 - as protobuf calls it
        return self._data


def sends_out(
    results: Sequence[Sent | GatewayError], context: Context
) -> rpc.SendMessageResponse | EncodedAnswer:
    """The answer to a send, from the result of each of its messages."""
    if isinstance(results, SentTogether):
        return EncodedAnswer(encode_sent_together(results))
    stored = [result for result in results if not isinstance(result, GatewayError)]
    if len(stored) == len(results):
        return EncodedAnswer(encode_sent(stored))
    answer = rpc.SendMessageResponse()
    add = answer.entries.add
    for result in results:
        if isinstance(result, GatewayError):
            add().status.CopyFrom(status_of(result, context))
        else:
            tell_sent(add(), result)
    answer.status.CopyFrom(joint_status(e.status for e in answer.entries))
    return answer


def encode_sent(results: Sequence[Sent]) -> bytes:
    """The SendMessageResponse of messages that were all stored."""
    parts = [_STATUS_FIELD]
    entries = _Entries()
    for result in results:
        message_id, offset = result.message_id.encode(), result.offset
        if result.transaction_id or result.recall_handle:
            parts.append(_unusual_entry(message_id, offset, result.transaction_id, result.recall_handle))
        else:
            parts.append(entries.entry(message_id, offset))
    return b"".join(parts)


def encode_sent_together(results: SentTogether) -> bytes:
    """The same as `encode_sent` makes of them, without an object for each."""
    parts = [_STATUS_FIELD]
    entries = _Entries()
    offset = results.first
    for message_id in results.message_ids:
        parts.append(entries.entry(message_id, offset))
        offset += 1
    return b"".join(parts)


class _Entries:
    """Encodes entries that have nothing but a status, an id and an offset.

    Of one batch nearly all are alike but for the id itself and the last bits of the offset.
    """

    __slots__ = ("_begin", "_high", "_high_bits", "_size")

    def __init__(self) -> None:
        self._begin = self._high = b""
        self._size = self._high_bits = -1

    def entry(self, message_id: bytes, offset: int) -> bytes:
        if offset < 128:
            return _unusual_entry(message_id, offset)
        if offset >> 7 != self._high_bits or len(message_id) != self._size:
            self._size, self._high_bits = len(message_id), offset >> 7
            self._high = varint(self._high_bits)
            begin = b"%b\x12%b" % (_STATUS_FIELD, varint(self._size))
            self._begin = b"\x12%b%b" % (varint(len(begin) + self._size + 2 + len(self._high)), begin)
        return b"%b%b\x20%b%b" % (self._begin, message_id, NOT_LAST[offset & 0x7F], self._high)


def _unusual_entry(
    message_id: bytes, offset: int, transaction_id: str = "", recall_handle: str = ""
) -> bytes:
    entry = b"%b\x12%b%b" % (_STATUS_FIELD, varint(len(message_id)), message_id)
    if transaction_id:
        entry += _text(b"\x1a", transaction_id)
    if offset:
        entry = b"%b\x20%b" % (entry, varint(offset))
    if recall_handle:
        entry += _text(b"\x2a", recall_handle)
    return b"\x12%b%b" % (varint(len(entry)), entry)


def _text(tag: bytes, text: str) -> bytes:
    encoded = text.encode()
    return tag + varint(len(encoded)) + encoded
