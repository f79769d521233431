"""Messages that are forwarded to a broker as they came: checked, with encoded properties, without objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from popgate.errors import LocalWireError
from popgate.model import Message, Sent
from popgate.wire.messages.batches import encode_batch, size_in_batch
from popgate.wire.messages.properties import BORN_HOST, BORN_TIMESTAMP, LONGEST_BLOCK, find_property

_BORN_HOST, _BORN_TIMESTAMP = BORN_HOST.encode(), BORN_TIMESTAMP.encode()


@dataclass(slots=True, init=False)
class PackedMessages:
    """Messages of type NORMAL of one topic, which are stored at once and in one queue.

    Each sequence has one entry for each message, in their order: its id in UTF-8, which its properties have,
    too; its body; and the block of all properties that are stored.
    """

    topic: str
    message_ids: Sequence[bytes]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    flags: Sequence[int]
    sys_flag: int
    producer_group: str
    origins: Sequence[tuple[int, str]]
    """Birth time in ms and host ("ip:port") of each; empty: only the properties have them."""
    keys: Sequence[Sequence[bytes]]
    """The keys of each, in UTF-8; empty like `origins`."""
    broker: str
    """Empty: the one that has the queue."""
    queue_id: int
    """Below 0: any."""
    may_come_again: bool
    """As `Message.may_come_again`, of all of them."""
    body_bytes: int = field(init=False)
    """The bytes of the bodies alone."""
    size: int = field(init=False)
    """The bytes of `data`."""

    # Written out, because mypyc does not compile what a dataclass makes by itself; nor is it frozen, which
    # would take several times as long, for every single message. Nobody changes one.
    def __init__(
        self,
        topic: str,
        message_ids: Sequence[bytes],
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        flags: Sequence[int],
        sys_flag: int = 0,
        producer_group: str = "",
        origins: Sequence[tuple[int, str]] = (),
        keys: Sequence[Sequence[bytes]] = (),
        broker: str = "",
        queue_id: int = -1,
        may_come_again: bool = False,
    ) -> None:
        self.topic = topic
        self.message_ids = message_ids
        self.bodies = bodies
        self.properties = properties
        self.flags = flags
        self.sys_flag = sys_flag
        self.producer_group = producer_group
        self.origins = origins
        self.keys = keys
        self.broker = broker
        self.queue_id = queue_id
        self.may_come_again = may_come_again
        # At once, because everybody asks for both.
        self.body_bytes = _bytes_in(bodies)
        self.size = size_in_batch(len(bodies)) + self.body_bytes + _bytes_in(properties)

    @classmethod
    def pack(cls, topic: str, messages: Sequence[Message]) -> PackedMessages:
        """Pack messages that differ only in their own fields. Raises LocalWireError."""
        first = messages[0]
        blocks = [message.properties for message in messages]
        longest = max([len(block) for block in blocks])
        if longest > LONGEST_BLOCK:
            raise LocalWireError(f"the properties have {longest} bytes, a batch holds {LONGEST_BLOCK}")
        return cls(
            topic,
            [message.message_id.encode("utf-8", "surrogatepass") for message in messages],
            [message.body for message in messages],
            blocks,
            [signed(message.flag) for message in messages],
            first.sys_flag,
            first.producer_group,
        )

    @property
    def data(self) -> bytes:
        """The body of a batch (protocol facts 5.7)."""
        return encode_batch(zip(self.flags, self.bodies, self.properties, strict=True))

    @property
    def first_born_ms(self) -> int:
        """When the first of them was born; 0: it does not say."""
        return _number(find_property(self.properties[0], _BORN_TIMESTAMP))

    def unpack(self) -> list[Message]:
        """The messages one by one, as a door that has their properties already would give them."""
        origins = self.origins or [_origin(block) for block in self.properties]
        keys = self.keys or [()] * len(self.bodies)
        return [
            Message(
                self.topic,
                body,
                message_id=message_id.decode("utf-8", "surrogatepass"),
                keys=tuple([key.decode() for key in named]),
                born_ms=born_ms,
                born_host=born_host,
                flag=flag,
                properties=block,
                sys_flag=self.sys_flag,
                producer_group=self.producer_group,
                broker=self.broker,
                queue_id=self.queue_id,
                may_come_again=self.may_come_again,
            )
            for message_id, body, block, flag, (born_ms, born_host), named in zip(
                self.message_ids, self.bodies, self.properties, self.flags, origins, keys, strict=True
            )
        ]


class SentTogether(Sequence[Sent]):
    """The results of messages that were stored one behind the other in a queue, made when they are asked for.

    `message_ids`: in UTF-8. `first`: the offset of the first of them. `places`: their commit offsets; empty:
    not known.
    """

    __slots__ = ("broker", "first", "message_ids", "places", "queue_id")

    def __init__(
        self, message_ids: Sequence[bytes], broker: str, queue_id: int, first: int, places: Sequence[int] = ()
    ) -> None:
        self.message_ids = message_ids
        self.broker = broker
        self.queue_id = queue_id
        self.first = first
        self.places = places

    def __repr__(self) -> str:
        return f"<SentTogether {len(self.message_ids)} in queue {self.queue_id} from {self.first}>"

    def __len__(self) -> int:
        return len(self.message_ids)

    @overload
    def __getitem__(self, index: int) -> Sent: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sent]: ...

    def __getitem__(self, index: int | slice) -> Sent | list[Sent]:
        if isinstance(index, slice):
            return [self._sent(at) for at in range(*index.indices(len(self)))]
        return self._sent(range(len(self))[index])

    def part(self, begin: int, end: int) -> SentTogether:
        """The results from `begin` up to `end`, both of which are places in it."""
        ids, places = self.message_ids[begin:end], self.places[begin:end]
        return SentTogether(ids, self.broker, self.queue_id, self.first + begin, places)

    def __iter__(self) -> Iterator[Sent]:
        return map(self._sent, range(len(self)))

    def _sent(self, at: int) -> Sent:
        place = self.places[at] if self.places else -1
        name = self.message_ids[at].decode("utf-8", "surrogatepass")
        return Sent(name, self.broker, self.queue_id, self.first + at, "", "", place)


def _bytes_in(pieces: Sequence[bytes]) -> int:
    size = 0
    for piece in pieces:  # compiled, this takes less than `sum(map(len, pieces))`
        size += len(piece)
    return size


def _origin(block: bytes) -> tuple[int, str]:
    host = find_property(block, _BORN_HOST) or b""
    return _number(find_property(block, _BORN_TIMESTAMP)), host.decode("utf-8", "replace")


def _number(text: bytes | None) -> int:
    return int(text) if text and len(text) < 19 and text.isdigit() else 0


def signed(number: int) -> int:
    """As a signed 32-bit number, as in the protocol."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number & 0x80000000 else number
