"""Serving begins in a process without what was only needed to read its configuration.

The command line, and the library that checks settings, are 14 MB that a gateway would carry along for
good. So once the settings are known `serve` replaces the program by itself (same process id, same
command line) and hands the settings over as plain values in an unnamed file.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pydantic import BaseModel

    from proxy.settings import Settings

VARIABLE = "_POPGATE_SETTINGS"
"""Names the open file in the environment of the program that serves."""

_ARENAS = "2"
"""For glibc, where the operator says nothing: threads that hardly ever allocate need no heaps of their own
(10 MB less with a million messages stored)."""

possible = False
"""Whether this process is the launcher's own: not somebody's who calls the command line."""


class Settled(SimpleNamespace):
    """Settings that were checked, as plain values under the same names."""

    _told: dict[str, Any]

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """As the settings show themselves."""
        return self._told


def settle(settings: BaseModel) -> Settled:
    """The same values without their library."""
    values = {
        name: settle(value) if hasattr(value, "model_dump") else value
        for name, value in ((name, getattr(settings, name)) for name in type(settings).model_fields)
    }
    return Settled(**values, _told=settings.model_dump(mode="json"))


def relaunch(settings: Settings) -> None:
    """Become the program that serves with these settings; returns where that cannot be done."""
    with tempfile.TemporaryFile() as handed:
        pickle.dump(settle(settings), handed)
        handed.flush()
        handed.seek(0)
        os.set_inheritable(handed.fileno(), True)
        environment = {"MALLOC_ARENA_MAX": _ARENAS, **os.environ, VARIABLE: str(handed.fileno())}
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - ourselves, without a shell
        except OSError:
            return


def handed_over() -> Settings | None:
    """What `relaunch` left for this process, once; None when this is no such process."""
    number = os.environ.pop(VARIABLE, None)
    if number is None:
        return None
    with os.fdopen(int(number), "rb") as handed:
        return cast("Settings", pickle.load(handed))  # noqa: S301 - our own file, which has no name
