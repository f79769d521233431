"""Lite topics at a guest, which caches the number of each client's lite topics and refreshes it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from brokers.capabilities import LiteGoneHandler
from brokers.shared.codec.calls import (
    DELETE_LITE_TOPIC,
    LEFT,
    LITE_TOPICS,
    POP_LITE,
    SUBSCRIBE_LITE,
    decode,
    encode,
)
from brokers.shared.guest.store import SharedStore
from brokers.shared.session.hello import CLIENTS, STATE, HostState
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.lite import LiteSync, LiteTopicState
from popgate.model import Pop, StoredMessage
from popgate.wire.frames.codes import PortCode

_AT_ONCE = 1_000
"""Clients that are asked about with one look at the host."""


class Lites(SharedStore):
    _counts: OrderedDict[str, int]
    """By client key, the one that was asked about longest ago first."""
    _gone: LiteGoneHandler | None = None

    async def subscribe_lite(self, context: Context, sync: LiteSync) -> None:
        try:
            await self._link.ask(SUBSCRIBE_LITE, context, sync)
        except GatewayError:
            await self._look([context.client_key])  # a part may have been done
            raise
        await self._look([context.client_key])

    async def pop_lite(self, context: Context, request: Pop) -> list[StoredMessage]:
        self._counts.setdefault(context.client_key, 0)
        return await self._take(POP_LITE, context, request)

    def leave_lite(self, client_key: str, *, said_so: bool) -> None:
        self._link.tell(PortCode.LITE_LEFT, encode(LEFT, (client_key, said_so)))
        if said_so:
            self._counts.pop(client_key, None)

    def on_lite_gone(self, handler: LiteGoneHandler) -> None:
        self._gone = handler

    async def lite_topics(self, topic: str, after: str, limit: int) -> list[LiteTopicState]:
        return await self._link.ask(LITE_TOPICS, topic, after, limit)

    async def delete_lite_topic(self, topic: str, lite_topic: str) -> None:
        return await self._link.ask(DELETE_LITE_TOPIC, topic, lite_topic)

    def lite_subscriptions(self, client_key: str) -> int:
        return self._counts.get(client_key, 0)

    # -- inside -------------------------------------------------------------------------------

    async def _look(self, asked: Sequence[str]) -> HostState | None:
        """How the host is, and what these clients have; None when it cannot be asked."""
        try:
            state = decode(STATE, await self._link.request(PortCode.STATE, encode(CLIENTS, tuple(asked))))
        except GatewayError:
            return None
        counts = self._counts
        for client_key, count in zip(asked, state.subscriptions, strict=False):
            counts[client_key] = count
            counts.move_to_end(client_key)
            if not count:
                del counts[client_key]
        while len(counts) > self._settings.max_lite_clients:
            counts.popitem(last=False)
        return state

    def _longest_ago(self) -> list[str]:
        return list(islice(self._counts, _AT_ONCE))

    def _lite_went(self, client_key: str, group: str, topic: str, lite_topic: str) -> None:
        if self._counts.get(client_key):
            self._counts[client_key] -= 1
        if self._gone is not None:
            self._gone(client_key, group, topic, lite_topic)
