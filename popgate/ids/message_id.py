"""The two ids of a message: the one that its sender assigns, and the one made of its place in a broker.

Source: protocol facts 3.7.
"""

from __future__ import annotations

import os
import secrets
import time
from itertools import count

from popgate.wire.messages.hosts import host_text, pack_host

_EPOCH_2021 = 1_609_459_200
_U32 = (1 << 32) - 1


def _make_prefix() -> str:
    # A random node number with the multicast bit set can be no real interface's: RFC 9562, 6.10.
    # It is as unique as a hardware address, and does not tell one.
    node = secrets.randbits(48) | 1 << 40
    return f"01{node:012X}{os.getpid() & 0xFFFF:04X}"


_prefix = _make_prefix()
_sequence = count(secrets.randbits(16))


def _renew_prefix() -> None:
    global _prefix
    _prefix = _make_prefix()


os.register_at_fork(after_in_child=_renew_prefix)


def make_message_id() -> str:
    """A new id as gRPC clients make them: 34 characters, unique over processes and restarts."""
    return f"{_prefix}{int(time.time()) - _EPOCH_2021 & _U32:08X}{next(_sequence) & _U32:08X}"


def encode_offset_message_id(host: str, commit_offset: int) -> str:
    """The id of a place: the store host ("ip:port") and the commit log offset, in upper-case hex."""
    return (pack_host(host) + commit_offset.to_bytes(8, "big", signed=True)).hex().upper()


def decode_offset_message_id(text: str) -> tuple[str, int]:
    """The store host and the commit log offset. Raises ValueError for anything that is no such id."""
    if len(text) not in (32, 56):
        raise ValueError("an offset message id has 32 or 56 hex digits")
    packed = bytes.fromhex(text)
    if len(packed) * 2 != len(text):
        raise ValueError("an offset message id is hex digits only")
    return host_text(packed[:-8]), int.from_bytes(packed[-8:], "big", signed=True)
