"""Derives from the members of a group how its classic push consumers read: true pull, or mapped onto pop.

Pure functions: `processors.members.mapped_groups` asks the broker and keeps the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from brokers.capabilities import GroupMember
from popgate.errors import shown
from popgate.lite import LITE_BIND_TOPIC
from popgate.model import GroupConfig, Reading

_MOST_NAMES: Final = 16_384
_LONGEST: Final = 255


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a group is mapped, and a sentence for operators that says why."""

    mapped: bool
    why: str


class NamedGroups:
    """Groups that settings name: each name may have `*` for any characters, none too."""

    def __init__(self, mapped: Sequence[str], pulled: Sequence[str]) -> None:
        self._mapped = _pattern(mapped)
        self._pulled = _pattern(pulled)
        self._known: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<NamedGroups known {len(self._known)}>"

    def __bool__(self) -> bool:
        """Whether any group may be mapped."""
        return self._mapped is not None

    def may_map(self, group: str) -> bool:
        return not self.why_not(group)

    def why_not(self, group: str) -> str:
        """Why the settings leave the group on true pull; empty: they do not."""
        why = self._known.get(group)
        if why is None:
            if self._mapped is None or self._mapped.fullmatch(group) is None:
                why = "the setting remoting.mapped_groups does not name it"
            elif self._pulled is not None and self._pulled.fullmatch(group) is not None:
                why = "the setting remoting.pulled_groups names it"
            else:
                why = ""
            if len(self._known) >= _MOST_NAMES:
                self._known.clear()
            self._known[group] = why
        return why


def _pattern(names: Sequence[str]) -> re.Pattern[str] | None:
    if not names:
        return None
    each = (".*".join(re.escape(part) for part in re.split(r"\*+", name)) for name in names)
    return re.compile("|".join(each), re.DOTALL)


def unfit(config: GroupConfig) -> str:
    """Why a group of these settings is not for mapping; empty: it is."""
    if config.ordered:
        return "it is an ordered group"
    if config.broadcast:
        return "it is a broadcast group"
    if config.attributes.get(LITE_BIND_TOPIC):
        return "it takes lite topics"
    return ""


def hindrance(members: Iterable[GroupMember]) -> str:
    """The member that keeps the group on true pull, and why; empty: none."""
    pulling = ""
    for member in members:
        if not member.gateway:
            return (
                f"client {shown(member.client_id, _LONGEST)} is connected to the brokers themselves,"
                " or through a gateway that does not map the group"
            )
        if member.reading is Reading.TRUE_PULL and not pulling:
            pulling = member.client_id
    if pulling:
        return (
            f"client {shown(pulling, _LONGEST)} needs true pull: it locks queues, broadcasts, pulls by itself"
            " or sets positions, or its gateway does not map the group"
        )
    return ""


def choose(members: Sequence[GroupMember]) -> Choice:
    """The choice for a group that the settings name, by all its known members; some may be listed twice."""
    if why := hindrance(members):
        return Choice(False, why)
    readings = {member.reading for member in members}
    if Reading.CONCURRENT in readings:
        count = len({member.client_id for member in members})
        return Choice(True, f"all of its clients ({count}) come through gateways, and none needs true pull")
    if Reading.UNKNOWN in readings:
        return Choice(False, "no classic consumer of it has pulled yet, and orderly ones lock before they do")
    return Choice(False, "no classic push consumer of it is connected")
