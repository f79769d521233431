"""Why a group makes no progress: who holds which message since when, what waits behind it, or why nothing is
stuck.

It also frees a message for an operator. The rule of any-replica, section 1, applies here too: a release
must never undo an acknowledgement. So it is done once, with the handle of the delivery that
was examined, and only where a late acknowledgement is refused, or nobody can have sent one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

from popgate.context import Context
from popgate.errors import BadRequest, GroupNotFound, NotFound, Unsupported, shown
from popgate.kinds import Action
from popgate.lite import LITE_BIND_TOPIC
from popgate.model import GroupConfig, GroupStatus, Held
from popgate.naming import check_group
from processors.admin.held_messages import (
    MOST_HELD,
    Explanation,
    Freed,
    HeldMessage,
    HeldState,
    MemberProgress,
    choose,
    is_delivery,
    together,
)
from processors.admin.reasons import Reasons
from processors.clients.client_registry import ClientKind, ClientRegistry
from processors.core import ProcessorCore
from processors.deliveries.auto_renewal import AutoRenewal
from processors.members.broadcast import BroadcastGroups, Member
from processors.observer import Watch

_MOST_TOPICS = 256
_MOST_MEMBERS = 2_048
"""Clients of a broadcast group that are looked at."""
_MOST_HOLDERS = 64
"""Those of them whose held messages are looked at."""
_AT_ONCE = 16


@dataclass(slots=True, frozen=True)
class _Seen:
    """`grasps`: the longest held first. `members` of a broadcast group: those that hold the most first."""

    standings: list[GroupStatus]
    grasps: list[HeldMessage]
    members: list[MemberProgress]


class StuckGroups:
    """Why groups are stuck. Nothing here is on the way of a message."""

    def __init__(
        self, core: ProcessorCore, broadcast: BroadcastGroups, clients: ClientRegistry, renewing: AutoRenewal
    ) -> None:
        self._broker = core.broker
        self._clock = core.clock
        self._observer = core.observer
        self._admit = core.admit
        self._broadcast = broadcast
        self._clients = clients
        self._renewing = renewing
        self._watch_explain = Watch(core.observer, "explain")
        self._watch_free = Watch(core.observer, "free")

    async def explain(
        self, context: Context, group: str, topic: str = "", *, client: str = "", limit: int = 20
    ) -> Explanation:
        """Why a group is stuck, or that it is not; of one topic, or of all that it reads.

        `client`: of a broadcast group only this one.

        Raises IllegalGroup, GroupNotFound, TopicNotFound.
        """
        with self._watch_explain:
            self._admit(context, Action.GET, topic=topic, group=check_group(group))
            config = await self._broker.group(group)
            limit = min(max(limit, 1), MOST_HELD)
            seen = await self._look(config, topic, client, limit)
        consumers = self._clients.consumers_of(group)
        reasons = Reasons(
            config,
            len(consumers),
            seen.standings,
            seen.grasps,
            self._clock.now_ms(),
            seen.members,
            whole=self._broker.traits.tells_deliveries,
        ).told
        return Explanation(
            group=group,
            now_ms=self._clock.now_ms(),
            enabled=config.consume_enabled,
            ordered=config.ordered,
            consumers=len(consumers),
            standings=tuple(seen.standings),
            grasps=tuple(seen.grasps),
            reasons=tuple(reasons),
            members=tuple(seen.members[:limit]),
            whole=self._broker.traits.tells_deliveries,
        )

    async def free(
        self, context: Context, group: str, topic: str = "", *, which: str = "", client: str = ""
    ) -> Freed:
        """Free one held message for another delivery: by its receipt, by its message id, or the only one.

        `client` selects the holder in a broadcast group, whose clients hold the same messages.
        The delivery counts as an attempt. Never retried: after an unknown outcome a second attempt
        could free another delivery. Raises IllegalGroup, GroupNotFound, TopicNotFound, NotFound (it is
        not held), BadRequest (more than one fits), ReceiptExpired (finished, or delivered again,
        meanwhile: nothing was changed), Unsupported (this broker could undo an acknowledgement).
        """
        with self._watch_free:
            self._admit(context, Action.UPDATE, topic=topic, group=check_group(group))
            config = await self._broker.group(group)
            if not self._broker.traits.tells_deliveries:
                raise Unsupported(
                    "to free a message of a RocketMQ cluster",
                    "its brokers tell nobody who holds one; it comes back by itself when its invisible time"
                    " is over, and what a client is doing is told by `popgate clients stack CLIENT`",
                )
            seen = await self._look(config, topic, client, MOST_HELD)
            grasp = choose(group, seen.grasps, which)
            held = grasp.held
            self._check_release(grasp)
            await self._broker.change_invisible(context, held.topic, grasp.group, held.receipt, 0)
        self._observer.released(held.topic, group, 1)
        return Freed(grasp, dead_lettered=held.attempt >= max(config.max_attempts, 1))

    async def _look(self, config: GroupConfig, topic: str, client: str, limit: int) -> _Seen:
        """Where the group stands with its topics, and what it holds of them, longest first."""
        if config.broadcast:
            return await self._look_at_members(config, topic, client, limit)
        if client:
            raise BadRequest(f"group {config.name} is no broadcast group: its clients have nothing apart")
        standings = await self._standings(config, config.name, topic)
        grasps = await self._grasps(config.name, standings, limit)
        return _Seen(standings, _longest(grasps, limit), [])

    async def _look_at_members(self, config: GroupConfig, topic: str, client: str, limit: int) -> _Seen:
        """Of a broadcast group: what its clients hold, of those first that hold the most."""
        members = await self._broadcast.members(config.name)
        if client:
            members = [member for member in members if member.client_id == client]
            if not members:
                raise NotFound(f"broadcast group {config.name} knows no client {shown(client)}")
        all_of: dict[str, GroupStatus] = {}
        seen: list[tuple[MemberProgress, Member, list[GroupStatus]]] = []
        for number, member in enumerate(members[:_MOST_MEMBERS]):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # there may be many, and the broker may answer at once
            try:
                standings = await self._standings(config, member.member_group, topic)
            except GroupNotFound:
                continue  # forgotten meanwhile
            for standing in standings:
                before = all_of.get(standing.topic)
                all_of[standing.topic] = standing if before is None else together(before, standing)
            summary = MemberProgress(
                member.client_id,
                sum(standing.lag for standing in standings),
                sum(standing.in_flight for standing in standings),
            )
            seen.append((summary, member, standings))
        seen.sort(key=lambda row: (-row[0].in_flight, -row[0].lag, row[0].client_id))
        grasps: list[HeldMessage] = []
        for _, member, standings in seen[:_MOST_HOLDERS]:
            with suppress(GroupNotFound):
                grasps += await self._grasps(member.member_group, standings, limit, member.client_id)
        return _Seen(list(all_of.values()), _longest(grasps, limit), [summary for summary, _, _ in seen])

    async def _standings(self, config: GroupConfig, name: str, topic: str) -> list[GroupStatus]:
        """`name`: the group itself, or the hidden one of a client of it."""
        topics = [topic] if topic else await self._topics_of(config, name)
        return [
            replace(await self._broker.standing(name, read_topic), group=config.name) for read_topic in topics
        ]

    async def _grasps(
        self, name: str, standings: list[GroupStatus], limit: int, client: str = ""
    ) -> list[HeldMessage]:
        grasps: list[HeldMessage] = []
        for standing in standings:
            if standing.in_flight:
                messages = await self._broker.held(name, standing.topic, limit)
                grasps += [HeldMessage(name, held, self._grip(name, held), client) for held in messages]
        return grasps

    async def _topics_of(self, config: GroupConfig, name: str) -> list[str]:
        """With the topic that it takes lite topics of: a group never reads that as a whole."""
        topics = (await self._broker.topics_of(name))[:_MOST_TOPICS]
        bound = config.attributes.get(LITE_BIND_TOPIC)
        if bound and bound not in topics:
            with suppress(NotFound):  # the attribute may name anything
                await self._broker.topic(bound)
                topics.append(bound)
        return topics

    def _grip(self, group: str, held: Held) -> HeldState:
        """A push consumer never changes a time but to give a message back, and the gateway renews only
        what it remembers; of other clients nothing more is known than that the message is invisible.
        """
        if not held.renewals:
            return HeldState.HELD
        keys = [
            client.key
            for client in self._clients.of_id(held.holder)
            # Of any account; a membership of a classic client has a key of another form.
            if client.kind is ClientKind.PUSH_CONSUMER and client.key.split("\n\n")[0] == held.holder
        ]
        if not keys:
            return HeldState.HELD
        for key in keys:
            holder = self._renewing.holdings.holder(key)
            for delivery in holder.deliveries if holder is not None else ():
                if delivery.group == group and any(is_delivery(receipt, held) for receipt in delivery.newest):
                    return HeldState.HELD
        return HeldState.RESTING

    def _check_release(self, grasp: HeldMessage) -> None:
        """Raises Unsupported where freeing could bring back what was acknowledged elsewhere."""
        if self._broker.traits.acks_are_checked:
            return
        held = grasp.held
        delivery = self._renewing.holdings.find(held.topic, grasp.group, held.receipt)
        if delivery is None or not delivery.holder.may_be_freed(said_so=False, acks_are_checked=False):
            raise Unsupported(
                "to free a message whose acknowledgement may have gone another way: this broker does not"
                " check acknowledgements, so it could come back after it was finished; it comes back by"
                " itself when its time is over"
            )


def _longest(grasps: list[HeldMessage], limit: int) -> list[HeldMessage]:
    return sorted(grasps, key=lambda grasp: grasp.held.since_ms)[:limit]
