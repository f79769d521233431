"""What a gateway says on standard output, for people and for programs that start it."""

from __future__ import annotations

import contextlib
import sys


def say(*lines: str) -> None:
    """Print plain lines. A closed standard output must not stop the gateway."""
    with contextlib.suppress(OSError):
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
