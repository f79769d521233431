"""Settings as plain values, passed from the process that reads them to the one that serves.

The command line and the library that validates settings take 14 MB, which a gateway would keep for its
lifetime. So a child process reads the configuration while the serving process loads everything else, and
passes it through a pipe (`proxy.serve_process`).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pydantic import BaseModel

    from proxy.config.settings import Settings

VARIABLE = "_POPGATE_SETTINGS"
"""Names the open end of the pipe in the environment of the process that reads the configuration."""
TRIAL = "_POPGATE_TRIAL"
"""In the environment of a process that is to look only: the file for the settings that it read."""


class Settled(SimpleNamespace):
    """Settings that were checked, as plain values under the same names."""

    _told: dict[str, Any]

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """As the settings show themselves."""
        return self._told

    def leaves(self, above: str = "") -> Iterator[tuple[str, Any]]:
        """Each setting by its name, with the value that counts, secrets too."""
        for name, value in vars(self).items():
            if isinstance(value, Settled):
                yield from value.leaves(f"{above}{name}.")
            elif name != "_told":
                yield f"{above}{name}", value

    def take(self, other: Settled, name: str) -> None:
        """Have the value that a setting has among others from now on. Raises AttributeError, KeyError."""
        *groups, last = name.split(".")
        here, there, shown, new = self, other, self._told, other._told
        for group in groups:
            here, there = getattr(here, group), getattr(there, group)
            shown, new = shown[group], new[group]
        setattr(here, last, getattr(there, last))
        shown[last] = new[last]


def settle(settings: BaseModel) -> Settled:
    """The same values without their library."""
    values = {
        name: settle(value) if hasattr(value, "model_dump") else value
        for name, value in ((name, getattr(settings, name)) for name in type(settings).model_fields)
    }
    return Settled(**values, _told=settings.model_dump(mode="json"))


def settled(settings: Settings) -> Settings:
    """The same values without their library, where they still have it."""
    return settings if isinstance(settings, Settled) else cast("Settings", settle(settings))


def is_asked_for() -> bool:
    """Whether this process is there to read the configuration for another one."""
    return VARIABLE in os.environ


def hand_over(settings: Settings) -> None:
    """Pass the settings to the waiting process. If it is gone, they are dropped."""
    with suppress(BrokenPipeError), os.fdopen(int(os.environ.pop(VARIABLE)), "wb") as pipe:
        pickle.dump(settle(settings), pipe)


def taken_from(pipe: int) -> Settings | None:
    """The received settings, when the other end is closed; None if there were none."""
    with os.fdopen(pipe, "rb") as handed:
        given = handed.read()
    return cast("Settings", pickle.loads(given)) if given else None  # noqa: S301 - from our own child
