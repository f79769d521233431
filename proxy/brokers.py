"""The broker of a gateway as one of several processes has it, and the door by which others share it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokers.port import Broker
from popgate.clock import Clock
from proxy.config.mapping import remote_values, shared_values, transactions_are_bound

if TYPE_CHECKING:
    from brokers.remote.settings import RemoteSettings
    from brokers.shared.host.host import BrokerHost
    from brokers.shared.settings import SharedSettings
    from proxy.config.settings import Settings
    from proxy.workers.membership import Membership


def host_of(settings: Settings, broker: Broker, clock: Clock, shared: SharedSettings) -> BrokerHost | None:
    """None when the broker is not shared: then nothing of it is imported. Raises BadRequest."""
    if not settings.share_broker:
        return None
    from brokers.shared.host.host import BrokerHost

    return BrokerHost(broker, settings.share_broker, clock=clock, settings=shared)


def remote_of(settings: Settings, membership: Membership | None) -> RemoteSettings:
    """Processes of a gateway share a key for transaction ids, so that any of them can end a transaction."""
    values = remote_values(settings)
    if membership is None or not transactions_are_bound(settings):
        return values
    return replace(values, transaction_keys=(membership.post.secret,))


def shared_of(settings: Settings, membership: Membership | None) -> SharedSettings:
    """Whose supervisor brings back the process of the broker waits for that as long as for an answer."""
    values = shared_values(settings)
    if membership is None or not membership.post.broker:
        return values
    return replace(values, reconnect_wait_s=max(values.reconnect_wait_s, values.request_timeout_s))
