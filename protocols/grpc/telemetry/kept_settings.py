"""A limit for the settings that are kept while the Telemetry streams of their clients are open."""

from __future__ import annotations

from typing import Final

from popgate.errors import TooManyRequests

_MOST: Final = 64 * 1024 * 1024
SMALL: Final = 64 * 1024
"""Bytes of settings that are not counted: those of nearly all clients have less than a kilobyte."""


class KeptSettings:
    """Bytes of large settings of all streams.

    The budgets do not count them, since they would be used up for good.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._used = 0

    def __repr__(self) -> str:
        return f"<KeptSettings {self._used} of {self._most}>"

    def replace(self, counted: int, size: int) -> int:
        """Keep `size` bytes in the place of settings that count `counted`; how many bytes count now.

        Raises TooManyRequests.
        """
        counts = size if size > SMALL else 0
        used = self._used + counts - counted
        if counts > counted and used > self._most:
            raise TooManyRequests(
                f"the gateway keeps {self._used} bytes of large settings, the limit is {self._most}:"
                f" settings of up to {SMALL} bytes are always kept",
                10.0,
            )
        self._used = used
        return counts
