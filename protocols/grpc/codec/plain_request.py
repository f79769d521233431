"""What the readers of plain requests share: the request they make, and the numbers of protobuf's encoding.

A plain request is one of the usual shape, read without protobuf's library or only once by it. For any other
there is none, and the library reads the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from google.protobuf.message import Message

if TYPE_CHECKING:
    from mypy_extensions import i64

_SIZE_BITS: Final = 28
NUMBER_BITS: Final = 42
"""What is written in more bytes is left to the library, which takes only some of it."""


Parsed = TypeVar("Parsed", bound=Message)


class PlainRequest(Generic[Parsed]):
    """The bytes of a request, and the topic and the group that it names, which have no namespace field.

    `kind`: its class in protobuf's library.
    """

    __slots__ = ("_kind", "data", "group", "topic")

    def __init__(self, data: bytes, kind: type[Parsed]) -> None:
        self.data = data
        self._kind = kind
        self.topic = ""
        self.group = ""
        """Empty where the request names none."""

    def parse(self) -> Parsed:
        """The same as the library reads it."""
        return self._kind.FromString(self.data)

    def ByteSize(self) -> int:  # noqa: N802 - as protobuf calls it
        return len(self.data)


def read_number(data: bytes, at: i64, end: i64, bits: i64) -> tuple[i64, i64]:
    """A number of at most so many bits, seven in a byte, and where it ends.

    An end below 0: there is none before `end`. Compiled, a number of more than 63 bits is below 0.
    """
    byte: i64
    value: i64 = 0
    shift: i64 = 0
    while at < end and shift < bits:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def read_size(data: bytes, at: i64, end: i64) -> tuple[i64, i64]:
    """The length of a field whose length stands at `at`, and where it begins.

    A length below 0: the field would not end before `end`.
    """
    size: i64
    size, at = read_number(data, at, end, _SIZE_BITS)
    if at < 0 or size > end - at:
        return -1, 0
    return size, at
