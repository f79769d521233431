"""Selects the queue of a message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from popgate.ids.hashes import consistent_hash, java_hash
from popgate.model import Message, Queue


@lru_cache(maxsize=8192)
def _place(message_group: str, queues: int) -> int:
    return consistent_hash(java_hash(message_group), queues)


class GroupsThenTurns:
    """A message group always goes to the same queue, as RocketMQ's proxy does it; the others take turns.

    Source: protocol facts 3.2 (`SendMessageQueueSelector`).
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, message: Message, queues: Sequence[Queue], now: float) -> Queue:
        if message.message_group:
            return queues[_place(message.message_group, len(queues))]
        self._turn += 1
        return queues[self._turn % len(queues)]
