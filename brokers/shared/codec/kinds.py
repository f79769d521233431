"""The encoding of single values between a guest and its host: big-endian, exact, and bounded when read.

A `Kind` writes and reads values of one type. Numbers have 64 bits; larger ones follow after a marker. Text
is UTF-8 that keeps lone surrogates, because names come from outside. `told` describes a kind: host and guest
must agree on the descriptions of all kinds.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from popgate.errors import LocalWireError, PeerWireError

T = TypeVar("T")

LONGEST_LIST = 1_000_000
"""Elements of one list, set or mapping."""
_LONGEST_NUMBER = 64
"""Bytes of a number that needs more than eight."""

WIDE = -(1 << 63)
"""Stands for a number that does not fit; its bytes follow."""
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">q")
_REAL = struct.Struct(">d")


class Sink:
    """What is written, piece by piece. `now` (loop seconds): moments travel as durations from it."""

    __slots__ = ("now", "parts")

    def __init__(self, now: float = 0.0) -> None:
        self.parts: list[bytes] = []
        self.now = now

    def data(self) -> bytes:
        return b"".join(self.parts)


class Source:
    """What is read; whatever it claims to hold must be there. Raises PeerWireError."""

    __slots__ = ("at", "data", "now")

    def __init__(self, data: bytes, now: float = 0.0) -> None:
        self.data = data
        self.at = 0
        self.now = now

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise PeerWireError(f"{count} bytes are claimed, {len(self.data) - self.at} are left")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def length(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def end(self) -> None:
        """Raises PeerWireError when something is left."""
        if self.at != len(self.data):
            raise PeerWireError(f"{len(self.data) - self.at} bytes are left over")


class Kind(ABC, Generic[T]):
    """Writes and reads the values of one type. Reading raises PeerWireError, writing LocalWireError."""

    told: str

    @abstractmethod
    def write(self, sink: Sink, value: T) -> None: ...

    @abstractmethod
    def read(self, source: Source) -> T: ...


class Fixed(Kind[T]):
    """A value that `struct` packs: a number, a truth, a real."""

    def __init__(self, layout: str, form: str) -> None:
        self.told = layout
        self.form = form
        self._struct = struct.Struct(f">{form}")

    def write(self, sink: Sink, value: T) -> None:
        sink.parts.append(self._struct.pack(value))

    def read(self, source: Source) -> T:
        value: T = self._struct.unpack(source.take(self._struct.size))[0]
        return value


class _Number(Fixed[int]):
    def write(self, sink: Sink, value: int) -> None:
        if -(1 << 63) < value < 1 << 63:
            sink.parts.append(_NUMBER.pack(value))
        else:
            sink.parts.append(_NUMBER.pack(WIDE))
            write_wide(sink, value)

    def read(self, source: Source) -> int:
        (value,) = _NUMBER.unpack(source.take(8))
        return value if value != WIDE else read_wide(source)


class Blob(Kind[T]):
    """A value that is bytes, with its length in front."""

    def __init__(self, layout: str, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self.told = layout
        self.encode = encode
        self.decode = decode

    def write(self, sink: Sink, value: T) -> None:
        blob = self.encode(value)
        sink.parts.append(_LENGTH.pack(len(blob)))
        sink.parts.append(blob)

    def read(self, source: Source) -> T:
        return self.decode(source.take(source.length()))


class Chosen(Kind[T]):
    """One of a fixed list of values, by its place in the list. Members of enumerations travel so."""

    def __init__(self, layout: str, values: Sequence[T]) -> None:
        self.told = layout
        self._values = tuple(values)
        self._bytes = {value: bytes((place,)) for place, value in enumerate(values)}

    def write(self, sink: Sink, value: T) -> None:
        encoded = self._bytes.get(value)
        if encoded is None:
            raise LocalWireError(f"{value!r} is none of {self.told}")
        sink.parts.append(encoded)

    def read(self, source: Source) -> T:
        place = source.take(1)[0]
        if place >= len(self._values):
            raise PeerWireError(f"{place} is no place in {self.told}")
        return self._values[place]


class Listed(Kind[Any]):
    """A list, or a tuple: any number of values of one kind."""

    def __init__(self, element: Kind[Any], make: Callable[[list[Any]], Any] = list) -> None:
        self.told = f"[{element.told}]"
        self._element = element
        self._make = make

    def write(self, sink: Sink, value: Sequence[Any]) -> None:
        if len(value) > LONGEST_LIST:
            raise LocalWireError(f"a list has {len(value)} elements, {LONGEST_LIST} can be told")
        sink.parts.append(_LENGTH.pack(len(value)))
        write = self._element.write
        for element in value:
            write(sink, element)

    def read(self, source: Source) -> Any:
        count = read_count(source)
        read = self._element.read
        values = [read(source) for _ in range(count)]
        return values if self._make is list else self._make(values)


class Mapped(Kind[Mapping[Any, Any]]):
    """A mapping; its order is kept."""

    def __init__(self, key: Kind[Any], value: Kind[Any]) -> None:
        self.told = f"{{{key.told}:{value.told}}}"
        self._key = key
        self._value = value

    def write(self, sink: Sink, value: Mapping[Any, Any]) -> None:
        if len(value) > LONGEST_LIST:
            raise LocalWireError(f"a mapping has {len(value)} entries, {LONGEST_LIST} can be told")
        sink.parts.append(_LENGTH.pack(len(value)))
        for key, item in value.items():
            self._key.write(sink, key)
            self._value.write(sink, item)

    def read(self, source: Source) -> dict[Any, Any]:
        return {self._key.read(source): self._value.read(source) for _ in range(read_count(source))}


class OneOf(Kind[Any]):
    """A value of one of several types, told by their place. `None` is a type like others."""

    def __init__(self, choices: Sequence[tuple[type, Kind[Any]]]) -> None:
        self.told = "|".join(kind.told for _, kind in choices)
        self._choices = tuple(choices)
        self._places = {choice: place for place, (choice, _) in enumerate(choices)}

    def write(self, sink: Sink, value: Any) -> None:
        place = self._places.get(type(value))
        if place is None:
            place = next(
                (at for at, (choice, _) in enumerate(self._choices) if isinstance(value, choice)), None
            )
            if place is None:
                raise LocalWireError(f"{type(value).__name__} is none of {self.told}")
        sink.parts.append(bytes((place,)))
        self._choices[place][1].write(sink, value)

    def read(self, source: Source) -> Any:
        place = source.take(1)[0]
        if place >= len(self._choices):
            raise PeerWireError(f"{place} is no place in {self.told}")
        return self._choices[place][1].read(source)


class _Nothing(Kind[None]):
    told = "nothing"

    def write(self, sink: Sink, value: None) -> None:
        if value is not None:
            raise LocalWireError(f"nothing is to be told, and not {type(value).__name__}")

    def read(self, source: Source) -> None:
        return None


class _Moment(Kind[float | None]):
    """A time in loop seconds, or none: told as the time that is left until then."""

    told = "moment"

    def write(self, sink: Sink, value: float | None) -> None:
        sink.parts.append(b"\0" if value is None else b"\1" + _REAL.pack(value - sink.now))

    def read(self, source: Source) -> float | None:
        if source.take(1) == b"\0":
            return None
        (left,) = _REAL.unpack(source.take(8))
        if not -1e12 < left < 1e12:
            raise PeerWireError("a duration is no number of seconds that anybody waits")
        return source.now + float(left)


def encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Raises PeerWireError."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise PeerWireError("a text is no UTF-8") from error


def read_count(source: Source) -> int:
    """The length of a list: no more than what is left could hold. Raises PeerWireError."""
    count = source.length()
    if count > min(LONGEST_LIST, len(source.data) - source.at):
        raise PeerWireError(f"a list claims {count} elements")
    return count


def write_wide(sink: Sink, value: int) -> None:
    """A number of any size, its length in one byte. Raises LocalWireError."""
    if not isinstance(value, int):
        raise LocalWireError(f"{type(value).__name__} is no number")
    length = value.bit_length() // 8 + 1
    if length > _LONGEST_NUMBER:
        raise LocalWireError(f"a number of {length} bytes cannot be told")
    sink.parts.append(bytes((length,)) + value.to_bytes(length, "big", signed=True))


def read_wide(source: Source) -> int:
    length = source.take(1)[0]
    if length > _LONGEST_NUMBER:
        raise PeerWireError(f"a number claims {length} bytes")
    return int.from_bytes(source.take(length), "big", signed=True)


NUMBER: Kind[int] = _Number("int", "q")
TRUTH: Kind[bool] = Fixed("bool", "?")
REAL: Kind[float] = Fixed("float", "d")
TEXT: Kind[str] = Blob("text", encode_text, decode_text)
BYTES: Kind[bytes] = Blob("bytes", bytes, bytes)
NOTHING: Kind[None] = _Nothing()
MOMENT: Kind[float | None] = _Moment()


def members(kind: type[Enum]) -> Kind[Any]:
    """The members of an enumeration, by their place in it."""
    names = ",".join(member.name for member in kind)
    return Chosen(f"{kind.__name__}({names})", list(kind))
