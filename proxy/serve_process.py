"""The serving process: `popgate serve`, without the code that only reads the configuration."""

from __future__ import annotations

import ctypes
import io
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from proxy.config.handover import VARIABLE, taken_from
from proxy.garbage_collection import load_quickly

if TYPE_CHECKING:
    from proxy.config.settings import Settings

_LOADED_ANEW = "_POPGATE_STAYING"
"""`proxy.supervision.replacement`, which most do not load."""
_M_ARENA_MAX = -8
_ARENAS = 2
"""For glibc, where the operator says nothing: threads that hardly ever allocate need no heaps of their own
(10 MB less with a million messages stored)."""


def main() -> None:
    """Serve until a signal; a failure ends the process as the command line would."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _serve()
    except KeyboardInterrupt:
        sys.exit(130)


def _serve() -> None:
    few_heaps()
    load_quickly()
    settings = _settings()
    from proxy.config.error import SettingsWrong
    from proxy.running import CannotStart
    from proxy.start import run_as_set

    try:
        run_as_set(settings)
    except (SettingsWrong, CannotStart) as error:
        # Only now is the command line needed again.
        from proxy.cli import asked_for_json
        from proxy.cli.console.failure import Ended, Failure, tell

        ended = Ended.USAGE if isinstance(error, SettingsWrong) else Ended.NOT_STARTED
        tell(Failure(ended, str(error)), as_json=asked_for_json(sys.argv))
        sys.exit(int(ended))


def _settings() -> Settings:
    """The settings from before the program was re-executed; otherwise those that another process reads."""
    if _LOADED_ANEW in os.environ:
        from proxy.supervision.replacement import settings_left

        left = settings_left()
        if left is not None:
            return left
    pipe, theirs = os.pipe()
    # The same command line: it is understood there, and what is wrong with it is told there.
    reader = subprocess.Popen(  # noqa: S603 - ourselves, without a shell
        [sys.executable, *sys.orig_argv[1:]],
        env={**os.environ, VARIABLE: str(theirs)},
        pass_fds=(theirs,),
    )
    os.close(theirs)
    try:
        # Heavy, and meanwhile the other process reads.
        import proxy.running  # noqa: F401

        settings = taken_from(pipe)
    finally:
        code = reader.wait()
    if settings is None:
        sys.exit(code if code >= 0 else 128 - code)
    return settings


def few_heaps() -> None:
    """Bound the heaps of the C library, where it has such a bound and the operator set none."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
