"""How the consumers of a group read, its progress on a topic, and the messages that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique


@dataclass(slots=True, frozen=True)
class GroupStatus:
    """The progress of a group on a topic, for operators and metrics; retries of the topic count with it.

    `lag` is the number of unfinished messages: `unread`, never delivered; `free`, available for delivery;
    `in_flight`, delivered and invisible; `behind`, blocked by earlier messages of their message group.
    `refused`: those of `free` that passed no consumer's filter. `receivers`: pops that wait now. `full`: too
    many messages are unfinished, so no new ones are delivered. `redelivered` and `dead_lettered` count since
    the broker started.
    """

    group: str
    topic: str
    lag: int
    unread: int
    free: int
    in_flight: int
    behind: int
    refused: int
    receivers: int
    full: bool
    redelivered: int
    dead_lettered: int


@dataclass(slots=True, frozen=True)
class Held:
    """A message that was delivered and is invisible: its holder, since when, and what it blocks.

    `receipt` is valid for it now. `holder`: the client id of the receive that popped it; a very long one
    is replaced by its hash, `#…`. `until_ms`: the end of its invisible time. `renewals`: how often its time
    was changed since, by the client or by the gateway (63 means 63 or more). `waiting_behind`:
    messages that cannot be delivered before this one is finished, as far as the broker has looked.
    `lite_topic`: its lite topic, for a group that takes these; then the other messages wait there.
    """

    topic: str
    broker: str
    queue_id: int
    offset: int
    message_id: str
    message_group: str
    tag: str
    keys: tuple[str, ...]
    receipt: str
    holder: str
    since_ms: int
    until_ms: int
    attempt: int
    renewals: int
    waiting_behind: int
    lite_topic: str = ""


@unique
class Reading(StrEnum):
    """How a consumer reads, as far as it is known; who is mapped onto pop goes by that.

    UNKNOWN: a classic push consumer that has not shown it yet. CONCURRENT: it pulled a queue in clustering
    mode that it had not locked. TRUE_PULL: it locks queues, broadcasts, pulls by itself, or sets positions.
    NEUTRAL: it pops, and does not mind how others read.
    """

    UNKNOWN = "unknown"
    CONCURRENT = "concurrent"
    TRUE_PULL = "true pull"
    NEUTRAL = "neutral"


@dataclass(slots=True, frozen=True)
class Bounds:
    """A queue's offsets: the first kept and the one the next message will get."""

    minimum: int
    maximum: int


@dataclass(slots=True, frozen=True)
class Progress:
    """How far a group is on one queue.

    `committed`: everything below is done. `frontier`: the first offset never delivered.
    `in_flight`: delivered and held; `waiting`: delivered before, free again or resting.
    `retry`: a queue of the group's own retry topic, which its pops of the topic read too.
    """

    broker: str
    queue_id: int
    committed: int
    frontier: int
    in_flight: int
    waiting: int
    bounds: Bounds
    retry: bool = False

    @property
    def lag(self) -> int:
        """Messages not done yet: never delivered, held, or resting."""
        return max(self.bounds.maximum - self.frontier, 0) + self.in_flight + self.waiting
