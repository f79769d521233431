"""The settings of a consumer group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique

from popgate.groups.retry_policy import DEFAULT_RETRY, CustomizedRetry, ExponentialRetry

PRIORITY_FACTOR = "priority.factor"
"""Attribute of a group: the percentage of pops that go by priority; 100 by default."""
BROADCAST_GROUP = "popgate.broadcast.group"
"""The attribute of a group that belongs to one client of a broadcast group: that group's name."""


@unique
class StartFrom(Enum):
    """Where a consumer group begins on a queue it has never read."""

    FIRST = "first"
    LAST = "last"


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """A consumer group's settings. `max_attempts` counts deliveries, the first included.

    `broadcast`: every client gets every message, by a cursor of its own.
    """

    name: str
    ordered: bool = False
    max_attempts: int = 17
    retry: CustomizedRetry | ExponentialRetry = DEFAULT_RETRY
    consume_timeout_ms: int = 900_000
    start_from: StartFrom = StartFrom.FIRST
    consume_enabled: bool = True
    attributes: Mapping[str, str] = field(default_factory=dict)
    broadcast: bool = False
