"""Builds the house from its settings, and takes it through its life: start, drain, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from brokers.opening import open_broker
from brokers.port import Broker
from popgate import __version__
from popgate.clock import Clock, SystemClock
from popgate.errors import GatewayError
from popgate.faults import Faults
from popgate.naming import told_group
from processors.messaging import MessagingProcessor
from protocols.adapter import Adapter, House, Listen, parse_advertised, parse_listen
from protocols.draining import Farewell, Waits
from protocols.finding import make_adapter
from proxy.admin.backups import Backups
from proxy.admin.clients import Clients
from proxy.admin.cluster import Cluster
from proxy.admin.deadletters import DeadLetterRoutes
from proxy.admin.declared import Declared
from proxy.admin.groups import Groups
from proxy.admin.health import Health
from proxy.admin.house import HouseFacts
from proxy.admin.lite import LiteTopics
from proxy.admin.messages import Messages
from proxy.admin.ordered_faults import fault_routes
from proxy.admin.server import AdminServer
from proxy.admin.store import StoreFacts
from proxy.admin.stuck import Stuck
from proxy.admin.topics import Topics
from proxy.logs import logger
from proxy.metrics import Metrics
from proxy.metrics.loop import LoopLag
from proxy.values import (
    backup_folder,
    embedded_values,
    limits_values,
    make_faults,
    new_group,
    policies_values,
    remote_values,
    shared_values,
    store_folder,
    transactions_are_bound,
)
from proxy.wrong import SettingsWrong

if TYPE_CHECKING:
    from brokers.shared.host import BrokerHost
    from brokers.shared.settings import SharedSettings
    from proxy.settings import Settings
    from proxy.tracing.exporting import Tracing

State = Literal["starting", "ready", "failing", "draining", "stopped"]

_log = logger("popgate.app")


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
    state: State = "starting"
    _told: int = 0
    _given_back: int = 0
    faults: Faults | None = None
    lag: LoopLag | None = None
    tracing: Tracing | None = None
    host: BrokerHost | None = None
    """Serves the broker to other gateways, where the settings say so."""

    def __repr__(self) -> str:
        return f"<App {self.state} {' '.join(self.addresses)}>"

    @property
    def addresses(self) -> list[str]:
        """Where clients are served, with the ports that were chosen."""
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
        """The state for probes: a gateway whose broker cannot write is not ready."""
        if self.state == "ready" and self.broker.figures().get("store_failing"):
            return "failing"
        return self.state

    async def start(self) -> None:
        """Open everything; the admin port first, so that probes see "starting". Raises CannotStart."""
        try:
            await self._open()
        except BaseException:
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
                told = f"cannot listen at {self.admin.wanted}: {_reason(error)} (choose another --admin)"
                raise CannotStart(told) from None
        try:
            await self.broker.start()
        except GatewayError as error:
            raise CannotStart(error.sentence) from None
        await self.processor.start()
        if self.host is not None:
            try:
                await self.host.start(self.processor.checking.ask, self.processor.lite.gone)
            except OSError as error:
                raise CannotStart(f"{_reason(error)} (choose another --share-broker)") from None
        for door in self.doors:
            try:
                await door.start()
            except OSError as error:
                raise CannotStart(f"{_reason(error)} (choose another --listen)") from None

    async def drain(self) -> None:
        """Not ready any more; the doors take no new work and finish the old, for `drain_s` at most."""
        self.state = "draining"
        deadline = self.clock.monotonic() + self.drain_s
        if self.admin is not None:
            self.admin.drain()
        self._given_back = self.processor.given_back
        if self.host is not None:
            self.host.drain()
        self._told = self.processor.drain()
        await asyncio.gather(*(door.drain(deadline) for door in self.doors))

    def farewell(self) -> dict[str, int]:
        """After the stop: what became of what was under way when the drain began."""
        doors = sum((door.farewell() for door in self.doors), Farewell())
        return {
            "connections": doors.connections,
            "clients_told_to_move": self._told,
            "streams_ended": doors.streams,
            "requests_finished": doors.finished,
            "messages_returned": self.processor.given_back - self._given_back,
            "requests_cut_off": doors.cut_off,
        }

    async def stop(self) -> None:
        """Close everything, in the opposite order; a part that fails to is logged and holds up nothing."""
        self.state = "draining" if self.state == "ready" else self.state
        if self.lag is not None:
            self.lag.stop()
        if self.admin is not None:
            self.admin.drain()
        for door in reversed(self.doors):
            await self._closing(door, door.stop())
        await self._closing(self.processor, self.processor.stop())
        if self.host is not None:
            await self._closing(self.host, self.host.stop())
        await self._closing(self.broker, self.broker.stop())
        if self.admin is not None:
            await self._closing(self.admin, self.admin.stop())
        if self.tracing is not None:
            await self._closing(self.tracing, self.tracing.stop())
        self.state = "stopped"

    async def _closing(self, what: object, closing: Any) -> None:
        try:
            await closing
        except Exception:
            _log.exception("could not be closed", what=repr(what))


def build(settings: Settings, *, clock: Clock | None = None) -> App:
    """The house as the settings say, not started. Raises SettingsWrong for values that do not fit."""
    clock = SystemClock() if clock is None else clock
    metrics = Metrics(
        max_topics=settings.metrics.max_topics,
        max_groups=settings.metrics.max_groups,
        forget_s=settings.metrics.forget_s,
        now=clock.monotonic,
    )
    group_defaults = new_group(settings)
    try:
        policies = policies_values(settings)
        listens = [parse_listen(url) for url in settings.listen]
        admin_at = _admin_listen(settings.admin)
        if settings.advertised.address:
            parse_advertised(settings.advertised.address)
        faults = make_faults(settings)
        shared = shared_values(settings)
        broker = open_broker(
            settings.broker,
            data=settings.data,
            clock=clock,
            embedded=embedded_values(settings, listens) if settings.broker.startswith("embedded:") else None,
            remote=remote_values(settings),
            shared=shared,
            faults=faults,
        )
        if transactions_are_bound(settings):
            _log.warning(
                "transactions can be ended through this gateway only, and not after its end:"
                " set remote.transaction_key, the same for all gateways of the cluster"
            )
        host = _host(settings, broker, clock, shared)
        tracing = _tracing(settings)
        make = MessagingProcessor if tracing is None else tracing.make_processor
        processor = make(
            broker,
            clock=clock,
            limits=limits_values(settings, group_defaults),
            policies=policies,
            observer=metrics,
        )
        identity = policies.authenticator if settings.policies.identity != "anyone" else None
        house = House(
            processor,
            clock,
            settings.advertised.address,
            identity,
            connection_age_s=settings.connections.max_age_s,
            connection_ping_s=settings.connections.ping_s,
            connection_grace_s=settings.connections.age_grace_s,
            faults=faults,
            calls=metrics,
            namespaces=settings.namespaces.value == "prefixed",
            reflection=settings.reflection,
            healthy=lambda: not broker.figures().get("store_failing"),
        )
        doors = [_door(listen, house) for listen in listens]
        if faults is not None:
            faults.refuse_unclaimed()
    except GatewayError as error:
        raise SettingsWrong(error.sentence) from None
    except ValueError as error:
        raise SettingsWrong(str(error)) from None
    app = App(broker, processor, doors, None, metrics, clock, settings.stopping.drain_s, faults=faults)
    app.tracing, app.host = tracing, host
    metrics.figures = lambda: _figures(app)
    metrics.ages = lambda most: _ages(processor, most)
    metrics.standings.ask = broker.standings
    metrics.standings.whole = broker.traits.tells_deliveries
    if admin_at is not None:
        waits = Waits()
        routes = [
            *Health(metrics, app.condition).routes(),
            *HouseFacts(settings, lambda: app.addresses).routes(),
            *fault_routes(faults),
            *Topics(processor, queues=settings.topics.queues).routes(),
            *Groups(processor, defaults=group_defaults).routes(),
            *Stuck(processor).routes(),
            *Declared(processor, queues=settings.topics.queues, group_defaults=group_defaults).routes(),
            *DeadLetterRoutes(processor).routes(),
            *Backups(broker, backup_folder(settings), clock).routes(),
            *Cluster(broker, lambda: {"transactions_bound": transactions_are_bound(settings)}).routes(),
            *StoreFacts(app.condition, broker.figures, store_folder(settings)).routes(),
            *Clients(processor).routes(),
            *LiteTopics(processor).routes(),
            *Messages(processor, clock, max_wait_s=settings.api.max_wait_s, waits=waits).routes(),
        ]
        app.admin = AdminServer(
            admin_at,
            routes,
            max_request_bytes=settings.api.max_request_bytes,
            hosts=settings.api.hosts,
            waits=waits,
        )
    return app


def _door(listen: Listen, house: House) -> Adapter:
    """An option `advertised=host:port` of one address wins over the setting for all."""
    options = dict(listen.options)
    advertised = options.pop("advertised", "")
    if advertised:
        parse_advertised(advertised)
        house = replace(house, advertised=advertised)
    return make_adapter(Listen(listen.scheme, listen.host, listen.port, options), house)


def _admin_listen(url: str) -> Listen | None:
    if url in ("", "off"):
        return None
    listen = parse_listen(url)
    if listen.scheme != "http" or listen.options:
        raise ValueError(f"{url!r} is no admin address: write it like http://127.0.0.1:8083, or off")
    return listen


def _figures(app: App) -> dict[str, float]:
    of_broker = {f"broker_{name}": value for name, value in app.broker.figures().items()}
    of_host = app.host.figures() if app.host is not None else {}
    return {"ready": app.condition() == "ready", **app.processor.figures(), **of_broker, **of_host}


def _host(settings: Settings, broker: Broker, clock: Clock, shared: SharedSettings) -> BrokerHost | None:
    """None when the broker is not shared: then nothing of it is imported. Raises BadRequest."""
    if not settings.share_broker:
        return None
    from brokers.shared.host import BrokerHost

    return BrokerHost(broker, settings.share_broker, clock=clock, settings=shared)


def _tracing(settings: Settings) -> Tracing | None:
    """None when it is off: then nothing of OpenTelemetry is imported. Raises SettingsWrong."""
    wanted = settings.tracing
    if not wanted.enabled:
        return None
    try:
        from proxy.tracing.exporting import Tracing
    except ImportError as error:
        raise SettingsWrong(
            f"tracing.enabled needs a package that is not installed, {error.name}:"
            " install popgate[tracing], or switch it off"
        ) from None
    return Tracing(wanted.endpoint, share=wanted.share, most=wanted.max_remembered)


def _ages(processor: MessagingProcessor, most: int) -> dict[tuple[str, str], float]:
    renewing = processor.renewing
    ages = renewing.holdings.ages_by_group(renewing.now_ms(), most)
    told: dict[tuple[str, str], float] = {}
    for (topic, group), age_ms in ages.items():
        key = (topic, told_group(group))
        told[key] = max(told.get(key, 0.0), age_ms / 1000)
    return told


def _reason(error: OSError) -> str:
    """The system's words; asyncio puts the address in front of them, which is named already."""
    return (error.strerror or str(error)).rpartition("): ")[2]
