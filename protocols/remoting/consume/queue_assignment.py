"""Queues of consumers that leave the assignment to the broker.

Source: protocol facts 5.5 (400, 401) and 5.14.
"""

from __future__ import annotations

from collections.abc import Mapping

from brokers.capabilities import AssignedQueue
from popgate.errors import BadRequest, PeerWireError, shown
from popgate.model import Reading
from popgate.wire.bodies.heartbeats import BROADCASTING
from popgate.wire.bodies.small_bodies import Assignment, AssignmentQuery, MessageQueue, encode_assignments
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from popgate.wire.json_syntax import parts
from protocols.remoting.clients.remoting_client import consumer_key
from protocols.remoting.members.members import PushMember, nobody
from protocols.remoting.requests import DoorContext, Handler, Request

_MODES = {"POP": True, "PULL": False}


class QueueAssignmentHandler:
    """Serves QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE."""

    def __init__(self, door_context: DoorContext, push_member: PushMember = nobody) -> None:
        self._processor = door_context.processor
        self._assigning = door_context.processor.queue_assignment
        self._push_member = push_member

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    async def query(self, request: Request) -> Command:
        try:
            asked = AssignmentQuery.decode(request.command.body)
        except PeerWireError as error:
            raise BadRequest(f"the query for an assignment cannot be read: {error}") from error
        assigned = await self._assigning.assigned(
            request.context,
            asked.topic,
            asked.group,
            asked.client_id,
            asked.strategy,
            broadcast=asked.model == BROADCASTING,
        )
        if any(queue.popped for queue in assigned):
            # It asks before it pops, and is known as one that does from the beginning.
            self._processor.mapped_groups.told(consumer_key(asked.client_id, asked.group), Reading.NEUTRAL)
        elif assigned:
            assigned = await self._all_where_mapped(request, asked, assigned)
        return request.answer(
            body=encode_assignments(
                Assignment(
                    MessageQueue(asked.topic, queue.broker, queue.queue_id), "POP" if queue.popped else "PULL"
                )
                for queue in assigned
            )
        )

    async def _all_where_mapped(
        self, request: Request, asked: AssignmentQuery, assigned: list[AssignedQueue]
    ) -> list[AssignedQueue]:
        """The members of a mapped group share messages, and read all queues."""
        mapping = self._processor.mapped_groups
        if not mapping.may_map(asked.group) or self._push_member(request.peer, asked.group) is None:
            return assigned
        if not (await mapping.current(request.context, asked.group)).mapped:
            return assigned
        route = await self._processor.route(request.context, asked.topic)
        return [AssignedQueue(queue.broker, queue.queue_id) for queue in route.readable]

    async def set_mode(self, request: Request) -> Command:
        try:
            part = parts.load_object(request.command.body, "a mode of a group")
            topic, group = parts.text(part, "topic"), parts.text(part, "consumerGroup")
            mode = parts.text(part, "mode", "PULL")
            share = parts.number(part, "popShareQueueNum")
        except PeerWireError as error:
            raise BadRequest(f"the mode of a group cannot be read: {error}") from error
        popped = _MODES.get(mode)
        if popped is None:
            raise BadRequest(f"the mode {shown(mode)} is not known, POP and PULL are")
        await self._assigning.set_popped(request.context, topic, group, popped, share)
        return request.answer()
