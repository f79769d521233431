"""Identifies the caller. The default admits everybody as anonymous."""

from __future__ import annotations

from popgate.context import ANONYMOUS, Context, Principal
from popgate.kinds import Credentials


class Anyone:
    """Everybody is the anonymous principal, whatever they offer."""

    __slots__ = ()

    def authenticate(self, context: Context, credentials: Credentials, now: float) -> Principal:
        return ANONYMOUS
