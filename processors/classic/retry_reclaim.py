"""Moves retries of a group that popped to where its classic consumers pull from.

A group on true pull may have popped before: while it was mapped onto pop, or through clients that are gone.
Only pops would find what those left unfinished (`brokers.capabilities.ReclaimsRetries`). So the group is
examined when it falls back to true pull, when its first classic consumer connects, soon after either, and
then at intervals: messages return from deliveries as these expire. A group with clients that still
pop is left alone: they receive the retries.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from brokers.capabilities import GroupMember, ReclaimsRetries, TellsConsumers
from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, GatewayError, NotFound, TopicNotFound
from popgate.model import Reading
from popgate.naming import pop_retry_topic_v1, pop_retry_topic_v2, retry_topic
from processors.clients.client_registry import ClientHandle, ClientKind, ClientRegistry
from processors.members.mapped_groups import MappedGroups
from processors.members.mapping_rules import hindrance
from processors.members.queue_assignment import POPPED

_SOON_S: Final = 1.0
_EVERY_S: Final = 30.0
"""Between two looks at a group: at first the former, each time doubled, at last the latter."""
_LEFT_S: Final = 20.0
"""What nobody popped for so long nobody pops, where it is not known who does."""
_WATCHED_S: Final = 10.0
"""Between two looks at a group for which that is being found out."""
_LONGEST_S: Final = 3.0
"""So long who asks for the group's position waits for what is being moved."""
_AT_ONCE: Final = 8

_Place = tuple[str, str, int]
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Group:
    """A group that is examined. `due` is in loop seconds.

    `held`: move what its consumers hold as well, because they pop no more.
    `fell_back`: it was mapped here before, so no other condition is checked.
    `unread`: the positions of retries that nobody popped, and since when.
    """

    due: float
    pause: float = _SOON_S
    held: bool = True
    fell_back: bool = False
    unread: dict[_Place, tuple[int, float]] = field(default_factory=dict)


class RetryReclaimer:
    """Looks at groups with classic consumers here. Other replicas do the same; nothing is moved twice."""

    def __init__(self, broker: Broker, clients: ClientRegistry, clock: Clock, mapping: MappedGroups) -> None:
        self._broker = broker
        self._mover = broker.capability(ReclaimsRetries)
        self._tells = broker.capability(TellsConsumers)
        self._clients = clients
        self._clock = clock
        self._mapping = mapping
        self._context = Context()
        self._groups: dict[str, _Group] = {}
        self._moving: dict[str, tuple[asyncio.Future[None], Timer]] = {}
        """Groups whose positions are about to change, and who waits for that."""
        self._round: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._timer_due = 0.0
        self._stopped = False
        self._first: list[Callable[[], Awaitable[None]]] = []
        self.moved = 0
        """How many messages, since the start."""

    def __repr__(self) -> str:
        return f"<RetryReclaimer groups {len(self._groups)} moving {len(self._moving)} moved {self.moved}>"

    def __len__(self) -> int:
        return len(self._groups)

    def start(self) -> None:
        if self._mover is not None:
            self._clients.on_retries = self._joined
            self._mapping.on_switch(self._switched)

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for group in list(self._moving):
            self._settle(group)
        if self._round is not None:
            # What is copied is to be finished, too.
            await asyncio.wait([self._round])

    def after(self, given_back: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """A door returns what it holds for a group that falls back: the move waits for that.

        The door calls the returned function, once, when it has nothing left to return.
        """
        self._first.append(given_back)
        return partial(self._first.remove, given_back)

    def figures(self) -> dict[str, float]:
        return {"reclaimed_retries_total": self.moved}

    def is_moving(self, group: str) -> bool:
        """Whether the group's positions are about to change. Called for every query of a position."""
        return group in self._moving

    async def settled(self, group: str) -> None:
        """Wait until what the group has unfinished is moved, for a while at most."""
        moving = self._moving.get(group)
        if moving is not None:
            await asyncio.wait([moving[0]])

    # -- when -------------------------------------------------------------------------------------

    def _joined(self, group: str) -> None:
        """A classic consumer joined. The `ClientRegistry.on_retries` listener."""
        if group not in self._groups and not self._stopped and self._classic(group):
            self._begin(group, _Group(self._clock.monotonic()))

    def _switched(self, group: str, mapped: bool) -> None:
        """The `MappedGroups.on_switch` listener."""
        if mapped:
            self._settle(group)
        elif not self._stopped and self._classic(group):
            self._begin(group, _Group(self._clock.monotonic(), fell_back=True))

    def _begin(self, group: str, state: _Group) -> None:
        self._groups[group] = state
        # Elsewhere a position is how far the group popped, whatever came back since.
        if self._broker.traits.tells_deliveries and group not in self._moving:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            timer = self._clock.call_later(_LONGEST_S, lambda: self._settle(group))
            self._moving[group] = over, timer
        self._arm(state.due)

    def _settle(self, group: str) -> None:
        moving = self._moving.pop(group, None)
        if moving is not None:
            moving[1].cancel()
            if not moving[0].done():
                moving[0].set_result(None)

    def _arm(self, due: float) -> None:
        if self._stopped or self._round is not None or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rest = due - self._clock.monotonic()
        if rest <= 0:
            self._begin_round()
            return
        self._timer_due = due
        self._timer = self._clock.call_later(rest, self._begin_round)

    def _begin_round(self) -> None:
        self._timer = None
        if not self._stopped:
            self._round = asyncio.get_running_loop().create_task(self._look_around())

    async def _look_around(self) -> None:
        try:
            now = self._clock.monotonic()
            due = [group for group, state in self._groups.items() if state.due <= now]
            for at in range(0, len(due), _AT_ONCE):
                if self._stopped:
                    break
                await asyncio.gather(*(self._look(group) for group in due[at : at + _AT_ONCE]))
        finally:
            self._round = None
            if self._groups:
                self._arm(min(state.due for state in self._groups.values()))

    async def _look(self, group: str) -> None:
        state, classic = self._groups[group], self._classic(group)
        moved = 0
        try:
            if state.fell_back and state.held:
                for given_back in tuple(self._first):
                    await given_back()
            if classic and not self._mapping.is_mapped(group):
                moved = await self._reclaim(group, state, _topics(classic))
        except GatewayError as error:
            _log.info("what came back to group %s is looked for later: %s", group, error.sentence)
        except Exception:
            _log.exception("what came back to group %s could not be moved", group)
        if self._groups.get(group) is not state:
            return  # it fell back meanwhile, and is looked at anew
        self._settle(group)
        if not classic and not self._classic(group):
            del self._groups[group]
            return
        if moved:
            self.moved += moved
            state.pause = _SOON_S
            _log.info("%d messages that came back to group %s come to its classic consumers", moved, group)
        if state.unread:
            state.pause = min(state.pause, _WATCHED_S)
        state.due = float(math.ceil(self._clock.monotonic() + state.pause))  # many are looked at together
        state.pause = min(2 * state.pause, _EVERY_S)

    # -- what -------------------------------------------------------------------------------------

    async def _reclaim(self, group: str, state: _Group, topics: set[str]) -> int:
        """Move what there is; how many. Raises what the broker raises."""
        known = self._broker.traits.tells_deliveries
        if known:
            topics.add(retry_topic(group))  # it may have been popped, too
        else:
            topics.discard(retry_topic(group))  # nobody pops it there
            await self._find_unread(group, state, topics)
            topics = {topic for topic in topics if _places_of(group, topic, state)}
            if not topics:
                return 0
        members = await self._members(group)
        may_map = self._mapping.may_map(group)
        if may_map and not state.fell_back and not hindrance(members):
            return 0  # it is mapped elsewhere, or about to be
        if any(member.reading is Reading.NEUTRAL for member in members if member.gateway):
            return 0
        if not known and not may_map and not all(member.gateway for member in members):
            # How those read is not told: what nobody takes for a while nobody pops.
            before = self._clock.monotonic() - _LEFT_S
            topics = {
                topic
                for topic in topics
                if any(state.unread[place][1] <= before for place in _places_of(group, topic, state))
            }
        popped = await self._popped(group, topics) if known and state.held and not state.fell_back else ()
        moved = 0
        for topic in sorted(topics):
            moved += await self._move(group, topic, held=state.held and topic not in popped)
        state.held = False
        return moved

    async def _popped(self, group: str, topics: Iterable[str]) -> set[str]:
        """Those that the group is set to pop: what its clients hold stays theirs, who may be back soon."""
        attributes = (await self._broker.group(group)).attributes
        return {topic for topic in topics if POPPED + topic in attributes}

    async def _move(self, group: str, topic: str, *, held: bool) -> int:
        assert self._mover is not None  # noqa: S101 - nothing begins without
        moved = 0
        while not self._stopped and not self._mapping.is_mapped(group):
            try:
                step = await self._mover.reclaim(self._context, group, topic, held=held)
            except TopicNotFound:
                break
            moved += step.moved
            if not step.more:
                break
        return moved

    async def _find_unread(self, group: str, state: _Group, topics: Iterable[str]) -> None:
        """Record the positions of retries that nobody popped, and since when."""
        now, unread = self._clock.monotonic(), {}
        away: set[str] = set()
        for topic in topics:
            for make in (pop_retry_topic_v2, pop_retry_topic_v1):
                for place in await self._places(make(group, topic)):
                    if place[1] in away:
                        continue
                    try:
                        position = await self._unread(group, place)
                    except (BrokerUnavailable, BrokerTimeout):
                        # It keeps nobody from what lies at the others.
                        away.add(place[1])
                        continue
                    if position is not None:
                        before = state.unread.get(place, (-1, now))
                        unread[place] = before if before[0] == position else (position, now)
        state.unread = unread

    async def _places(self, topic: str) -> list[_Place]:
        try:
            return [
                (topic, queue.broker, queue.queue_id) for queue in (await self._broker.route(topic)).readable
            ]
        except TopicNotFound:
            return []

    async def _unread(self, group: str, place: _Place) -> int | None:
        """The group's position there, if there are messages behind it."""
        try:
            position = await self._broker.committed(self._context, group, *place)
            bounds = await self._broker.bounds(self._context, *place)
        except NotFound:
            return None
        position = bounds.minimum if position is None else max(position, bounds.minimum)
        return position if position < bounds.maximum else None

    async def _members(self, group: str) -> list[GroupMember]:
        """All known members; a local one may be listed twice, first as this gateway knows it."""
        here = [
            GroupMember(client.client_id, True, self._mapping.reading_of(client))
            for client in self._clients.consumers_of(group)
            if client.kind is not ClientKind.PULL_CONSUMER or client.reading is not Reading.NEUTRAL
        ]
        if self._tells is None:
            return here
        ids = {client.client_id for client in self._clients.consumers_of(group)}
        return here + [client for client in await self._tells.members(group) if client.client_id not in ids]

    def _classic(self, group: str) -> list[ClientHandle]:
        """Those of its consumers here that pull, and would pull `%RETRY%group`, too."""
        return [
            client
            for client in self._clients.consumers_of(group)
            if client.kind is ClientKind.PUSH_CONSUMER
            and client.reading is not Reading.NEUTRAL
            and not client.broadcast
        ]


def _topics(classic: Iterable[ClientHandle]) -> set[str]:
    return {topic for client in classic for topic in client.topics}


def _places_of(group: str, topic: str, state: _Group) -> list[_Place]:
    names = (pop_retry_topic_v2(group, topic), pop_retry_topic_v1(group, topic))
    return [place for place in state.unread if place[0] in names]
