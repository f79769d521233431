"""Why a group does not go on: who holds what since when, what waits behind it, or why nothing is stuck.

And how an operator frees a message. The rule of any-replica, section 1, binds here too: a release
must never undo an acknowledgement. So it is done once, with the handle of the very delivery that
was looked at, and only where a late acknowledgement is refused, or nobody can have sent one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from brokers.port import Broker
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import NotFound, Unsupported
from popgate.kinds import Action
from popgate.lite import LITE_BIND_TOPIC
from popgate.model import GroupConfig, Held, Standing
from popgate.naming import check_group
from processors.clients import ClientKind
from processors.grasping import MOST_HELD, Explanation, Freed, Grasp, Grip, choose, is_delivery, together
from processors.limits import Limits
from processors.observing import Observer, Watch
from processors.policies.registry import Policies
from processors.reasons import Reasons
from processors.settling import Settling

_MOST_TOPICS = 256
_MOST_MEMBERS = 256


class Explaining(Settling):
    """The floor of the `MessagingProcessor` for operators. Nothing here is on the way of a message."""

    def __init__(
        self, broker: Broker, clock: Clock, limits: Limits, policies: Policies, observer: Observer
    ) -> None:
        super().__init__(broker, clock, limits, policies, observer)
        self._watch_explain = Watch(observer, "explain")
        self._watch_free = Watch(observer, "free")

    async def explain(self, context: Context, group: str, topic: str = "", *, limit: int = 20) -> Explanation:
        """Why a group is stuck, or that it is not; of one topic, or of all that it reads.

        Raises IllegalGroup, GroupNotFound, TopicNotFound.
        """
        with self._watch_explain:
            self._admit(context, Action.GET, topic=topic, group=check_group(group))
            config = await self._broker.group(group)
            standings, grasps = await self._look(config, topic, min(max(limit, 1), MOST_HELD))
        consumers = self.clients.consumers_of(group)
        reasons = Reasons(config, len(consumers), standings, grasps, self._clock.now_ms()).told
        return Explanation(
            group=group,
            now_ms=self._clock.now_ms(),
            enabled=config.consume_enabled,
            ordered=config.ordered,
            consumers=len(consumers),
            standings=tuple(standings),
            grasps=tuple(grasps),
            reasons=tuple(reasons),
        )

    async def free(self, context: Context, group: str, topic: str = "", *, which: str = "") -> Freed:
        """Free one held message for another delivery: by its receipt, by its message id, or the only one.

        The delivery counts as an attempt. Never tried again: after an unknown outcome a second try
        could meet another delivery. Raises IllegalGroup, GroupNotFound, TopicNotFound, NotFound (it is
        not held), BadRequest (more than one fits), ReceiptExpired (finished, or delivered again,
        meanwhile: nothing was changed), Unsupported (this broker could undo an acknowledgement).
        """
        with self._watch_free:
            self._admit(context, Action.UPDATE, topic=topic, group=check_group(group))
            config = await self._broker.group(group)
            _, grasps = await self._look(config, topic, MOST_HELD)
            grasp = choose(group, grasps, which)
            held = grasp.held
            self._check_release(grasp)
            await self._broker.change_invisible(context, held.topic, grasp.group, held.receipt, 0)
        self._observer.released(held.topic, group, 1)
        return Freed(grasp, dead_lettered=held.attempt >= max(config.max_attempts, 1))

    async def _look(self, config: GroupConfig, topic: str, limit: int) -> tuple[list[Standing], list[Grasp]]:
        """Where the group stands with its topics, and what it holds of them, longest first."""
        names = [config.name]
        if config.broadcast:
            members = await self.broadcasting.members(config.name)
            names = [member.member_group for member in members[:_MOST_MEMBERS]]
        standings: dict[str, Standing] = {}
        grasps: list[Grasp] = []
        for name in names:
            topics = [topic] if topic else await self._topics_of(config, name)
            for one in topics:
                standing = replace(await self._broker.standing(name, one), group=config.name)
                before = standings.get(one)
                standings[one] = standing if before is None else together(before, standing)
                if standing.in_flight:
                    found = await self._broker.held(name, one, limit)
                    grasps += [Grasp(name, held, self._grip(name, held)) for held in found]
        grasps.sort(key=lambda grasp: grasp.held.since_ms)
        return list(standings.values()), grasps[:limit]

    async def _topics_of(self, config: GroupConfig, name: str) -> list[str]:
        """With the topic that it takes lite topics of: a group never reads that as a whole."""
        topics = (await self._broker.topics_of(name))[:_MOST_TOPICS]
        bound = config.attributes.get(LITE_BIND_TOPIC)
        if bound and bound not in topics:
            with suppress(NotFound):  # the attribute may name anything
                await self._broker.topic(bound)
                topics.append(bound)
        return topics

    def _grip(self, group: str, held: Held) -> Grip:
        """A push consumer never changes a time but to give a message back, and the gateway renews only
        what it remembers; of other clients nothing more is known than that the message is invisible.
        """
        if not held.renewals:
            return Grip.HELD
        client = self.clients.get(held.holder)
        if client is None or client.kind is not ClientKind.PUSH_CONSUMER:
            return Grip.HELD
        holder = self.renewing.holdings.holder(held.holder)
        for delivery in holder.deliveries if holder is not None else ():
            if delivery.group == group and any(is_delivery(one, held) for one in delivery.newest):
                return Grip.HELD
        return Grip.RESTING

    def _check_release(self, grasp: Grasp) -> None:
        """Raises Unsupported where freeing could bring back what was acknowledged elsewhere."""
        if self._broker.traits.acks_are_checked:
            return
        held = grasp.held
        delivery = self.renewing.holdings.find(held.topic, grasp.group, held.receipt)
        if delivery is None or not delivery.holder.may_be_freed(said_so=False, acks_are_checked=False):
            raise Unsupported(
                "to free a message whose acknowledgement may have gone another way: this broker does not"
                " check acknowledgements, so it could come back after it was finished; it comes back by"
                " itself when its time is over"
            )
