"""What becomes of deliveries of lite topics: finished, hidden, given back, buried."""

from __future__ import annotations

from collections.abc import Sequence

from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.engine.component import Facet
from brokers.embedded.lite.cursor import Place
from brokers.embedded.lite_port.receipts import find_delivery, find_held, find_undelivered
from popgate.errors import GatewayError


class LiteSettling(Facet):
    """The part of the port's `Store` that is about deliveries, for groups that take lite topics."""

    async def _ack_lite(
        self, topic: Topic, group: Group, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        state = self._state
        now_ms, broker = state.steady.now_ms(), state.settings.name
        results: list[GatewayError | None] = []
        changed: dict[Place, None] = {}
        for handle in receipts:
            try:
                found = find_delivery(state.lites, topic, group, broker, handle, now_ms)
            except GatewayError as error:
                results.append(error)
                continue
            results.append(None)
            if found is not None:
                found[0].finish(found[1])
                changed[found[0]] = None
        for place in changed:
            state.lites.settle(place, now_ms)
        if None in results:
            # Also when all were finished before: that may not have been written yet.
            await state.settled()
        return results

    async def _change_lite(
        self, topic: Topic, group: Group, receipt: str, invisible_ms: int, *, suspend: bool
    ) -> str:
        state = self._state
        now_ms, broker = state.steady.now_ms(), state.settings.name
        place, offset = find_held(state.lites, topic, group, broker, receipt, now_ms)
        try:
            entry = place.hide(offset, now_ms + invisible_ms, now_ms, suspend=suspend)
            state.lites.settle(place, now_ms)
        except Exception as error:
            state.abandon(error)
            raise
        state.arm()
        await state.settled()
        return place.receipt(offset, entry, broker)

    async def _give_back_lite(self, topic: Topic, group: Group, receipts: Sequence[str]) -> int:
        state = self._state
        now_ms, broker = state.steady.now_ms(), state.settings.name
        freed = 0
        changed: dict[Place, None] = {}
        for handle in receipts:
            found = find_undelivered(state.lites, topic, group, broker, handle)
            if found is not None:
                found[0].free(found[1], now_ms)
                changed[found[0]] = None
                freed += 1
        for place in changed:
            state.lites.settle(place, now_ms)
        if freed:
            await state.settled()
        return freed

    async def _dead_letter_lite(self, topic: Topic, group: Group, receipt: str) -> None:
        state = self._state
        now_ms = state.steady.now_ms()
        place, offset = find_held(state.lites, topic, group, state.settings.name, receipt, now_ms)
        try:
            place.bury(offset)
            state.lites.settle(place, now_ms)
        except Exception as error:
            state.abandon(error)
            raise
        await state.settled()
