"""References of fastjson: `{"$ref":"$.brokerDatas[0]"}` stands for the value written at that path.

The referenced value is shared, not copied. A few bytes of references can expand to any size for code that
traverses the value, so the expanded size and depth are bounded here, and cycles are refused.
Source: protocol facts 5.8.
"""

from __future__ import annotations

import re
from typing import Any, Final

from popgate.errors import PeerWireError, shown

MOST_DEPTH: Final = 64
"""The maximum depth of bodies, including expanded references."""
MOST_UNFOLDED: Final = 1_000_000
"""Values, with those that references stand for counted each time."""
_LONGEST_CHAIN = 16
_match_step = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9})\]|\[(['\"])(.*?)\3\]").match


def resolve_references(value: Any) -> Any:
    """The value with all references replaced, in place.

    Raises PeerWireError for dangling and cyclic references, and for values that expand beyond the limits.
    """
    return _Resolver(value).resolve(value, 0)[0]


def _path_of(value: Any) -> str | None:
    if value.__class__ is dict and len(value) == 1:
        path = value.get("$ref")
        if isinstance(path, str):
            return path
    return None


class _Resolver:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, tuple[int, int]] = {}
        """Expanded size and height of resolved values, by identity: all of them live as long as the root."""
        self._open: set[int] = set()

    def resolve(self, value: Any, depth: int) -> tuple[Any, int, int]:
        """The replacement of the value, its expanded size, and its expanded height."""
        value = self._follow(value)
        if value.__class__ is not dict and value.__class__ is not list:
            return value, 1, 0
        mark = id(value)
        if mark in self._open:
            raise PeerWireError("a reference of a JSON body stands for what it is part of")
        size, height = self._known.get(mark, (0, 0))
        if not size:
            if depth >= MOST_DEPTH:
                raise _too_deep()
            self._open.add(mark)
            size, height = self._unfold(value, depth)
            self._open.discard(mark)
            self._known[mark] = size, height
        if depth + height > MOST_DEPTH:
            raise _too_deep()
        return value, size, height

    def _unfold(self, holder: Any, depth: int) -> tuple[int, int]:
        size = height = 1
        for key, part in list(holder.items() if holder.__class__ is dict else enumerate(holder)):
            if part.__class__ is dict or part.__class__ is list:
                holder[key], inner, inner_height = self.resolve(part, depth + 1)
                size += inner
                height = max(height, inner_height + 1)
            else:
                size += 1
        if size > MOST_UNFOLDED:
            raise PeerWireError(f"the references of a JSON body unfold to more than {MOST_UNFOLDED} parts")
        return size, height

    def _follow(self, value: Any) -> Any:
        """The value itself, or the referenced one."""
        for _ in range(_LONGEST_CHAIN):
            path = _path_of(value)
            if path is None:
                return value
            value = self._target(path)
        raise PeerWireError("references of a JSON body stand for each other")

    def _target(self, path: str) -> Any:
        value, at = self._root, 1
        try:
            if not path.startswith("$"):
                raise KeyError(path)
            while at < len(path):
                step = _match_step(path, at)
                if step is None:
                    raise KeyError(path)
                at = step.end()
                name, index, _, quoted = step.groups()
                if index is None:
                    value = value[name if name is not None else quoted]
                else:
                    value = value[int(index) if value.__class__ is list else index]
        except (KeyError, IndexError, TypeError) as error:
            raise PeerWireError(f"a JSON body refers to {shown(path)}, where nothing is") from error
        return value


def _too_deep() -> PeerWireError:
    return PeerWireError(f"a JSON body is nested more than {MOST_DEPTH} deep")
