"""Reads ordinary sends from the bytes of a `SendMessageRequest`, without protobuf's library.

A message is plain when it has a topic, a body, an id, and nothing else but a tag, keys, properties, and when
and where it was born, all of it in printable ASCII. Compiled, this costs less than a quarter of building the
library's objects and reading their fields; interpreted it costs half as much again, so that
`request_reader` uses it in the compiled form only. It decides on no error: for whatever is not plain, or no
request at all, there is no `PlainSend`, and the library reads the bytes. What it accepts, the library reads
in the same way. Field numbers are those of `definition.proto`, wire types those of protobuf's encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from popgate.pb import service_pb2 as rpc
from protocols.grpc.codec.plain_request import NUMBER_BITS, PlainRequest, read_number, read_size
from protocols.grpc.codec.received_message import HIDDEN

if TYPE_CHECKING:
    from mypy_extensions import i64

PRINTABLE: Final = bytes(range(0x20, 0x7F))
MOST_MESSAGES: Final = 1024
"""Of one request; as a send may have by default. Larger ones are left to the library, and to the limits."""
MOST_TEXTS: Final = 32
MOST_TEXT_BYTES: Final = 1 << 15
"""Properties and keys of a message, and bytes of them: more are left to the library, because the cost of
gathering them here grows with their square. No send may have more bytes of them."""
# Numbers, because whether bytes are in bytes costs an exception within: CPython tries a number first.
_UNDERSCORE: Final = 0x5F
_SPACE: Final = 0x20
_BAR: Final = 0x7C
_LATEST_SECONDS: Final = 253_402_300_800
"""Later than any Timestamp may be."""


class PlainSend(PlainRequest[rpc.SendMessageRequest]):
    """What a send says of its messages: each list has one entry for each of them, in their order.

    Nothing of it was compared with limits: `largest_body` and the like are what the messages have at most.
    """

    __slots__ = (
        "bodies",
        "born_ms",
        "heads",
        "hosts",
        "keys",
        "largest_body",
        "longest_id",
        "longest_text",
        "message_ids",
        "most_properties",
        "smallest_body",
    )

    def __init__(self, data: bytes) -> None:
        super().__init__(data, rpc.SendMessageRequest)
        self.message_ids: list[bytes] = []
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []
        """The block of properties, up to those that say when and where a message was born."""
        self.born_ms: list[int] = []
        """0 where nothing is said; anything from 0 on may be."""
        self.hosts: list[str] = []
        """Where they were born; empty where nothing is said."""
        self.keys: list[tuple[bytes, ...]] = []
        self.largest_body = 0
        self.smallest_body = 0
        self.most_properties = 0
        self.longest_id = 0
        self.longest_text = 0
        """Of names and values of properties, tag and keys together."""


def read_plain(data: bytes) -> PlainSend | None:
    """The messages of a request; None: there are none, or they are not all plain."""
    return _Reader(data).read()


class _Reader:
    """Reads one request. Methods return False for what is not plain."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._send = PlainSend(data)
        self._topic = b""
        """The field of the topic as it stands in the first message."""
        self._group = b""
        """The property made of it, with the end of the one before it."""
        self._tag = self._tags = b""
        """Of the message before: the tag, and its property."""
        self._hosts: list[bytes] = []
        self._entries: i64 = 0
        """Properties in all heads."""
        # Of the message that is being read:
        self._user = b""
        self._properties: i64 = 0
        self._text: i64 = 0

    def read(self) -> PlainSend | None:
        data, send = self._data, self._send
        at: i64 = 0
        end: i64 = len(data)
        size: i64
        while at < end:
            if data[at] != 0x0A:
                return None
            size, at = read_size(data, at + 1, end)
            if size < 0 or not self._message(at, at + size):
                return None
            at += size
        heads = send.heads
        if not 0 < len(heads) <= MOST_MESSAGES:
            return None
        # One look at all texts: beside printable characters they have what separates properties, and no more.
        if b"".join(heads + self._hosts).translate(None, PRINTABLE) != b"\x01\x02" * self._entries:
            return None
        send.smallest_body = min([len(body) for body in send.bodies])
        return send

    def _message(self, at: i64, end: i64) -> bool:
        data, send = self._data, self._send
        if len(send.heads) >= MOST_MESSAGES:
            return False
        tag: i64
        size: i64
        after: i64
        system_at: i64 = 0
        system_end: i64 = 0
        has_topic = has_system = False
        body: bytes | None = None
        self._user = b""
        self._properties = self._text = 0
        while at < end:
            tag = data[at]
            size, at = read_size(data, at + 1, end)
            if size < 0:
                return False
            after = at + size
            if tag == 0x0A and not has_topic:
                has_topic = True
                field = data[at:after]
                # An empty one is none: it must not count as that of a message before.
                if not field or (field != self._topic and not self._is_first_topic(field, at, after)):
                    return False
            elif tag == 0x12:
                if not self._property(at, after):
                    return False
            elif tag == 0x1A and not has_system:
                has_system = True
                system_at, system_end = at, after
            elif tag == 0x22 and body is None:
                body = data[at:after]
                if size > send.largest_body:
                    send.largest_body = size
            else:
                return False
            at = after
        if not has_topic:  # of the message's own properties an id is wanted
            return False
        send.bodies.append(body if body is not None else b"")
        if self._properties > send.most_properties:
            send.most_properties = self._properties
        return self._system(system_at, system_end)

    def _is_first_topic(self, field: bytes, at: i64, end: i64) -> bool:
        """Whether nothing was said of a topic before, and this one is nothing but a name."""
        data = self._data
        size: i64
        if self._topic or at >= end or data[at] != 0x12:
            return False
        size, at = read_size(data, at + 1, end)
        if size < 1 or at + size != end:
            return False
        name = data[at:end]
        self._topic = field
        self._group = b"\x02PGROUP\x01%b\x02" % name
        self._send.topic = name.decode("latin-1")
        return True

    def _property(self, at: i64, end: i64) -> bool:
        """An entry of a map: a name and a value that are not empty, in this order."""
        data = self._data
        size: i64
        after: i64
        if self._properties >= MOST_TEXTS or at >= end or data[at] != 0x0A:
            return False
        size, at = read_size(data, at + 1, end)
        if size < 1 or data[at] == _UNDERSCORE:
            return False
        after = at + size
        name = data[at:after]
        if name in HIDDEN or after >= end or data[after] != 0x12:
            return False
        self._text += size
        size, at = read_size(data, after + 1, end)
        if size < 1 or at + size != end:
            return False
        self._text += size
        value = data[at:end]
        if self._properties == 0:
            self._user = b"%b\x01%b\x02" % (name, value)
        else:
            user = self._user
            if user.startswith(b"%b\x01" % name) or user.find(b"\x02%b\x01" % name) >= 0:
                return False  # of two with one name the last counts
            self._user = b"%b%b\x01%b\x02" % (user, name, value)
        self._properties += 1
        return self._text <= MOST_TEXT_BYTES

    def _system(self, at: i64, end: i64) -> bool:
        """What a message says of itself beside its properties; then all of it is known."""
        data, send = self._data, self._send
        tag: i64
        size: i64
        after: i64
        born_ms: i64 = 0
        keys: tuple[bytes, ...] = ()
        message_id = tags = joined = host = b""
        has_tag = has_id = has_time = has_host = False
        while at < end:
            tag = data[at]
            if tag == 0x28 or tag == 0x30:
                # Encoding and type: nothing said, or IDENTITY and NORMAL.
                if at + 1 >= end or data[at + 1] > 1:
                    return False
                at += 2
                continue
            if tag == 0x68:  # the queue that a client has chosen: a hint that a send does not need
                _, at = read_number(data, at + 1, end, NUMBER_BITS)
                if at < 0:
                    return False
                continue
            size, at = read_size(data, at + 1, end)
            if size < 0:
                return False
            after = at + size
            if tag == 0x1A and not has_id:
                has_id = True
                message_id = data[at:after]
                if size > send.longest_id:
                    send.longest_id = size
            elif tag == 0x3A and not has_time:
                has_time = True
                born_ms = _time(data, at, after)
                if born_ms < 0:
                    return False
            elif tag == 0x0A and not has_tag:
                has_tag = True
                field = data[at:after]
                if field != self._tag:
                    if _SPACE in field or _BAR in field:
                        return False
                    self._tag, self._tags = field, b"TAGS\x01%b\x02" % field
                if size > 0:
                    self._entries += 1
                    self._text += size
                    tags = self._tags
            elif tag == 0x12:
                field = data[at:after]
                if len(keys) >= MOST_TEXTS or size < 1 or (data[at] <= _SPACE and field.isspace()):
                    return False
                self._text += size
                if self._text > MOST_TEXT_BYTES:
                    return False
                if keys:
                    joined = b"%b %b" % (joined, field)
                    keys = (*keys, field)
                else:
                    joined = field
                    keys = (field,)
            elif tag == 0x42 and not has_host:
                has_host = True
                host = data[at:after]
                self._hosts.append(host)
            else:
                return False
            at = after
        if not message_id or _SPACE in message_id:
            return False
        self._entries += self._properties + 2
        if keys:
            self._entries += 1
            head = b"%bUNIQ_KEY\x01%b%b%bKEYS\x01%b\x02" % (
                self._user,
                message_id,
                self._group,
                tags,
                joined,
            )
        else:
            head = b"%bUNIQ_KEY\x01%b%b%b" % (self._user, message_id, self._group, tags)
        if self._text > send.longest_text:
            send.longest_text = self._text
        send.heads.append(head)
        send.message_ids.append(message_id)
        send.keys.append(keys)
        send.born_ms.append(born_ms)
        send.hosts.append(host.decode("latin-1") if host else "")
        return True


def _time(data: bytes, at: i64, end: i64) -> i64:
    """Milliseconds of a Timestamp, a part of one counted as a whole; below 0: it is not plain."""
    seconds: i64 = 0
    nanos: i64 = 0
    tag: i64
    while at < end:
        tag = data[at]
        if tag == 0x08:
            seconds, at = read_number(data, at + 1, end, NUMBER_BITS)
        elif tag == 0x10:
            nanos, at = read_number(data, at + 1, end, NUMBER_BITS)
        else:
            return -1
        if at < 0 or seconds > _LATEST_SECONDS or nanos >= 1_000_000_000:
            return -1
    return seconds * 1000 + (nanos + 999_999) // 1_000_000
