"""Kinds derived from type hints, so that types of the domain and the port need no code of their own.

A new field of the domain is encoded automatically, and changes the fingerprint on which two processes
must agree (`brokers.shared.session.hello`).
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, IntFlag
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from brokers.shared.codec.errors import ERROR
from brokers.shared.codec.kinds import (
    BYTES,
    MOMENT,
    NOTHING,
    NUMBER,
    REAL,
    TEXT,
    TRUTH,
    Kind,
    Listed,
    Mapped,
    OneOf,
    Sink,
    Source,
    members,
)
from brokers.shared.codec.layouts import Layout, as_tuple
from popgate.errors import GatewayError
from popgate.filters.compiled import compile_filter
from popgate.model import Filter, FilterKind

_MOMENTS = frozenset({"wait_until", "deadline"})
"""Fields and arguments in loop seconds."""
_PLAIN: dict[Any, Kind[Any]] = {
    int: NUMBER,
    bool: TRUTH,
    float: REAL,
    str: TEXT,
    bytes: BYTES,
    None: NOTHING,
    type(None): NOTHING,
    GatewayError: ERROR,
}


class _Flags(Kind[Any]):
    def __init__(self, flags: type[IntFlag]) -> None:
        self.told = f"{flags.__name__}({','.join(f'{flag.name}={flag.value}' for flag in flags)})"
        self._flags = flags

    def write(self, sink: Sink, value: int) -> None:
        NUMBER.write(sink, int(value))

    def read(self, source: Source) -> Any:
        return self._flags(NUMBER.read(source))


class _Filter(Kind[Filter]):
    """A filter travels as its expression. Reading raises IllegalFilter, too."""

    told = "filter"

    def __init__(self) -> None:
        self._kind = members(FilterKind)

    def write(self, sink: Sink, value: Filter) -> None:
        self._kind.write(sink, value.kind)
        TEXT.write(sink, value.expression)

    def read(self, source: Source) -> Filter:
        kind = self._kind.read(source)
        return compile_filter(kind, TEXT.read(source))


_FILTER = _Filter()


def kind_of(hint: Any, name: str = "") -> Kind[Any]:
    """The kind of a type hint; `name` is that of the field or argument. Raises TypeError for others."""
    if name in _MOMENTS:
        return MOMENT
    return _kind_of(hint)


@cache
def _kind_of(hint: Any) -> Kind[Any]:
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is Filter:
        return _FILTER
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return OneOf([(_class_of(argument), _kind_of(argument)) for argument in arguments])
    if origin in (list, Sequence):
        return Listed(_kind_of(arguments[0]))
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return Listed(_kind_of(arguments[0]), tuple)
        named = [(str(at), _kind_of(argument)) for at, argument in enumerate(arguments)]
        return Layout("", named, take=tuple, make=as_tuple)
    if origin in (dict, Mapping):
        return Mapped(_kind_of(arguments[0]), _kind_of(arguments[1]))
    if isinstance(hint, type):
        if issubclass(hint, IntFlag):
            return _Flags(hint)
        if issubclass(hint, Enum):
            return members(hint)
        if is_dataclass(hint):
            return _of_dataclass(hint)
    raise TypeError(f"{hint!r} has no way to travel")


def _of_dataclass(kind: type) -> Kind[Any]:
    hints = hints_of(kind)
    names = [field.name for field in fields(kind)]
    if not names:
        raise TypeError(f"{kind.__name__} has no fields")
    get = attrgetter(*names)
    take = get if len(names) > 1 else lambda value: (get(value),)
    return Layout(kind.__name__, [(name, kind_of(hints[name], name)) for name in names], take=take, make=kind)


def hints_of(kind: type) -> dict[str, Any]:
    """The type hints of a dataclass; a compiled one keeps `tuple` of `tuple[str, ...]`, its source has all.

    Raises OSError: there is no source beside a compiled module.
    """
    return get_type_hints(kind) if _is_source(kind.__module__) else hints_in_source(kind)


def hints_in_source(kind: type) -> dict[str, Any]:
    """The type hints of a dataclass and its bases, as their modules' sources have them."""
    hints: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        if is_dataclass(owner):
            written = _annotations_in(owner.__module__)[owner.__name__]
            # A class that only has the texts, for `get_type_hints` to look names up in that module.
            texts = type(owner.__name__, (), {"__module__": owner.__module__, "__annotations__": written})
            hints |= get_type_hints(texts)
    return hints


def _is_source(module: str) -> bool:
    return str(sys.modules[module].__file__).endswith((".py", ".pyc"))


@cache
def _annotations_in(module: str) -> dict[str, dict[str, str]]:
    """The annotations of the classes of a module, as texts."""
    source = Path(str(sys.modules[module].__file__)).with_name(f"{module.rpartition('.')[2]}.py")
    return {
        owner.name: {
            field.target.id: ast.unparse(field.annotation)
            for field in owner.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for owner in ast.parse(source.read_text("utf-8")).body
        if isinstance(owner, ast.ClassDef)
    }


def _class_of(hint: Any) -> type:
    """What `isinstance` asks for a member of a union."""
    origin = get_origin(hint) or hint
    if origin is None:
        return type(None)
    if not isinstance(origin, type):
        raise TypeError(f"{hint!r} cannot be told from others")
    return origin
