"""The encoding of values with several fields: all fixed-size fields come first, packed in one step."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from brokers.shared.codec.kinds import (
    BYTES,
    NUMBER,
    TEXT,
    WIDE,
    Fixed,
    Kind,
    Sink,
    Source,
    decode_text,
    read_wide,
    write_wide,
)
from popgate.errors import LocalWireError, PeerWireError


class Layout(Kind[Any]):
    """Fields of any kind. `take` makes the tuple of a value's fields, `make` a value of all its fields.

    On the wire: numbers, truths and reals; the lengths of texts and bytes; those themselves; the rest.
    """

    def __init__(
        self,
        name: str,
        fields: Sequence[tuple[str, Kind[Any]]],
        *,
        take: Callable[[Any], tuple[Any, ...]],
        make: Callable[..., Any],
    ) -> None:
        self.told = f"{name}({','.join(f'{field}:{kind.told}' for field, kind in fields)})"
        kinds = [kind for _, kind in fields]
        fixed = [at for at, kind in enumerate(kinds) if isinstance(kind, Fixed)]
        texts = [at for at, kind in enumerate(kinds) if kind is TEXT]
        blobs = [at for at, kind in enumerate(kinds) if kind is BYTES]
        known = {*fixed, *texts, *blobs}
        rest = [at for at in range(len(kinds)) if at not in known]
        self._fixed = fixed
        self._texts = texts
        self._blobs = blobs
        self._rest = [(at, kinds[at].write) for at in rest]
        self._head = struct.Struct(
            f">{''.join(kind.form for kind in kinds if isinstance(kind, Fixed))}{'I' * len(texts + blobs)}"
        )
        self._read_texts = range(len(fixed), len(fixed) + len(texts))
        self._read_blobs = range(len(fixed) + len(texts), len(fixed) + len(texts) + len(blobs))
        self._read = [kinds[at].read for at in rest]
        self._numbers = [place for place, at in enumerate(fixed) if kinds[at] is NUMBER]
        self._take = take
        self._make = make
        self._in_place = _in_place([*fixed, *texts, *blobs, *rest])

    def write(self, sink: Sink, value: Any) -> None:
        values = self._take(value)
        fixed = [values[at] for at in self._fixed]
        blobs = [values[at].encode("utf-8", "surrogatepass") for at in self._texts]
        if self._blobs:
            blobs += [bytes(values[at]) for at in self._blobs]
        parts = sink.parts
        try:
            head = None if WIDE in fixed else self._head.pack(*fixed, *map(len, blobs))
        except struct.error:
            head = None
        if head is not None:
            parts.append(head)
        else:
            self._write_wide(sink, fixed, blobs)
        parts.extend(blobs)
        for at, write in self._rest:
            write(sink, values[at])

    def read(self, source: Source) -> Any:
        data, head = source.data, self._head
        at = source.at + head.size
        if at > len(data):
            raise PeerWireError(f"{head.size} bytes are needed, {len(data) - source.at} are left")
        values = list(head.unpack_from(data, source.at))
        if WIDE in values:
            source.at = at
            for place in self._numbers:
                if values[place] == WIDE:
                    values[place] = read_wide(source)
            at = source.at
        for place in self._read_texts:
            if length := values[place]:
                end = at + length
                values[place] = decode_text(data[at:end])
                at = end
            else:
                values[place] = ""
        for place in self._read_blobs:
            end = at + values[place]
            values[place] = data[at:end]
            at = end
        if at > len(data):
            raise PeerWireError(f"{at - source.at} bytes are claimed, {len(data) - source.at} are left")
        source.at = at
        values += [read(source) for read in self._read]
        return self._make(*self._in_place(values))

    def _write_wide(self, sink: Sink, fixed: list[Any], blobs: list[bytes]) -> None:
        """The same, with numbers that do not fit behind the head."""
        narrow = list(fixed)
        wide = []
        for place in self._numbers:
            value = fixed[place]
            if isinstance(value, int) and not WIDE < value < -WIDE:
                narrow[place] = WIDE
                wide.append(value)
        try:
            sink.parts.append(self._head.pack(*narrow, *map(len, blobs)))
        except struct.error as error:
            raise LocalWireError(f"{self.told}: {error}") from error
        for value in wide:
            write_wide(sink, value)


def as_tuple(*values: Any) -> tuple[Any, ...]:
    """A `make` for values that are no more than their fields."""
    return values


def _in_place(order: list[int]) -> Callable[[list[Any]], Any]:
    """Puts values that come in `order` into the order of the fields."""
    places = [order.index(at) for at in range(len(order))]
    if len(places) > 1 and places != sorted(places):
        return itemgetter(*places)
    return _as_it_is


def _as_it_is(values: list[Any]) -> list[Any]:
    return values
