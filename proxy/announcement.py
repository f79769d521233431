"""What a gateway says on standard output, for people and for programs that start it."""

from __future__ import annotations

import contextlib
import sys


def say(*lines: str) -> None:
    """Print plain lines. A closed standard output must not stop the gateway."""
    if sys.stdout is not None:  # None: it was closed when the program was started
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write("".join(f"{line}\n" for line in lines))
    write_out()


def write_out() -> None:
    """Write what was said and not written yet, as far as there is somebody who takes it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
