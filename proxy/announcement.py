"""What a gateway says on standard output, for people and for programs that start it."""

from __future__ import annotations

import contextlib
import sys


def say(*lines: str) -> None:
    """Plain lines. Nobody may be there to read them; that is no reason not to serve."""
    with contextlib.suppress(OSError):
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
