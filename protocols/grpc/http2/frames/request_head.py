"""Reads a request's headers and rejects invalid ones. Source: RFC 9113 section 8, gRPC over HTTP/2.

gRPC's own part: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Requests".
"""

from __future__ import annotations

from typing import Final

from protocols.grpc.http2.hpack.decoder import Field

_PSEUDO: Final = (":method", ":path", ":scheme", ":authority")
_FORBIDDEN: Final = frozenset(
    ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")
)
"""Of a connection, which HTTP/2 has no headers for (section 8.2.2)."""
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_SHAPES: Final = 256
_MOST_NAMES: Final = 64


class MalformedHead(Exception):
    """Headers that no request can have; the sentence says which."""


class _Shape:
    """What the header names of a request determine, which is the same in nearly all requests of a client.

    `at`: the index of each name, the last of several.
    """

    __slots__ = ("at", "authority", "length", "method", "path", "scheme", "te", "timeout", "type")

    def __init__(self, fields: tuple[Field, ...]) -> None:
        """Raises MalformedHead."""
        at: dict[str, int] = {}
        regular = False
        for place, field in enumerate(fields):
            name = field.name
            if name[0:1] == ":":
                if regular:
                    raise MalformedHead(f"{name} comes behind a regular header")
                if name not in _PSEUDO or name in at:
                    raise MalformedHead("a pseudo-header comes twice, or is unknown")
            elif field.bad:
                raise MalformedHead("a header's name is empty, or has a character that names do not have")
            elif name in _FORBIDDEN:
                raise MalformedHead(f"the header {name} is not one of HTTP/2")
            else:
                regular = True
            at[name] = place
        if not (":path" in at and ":method" in at and ":scheme" in at):
            raise MalformedHead("the method, the scheme or the path is missing")
        self.at = at
        self.method, self.path, self.scheme = at[":method"], at[":path"], at[":scheme"]
        self.authority = at.get(":authority")
        self.te = at.get("te")
        self.length = at.get("content-length")
        self.timeout = at.get("grpc-timeout")
        self.type = at.get("content-type")


_shapes: dict[tuple[str, ...], _Shape] = {}


def _shape_of(fields: tuple[Field, ...]) -> _Shape:
    """Raises MalformedHead."""
    names = tuple([field.name for field in fields])
    shape = _shapes.get(names)
    if shape is None:
        shape = _Shape(fields)
        if len(names) <= _MOST_NAMES and max(map(len, names)) <= _MOST_NAMES:
            if len(_shapes) >= _MOST_SHAPES:
                _shapes.clear()
            _shapes[names] = shape
    return shape


class Head:
    """The headers of one request. Many requests of a connection may share one."""

    __slots__ = ("_shape", "fields", "length", "method", "path", "plain", "timeout")

    def __init__(self, fields: tuple[Field, ...]) -> None:
        """Raises MalformedHead."""
        for field in fields:
            if field.foul:
                raise MalformedHead(f"the value of {field.name} has a character that none may have")
        self.fields = fields
        shape = self._shape = _shape_of(fields)
        self.method, self.path = fields[shape.method].text, fields[shape.path].text
        if not (self.path and self.method and fields[shape.scheme].text):
            raise MalformedHead("the method, the scheme or the path is empty")
        if shape.te is not None and fields[shape.te].text != "trailers":
            raise MalformedHead("the header te says something else than trailers")
        self.timeout = "" if shape.timeout is None else fields[shape.timeout].text
        self.length = "" if shape.length is None else fields[shape.length].text
        self.plain = True
        """It is no gRPC."""
        if shape.type is not None:
            text = fields[shape.type].text
            self.plain = text != "application/grpc" and not text.startswith(
                ("application/grpc+", "application/grpc;")
            )

    @property
    def authority(self) -> str:
        """The client's name for the server; empty if not given."""
        place = self._shape.authority
        return "" if place is None else self.fields[place].text

    def text(self, name: str) -> str:
        """The last header of this name; empty when there is none."""
        place = self._shape.at.get(name)
        return "" if place is None else self.fields[place].text


def check_trailers(fields: tuple[Field, ...]) -> None:
    """Raises MalformedHead for what may not come behind a request (section 8.1)."""
    for field in fields:
        if field.name[0:1] == ":" or field.bad or field.foul:
            raise MalformedHead(f"{field.name!r} is no trailer")


def timeout_s(text: str) -> float | None:
    """Seconds of a `grpc-timeout` (at most 8 digits and a unit); None when it is none."""
    unit = _UNITS_S.get(text[-1:])
    digits = text[:-1]
    if unit is None or not digits.isdecimal() or not digits.isascii() or len(digits) > 8:
        return None
    return int(digits) * unit
