"""The embedded broker: all facets of the port on one store, in the gateway's own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from brokers.capabilities import LiteTopics
from brokers.dead_letters import DeadLetterHandler, ReportsDeadLetters
from brokers.embedded.engine.engine import Engine
from brokers.embedded.lite_port.pop import LitePopFacet
from brokers.embedded.lite_port.settle import LiteSettlement
from brokers.embedded.port.backup import BackupFacet, clear_leftovers
from brokers.embedded.port.directory import DirectoryFacet
from brokers.embedded.port.group_status import GroupStatusFacet
from brokers.embedded.port.lookup import LookupFacet
from brokers.embedded.port.members import MembersFacet, Membership
from brokers.embedded.port.offsets import OffsetsFacet
from brokers.embedded.port.pop import PopFacet
from brokers.embedded.port.pull import PullFacet
from brokers.embedded.port.reclaim import ReclaimFacet
from brokers.embedded.port.redrive import RedriveFacet
from brokers.embedded.port.send import SendFacet
from brokers.embedded.port.send_back import SendBackFacet
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability, Store
from brokers.port import Broker, CheckHandler
from brokers.traits import OrderScope, Traits
from popgate.clock import Clock
from popgate.context import Context
from popgate.faults import Faults
from popgate.model import EndTransaction


class EmbeddedBroker(
    SendFacet,
    SendBackFacet,
    PopFacet,
    PullFacet,
    OffsetsFacet,
    LookupFacet,
    DirectoryFacet,
    GroupStatusFacet,
    RedriveFacet,
    ReclaimFacet,
    BackupFacet,
    LitePopFacet,
    MembersFacet,
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
            repeats_known_ms=settings.dedup_window_ms,
            stores_packed=True,
        )
        self._membership = Membership()
        self._engine = Engine(path, clock, settings, _store_maker(faults))
        self._lite_settlement = LiteSettlement(self._engine)

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.name} {self._engine!r}>"

    async def start(self) -> None:
        self._engine.start()
        clear_leftovers(self._engine.store.path)

    async def stop(self) -> None:
        await self.end_backup()
        await self._engine.stop()

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        engine = self._engine
        engine.check_writable()
        engine.halves.end(end)
        engine.arm()
        await engine.settled()

    def on_check(self, handler: CheckHandler) -> None:
        self._engine.check_handler = handler
        self._engine.halves.on_check(handler)

    def on_dead_letter(self, handler: DeadLetterHandler) -> None:
        self._engine.dead_letter_handler = handler
        self._engine.parts.dead_letters.on_spent = handler

    def figures(self) -> dict[str, float]:
        return self._engine.figures()


def _store_maker(faults: Faults | None) -> Callable[..., Store]:
    """Decided once, when the broker is made: without faults nothing of them is in the way."""
    if faults is None:
        return Store
    from brokers.embedded.storage.faults import store_maker

    return store_maker(faults)
