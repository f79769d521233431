"""The guest's broker: it forwards every call to the process that hosts the broker."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from dataclasses import replace

from brokers.capabilities import (
    CarriesReplies,
    LiteTopics,
    ReclaimsRetries,
    RedrivesDeadLetters,
    TellsConsumers,
)
from brokers.client_registration import RegistersClients
from brokers.port import Broker, CheckHandler
from brokers.relay import AsksGateways
from brokers.shared.codec.calls import CHECK, DONE, END_TRANSACTION, GONE, decode
from brokers.shared.guest.directory import SharedDirectory
from brokers.shared.guest.host_link import HostLink
from brokers.shared.guest.lite import Lites
from brokers.shared.guest.members import Members, told
from brokers.shared.guest.offsets import Positions
from brokers.shared.session.addresses import parse_hosted
from brokers.shared.session.hello import AT_ONCE, HostFacts
from brokers.shared.settings import SharedSettings
from brokers.traits import OrderScope, Traits
from popgate.clock import Clock, pause
from popgate.context import Context
from popgate.errors import PeerWireError
from popgate.model import EndTransaction, TransactionCheck
from popgate.wire.frames.codes import PortCode
from popgate.wire.frames.remoting import Command

_log = logging.getLogger(__name__)

_UNKNOWN = Traits(
    order_scope=OrderScope.QUEUE,
    timer_precision_ms=0,
    redelivery_lag_ms=0,
    renewal_keeps_receipt=False,
    returns_are_free=False,
    ends_are_idempotent=False,
    acks_are_checked=False,
    exact_message_groups=False,
    max_delay_ms=0,
    stands_apart=True,
)
"""Before the host was reached once: nothing is promised."""


class SharedBroker(
    Lites,
    Positions,
    SharedDirectory,
    Members,
    Broker,
    LiteTopics,
    ReclaimsRetries,
    RedrivesDeadLetters,
    RegistersClients,
    TellsConsumers,
    CarriesReplies,
    AsksGateways,
):
    """The broker that a `BrokerHost` serves at `url`. Its name and its traits are those of the host's,
    but that it stands apart, and takes no packed messages.

    Raises BadRequest for what is no such address.
    """

    def __init__(self, url: str, *, clock: Clock, settings: SharedSettings | None = None) -> None:
        self._settings = settings if settings is not None else SharedSettings()
        self._clock = clock
        address = parse_hosted(url)
        self.name = str(address)
        self.traits = _UNKNOWN
        self._taking = {}
        self._counts = OrderedDict()
        self._here = {}
        self._unsaid = {}
        self._link = HostLink(
            address,
            clock=clock,
            settings=self._settings,
            on_asked=self._asked,
            on_open=self._opened,
            on_late=self._came_late,
        )
        self._check_handler: CheckHandler | None = None
        self._host_leaves = False
        self._host: Mapping[str, float] = {}
        self._looking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<SharedBroker {self.name} {self._link!r}>"

    async def start(self) -> None:
        await self._link.start()
        self._looking = asyncio.get_running_loop().create_task(self._keep_looking())

    async def stop(self) -> None:
        """Pops that were given up are waited for, for a moment: what they took is given back."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
        if self._taking and self._link.is_open:
            self._all_came = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._all_came,), timeout=self._settings.stop_s)
        await self._link.stop()

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        return await self._link.ask(END_TRANSACTION, context, end)

    def on_check(self, handler: CheckHandler) -> None:
        self._check_handler = handler

    def figures(self) -> dict[str, float]:
        """`store_failing`: whether the host cannot write, or is not there to do it."""
        there = self._link.is_open and not self._host_leaves
        return {
            "host_connected": float(self._link.is_open),
            "host_calls": self._link.in_flight,
            "host_reconnects_total": self._link.reconnects,
            "store_failing": self._host.get("store_failing", 0.0) if there else 1.0,
        }

    async def look(self) -> None:
        """See how the host is; done by itself now and then."""
        if self._link.is_open:
            self._tell_unsaid()
            state = await self._look(self._longest_ago())
            if state is not None:
                self._host = state.figures

    # -- inside -------------------------------------------------------------------------------

    def _opened(self, facts: HostFacts) -> None:
        # Its host is another process, whatever the host says of its broker; and messages travel one by one,
        # so that nothing is won when a door packs them.
        self.name = facts.name
        self.traits = replace(facts.traits, stands_apart=True, stores_packed=False)
        self._host_leaves = False
        self._forget_taking()  # no answer comes on a connection that is gone
        self._tell_all()

    def _asked(self, request: Command) -> Command | Awaitable[Command | None] | None:
        """What the host asks or tells. Raises PeerWireError."""
        match request.code:
            case PortCode.CHECK:
                return self._check(request)
            case PortCode.LITE_GONE:
                self._lite_went(*decode(GONE, request.body))
                return None
            case PortCode.MEMBERS_CHANGED:
                self._members_changed(request)
                return None
            case PortCode.REPLY:
                return self._reply(request)
            case PortCode.COMMAND:
                return self._command(request)
            case PortCode.LEAVING:
                self._host_leaves = True
                if request.body == AT_ONCE:
                    self._link.rest()
                    return request.answer(DONE)
                _log.warning("the process that hosts the broker is about to stop")
                return None
            case PortCode.STATE:
                return request.answer(DONE)
            case other:
                raise PeerWireError(f"the host asks for {other}")

    def _check(self, request: Command) -> Command | Awaitable[Command | None]:
        check: TransactionCheck = decode(CHECK, request.body)
        try:
            asked = self._check_handler(check) if self._check_handler is not None else False
        except Exception:
            _log.exception("asking about a half message of topic %s failed", check.topic)
            asked = False
        if inspect.isawaitable(asked):
            return _later(request, asked)
        return told(request, yes=bool(asked))

    async def _keep_looking(self) -> None:
        while True:
            await self.look()
            await pause(self._clock, self._settings.state_s)


async def _later(request: Command, asked: Awaitable[bool]) -> Command:
    try:
        return told(request, yes=await asked)
    except Exception:
        _log.exception("asking about a half message failed")
        return told(request, yes=False)
