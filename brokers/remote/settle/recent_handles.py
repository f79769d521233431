"""Receipt handles that this process knows to be spent, so that no message is revived through them.

A broker does not check its state: a change of the invisible time with the handle of a finished message
makes the message visible again (any-replica, section 1). This module only makes that rarer; another
replica does not know these handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_YOUNG: Final = 16_384


class RecentHandles:
    """A bounded memory of handles in two generations: the older is forgotten when the younger is full."""

    __slots__ = ("_most", "_old", "_young")

    def __init__(self, most: int = _YOUNG) -> None:
        self._most = most
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __repr__(self) -> str:
        return f"<RecentHandles {len(self)}>"

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, handle: str) -> bool:
        key = hash(handle)
        return key in self._young or key in self._old

    def add(self, handle: str) -> None:
        if len(self._young) >= self._most:
            self._young, self._old = set(), self._young
        self._young.add(hash(handle))

    def add_all(self, handles: Sequence[str]) -> bool:
        """Returns whether one of them was remembered already, or is there twice."""
        keys = [*map(hash, handles)]
        known = not self._old.isdisjoint(keys)
        if len(self._young) >= self._most:
            known = known or not self._young.isdisjoint(keys)
            self._young, self._old = set(), self._young
        before = len(self._young)
        self._young.update(keys)
        return known or len(self._young) - before < len(keys)

    def any_of(self, handles: Iterable[str]) -> bool:
        """Whether one of these is remembered."""
        if not self._young and not self._old:
            return False
        keys = [*map(hash, handles)]
        return not (self._young.isdisjoint(keys) and self._old.isdisjoint(keys))

    def discard(self, handle: str) -> None:
        key = hash(handle)
        self._young.discard(key)
        self._old.discard(key)
