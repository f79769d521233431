"""Checks permissions. The default allows everything."""

from __future__ import annotations

from popgate.context import Context
from popgate.kinds import Action, Resource


class Everything:
    """Everybody may do everything."""

    __slots__ = ()

    def allows(self, context: Context, action: Action, resource: Resource, now: float) -> bool:
        return True
