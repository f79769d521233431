"""Builds the gateway from its settings and controls its life: start, drain, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from brokers.open_broker import open_broker
from brokers.port import Broker
from popgate import __version__
from popgate.clock import Clock, SystemClock, pause
from popgate.errors import GatewayError
from popgate.faults import Faults
from popgate.naming import told_group
from processors.messaging import MessagingProcessor
from protocols.adapter import Adapter, AdapterContext, parse_advertised, parse_listen
from protocols.drain import DrainReport
from protocols.schemes import command_handler
from proxy.admin.open_admin import admin_listen, open_admin
from proxy.admin.web.server import AdminServer
from proxy.brokers import host_of, remote_of, shared_of
from proxy.config.error import SettingsWrong
from proxy.config.handover import Settled, settled
from proxy.config.mapping import (
    context_values,
    embedded_values,
    is_failing,
    limits_values,
    make_faults,
    new_group,
    open_tracing,
    policies_values,
    transactions_are_bound,
)
from proxy.lifetime.deadline import DOORS_PART, Deadline, all_drained, closing_s, lame_duck_s
from proxy.lifetime.states import State
from proxy.logs import logger
from proxy.metrics import Metrics
from proxy.metrics.loop import LoopLag
from proxy.reload.crew import CrewReloads
from proxy.reload.listeners import Listeners
from proxy.reload.reloader import Reloader, Reloads
from proxy.tls.door_tls import certificate, door_urls, tls_warnings

if TYPE_CHECKING:
    from brokers.shared.host.host import BrokerHost
    from protocols.tls import Certificate
    from proxy.config.settings import Settings
    from proxy.tracing.exporter import Tracing
    from proxy.workers.membership import Membership

_log = logger("popgate.app")
_BROKER_S = 0.25
"""The minimum time for closing the broker: a store that was closed cleanly opens faster."""


class CannotStart(Exception):
    """The gateway could not start; the text is for the operator."""


@dataclass(slots=True)
class App:
    """A gateway. `start` either succeeds or leaves nothing open."""

    broker: Broker
    processor: MessagingProcessor
    doors: Sequence[Adapter]
    admin: AdminServer | None
    metrics: Metrics
    clock: Clock
    drain_s: float
    lame_duck_s: float = 0.0
    """The part of `drain_s` in which it serves normally; of several processes the supervisor sees to that."""
    state: State = "starting"
    deadline: Deadline = field(init=False)
    _told: int = 0
    _before: tuple[int, int] = (0, 0)
    """Messages given back, and not, when the drain began."""
    faults: Faults | None = None
    lag: LoopLag | None = None
    tracing: Tracing | None = None
    host: BrokerHost | None = None
    """Serves the broker to other gateways, where the settings say so."""
    certificate: Certificate | None = None
    membership: Membership | None = None
    """In one of several processes of a gateway."""
    listeners: Listeners | None = None
    reloader: Reloader | None = None
    """Takes new settings, in a gateway of one process."""
    reloads: Reloads | None = None
    """Has new settings taken, in whichever way."""

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.clock)

    def __repr__(self) -> str:
        return f"<App {self.state} {' '.join(self.addresses)}>"

    @property
    def addresses(self) -> list[str]:
        """Where clients are served, with the ports that were chosen."""
        if self.membership is not None:
            return self.membership.addresses
        return [address for door in self.doors for address in door.addresses]

    @property
    def shared_at(self) -> str:
        """Where other gateways reach the broker; empty when it is not shared."""
        return self.host.address if self.host is not None else ""

    @property
    def admin_address(self) -> str:
        """Empty when there is none."""
        return self.admin.address if self.admin is not None else ""

    def condition(self) -> State:
        """The state for probes: a gateway whose broker cannot write is not ready.

        Of several processes it is that of all together.
        """
        state: State = self.state if self.membership is None else self.membership.roster.state
        if state == "ready" and is_failing(self.broker):
            return "failing"
        return state

    async def start(self) -> None:
        """Open everything; the admin port first, so that probes see "starting". Raises CannotStart."""
        try:
            await self._open()
        except BaseException:
            self.deadline.begin(self.clock.monotonic() + self.drain_s)
            await self.stop()
            raise
        self.state = "ready"
        if self.faults is not None:
            _log.error(
                "FAULTS ARE ON: this gateway breaks things on purpose, for tests", faults=self.faults.text
            )
        _log.info("ready", version=__version__, listening=self.addresses, admin=self.admin_address)

    async def _open(self) -> None:
        self.lag = LoopLag(self.clock)
        self.metrics.lag = self.lag.seconds
        self.lag.start()
        if self.tracing is not None:
            self.tracing.start()
        if self.admin is not None:
            try:
                await self.admin.start()
            except OSError as error:
                sentence = f"cannot listen at {self.admin.wanted}: {_reason(error)} (choose another --admin)"
                raise CannotStart(sentence) from None
            if self.membership is not None:
                self.membership.serves_admin(self.admin.adopt)
                self.admin.before_stop = self.membership.leave_admin
        try:
            await self.broker.start()
        except GatewayError as error:
            raise CannotStart(error.sentence) from None
        await self.processor.start()
        if self.host is not None:
            try:
                await self.host.start(
                    self.processor.check_router.ask,
                    self.processor.lite.gone,
                    self.processor.clients.members_changed,
                    self.processor.classic.hand_reply,
                )
            except OSError as error:
                raise CannotStart(f"{_reason(error)} (choose another --share-broker)") from None
        if self.certificate is not None:
            try:
                await asyncio.to_thread(self.certificate.open)
            except OSError as error:
                raise CannotStart(str(error)) from None
        for door in self.doors:
            try:
                await door.start()
            except OSError as error:
                raise CannotStart(f"{_reason(error)} (choose another --listen)") from None

    def before_closing(self, since: float | None = None) -> float:
        """Until when clients are served, when this was told to end at `since`, or now."""
        begin = self.clock.monotonic() if since is None else since
        return begin + self.drain_s - closing_s(self.drain_s)

    @property
    def lame_s(self) -> float:
        """For how long a drain first serves on."""
        return lame_duck_s(self.lame_duck_s, self.drain_s) if self.doors else 0.0

    def others_serve(self, membership: Membership | None) -> bool:
        """Whether the clients of a door that drains are served elsewhere meanwhile: also by its successor."""
        if self.state == "ready" and membership is None:
            return True
        return self.broker.traits.stands_apart and not (membership and membership.is_alone)

    def leave(self) -> None:
        """Report not ready, and ask clients to reconnect; all clients are still served, new ones too."""
        self.state = "draining"
        for door in self.doors:
            door.leave()
        self._told = self.processor.drain()

    async def drain(self, since: float | None = None, ends: float | None = None) -> None:
        """Report not ready, accept no new work, and finish requests in progress, so that `stop` ends in time.

        `since`: when the gateway was told to stop, by default now; `ends`: the deadline, by default
        `drain_s` later. Before the doors close, all requests are served for `lame_duck_s`.
        """
        begin = self.clock.monotonic() if since is None else since
        ends = begin + self.drain_s if ends is None else ends
        self.deadline.begin(ends)
        self._before = self.processor.settlement.given_back, self.processor.settlement.not_returned
        if lame_s := self.lame_s:
            self.leave()
            await pause(self.clock, begin + lame_s - self.clock.monotonic())
        self.state = "draining"
        if self.admin is not None:
            self.admin.drain()
        if self.host is not None:
            self.host.drain()
        self._told = self.processor.drain()
        closing = closing_s(self.drain_s)
        until = ends - closing, ends - closing * (1 - DOORS_PART)
        # Listeners that a reload closes have calls under way, too.
        leaving = [self.listeners.drained(*until)] if self.listeners is not None else []
        await all_drained(*(door.drain(*until) for door in self.doors), *leaving)

    def farewell(self) -> dict[str, int]:
        """After the stop: the outcome of the requests that were in progress when the drain began."""
        doors = sum((door.farewell() for door in self.doors), DrainReport())
        return {
            "connections": doors.connections,
            "clients_told_to_move": self._told,
            "streams_ended": doors.streams,
            "requests_finished": doors.finished,
            "messages_returned": self.processor.settlement.given_back - self._before[0],
            "returns_failed": self.processor.settlement.not_returned - self._before[1],
            "requests_cut_off": doors.cut_off,
        }

    async def stop(self) -> None:
        """Close everything, in the opposite order; a part that fails to is logged and holds up nothing.

        After a drain has begun, nothing is waited for when its time is over.
        """
        self.state = "draining" if self.state == "ready" else self.state
        if self.lag is not None:
            self.lag.stop()
        if self.admin is not None:
            self.admin.drain()
        close, part = self.deadline.close, DOORS_PART
        ends = self.deadline.after(part)
        doors = [*reversed(self.doors), *(self.listeners.leaving() if self.listeners is not None else ())]
        await asyncio.gather(*(close(door, door.stop(ends), part) for door in doors))
        await close(self.processor, self.processor.stop(), part)
        if self.host is not None:
            await close(self.host, self.host.stop(), part)
        await close(self.broker, self.broker.stop(), least_s=_BROKER_S)
        if self.admin is not None:
            await close(self.admin, self.admin.stop())
        if self.tracing is not None:
            await close(self.tracing, self.tracing.stop())
        self.state = "stopped"


def build(settings: Settings, *, clock: Clock | None = None, membership: Membership | None = None) -> App:
    """The gateway described by the settings, not started. Raises SettingsWrong for values that do not fit.

    `membership`: where it is one of several processes of a gateway.
    """
    clock = SystemClock() if clock is None else clock
    settings = settled(settings)
    metrics = Metrics(
        max_topics=settings.metrics.max_topics,
        max_groups=settings.metrics.max_groups,
        forget_s=settings.metrics.forget_s,
        now=clock.monotonic,
        added=membership is not None,
    )
    try:
        policies = policies_values(settings)
        listens = [parse_listen(url) for url in door_urls(settings)]
        admin_at = admin_listen(settings.admin)
        if settings.advertised.address:
            parse_advertised(settings.advertised.address)
        faults = make_faults(settings)
        shared = shared_of(settings, membership)
        broker = open_broker(
            settings.broker,
            data=settings.data,
            clock=clock,
            embedded=embedded_values(settings, listens) if settings.broker.startswith("embedded:") else None,
            remote=remote_of(settings, membership),
            shared=shared,
            faults=faults,
        )
        if transactions_are_bound(settings) and (membership is None or membership.post.first):
            _log.warning(
                "transactions can be ended through this gateway only, and not after its end:"
                " set remote.transaction_key, the same for all gateways of the cluster"
            )
        host = host_of(settings, broker, clock, shared)
        tracing = open_tracing(settings)
        make = MessagingProcessor if tracing is None else tracing.make_processor
        processor = make(
            broker,
            clock=clock,
            limits=limits_values(settings, new_group(settings)),
            policies=policies,
            observer=metrics.counters,
        )
        processor.command_relay.serve(command_handler(processor, clock), host)
        adapter_context = AdapterContext(
            processor,
            clock,
            authenticator=policies.authenticator if settings.policies.identity != "anyone" else None,
            **context_values(settings),
            faults=faults,
            calls=metrics.counters,
            connections=metrics.counters.connections,
            remoting_connections=metrics.counters.remoting_connections,
            sniffing=metrics.counters.sniffing,
            healthy=lambda: not is_failing(broker),
            accepting=membership.accepting if membership is not None else None,
            certificate=certificate(settings, listens, tell=membership is None or membership.post.first),
            leaves_streams=lambda: app.others_serve(membership),
        )
        serves = membership is None or not membership.is_host
        listeners = Listeners(door_urls(settings) if serves else (), adapter_context, clock)
        if faults is not None:
            faults.refuse_unclaimed()
    except GatewayError as error:
        raise SettingsWrong(error.sentence) from None
    except ValueError as error:
        raise SettingsWrong(str(error)) from None
    app = App(
        broker, processor, listeners.adapters, None, metrics, clock, settings.stopping.drain_s, faults=faults
    )
    app.listeners = listeners
    app.tracing, app.host, app.membership, app.certificate = (
        tracing,
        host,
        membership,
        adapter_context.certificate,
    )
    app.lame_duck_s = settings.stopping.lame_duck_s if membership is None else 0.0
    if membership is None:
        app.reloads = app.reloader = Reloader(app, cast("Settled", settings), listeners)
    elif membership.settings is not None:
        app.reloads = CrewReloads(membership, cast("Settled", settled(membership.settings)), clock)
    metrics.figures = lambda: _figures(app)
    metrics.ages = lambda most: _ages(processor, most)
    metrics.queries = processor.query_reports.current
    metrics.standings.ask = broker.standings
    metrics.standings.whole = broker.traits.tells_deliveries
    if admin_at is not None:
        app.admin = open_admin(
            admin_at,
            settings,
            broker,
            processor,
            clock,
            metrics,
            state=app.condition,
            addresses=lambda: app.addresses,
            tls_warnings=lambda: tls_warnings(app.certificate, broker),
            faults=faults,
            membership=membership,
            reloads=app.reloads,
        )
    return app


def _figures(app: App) -> dict[str, float]:
    of_broker = {f"broker_{name}": value for name, value in app.broker.figures().items()}
    of_host = app.host.figures() if app.host is not None else {}
    alone = {"workers": 1, "workers_silent": 0, "worker_restarts_total": 0} if app.membership is None else {}
    loaded = app.reloads.standing().figures() if app.reloads is not None else {}
    of_certificate = app.certificate.figures() if app.certificate is not None else {}
    ready = {"ready": app.condition() == "ready"}
    return {**ready, **alone, **loaded, **of_certificate, **app.processor.figures(), **of_broker, **of_host}


def _ages(processor: MessagingProcessor, most: int) -> dict[tuple[str, str], float]:
    renewing = processor.auto_renewal
    ages = renewing.holdings.ages_by_group(renewing.now_ms(), most)
    oldest: dict[tuple[str, str], float] = {}
    for (topic, group), age_ms in ages.items():
        key = (topic, told_group(group))
        oldest[key] = max(oldest.get(key, 0.0), age_ms / 1000)
    return oldest


def _reason(error: OSError) -> str:
    """The system's words; asyncio puts the address in front of them, which is named already."""
    return (error.strerror or str(error)).rpartition("): ")[2]
