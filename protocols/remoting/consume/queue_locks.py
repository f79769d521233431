"""Locks of queues, which orderly consumers take before they read. Source: protocol facts 5.5, 5.13, 7.8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from popgate.errors import BadRequest, PeerWireError
from popgate.model import Reading
from popgate.wire.bodies.small_bodies import MessageQueue, QueueLocks, encode_locked
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from protocols.remoting.clients.remoting_client import consumer_key
from protocols.remoting.requests import DoorContext, Handler, Request


class QueueLockHandler:
    """Serves locks."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    async def lock(self, request: Request) -> Command:
        """Those of the queues that the client has now."""
        locks = _locks_in(request)
        named = [(queue.topic, queue.broker, queue.queue_id) for queue in locks.queues]
        held = await self._processor.classic.lock(request.context, locks.group, locks.client_id, named)
        # Before it is answered, and so before it pulls: it wants them in their order.
        self._processor.mapped_groups.told(consumer_key(locks.client_id, locks.group), Reading.TRUE_PULL)
        return request.answer(body=encode_locked(_queues(held)))

    async def unlock(self, request: Request) -> Command:
        locks = _locks_in(request)
        named = [(queue.topic, queue.broker, queue.queue_id) for queue in locks.queues]
        await self._processor.classic.unlock(request.context, locks.group, locks.client_id, named)
        return request.answer()


def _locks_in(request: Request) -> QueueLocks:
    """Raises BadRequest."""
    try:
        return QueueLocks.decode(request.command.body)
    except PeerWireError as error:
        raise BadRequest(f"the locks cannot be read: {error}") from error


def _queues(held: Iterable[tuple[str, str, int]]) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, queue_id) for topic, broker, queue_id in held]
