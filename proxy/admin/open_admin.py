"""The admin port with all its pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from brokers.capabilities import TellsAbsence
from brokers.port import Broker
from popgate.clock import Clock
from popgate.faults import Faults
from processors.messaging import MessagingProcessor
from protocols.adapter import Listen, parse_listen
from protocols.drain import LongPolls
from proxy.admin.domain.clients import Clients
from proxy.admin.domain.dead_letters import DeadLetterRoutes
from proxy.admin.domain.declaration import Declared
from proxy.admin.domain.groups import Groups
from proxy.admin.domain.lite import LiteTopics
from proxy.admin.domain.messages import Messages
from proxy.admin.domain.stuck import Stuck
from proxy.admin.domain.topics import Topics
from proxy.admin.gateway.backups import Backups
from proxy.admin.gateway.cluster import Cluster
from proxy.admin.gateway.health import Health
from proxy.admin.gateway.ordered_faults import fault_routes
from proxy.admin.gateway.reloads import ReloadRoutes
from proxy.admin.gateway.store import StoreFacts
from proxy.admin.gateway.version import HouseFacts
from proxy.admin.web.server import AdminServer
from proxy.config.mapping import backup_folder, store_folder, transactions_are_bound
from proxy.metrics import Metrics

if TYPE_CHECKING:
    from proxy.config.settings import Settings
    from proxy.reload.reloader import Reloads
    from proxy.workers.membership import Membership


def admin_listen(url: str) -> Listen | None:
    """Where the admin port listens; None: there is none. Raises ValueError with a sentence."""
    if url in ("", "off"):
        return None
    listen = parse_listen(url)
    if listen.scheme != "http" or listen.options or listen.path:
        raise ValueError(f"{url!r} is no admin address: write it like http://127.0.0.1:8083, or off")
    return listen


def open_admin(
    listen: Listen,
    settings: Settings,
    broker: Broker,
    processor: MessagingProcessor,
    clock: Clock,
    metrics: Metrics,
    *,
    state: Callable[[], str],
    addresses: Callable[[], list[str]],
    tls_warnings: Callable[[], list[str]],
    faults: Faults | None,
    membership: Membership | None = None,
    reloads: Reloads | None = None,
) -> AdminServer:
    """Not started. With a `membership` it is one of several that serve the port together."""
    waits = LongPolls()
    absence = broker.capability(TellsAbsence)
    missing = absence.missing if absence is not None else None
    routes = [
        *Health(metrics, state, membership, missing=missing).routes(),
        *HouseFacts(settings, addresses, tls_warnings).routes(),
        *ReloadRoutes(reloads).routes(),
        *fault_routes(faults),
        *Topics(processor).routes(),
        *Groups(processor).routes(),
        *Stuck(processor).routes(),
        *Declared(processor).routes(),
        *DeadLetterRoutes(processor).routes(),
        *Backups(broker, backup_folder(settings), clock).routes(),
        *Cluster(broker, lambda: {"transactions_bound": transactions_are_bound(settings)}).routes(),
        *StoreFacts(state, broker.figures, store_folder(settings)).routes(),
        *Clients(processor).routes(),
        *LiteTopics(processor).routes(),
        *Messages(processor, clock, max_wait_s=settings.api.max_wait_s, waits=waits).routes(),
    ]
    return AdminServer(
        listen,
        routes,
        max_request_bytes=settings.api.max_request_bytes,
        hosts=settings.api.hosts,
        waits=waits,
        path=str(membership.admin_path) if membership is not None else "",
        middlewares=[membership.together.middleware] if membership is not None else (),
    )
