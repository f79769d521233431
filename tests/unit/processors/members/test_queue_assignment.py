"""processors.members.queue_assignment: which topics a group pops, kept in its attributes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from brokers.port import Broker
from popgate.context import Context
from popgate.model import GroupConfig
from processors.members.queue_assignment import POPPED, QueueAssignment
from processors.routing import Routing


class DistantBroker:
    """One that other processes share: each answer takes a turn of the loop."""

    def __init__(self) -> None:
        self.config = GroupConfig("readers")

    def capability(self, _kind: type) -> None:
        return None

    async def group(self, _name: str) -> GroupConfig:
        config = self.config
        await _a_turn()
        return config

    async def update_group(self, config: GroupConfig) -> None:
        await _a_turn()
        self.config = config


async def _a_turn() -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().call_soon(over.set)
    await over.wait()


async def _nobody(_context: Context, _group: str) -> tuple[str, ...]:
    return ()


async def test_two_topics_that_are_set_to_pop_at_once_are_both_popped() -> None:
    broker = DistantBroker()
    routing: Any = SimpleNamespace(group=broker.group, forget_group=lambda _group: None)
    assignment = QueueAssignment(
        cast(Broker, broker), cast(Routing, routing), lambda *_args, **_kwargs: None, _nobody
    )
    await asyncio.gather(
        *(assignment.set_popped(Context(), topic, "readers", True, 3) for topic in ("orders", "bills"))
    )
    assert dict(broker.config.attributes) == {POPPED + "orders": "3", POPPED + "bills": "3"}
