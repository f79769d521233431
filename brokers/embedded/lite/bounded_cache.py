"""A bounded cache of objects that are also in the store: the most recently used ones stay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

_TRIES = 8


class Cacheable(Protocol):
    """An object that can be cached; `busy` while the store does not yet have all of its state."""

    def busy(self, turn: int) -> bool: ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Cacheable)


class BoundedCache(Generic[Key, Value]):
    """Up to `most` objects, and as many more as are busy in the store's turn."""

    def __init__(self, most: int, turn: Callable[[], int]) -> None:
        self._most = most
        self._turn = turn
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def __repr__(self) -> str:
        return f"<BoundedCache {len(self._kept)} of {self._most}>"

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._kept.values())

    def get(self, key: Key) -> Value | None:
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    def peek(self, key: Key) -> Value | None:
        """The same for a look at it, which is no use of it."""
        return self._kept.get(key)

    def items(self) -> Iterator[tuple[Key, Value]]:
        return iter(self._kept.items())

    def add(self, key: Key, value: Value) -> Value:
        """Add an object, and evict the least recently used ones that can be read again.

        Never the new one, even when all others are busy: its caller is about to change it.
        """
        kept = self._kept
        if len(kept) >= self._most and key not in kept:
            turn = self._turn()
            for _ in range(min(_TRIES, len(kept))):
                oldest = next(iter(kept))
                if kept[oldest].busy(turn):
                    kept.move_to_end(oldest)
                    continue
                del kept[oldest]
                if len(kept) < self._most:
                    break
        kept[key] = value
        return value

    def drop(self, key: Key) -> Value | None:
        return self._kept.pop(key, None)

    def drop_if(self, unwanted: Callable[[Key], bool]) -> None:
        for key in [key for key in self._kept if unwanted(key)]:
            del self._kept[key]
