"""The embedded broker: all facets of the port on one store, in the gateway's own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from brokers.capabilities import LiteTopics
from brokers.dead_letters import DeadLetterHandler, ReportsDeadLetters
from brokers.embedded.engine.engine import State
from brokers.embedded.lite_port.pop import LiteServing
from brokers.embedded.port.backup import BackingUp, clear_leftovers
from brokers.embedded.port.directory import Directing
from brokers.embedded.port.group_status import Looking
from brokers.embedded.port.lookup import Finding
from brokers.embedded.port.members import Members, Membership
from brokers.embedded.port.offsets import Positions
from brokers.embedded.port.pop import Popping
from brokers.embedded.port.pull import Reading
from brokers.embedded.port.reclaim import Reclaiming
from brokers.embedded.port.redrive import Redriving
from brokers.embedded.port.send import Sending
from brokers.embedded.port.send_back import SendingBack
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability, Store
from brokers.port import Broker, CheckHandler
from brokers.traits import OrderScope, Traits
from popgate.clock import Clock
from popgate.context import Context
from popgate.faults import Faults
from popgate.model import EndTransaction


class EmbeddedBroker(
    Sending,
    SendingBack,
    Popping,
    Reading,
    Positions,
    Finding,
    Directing,
    Looking,
    Redriving,
    Reclaiming,
    BackingUp,
    LiteServing,
    Members,
    Broker,
    LiteTopics,
    ReportsDeadLetters,
):
    """A broker in the folder `path`. Everything is done in the loop that starts it.

    `faults`, for tests only, happen to its store. Raises ValueError for some that cannot be.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        settings: EmbeddedSettings | None = None,
        durability: Durability | None = None,
        faults: Faults | None = None,
    ) -> None:
        settings = settings or EmbeddedSettings()
        if durability is not None:
            settings = replace(settings, durability=durability)
        self.name = settings.name
        self.settings = settings
        self.traits = Traits(
            order_scope=OrderScope.MESSAGE_GROUP,
            timer_precision_ms=50,
            redelivery_lag_ms=50,
            renewal_keeps_receipt=True,
            returns_are_free=True,
            ends_are_idempotent=True,
            acks_are_checked=True,
            exact_message_groups=True,
            max_delay_ms=settings.max_delay_ms,
            repeats_known_ms=settings.repeat_window_ms,
            stores_packed=True,
        )
        self._membership = Membership()
        self._state = State(path, clock, settings, _store_maker(faults))

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.name} {self._state!r}>"

    async def start(self) -> None:
        self._state.start()
        clear_leftovers(self._state.store.path)

    async def stop(self) -> None:
        await self.end_backup()
        await self._state.stop()

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        state = self._state
        state.check_writable()
        state.halves.end(end)
        state.arm()
        await state.settled()

    def on_check(self, handler: CheckHandler) -> None:
        self._state.check_handler = handler
        self._state.halves.on_check(handler)

    def on_dead_letter(self, handler: DeadLetterHandler) -> None:
        self._state.dead_letter_handler = handler
        self._state.parts.dead_letters.on_spent = handler

    def figures(self) -> dict[str, float]:
        return self._state.figures()


def _store_maker(faults: Faults | None) -> Callable[..., Store]:
    """Decided once, when the broker is made: without faults nothing of them is in the way."""
    if faults is None:
        return Store
    from brokers.embedded.storage.faults import store_maker

    return store_maker(faults)
