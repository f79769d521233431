"""The progress of a group on a topic, and the messages that it holds, for operators and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Standing:
    """How a group stands with a topic, for operators and metrics; retries of the topic count with it.

    `lag` is all that is not done: `unread`, never looked at; `free`, can be delivered again, or first;
    `in_flight`, delivered and invisible; `behind`, kept back by earlier messages of its message group.
    `refused`: those of `free` that passed the filter of nobody who looked. `receivers`: pops that wait now.
    `full`: so much is unfinished that nothing new is given out. `redelivered` and `dead_lettered` count
    since the broker started.
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
    """A message that was delivered and is invisible: who has it, since when, and what waits behind it.

    `receipt` is good for it now. `holder`: the client id of the receive that took it; a very long one
    stands by its hash, `#…`. `until_ms`: when it comes back by itself. `renewals`: how often its time
    was changed since, by the client or by the gateway (63 and more are told as 63). `waiting_behind`:
    messages that cannot be delivered before this one is finished, as far as the broker has looked.
    `lite_topic`: of a group that takes lite topics the one that it is of; then also the others wait there.
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
