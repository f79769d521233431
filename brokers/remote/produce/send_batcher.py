"""Combines sends of one turn of the event loop into one request per broker, whoever requested them.

A batch costs a broker, and the gateway, little more than one message. Only messages that may go to any queue
are combined; no caller sees that its message was part of a batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from brokers.remote.produce.batches import goes_alone
from popgate.errors import GatewayError
from popgate.messages.packed_messages import PackedMessages
from popgate.model import Message, MessageType, Sent

_log = logging.getLogger(__name__)

MOST_BYTES: Final = 1024 * 1024
"""Of what is gathered: brokers may take less than 4 MiB, and whoever asked for little would wait for much."""
MOST_MESSAGES: Final = 1_024
_DEADLINES_S: Final = 1.0
"""Callers whose time ends within the same so many seconds go together."""

Outcomes = Sequence[Sent | GatewayError]


class Part(NamedTuple):
    """What one caller sends. The future has one outcome for each message, in order."""

    packed: PackedMessages
    until: float
    done: asyncio.Future[Outcomes]


class _Request:
    """What goes together, as long as there is room."""

    __slots__ = ("count", "parts", "room")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.count = 0
        self.room = MOST_BYTES


def may_lie_anywhere(topic: str, message: Message) -> bool:
    """Whether nothing is said of the queue or of the time of a message: true of nearly all."""
    return (
        message.type is MessageType.NORMAL
        and message.queue_id < 0
        and message.topic == topic
        and not message.message_group
        # A broker leaves that out of what it stores, unless it comes in a batch.
        and message.properties.find(b"WAIT\x01") < 0
        and not goes_alone(message)
    )


class SendBatcher:
    """Keeps sends until the turn of the loop ends, then has them sent: `send` gets what goes together."""

    def __init__(self, send: Callable[[Sequence[Part]], Awaitable[None]]) -> None:
        self._send = send
        self._requests: dict[tuple[str, str, int, int], list[_Request]] = {}
        self._tasks: dict[asyncio.Task[None], Sequence[Part]] = {}

    def __repr__(self) -> str:
        return f"<SendBatcher under way {len(self._tasks)}>"

    async def send(self, packed: PackedMessages, until: float) -> Outcomes:
        """Send messages in their order, with others or alone. Cancelled, it is as if they were sent alone."""
        try:
            return await self.join(packed, until)
        except asyncio.CancelledError:
            self._left()
            raise

    def join(self, packed: PackedMessages, until: float) -> asyncio.Future[Outcomes]:
        """As `send`, but a request in progress continues when the future is cancelled."""
        loop = asyncio.get_running_loop()
        if not self._requests:
            loop.call_soon(self._flush)
        part = Part(packed, until, loop.create_future())
        # What a request tells once of a batch must be the same for all of it.
        key = packed.topic, packed.producer_group, packed.sys_flag, int(until / _DEADLINES_S)
        requests = self._requests.setdefault(key, [])
        size, count = packed.size, len(packed.message_ids)
        if not requests or size > requests[-1].room or requests[-1].count + count > MOST_MESSAGES:
            requests.append(_Request())
        request = requests[-1]
        request.parts.append(part)
        request.count += count
        request.room -= size
        return part.done

    async def stop(self) -> None:
        """Wait for requests in progress."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _left(self) -> None:
        """Cancel requests without callers: they would be retried until a deadline that may be years away."""
        for task, parts in self._tasks.items():
            if all(part.done.done() for part in parts):
                task.cancel()

    def _flush(self) -> None:
        gathered, self._requests = self._requests, {}
        loop = asyncio.get_running_loop()
        for requests in gathered.values():
            for request in requests:
                # Who has gone meanwhile sends nothing.
                parts = [part for part in request.parts if not part.done.done()]
                if not parts:
                    continue
                task = loop.create_task(self._serve(parts))
                self._tasks[task] = parts
                task.add_done_callback(self._tasks.pop)

    async def _serve(self, parts: Sequence[Part]) -> None:
        try:
            await self._send(parts)
        except Exception as error:
            _log.error("a send to %s failed", parts[0].packed.topic, exc_info=error)
            for part in parts:
                if not part.done.done():
                    part.done.set_exception(GatewayError("internal error of the gateway, its log tells more"))
        finally:
            for part in parts:
                if not part.done.done():
                    part.done.cancel()
