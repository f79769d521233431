"""Distinguishes the two meanings of SIGHUP: a closed terminal, or a request to reload."""

from __future__ import annotations

import errno
import os


class Terminal:
    """The terminal that the gateway was started in, if it was."""

    def __init__(self) -> None:
        self._there = [descriptor for descriptor in (0, 1, 2) if _is_terminal(descriptor, closed=True)]

    def is_gone(self) -> bool:
        """Whether there was one, and it is closed now."""
        return bool(self._there) and not any(_is_terminal(descriptor) for descriptor in self._there)


def _is_terminal(descriptor: int, *, closed: bool = False) -> bool:
    """`closed`: also one that was closed already, as a terminal alone fails with EIO then."""
    try:
        os.tcgetpgrp(descriptor)
    except OSError as error:
        return closed and error.errno == errno.EIO
    return True
