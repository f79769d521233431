"""The reason why a group makes no progress, in sentences for a person."""

from __future__ import annotations

from collections.abc import Sequence

from popgate.lite import LITE_BIND_TOPIC
from popgate.model import GroupConfig, GroupStatus
from processors.admin.held_messages import HeldMessage, HeldState, MemberProgress

_MOST_NAMED = 5


class Reasons:
    """`told` has the sentences, the most general first.

    `consumers`: those that this replica knows. `whole`: what is held, and who asks, is known too.
    """

    def __init__(
        self,
        config: GroupConfig,
        consumers: int,
        standings: Sequence[GroupStatus],
        grasps: Sequence[HeldMessage],
        now_ms: int,
        members: Sequence[MemberProgress] = (),
        *,
        whole: bool = True,
    ) -> None:
        self.told: list[str] = []
        self._config = config
        self._consumers = consumers
        self._whole = whole
        self._line = "lite topic" if LITE_BIND_TOPIC in config.attributes else "message group"
        lag = sum(standing.lag for standing in standings)
        if not standings:
            self._say("the group has read no topic yet" + self._without_consumers())
        elif not lag and whole:
            self._say("nothing waits: the group is done with everything")
        elif not lag:
            self._say("everything was given out once, and nothing has come back that waits")
        if not whole:
            self._say(
                "what is held, by whom, and what rests after a failure, a RocketMQ cluster tells nobody:"
                " those messages come back when their time is over"
            )
        if not config.consume_enabled:
            self._say("the group is switched off (consume_enabled): it is given nothing")
        if members:
            self._tell_members(members)
        for standing in standings:
            self._tell(standing)
        resting = [grasp for grasp in grasps if grasp.grip is HeldState.RESTING]
        if resting:
            next_ms = min(grasp.held.until_ms for grasp in resting)
            self._say(
                f"{_messages(len(resting))} of those that are listed rest after a failure, the first of"
                f" them for {max(next_ms - now_ms, 0) / 1000:.1f} s more"
            )

    def _tell_members(self, members: Sequence[MemberProgress]) -> None:
        """Members that hold the most come first."""
        holders = [member for member in members if member.in_flight]
        clients = "1 client" if len(members) == 1 else f"{len(members)} clients"
        if not holders:
            self._say(f"a broadcast group of {clients}: none of them holds anything")
            return
        named = ", ".join(
            f"{member.client_id} ({_messages(member.in_flight)})" for member in holders[:_MOST_NAMED]
        )
        more = " and others" if len(holders) > _MOST_NAMED else ""
        self._say(f"a broadcast group of {clients}: {len(holders)} of them hold something: {named}{more}")

    def _tell(self, standing: GroupStatus) -> None:
        topic = f"topic {standing.topic}"
        if standing.behind:
            self._say(
                f"{_messages(standing.behind)} of {topic} are kept back: an earlier one of their {self._line}"
                " is held or rests"
            )
        if standing.full:
            self._say(
                f"so many messages of {topic} are unfinished on a queue ({standing.in_flight} in flight)"
                " that nothing new is given out there"
            )
        if standing.refused:
            self._say(
                f"{_messages(standing.refused)} of {topic} are free, but pass the filter of nobody who"
                " asked for them"
            )
        waiting = standing.unread + standing.free - standing.refused
        if waiting > 0 and self._config.consume_enabled:
            if standing.receivers:
                if not standing.full:
                    self._say(f"{_messages(waiting)} of {topic} are about to be given out")
            elif self._consumers and not self._whole:
                self._say(
                    f"{_messages(waiting)} of {topic} can be given out; {self._consumers} consumers of the"
                    " group are connected to this gateway: do they read this topic, and have they room?"
                )
            elif self._consumers:
                self._say(
                    f"{_messages(waiting)} of {topic} can be given out, but nobody asks for them at the"
                    f" moment, though {self._consumers} consumers are connected: they are busy, have no"
                    " room, or read other topics"
                )
            else:
                self._say(f"{_messages(waiting)} of {topic} can be given out" + self._without_consumers())

    def _without_consumers(self) -> str:
        return "" if self._consumers else ", and no consumer of the group is connected to this gateway"

    def _say(self, sentence: str) -> None:
        self.told.append(sentence)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
