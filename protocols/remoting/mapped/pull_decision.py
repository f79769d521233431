"""Decides for every pull whether it is mapped, before it is served."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final

from popgate.clock import Timer
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.model import Reading
from popgate.wire.frames.codes import RequestCode
from processors.members.mapped_groups import MappedGroups
from processors.requests import Pull
from protocols.remoting.clients.remoting_client import consumer_key, peers_of
from protocols.remoting.mapped.offsets import QueueKey, is_possible, is_virtual
from protocols.remoting.mapped.proofs import Proofs
from protocols.remoting.mapped.resets import Resets
from protocols.remoting.mapped.seeks import Seeks
from protocols.remoting.mapped.start_position import Beginnings
from protocols.remoting.requests import DoorContext, Peer, Request

LEAVING_S: Final = 10.0
"""Behind a good-bye: for so long a position that was told before it may wait for a broker."""

Members = Callable[[Peer, str], bool]
"""Whether a client of this connection is a clustering push consumer of the group, as its heartbeat said."""

_log = logging.getLogger(__name__)


def nobody(_peer: Peer, _group: str) -> bool:
    return False


def _nobody_tells(_context: Context, _peer: Peer, _key: QueueKey, _offset: int) -> None:
    """Then its pulls are led there, after a while."""


class PullDecision:
    """What is known of groups and members when a pull comes."""

    def __init__(
        self, door_context: DoorContext, members: Members = nobody, groups: MappedGroups | None = None
    ) -> None:
        self._clock = door_context.clock
        self._processor = door_context.processor
        self.members = members
        self._groups = groups if groups is not None else door_context.processor.mapped_groups
        self._beginnings = Beginnings(door_context)
        self.proofs = Proofs(self._groups, door_context.clock)
        self.seeks = Seeks(door_context.clock)
        self.resets = Resets(door_context.clock)
        keepers = self._processor.offsets.keepers
        keepers.append(self)
        door_context.ends.callback(keepers.remove, self)
        self._leaving: dict[tuple[Peer, str], Timer] = {}
        """Connections and groups on true pull that a client of it has just left."""
        self.on_reset_elsewhere: Callable[[Context, Peer, QueueKey, int], None] = _nobody_tells
        """Who tells a member where it is to go on."""

    def may_map(self, group: str) -> bool:
        """Whether the settings name the group: of all others no pull is mapped, nor has a beginning."""
        return self._groups.may_map(group)

    def maps(self, peer: Peer, group: str) -> bool:
        """Whether pulls of this group by this connection are mapped."""
        return self._groups.is_mapped(group) and self.members(peer, group)

    def leaves(self, peer: Peer, group: str) -> None:
        """A client left a group: see `tells_as_member`. Of a mapped group members tell no positions."""
        if self._groups.is_mapped(group):
            return
        before = self._leaving.get((peer, group))
        if before is not None:
            before.cancel()
        self._leaving[peer, group] = self._clock.call_later(LEAVING_S, partial(self._has_left, peer, group))

    def _has_left(self, peer: Peer, group: str) -> None:
        del self._leaving[peer, group]

    def tells_as_member(self, peer: Peer, group: str) -> bool:
        """Whether a position that comes by this connection is a member's, maybe the last that it tells."""
        return self.members(peer, group) or (peer, group) in self._leaving

    def pulls_by_itself(self, peer: Peer, group: str) -> bool:
        """Whether a client has said that it is in the group, and is none whose pulls may be mapped."""
        client = self._processor.clients.get(consumer_key(peer.client_id, group))
        return client is not None and client.reading is not Reading.UNKNOWN

    def serves(self, request: Request, group: str, queue: tuple[str, str, int], offset: int) -> bool:
        """Whether this pull is mapped; it may be the one that proves that its group can be."""
        peer = request.peer
        if not self._groups.may_map(group) or not self.members(peer, group):
            return False
        if request.command.code != RequestCode.PULL_MESSAGE:
            return False
        self.proofs.pulls(peer, QueueKey(group, *queue), offset)
        return self._groups.is_mapped(group)

    async def begins(self, request: Request, asked: Pull) -> bool:
        """Whether a true pull may go on: of a group that may be mapped the first one says where it begins."""
        group = asked.group or ""
        if not self._groups.may_map(group) or not self.members(request.peer, group):
            return True
        return await self._beginnings.begun_before(request.peer, request.context, asked)

    def asks_position(self, peer: Peer, key: QueueKey) -> None:
        """A client asks for its group's position on a queue, and continues from the response."""
        self.proofs.asks_position(peer, key)
        self.resets.arrived(peer, key)

    def told_position(self, peer: Peer, key: QueueKey, offset: int | None, *, clean: bool = False) -> None:
        """A client got its position; None: there is none. `clean`: it asked, before it reads the queue."""
        if self._groups.may_map(key.group):
            self.seeks.told(peer, key, offset, clean=clean)

    def sent_to(self, peer: Peer, key: QueueKey, offset: int, *, heard: bool = True) -> None:
        """A member is to continue there. What it commits until it does is where it was before."""
        self.resets.sent(peer, key, offset, heard=heard)
        self.told_position(peer, key, offset)

    async def keep_position(self, request: Request, key: QueueKey, offset: int) -> None:
        """Set a group to a position that a client commits. Raises as `MessagingProcessor.commit`.

        A member may not know of a reset through another gateway: it is sent to the new position.
        A client that has reconnected may be a member before its first heartbeat: its position is not stored
        then, and it learns of the reset when it commits next.
        """
        peer, context = request.peer, request.context
        if not self.tells_as_member(peer, key.group):
            waits = not request.command.is_oneway and request.command.code != RequestCode.PULL_MESSAGE
            if waits or peer.client_id or self.resets.is_stranger(peer):
                await self._processor.offsets.commit(context, *key, offset)
            else:
                await self._processor.offsets.commit_read(context, *key, offset)
            return
        begins = self.resets.take_unread(peer, key)
        if begins is not None:
            try:
                begun = await self._processor.offsets.begin_read(context, *key, begins)
            except GatewayError:
                self.resets.not_read(peer, key, begins)
                raise
            if begun != begins:
                self._send_elsewhere(request, key, begun)
                return
        to = await self._processor.offsets.commit_read(context, *key, offset)
        if to is not None and self.resets.target(peer, key) != to:
            self._send_elsewhere(request, key, to)

    async def begin_at(self, request: Request, key: QueueKey, offset: int) -> int:
        """A client continues at an offset, or elsewhere if a reset was made since: where.

        If the broker cannot be asked now, that is done with the client's next commit.
        """
        peer, group = request.peer, key.group
        if not self.members(peer, group) or self._groups.is_mapped(group):
            return offset
        if self.resets.is_under_way(group, key.topic):
            return offset  # and it is sent elsewhere when that is over
        try:
            return await self._processor.offsets.begin_read(request.context, *key, offset)
        except GatewayError:
            self.resets.not_read(peer, key, offset)
            return offset

    async def arrive_at(self, request: Request, key: QueueKey, offset: int) -> None:
        """A member commits the offset that it was sent to: it continues there, unless it is sent on."""
        if self.resets.is_under_way(key.group, key.topic):
            return
        self.resets.arrived(request.peer, key)
        to = await self.begin_at(request, key, offset)
        if to != offset:
            self._send_elsewhere(request, key, to)

    def _send_elsewhere(self, request: Request, key: QueueKey, offset: int) -> None:
        """A member learns of a reset that was made through another gateway."""
        self.sent_to(request.peer, key, offset)
        self.on_reset_elsewhere(request.context, request.peer, key, offset)

    def sets_position(self, peer: Peer, key: QueueKey, offset: int) -> bool:
        """Whether a member sets this position by itself, instead of committing it in normal work."""
        group = key.group
        return (
            self._groups.may_map(group) and self.members(peer, group) and self.seeks.sets(peer, key, offset)
        )

    async def seek(self, request: Request, key: QueueKey, offset: int) -> None:
        """A member sets a position itself: it needs true pull from then on, like one that locks.

        Afterwards the nearest offset of the queue is the group's position, and the group is on true pull.
        Commits of other members, also at other listeners, are discarded until they have moved there, too.
        Raises as `MessagingProcessor.commit`.
        """
        peer, group, context = request.peer, key.group, request.context
        await self._processor.offsets.check_reader(context, group)
        bounds = await self._processor.offsets.bounds(context, key.topic, key.broker, key.queue_id)
        offset = min(max(offset, bounds.minimum), bounds.maximum)
        _log.info("client %s of group %s set a position by itself", peer.client_id, group)
        self._groups.told(consumer_key(peer.client_id, group), Reading.TRUE_PULL)
        keepers = tuple(self._processor.offsets.keepers)
        with ExitStack() as held:
            for keeper in keepers:
                held.enter_context(keeper.holding(group, key.topic))
            self.resets.take_unread(peer, key)
            # Not as a reader's: it counts also while a reset waits for one.
            await self._processor.offsets.commit(context, *key, offset)
            for keeper in keepers:
                keeper.go_on_at(*key, offset, besides=peer)

    def holding(self, group: str, topic: str) -> AbstractContextManager[None]:
        return self.resets.held(group, topic)

    def go_on_at(
        self, group: str, topic: str, broker: str, queue_id: int, offset: int, *, besides: object
    ) -> None:
        for peer in peers_of(self._processor.clients.consumers_of(group)):
            if peer is not besides and self.members(peer, group):
                self.sent_to(peer, QueueKey(group, topic, broker, queue_id), offset)

    def is_early(self, request: Request, group: str, offset: int) -> bool:
        """Whether this may be a member that has yet to say who it is: it asks again in a few seconds."""
        groups = self._groups
        return (
            groups.may_map(group)
            and (is_virtual(offset) or groups.is_mapped(group))
            and not self.members(request.peer, group)
        )

    def is_undecided(self, request: Request, group: str, offset: int) -> bool:
        """Whether a pull that is not mapped may be in a moment: what it got before would come again.

        Another one, or it itself, showed that its group can be mapped; or it has numbers of another gateway.
        """
        if not is_virtual(offset) and not self._groups.is_judged_anew(group):
            return False
        if request.command.code != RequestCode.PULL_MESSAGE or not self._groups.may_map(group):
            return False
        return self.members(request.peer, group)

    async def judges(self, request: Request, group: str) -> bool:
        """Whether such a pull is mapped: ask, at once."""
        await self._groups.judge(request.context, group)
        return self.maps(request.peer, group)

    def can_go_on(self, offset: int) -> bool:
        """Whether a pull may begin at an offset, or a number."""
        return is_possible(offset, self._clock.now_ms())
