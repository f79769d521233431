"""Disk space reserved for consumers: they can finish stored messages when the disk is nearly full.

A write without disk space fails, and the store fails until there is space again. So sends are refused
before that, while receives and acknowledgements, which need little space, continue; retention may remove
the messages that they finish. There is no background check: a send checks, at most once a second.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from popgate.errors import BrokerUnavailable

_log = logging.getLogger(__name__)
LOOK_MS = 1_000
_SHARE = 20
"""At most this part of a small file system is kept."""
_ENOUGH = 1.25
"""Sends go on when there is so many times as much as is kept, so that they do not flicker."""


class DiskGuard:
    """Whether there is room to send.

    `free` and `size` are bytes of the file system, free and in all; both may raise OSError.
    """

    __slots__ = ("_free", "_keep", "_size", "_where", "left", "look_at_ms", "short")

    def __init__(
        self, where: object, free: Callable[[], int], size: Callable[[], int], *, keep_bytes: int
    ) -> None:
        self.short = False
        self.left = 0
        """Bytes that were free when last looked."""
        self._where = where
        self._free = free
        self._size = size
        self._keep = keep_bytes
        self.look_at_ms = 0

    def __repr__(self) -> str:
        return f"<DiskGuard {self.left} bytes left{', short' if self.short else ''}>"

    def check(self, now_ms: int) -> None:
        """Raises BrokerUnavailable while too little is left for more messages."""
        if not -LOOK_MS <= now_ms - self.look_at_ms < 0:
            self.look(now_ms)
        if self.short:
            raise BrokerUnavailable(
                f"the disk of {self._where} is nearly full, {self.left} bytes are left: the last"
                f" {self._kept()} are for consumers, so no more messages are taken until there is room again"
                " (make some, or lower embedded.min_free_disk_bytes)"
            )

    def look(self, now_ms: int) -> None:
        """Ask the file system; if it fails, no request is refused."""
        self.look_at_ms = now_ms + LOOK_MS
        if not self._keep:
            return
        with contextlib.suppress(OSError):
            self.left = self._free()
            kept = self._kept()
            was, self.short = self.short, self.left < kept * (_ENOUGH if self.short else 1.0)
            if self.short and not was:
                sentence = (
                    "the disk of %s is nearly full: %d bytes are left; sends are refused, consumers go on"
                )
                _log.error(sentence, self._where, self.left)
            elif was and not self.short:
                _log.warning("the disk of %s has room again: %d bytes are left", self._where, self.left)

    def spare(self) -> int:
        """Bytes that are free now beside those that are kept, maybe less than 0. Raises OSError.

        For every thread.
        """
        return self._free() - self._kept()

    def _kept(self) -> int:
        return min(self._keep, self._size() // _SHARE)
