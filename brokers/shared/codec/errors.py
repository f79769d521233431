"""The encoding of a `GatewayError`: its class, its sentence, its fault and its data."""

from __future__ import annotations

from typing import Any

from brokers.shared.codec.kinds import (
    NOTHING,
    NUMBER,
    REAL,
    TEXT,
    TRUTH,
    Kind,
    OneOf,
    Sink,
    Source,
    members,
)
from popgate import errors
from popgate.errors import Fault, GatewayError, PeerWireError

_MOST_DATA = 32
_CLASSES: tuple[type[GatewayError], ...] = tuple(
    cls for _, cls in sorted(vars(errors).items()) if isinstance(cls, type) and issubclass(cls, GatewayError)
)
_PLACES = {cls: place for place, cls in enumerate(_CLASSES)}
_FAULT = members(Fault)
_DATUM = OneOf(
    [(bool, TRUTH), (int, NUMBER), (float, REAL), (str, TEXT), (type(None), NOTHING)],
)
_TOLD_APART = frozenset({"sentence", "fault", "retryable"})


class _Error(Kind[GatewayError]):
    """Of a class that the other side does not know the nearest that it does is told."""

    told = f"error({','.join(cls.__name__ for cls in _CLASSES)};{_FAULT.told})"

    def write(self, sink: Sink, value: GatewayError) -> None:
        known = next(cls for cls in type(value).__mro__ if cls in _PLACES)
        carried = vars(value)
        data = {
            name: datum
            for name, datum in carried.items()
            if name not in _TOLD_APART and isinstance(datum, bool | int | float | str | None)
        }
        own = ("fault" in carried) | ("retryable" in carried) << 1
        sink.parts.append(bytes((_PLACES[known], own, bool(value.retryable), min(len(data), _MOST_DATA))))
        _FAULT.write(sink, value.fault)
        TEXT.write(sink, value.sentence)
        for name in list(data)[:_MOST_DATA]:
            TEXT.write(sink, name)
            _DATUM.write(sink, data[name])

    def read(self, source: Source) -> GatewayError:
        place, own, retryable, count = source.take(4)
        if place >= len(_CLASSES) or own > 3 or count > _MOST_DATA:
            raise PeerWireError("an error is of no class that there is")
        fault = _FAULT.read(source)
        sentence = TEXT.read(source)
        error = GatewayError.__new__(_CLASSES[place], sentence)
        carried: dict[str, Any] = vars(error)
        carried["sentence"] = sentence
        if own & 1:
            carried["fault"] = fault
        if own & 2:
            carried["retryable"] = bool(retryable)
        for _ in range(count):
            name = TEXT.read(source)
            if not name.isidentifier() or name.startswith("_"):
                raise PeerWireError("the data of an error has no name")
            carried[name] = _DATUM.read(source)
        return error


ERROR: Kind[GatewayError] = _Error()
