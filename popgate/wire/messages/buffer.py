"""A buffer of received bytes that are not parsed yet."""

from __future__ import annotations


class Buffer:
    """A queue of bytes. Removing from its front costs the removed bytes, not the remaining ones.

    (CPython moves the start of a bytearray when its front is deleted.)
    """

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def peek(self, count: int) -> bytes:
        """The first `count` bytes, or fewer when there are fewer; they stay."""
        return bytes(self._data[:count])

    def take(self, count: int) -> bytes:
        """The first `count` bytes, or fewer when there are fewer; they are gone from the buffer."""
        with memoryview(self._data) as view:
            taken = bytes(view[:count])
        del self._data[:count]
        return taken

    def clear(self) -> None:
        self._data.clear()
