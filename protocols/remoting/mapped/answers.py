"""Responses to members of mapped groups: the next numbers, and as many messages as fit into a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from popgate.model import StoredMessage
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command
from processors.requests import Pull
from protocols.remoting.mapped.offsets import QueueHoldings, QueueKey
from protocols.remoting.requests import Request

MOST_BYTES: Final = 12 * 1024 * 1024
"""Of one answer: a frame has 16 MiB."""


def key_of(asked: Pull) -> QueueKey:
    return QueueKey(asked.group or "", asked.topic, asked.broker, asked.queue_id)


def fitting(messages: Sequence[StoredMessage]) -> int:
    """How many go into one frame, at least one."""
    size = 0
    for count, message in enumerate(messages):
        size += len(message.body) + len(message.properties) + len(message.topic) * 4 + 128
        if size > MOST_BYTES and count:
            return count
    return len(messages)


def nothing(request: Request, queue: QueueHoldings, begins: int) -> Command:
    """There is nothing for this client now."""
    return request.command.answer(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", numbered(queue, begins))


def numbered(queue: QueueHoldings, begins: int) -> dict[str, str]:
    """The fields of an answer after which a client goes on with this number."""
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(begins),
        "minOffset": str(queue.first),
        "maxOffset": str(queue.next),
    }
