"""Stored records of one queue, forwarded as bytes and decoded only when a message is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from popgate.model import StoredMessage


class StoredRecords(Sequence[StoredMessage]):
    """Messages of one queue as the records of `popgate.wire.messages.records`, one behind the other.

    `data`: the records; version 1 or 2, their hosts IPv4. `starts`: where each begins. `body_bytes`: the
    bytes of all bodies. `broker`: whose log they lie in. `decode` makes a message of the record that begins
    at a position of `data`.
    """

    __slots__ = ("_decode", "body_bytes", "broker", "data", "starts")

    def __init__(
        self,
        data: bytes,
        starts: Sequence[int],
        body_bytes: int,
        broker: str,
        decode: Callable[[bytes, int], StoredMessage],
    ) -> None:
        self.data = data
        self.starts = starts
        self.body_bytes = body_bytes
        self.broker = broker
        self._decode = decode

    def __repr__(self) -> str:
        return f"<StoredRecords {len(self.starts)}>"

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> StoredMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[StoredMessage]: ...

    def __getitem__(self, index: int | slice) -> StoredMessage | list[StoredMessage]:
        if isinstance(index, slice):
            return [self._decode(self.data, start) for start in self.starts[index]]
        return self._decode(self.data, self.starts[index])

    def __iter__(self) -> Iterator[StoredMessage]:
        return (self._decode(self.data, start) for start in self.starts)


def body_bytes(messages: Sequence[StoredMessage]) -> int:
    """The bytes of all bodies."""
    if isinstance(messages, StoredRecords):
        return messages.body_bytes
    return sum([len(message.body) for message in messages])


def held_bytes(messages: Sequence[StoredMessage]) -> int:
    """The bytes that are held of them: records as they are, else bodies and properties."""
    if isinstance(messages, StoredRecords):
        return len(messages.data)
    return sum([len(message.body) + len(message.properties) for message in messages])
