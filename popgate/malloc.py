"""The C library's allocator, for processes that make and drop large buffers all the time."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""As `mallopt` of glibc numbers them (malloc.h)."""
_PARTS: Final = 4


def keep_freed_memory(most: int) -> bool:
    """Have up to `most` bytes that are freed at the end of the heap stay with the process, to be used again.

    As shipped glibc gives memory back to the system as soon as more than twice the size of a large buffer is
    free there, and takes it anew page by page: of the copies of replies to pulls, of some 300 KB, that was
    most of the CPU. Buffers of up to a quarter of `most` are kept so, larger ones go back as before. False:
    another C library (musl, macOS, Windows), which is left as it is.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Either one alone leaves the other where it is: nothing adapts by itself any more.
    return bool(mallopt(_M_MMAP_THRESHOLD, most // _PARTS) and mallopt(_M_TRIM_THRESHOLD, most))
