"""Properties of many messages at once: those of one producer are mostly laid out alike.

So a property is looked for in one of them; whether it is at the same place in all others, columns of bytes
say.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

_END: Final = 2
"""The byte that ends a property."""
_MANY: Final = 64
"""Messages whose properties are compared by columns, which costs some µs for all of them."""


def is_even(body: bytes, head: bytes, body_length: int, length_bytes: bytes) -> bool:
    """Whether so many messages that it is worth while are all as long as the first one, with its head."""
    size = int.from_bytes(head[:4], "big")
    count = len(body) // size
    if count < _MANY or count * size != len(body) or body[-size:][: len(head)] != head:
        return False
    at = len(head) + body_length
    for place, byte in (*enumerate(head), *enumerate(length_bytes, at)):
        if body[place::size].count(byte) != count:
            return False
    return True


def column(data: bytes, begin: int, end: int, size: int) -> list[bytes]:
    """What is at `begin` to `end` in the first of messages that have `size` bytes each, in all of them."""
    length = end - begin
    return [data[at : at + length] for at in range(begin, len(data) + begin, size)]


def even_values(
    body: bytes, size: int, blocks: Sequence[bytes], together: bytes, name: bytes
) -> list[bytes] | None:
    """`values_of`, for messages of `size` bytes that are `is_even`."""
    values = _in_place(body, size, blocks, together, name)
    return values if values is not None else values_of(blocks, together, name)


def values_of(blocks: Sequence[bytes], together: bytes, name: bytes) -> list[bytes] | None:
    """`only` of each block; None: it may be None of one of them.

    `together`: all blocks, each with an end behind it.
    """
    alike = _alike(blocks, together, name) if len(blocks) >= _MANY else None
    if alike is not None:
        return alike
    values: list[bytes] = []
    add, width = values.append, len(name)
    for block in blocks:
        at = block.find(name)
        if at < 0:
            add(b"")
            continue
        begin = at + width
        end = block.find(b"\x02", begin)
        if (at and block[at - 1] != 2) or (0 <= end < len(block) - 1 and block.find(name, end) >= 0):
            return None
        add(block[begin:end] if end >= 0 else block[begin:])
    # A value with this in it may have the name in it, too.
    return values if b"\x01" not in b"".join(values) else None


def _in_place(
    body: bytes, size: int, blocks: Sequence[bytes], together: bytes, name: bytes
) -> list[bytes] | None:
    """`only` of each block; None: they differ in where it is, or in its length."""
    first, count = blocks[0], len(blocks)
    at = first.find(name)
    if at < 0:
        return [b""] * count if name not in together else None
    begin = at + len(name)
    end = first.find(b"\x02", begin)
    if end < 0 or together.count(name) != count:
        return None
    block_at = size - len(first)
    bounds = b"\x02" + name if at else name
    for place, byte in (*enumerate(bounds, block_at + begin - len(bounds)), (block_at + end, _END)):
        if body[place::size].count(byte) != count:
            return None
    values = column(body, block_at + begin, block_at + end, size)
    joined = b"".join(values)
    return values if b"\x02" not in joined and b"\x01" not in joined else None


def _alike(blocks: Sequence[bytes], together: bytes, name: bytes) -> list[bytes] | None:
    """`only` of each block; None: they differ in where it is, counted from the end, or in its length.

    Messages of one producer mostly have the same properties, and those at the end are mostly as long.
    """
    count, first = len(blocks), blocks[0]
    at = first.find(name)
    end = first.find(b"\x02", at)
    if at < 0:
        return [b""] * count if name not in together else None
    if end < 0 or together.count(name) != count:
        return None
    if at:
        at -= 1  # the end of the property before it belongs to it
        name = b"\x02" + name
    elif len(set(map(len, blocks))) > 1:
        return None
    behind = end + 1 - len(first)
    entries = list(map(itemgetter(slice(at - len(first), behind or None)), blocks))
    joined, width = b"".join(entries), end + 1 - at
    if len(joined) != width * count:
        return None
    # Byte by byte of the name, and the end, in all of them.
    for place, byte in enumerate(name):
        if joined[place::width].count(byte) != count:
            return None
    if joined[width - 1 :: width].count(2) != count:
        return None
    if joined.count(b"\x02") != (2 if name[0] == _END else 1) * count or joined.count(b"\x01") != count:
        return None
    return list(map(itemgetter(slice(len(name), -1)), entries))


def valid(texts: list[bytes]) -> list[bytes]:
    """The same texts in valid UTF-8."""
    try:
        b" ".join(texts).decode()
    except UnicodeDecodeError:
        return [text.decode("utf-8", "replace").encode() for text in texts]
    return texts


def each_split(keys: list[bytes]) -> list[tuple[bytes, ...]]:
    if all(keys) and b" " not in b"".join(keys):
        return list(zip(keys))
    return [_split(named) if b" " in named else (named,) if named else () for named in keys]


def _split(keys: bytes) -> tuple[bytes, ...]:
    return tuple(filter(None, keys.split(b" ")))


def only(block: bytes, name: bytes) -> bytes | None:
    """The value of a property, empty where there is none; None: the name is there twice, or in another."""
    at = block.find(name)
    if at < 0:
        return b""
    begin = at + len(name)
    if (at and block[at - 1] != 2) or block.find(name, begin) >= 0:
        return None
    end = block.find(b"\x02", begin)
    return block[begin:end] if end >= 0 else block[begin:]
