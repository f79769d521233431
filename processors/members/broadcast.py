"""Broadcast groups: every client receives every message, with a cursor of its own.

The gateway stores no cursor. A client of a broadcast group gets a consumer group of its own at
the broker, its *member group*, whose name is derived from the group and the client id; so any replica
finds it, and everything else (order, attempts, acknowledgements) works as for any group. Messages
that a member gives up become dead letters of the broadcast group. A member that has not received
for long is removed, with its cursor.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from brokers.port import Broker
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import AlreadyExists, BadRequest, GatewayError, GroupNotFound, TooManyRequests
from popgate.filters.compiled import compile_filter
from popgate.groups.group_config import BROADCAST_GROUP
from popgate.lite import LITE_BIND_TOPIC
from popgate.model import Filter, FilterKind, GroupConfig
from popgate.naming import MEMBER_PREFIX, member_group
from popgate.wire.messages.properties import RETRY_MEMBER
from processors.routing import Routing

BROADCAST_CLIENT = "popgate.broadcast.client"
BROADCAST_SEEN = "popgate.broadcast.seen"

LONGEST_BROADCAST_GROUP = 90
"""So that the names of its member groups fit what RocketMQ takes for a group."""
_MOST_KNOWN = 16_384


@dataclass(slots=True, frozen=True)
class Member:
    """A client of a broadcast group. `seen_ms`: it received then or somewhat later, wall time."""

    group: str
    client_id: str
    member_group: str
    seen_ms: int


@dataclass(slots=True, frozen=True)
class _Known:
    config: GroupConfig
    until: float


class BroadcastGroups:
    """Finds, makes and forgets member groups."""

    def __init__(
        self, broker: Broker, routing: Routing, clock: Clock, *, expiry_s: float, max_members: int
    ) -> None:
        self._broker = broker
        self._routing = routing
        self._clock = clock
        self.expiry_s = expiry_s
        self.max_members = max_members
        self._known: dict[str, _Known] = {}
        self._silent: dict[str, tuple[int, float]] = {}
        """Members that a sweep found silent: when they were seen last, and the loop time of that sweep."""
        self._next_sweep = 0.0
        self._sweeping: asyncio.Task[int] | None = None

    def __repr__(self) -> str:
        return f"<BroadcastGroups known {len(self._known)}>"

    def __len__(self) -> int:
        return len(self._known)

    async def join(self, context: Context, group: GroupConfig) -> str:
        """The group that a receive of this client reads as; made when it is the client's first.

        Raises BadRequest (no client id), TooManyRequests (too many members).
        """
        if not group.broadcast:
            return group.name
        name = member_of(context, group)
        if not name:
            raise BadRequest(f"group {group.name} is a broadcast group: a receive needs a client id")
        known = self._known.get(name)
        if known is None or _changed(known.config, group) or self._clock.monotonic() >= known.until:
            await self._see(name, context.client_id, group)
        return name

    def left(self, member_group: str) -> None:
        """A member group was deleted: the client's next receive creates it again."""
        self._known.pop(member_group, None)

    async def of(self, context: Context, group: str) -> str:
        """The group that this client's deliveries, or positions, of `group` belong to; nothing is made."""
        config = await self._routing.known(group)
        return (member_of(context, config) if config is not None else "") or group

    async def members(self, group: str) -> list[Member]:
        """Who has received as this broadcast group and was not forgotten, by client id."""
        members = [_member(config) for config in await self._broker.groups()]
        return sorted(
            (member for member in members if member and member.group == group),
            key=lambda member: member.client_id,
        )

    async def forget(self, group: str) -> None:
        """Forget all members of a group, when it is deleted or no broadcast group any more."""
        await self._delete([member.member_group for member in await self.members(group)])

    def sweep_when_due(self) -> None:
        """Begin a sweep if the last one is long ago; `stop` ends it."""
        now = self._clock.monotonic()
        if now >= self._next_sweep and (self._sweeping is None or self._sweeping.done()):
            self._next_sweep = now + self._touch_s
            self._sweeping = asyncio.get_running_loop().create_task(self._swept())

    async def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait((self._sweeping,))

    async def _swept(self) -> int:
        try:
            return await self.sweep()
        except GatewayError:
            return 0  # the broker does not answer: the next sweep finds them

    async def sweep(self) -> int:
        """Remove members that have not received for too long, or whose group is gone; returns how many.

        The wall clock alone removes nobody: it may have jumped, or the gateway was down itself. A live
        member receives within the grace period that starts when a sweep first finds it silent.
        """
        configs = await self._broker.groups()
        parents = {config.name for config in configs if config.broadcast}
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        over: list[str] = []
        silent: dict[str, tuple[int, float]] = {}
        for member in map(_member, configs):
            if member is None:
                continue
            if member.group not in parents:
                over.append(member.member_group)
            elif member.seen_ms < now_ms - round(self.expiry_s * 1000):
                seen_ms, since = self._silent.get(member.member_group, (member.seen_ms, now))
                if seen_ms != member.seen_ms:
                    since = now
                if now - since >= self._grace_s:
                    over.append(member.member_group)
                else:
                    silent[member.member_group] = (member.seen_ms, since)
        self._silent = silent
        return await self._delete(over)

    async def _see(self, name: str, client_id: str, group: GroupConfig) -> None:
        now_ms = self._clock.now_ms()
        attributes = {
            BROADCAST_GROUP: group.name,
            BROADCAST_CLIENT: client_id,
            BROADCAST_SEEN: str(now_ms),
        }
        wanted = replace(group, name=name, broadcast=False, attributes={**group.attributes, **attributes})
        there = None
        with suppress(GroupNotFound):
            there = await self._broker.group(name)
        if there is None:
            await self._make(wanted, group)
        else:
            # Written now and then only, so that it costs no write per receive.
            age_ms = now_ms - _number(there.attributes.get(BROADCAST_SEEN))
            # In the future: a wall clock that was ahead said so.
            stale = not 0 <= age_ms < self._touch_s * 1000
            if stale or _differs(there, wanted):
                await self._broker.update_group(wanted)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[name] = _Known(group, self._clock.monotonic() + self._touch_s)

    async def _make(self, wanted: GroupConfig, group: GroupConfig) -> None:
        # By their names alone: when a thousand clients come at once, each looks through all of them.
        begin = member_group(group.name, "")
        there = [other.name for other in await self._broker.groups() if other.name.startswith(begin)]
        if len(there) >= self.max_members:
            raise TooManyRequests(
                f"broadcast group {group.name} has {self.max_members} members, which is the limit;"
                f" those that do not receive are forgotten after {self.expiry_s:g} s",
                60.0,
            )
        try:
            await self._broker.create_group(wanted)
        except AlreadyExists:
            return

    @property
    def _touch_s(self) -> float:
        return self.expiry_s / 8

    @property
    def _grace_s(self) -> float:
        # Who is there says so every `_touch_s`, or a receive later.
        return self.expiry_s / 4

    async def _delete(self, names: Sequence[str]) -> int:
        deleted = 0
        for name in names:
            self._known.pop(name, None)
            try:
                await self._broker.delete_group(name)
            except GatewayError:
                continue  # gone already, or the next sweep tries again
            deleted += 1
        return deleted


def member_of(context: Context, group: GroupConfig) -> str:
    """The member group of the caller, which may be yet to be made; empty: it is no client of such a group."""
    if not group.broadcast or not context.client_id:
        return ""
    return member_group(group.name, _digest(context.client_id))


def own_retries(member: str) -> Filter:
    """Passes what a client gave back itself, of all that lies in the retry topic of its broadcast group.

    If each client got what any of them gave back, of one that all fail to process there would be as many
    copies as clients, and after the next attempt as many for each of these.
    """
    return compile_filter(FilterKind.SQL92, f"{RETRY_MEMBER} IS NULL OR {RETRY_MEMBER} = '{member}'")


def check_broadcast(config: GroupConfig) -> None:
    """Raises BadRequest for a broadcast group of lite topics, or with a name too long for its members."""
    if config.broadcast and LITE_BIND_TOPIC in config.attributes:
        raise BadRequest(
            f"a broadcast group takes no lite topics (its attribute {LITE_BIND_TOPIC}): its clients choose"
            " what they subscribe to, each for itself"
        )
    if config.broadcast and len(config.name) > LONGEST_BROADCAST_GROUP:
        raise BadRequest(
            f"the name of a broadcast group has at most {LONGEST_BROADCAST_GROUP} characters,"
            f" this one has {len(config.name)}"
        )


def is_member(config: GroupConfig) -> bool:
    """Whether this is the member group of one client: nothing that an operator made."""
    return config.name.startswith(MEMBER_PREFIX)


def _member(config: GroupConfig) -> Member | None:
    if not is_member(config):
        return None
    attributes = config.attributes
    return Member(
        attributes.get(BROADCAST_GROUP, ""),
        attributes.get(BROADCAST_CLIENT, ""),
        config.name,
        _number(attributes.get(BROADCAST_SEEN)),
    )


def _changed(before: GroupConfig, now: GroupConfig) -> bool:
    return before is not now and before != now


def _differs(there: GroupConfig, wanted: GroupConfig) -> bool:
    return replace(there, attributes={}) != replace(wanted, attributes={})


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _digest(client_id: str) -> str:
    return hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()
