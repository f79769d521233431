"""Settles deliveries of lite topics: finished, hidden, returned, dead-lettered."""

from __future__ import annotations

from collections.abc import Sequence

from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.engine.engine import Engine
from brokers.embedded.lite.cursor import Cursor
from brokers.embedded.lite_port.receipts import find_delivery, find_held, find_undelivered
from popgate.errors import GatewayError


class LiteSettlement:
    """The part of the port's `Store` that is about deliveries, for groups that take lite topics."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ack(self, topic: Topic, group: Group, receipts: Sequence[str]) -> list[GatewayError | None]:
        engine = self._engine
        now_ms, broker = engine.steady.now_ms(), engine.settings.name
        results: list[GatewayError | None] = []
        changed: dict[Cursor, None] = {}
        for handle in receipts:
            try:
                delivery = find_delivery(engine.lites, topic, group, broker, handle, now_ms)
            except GatewayError as error:
                results.append(error)
                continue
            results.append(None)
            if delivery is not None:
                delivery[0].finish(delivery[1])
                changed[delivery[0]] = None
        for place in changed:
            engine.lites.settle(place, now_ms)
        if None in results:
            # Also when all were finished before: that may not have been written yet.
            await engine.settled()
        return results

    async def change_invisible(
        self, topic: Topic, group: Group, receipt: str, invisible_ms: int, *, suspend: bool
    ) -> str:
        engine = self._engine
        now_ms, broker = engine.steady.now_ms(), engine.settings.name
        place, offset = find_held(engine.lites, topic, group, broker, receipt, now_ms)
        try:
            entry = place.hide(offset, now_ms + invisible_ms, now_ms, suspend=suspend)
            engine.lites.settle(place, now_ms)
        except Exception as error:
            engine.abandon(error)
            raise
        engine.arm()
        await engine.settled()
        return place.receipt(offset, entry, broker)

    async def give_back(self, topic: Topic, group: Group, receipts: Sequence[str]) -> int:
        engine = self._engine
        now_ms, broker = engine.steady.now_ms(), engine.settings.name
        freed = 0
        changed: dict[Cursor, None] = {}
        for handle in receipts:
            delivery = find_undelivered(engine.lites, topic, group, broker, handle)
            if delivery is not None and delivery[0].let_go(delivery[1]):
                delivery[0].free(delivery[1], now_ms)
                changed[delivery[0]] = None
                freed += 1
        for place in changed:
            engine.lites.settle(place, now_ms)
        if freed:
            await engine.settled()
        return freed

    async def dead_letter(self, topic: Topic, group: Group, receipt: str) -> None:
        engine = self._engine
        now_ms = engine.steady.now_ms()
        place, offset = find_held(engine.lites, topic, group, engine.settings.name, receipt, now_ms)
        try:
            place.bury(offset)
            engine.lites.settle(place, now_ms)
        except Exception as error:
            engine.abandon(error)
            raise
        await engine.settled()
