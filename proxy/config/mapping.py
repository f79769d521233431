"""Converts settings to constructor arguments; seconds become milliseconds here."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from brokers.open_broker import STORE_FOLDER
from brokers.port import Broker
from brokers.remote.settings import Credentials, RemoteSettings, Tls, Verify
from brokers.shared.settings import SharedSettings
from popgate.faults import Faults
from popgate.model import DEFAULT_RETRY, ExponentialRetry, GroupConfig, StartFrom
from processors.limits import Limits
from processors.policies.registry import Policies, PolicyNotFound, make_policy, shown_policy
from protocols.adapter import Listen, joined, parse_advertised
from proxy.config.enums import RetryKind
from proxy.config.error import SettingsWrong

if TYPE_CHECKING:
    from brokers.embedded.settings import EmbeddedSettings
    from proxy.config.settings import Settings
    from proxy.tracing.exporter import Tracing

_LONGEST_SECRET = 4096
_SHORTEST_KEY = 16


def embedded_values(settings: Settings, listens: Sequence[Listen]) -> EmbeddedSettings:
    # RocksDB comes along, and a gateway before another broker needs none.
    from brokers.embedded.settings import EmbeddedSettings
    from brokers.embedded.storage.store import Durability

    embedded, retention, transactions = settings.embedded, settings.retention, settings.transactions
    return EmbeddedSettings(
        name=embedded.name,
        store_host=_store_host(settings.advertised.address, listens),
        durability=Durability(settings.durability.value),
        sync_interval_s=embedded.sync_interval_s,
        write_buffer_bytes=embedded.write_buffer_bytes,
        cache_bytes=embedded.cache_bytes,
        min_free_disk_bytes=embedded.min_free_disk_bytes,
        max_in_flight=embedded.max_in_flight,
        max_order_window=embedded.max_ordered_window,
        max_lite_topics=settings.lite.max_topics,
        max_lite_subscriptions=settings.lite.max_subscriptions,
        dedup_window_ms=_ms(embedded.dedup_window_s),
        dedup_max_ids=embedded.dedup_max_ids,
        max_delay_ms=_ms(settings.limits.max_delay_s),
        transaction_check_after_ms=_ms(transactions.first_check_s),
        transaction_check_interval_ms=_ms(transactions.check_interval_s),
        transaction_max_checks=transactions.max_checks,
        transaction_max_age_ms=_ms(transactions.max_age_s),
        retention_ms=_ms(retention.age_s),
        retention_bytes=retention.max_bytes or None,
        retention_interval_ms=_ms(retention.interval_s),
        tombstone_retention_ms=_ms(retention.tombstone_s),
    )


def remote_values(settings: Settings) -> RemoteSettings:
    """Reads the file of the secret. Raises SettingsWrong for values that do not go together."""
    remote = settings.remote
    secret = remote.secret_key or _secret_of("remote.secret_key_file", remote.secret_key_file)
    if bool(remote.access_key) != bool(secret):
        raise SettingsWrong(
            "an account at the cluster is remote.access_key with remote.secret_key or remote.secret_key_file"
        )
    if not remote.tls and (
        remote.ca_file or remote.crl_file or remote.cert_file or remote.key_file or remote.server_name
    ):
        raise SettingsWrong(
            "remote.ca_file, crl_file, cert_file, key_file and server_name need remote.tls = true"
        )
    keys = [
        _key("remote.transaction_key", remote.transaction_key, remote.transaction_key_file),
        _key(
            "remote.transaction_key_before", remote.transaction_key_before, remote.transaction_key_before_file
        ),
    ]
    if keys[1] and not keys[0]:
        raise SettingsWrong(
            "remote.transaction_key_before is beside remote.transaction_key, not in its place"
        )
    given: dict[str, Any] = {"transaction_keys": tuple(key for key in keys if key)} if keys[0] else {}
    return RemoteSettings(
        **given,
        transaction_check_after_s=round(remote.transaction_check_s),
        credentials=Credentials(remote.access_key, secret) if secret else None,
        tls=Tls(
            ca=path_or_none(remote.ca_file),
            crl=path_or_none(remote.crl_file),
            certificate=path_or_none(remote.cert_file),
            key=path_or_none(remote.key_file),
            verify=Verify(remote.verify.value),
            server_name=remote.server_name,
        )
        if remote.tls
        else None,
        connect_timeout_s=remote.connect_timeout_s,
        request_timeout_s=remote.request_timeout_s,
        probe_s=remote.probe_s,
        heartbeat_s=remote.heartbeat_s,
        ready_needs_brokers=remote.ready_needs_brokers,
        reconnect_longest_s=remote.reconnect_s,
        max_links=remote.max_links,
        route_refresh_s=remote.route_refresh_s,
        name_refresh_s=remote.name_refresh_s,
        zone=remote.zone,
        zone_only=remote.zone_only,
    )


def shared_values(settings: Settings) -> SharedSettings:
    """Reads the file of the secret. Raises SettingsWrong for values that do not go together."""
    shared = settings.shared
    if settings.share_broker and not settings.broker.startswith("embedded:"):
        raise SettingsWrong(
            f"share_broker is for an embedded broker: {settings.broker} is shared already, by where it is"
        )
    return SharedSettings(
        secret=shared.secret or _secret_of("shared.secret_file", shared.secret_file),
        gateway=f"{socket.gethostname()}:{os.getpid()}",
        connect_timeout_s=shared.connect_timeout_s,
        request_timeout_s=shared.request_timeout_s,
        startup_timeout_s=shared.startup_timeout_s,
        probe_s=shared.probe_s,
        reconnect_longest_s=shared.reconnect_s,
        max_guests=shared.max_guests,
    )


def transactions_are_bound(settings: Settings) -> bool:
    """Whether transactions can be ended only through the gateway that took their messages."""
    remote = settings.remote
    return settings.broker.startswith("rocketmq:") and not (
        remote.transaction_key or remote.transaction_key_file
    )


def _key(setting: str, inline_key: str, name: str) -> bytes:
    """Raises SettingsWrong for a key that could be guessed."""
    key = inline_key or _secret_of(f"{setting}_file", name)
    if key and len(key) < _SHORTEST_KEY:
        raise SettingsWrong(f"{setting} has {len(key)} characters, at least {_SHORTEST_KEY} are needed")
    return key.encode()


def _secret_of(setting: str, name: str) -> str:
    if not name:
        return ""
    try:
        with Path(name).expanduser().open("rb") as file:
            secret = file.read(_LONGEST_SECRET).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingsWrong(f"{setting}, {name}, cannot be read: {reason}") from None
    if not secret:
        raise SettingsWrong(f"{setting}, {name}, is empty")
    return secret


def path_or_none(name: str) -> Path | None:
    return Path(name).expanduser() if name else None


def backup_folder(settings: Settings) -> Path:
    """The folder for backups of the store; requests cannot choose another one."""
    own = settings.embedded.backup_folder
    return (Path(own).expanduser() if own else settings.data / "backups").absolute()


def store_folder(settings: Settings) -> Path | None:
    """Where the embedded store lies; None: another gateway, or a cluster, has what is stored."""
    kind, _, own = settings.broker.partition(":")
    if kind != "embedded":
        return None
    return Path(own).expanduser() if own else settings.data / STORE_FOLDER


def _store_host(advertised: str, listens: Sequence[Listen]) -> str:
    """The address inside records and offset message ids: one that clients can dial, as numbers."""
    # Clients that look for a message by such an id dial what it names, and speak remoting.
    door = next((listen for listen in listens if "remoting" in listen.schemes), listens[0])
    host, port = parse_advertised(advertised) if advertised else (door.host, 0)
    if "remoting" in door.schemes:
        # The port that is advertised for all doors is that of gRPC.
        own = door.options.get("advertised")
        host, port = parse_advertised(own) if own else (host, 0)
    try:
        dialled = not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        dialled = False
    return joined(host if dialled else "127.0.0.1", port or door.port)


def limits_values(settings: Settings, new_group: GroupConfig) -> Limits:
    limits, holding = settings.limits, settings.holding
    if limits.min_invisible_s > limits.max_invisible_s:
        raise SettingsWrong(
            f"limits.min_invisible_s ({limits.min_invisible_s:g} s) is above limits.max_invisible_s"
            f" ({limits.max_invisible_s:g} s): no receive could be right"
        )
    return Limits(
        max_body_bytes=limits.max_body_bytes,
        refuse_empty_bodies=limits.refuse_empty_bodies,
        max_properties=limits.max_properties,
        max_properties_bytes=limits.max_properties_bytes,
        max_message_group_bytes=limits.max_message_group_bytes,
        max_message_id_bytes=limits.max_message_id_bytes,
        max_delay_ms=_ms(limits.max_delay_s),
        max_recovery_ms=_ms(limits.max_recovery_s),
        max_messages_per_send=limits.max_messages_per_send,
        max_lite_topic_bytes=settings.lite.max_name_bytes,
        max_lite_subscriptions_per_client=settings.lite.max_per_client,
        check_message_types=limits.check_message_types,
        max_receive_messages=limits.max_receive_messages,
        max_receive_bytes=limits.max_receive_bytes,
        min_invisible_ms=_ms(limits.min_invisible_s),
        max_invisible_ms=_ms(limits.max_invisible_s),
        default_wait_s=limits.default_wait_s,
        max_wait_s=limits.max_wait_s,
        poll_margin_s=limits.poll_margin_s,
        max_receipts_per_ack=limits.max_receipts_per_ack,
        mapped_groups=settings.remoting.mapped_groups,
        pulled_groups=settings.remoting.pulled_groups,
        max_pull_messages=limits.max_pull_messages,
        max_pull_bytes=limits.max_pull_bytes,
        max_found=limits.max_found,
        max_waiting=limits.max_waiting,
        process_bytes=settings.budgets.process_bytes,
        group_bytes=settings.budgets.group_bytes,
        connection_bytes=settings.budgets.connection_bytes,
        auto_create_topics=settings.topics.auto_create,
        auto_create_groups=settings.groups.auto_create,
        max_auto_topics=settings.topics.max_auto_created,
        max_auto_groups=settings.groups.max_auto_created,
        new_topic_queues=settings.topics.queues,
        new_group=new_group,
        broadcast_expiry_s=settings.broadcast.expiry_s,
        max_broadcast_members=settings.broadcast.max_members,
        max_hold_ms=_ms(holding.max_hold_s),
        renew_ahead_ms=_ms(holding.renew_ahead_s),
        release_grace_s=holding.release_grace_s,
        ack_retry_s=holding.ack_retry_s,
        max_held=holding.max_held,
        max_clients=holding.max_clients,
        max_topics_per_client=holding.max_topics_per_client,
        client_expiry_s=holding.client_expiry_s,
    )


def new_group(settings: Settings) -> GroupConfig:
    groups = settings.groups
    return GroupConfig(
        "",
        max_attempts=groups.max_attempts,
        retry=ExponentialRetry() if groups.retry is RetryKind.EXPONENTIAL else DEFAULT_RETRY,
        # No group may have a longer one, so the default must not be longer either.
        consume_timeout_ms=_ms(min(groups.consume_timeout_s, settings.limits.max_invisible_s)),
        start_from=StartFrom(groups.start_from.value),
    )


def context_values(settings: Settings) -> dict[str, Any]:
    """The settings that listeners need: fields of `protocols.adapter.AdapterContext`."""
    connections = settings.connections
    return {
        "advertised": settings.advertised.address,
        "connection_age_s": connections.max_age_s,
        "connection_ping_s": connections.ping_s,
        "connection_grace_s": connections.age_grace_s,
        "max_connections": connections.max,
        "max_per_address": connections.max_per_address,
        "max_streams": connections.max_streams,
        "namespaces": settings.namespaces.value == "prefixed",
        "reflection": settings.reflection,
    }


def policies_values(settings: Settings) -> Policies:
    named = settings.policies
    return Policies(
        authenticator=_policy("identity", named.identity),
        authorizer=_policy("permission", named.permission),
        rate=_policy("rate", named.rate),
        backoff=_policy("backoff", named.backoff),
        queues=_policy("picking", named.picking),
    )


def make_faults(settings: Settings) -> Faults | None:
    """For tests only; None, and nothing loaded, without the setting. Raises SettingsWrong."""
    if not settings.faults:
        return None
    try:
        return Faults.parse(settings.faults)
    except ValueError as error:
        raise SettingsWrong(f"faults: {error}") from None


def _policy(kind: str, text: str) -> Any:
    """`name?option=value&…`; values that are numbers are given as numbers."""
    name, _, query = text.partition("?")
    options = {option: _number_or_text(value) for option, value in parse_qsl(query, keep_blank_values=True)}
    try:
        return make_policy(kind, name, options)
    except (TypeError, ValueError, PolicyNotFound) as error:
        raise SettingsWrong(f"policies.{kind} is {shown_policy(kind, text)!r}: {error}") from None


def _number_or_text(value: str) -> float | int | str:
    try:
        return int(value) if value.isdigit() else float(value)
    except ValueError:
        return value


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def open_tracing(settings: Settings) -> Tracing | None:
    """None when it is off: then nothing of OpenTelemetry is imported. Raises SettingsWrong."""
    wanted = settings.tracing
    if not wanted.enabled:
        return None
    try:
        from proxy.tracing.exporter import Tracing
    except ImportError as error:
        raise SettingsWrong(
            f"tracing.enabled needs a package that is not installed, {error.name}:"
            " install popgate[tracing], or switch it off"
        ) from None
    return Tracing(
        wanted.endpoint, timeout_s=wanted.timeout_s, share=wanted.share, most=wanted.max_remembered
    )


def is_failing(broker: Broker) -> bool:
    """Whether a gateway with this broker is not ready: it cannot write, or is away and must not be."""
    figures = broker.figures()
    return bool(figures.get("store_failing") or figures.get("needed_brokers_away"))
