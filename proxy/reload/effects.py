"""When the new value of each setting takes effect. Every setting is listed here once; a test proves it.

It is separate from the classes of the settings, because a serving process does not load their library.
"""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    LIVE = "live"
    """At once, without any effect on clients."""
    LISTENERS = "listeners"
    """At once: listeners are opened, closed, or reopened at their ports."""
    RENEWAL = "renewal"
    """Of several processes: when each is renewed, one after the other. No setting is listed so."""
    RESTART = "restart"
    """After a restart of the gateway; until then the old value applies."""


_LIVE = """
    log.level log.format log.burst log.window_s
    limits.max_body_bytes limits.refuse_empty_bodies limits.max_properties limits.max_properties_bytes
    limits.max_message_group_bytes limits.max_message_id_bytes limits.max_recovery_s
    limits.max_messages_per_send limits.check_message_types limits.max_receive_messages
    limits.max_receive_bytes limits.min_invisible_s limits.max_invisible_s limits.default_wait_s
    limits.max_wait_s limits.poll_margin_s limits.max_receipts_per_ack limits.max_pull_messages
    limits.max_pull_bytes limits.max_found limits.max_waiting
    budgets.process_bytes budgets.group_bytes budgets.connection_bytes
    topics.auto_create topics.max_auto_created topics.queues
    groups.auto_create groups.max_auto_created groups.max_attempts groups.start_from groups.retry
    groups.consume_timeout_s
    broadcast.expiry_s broadcast.max_members
    lite.max_name_bytes lite.max_per_client
    holding.max_hold_s holding.renew_ahead_s holding.release_grace_s holding.ack_retry_s holding.max_held
    holding.max_clients holding.max_topics_per_client holding.client_expiry_s
    stopping.lame_duck_s stopping.drain_s
    api.hosts
"""
_LISTENERS = """
    listen
    connections.max connections.max_per_address connections.max_streams connections.ping_s
    connections.max_age_s connections.age_grace_s
    tls.mode tls.certificate tls.key tls.client_ca tls.crl_file
    namespaces reflection
"""
_RESTART = """
    broker share_broker data workers durability admin faults advertised.address
    api.max_request_bytes api.max_wait_s
    embedded.name embedded.sync_interval_s embedded.write_buffer_bytes embedded.cache_bytes
    embedded.min_free_disk_bytes embedded.backup_folder embedded.max_in_flight embedded.max_ordered_window
    embedded.dedup_window_s embedded.dedup_max_ids
    remote.access_key remote.secret_key remote.secret_key_file remote.tls remote.ca_file
    remote.crl_file remote.cert_file remote.key_file remote.verify remote.server_name
    remote.connect_timeout_s remote.request_timeout_s
    remote.probe_s remote.ready_needs_brokers remote.heartbeat_s remote.reconnect_s remote.max_links
    remote.transaction_key remote.transaction_key_file remote.transaction_key_before
    remote.transaction_key_before_file remote.transaction_check_s remote.route_refresh_s
    remote.name_refresh_s remote.zone remote.zone_only
    shared.secret shared.secret_file shared.max_guests shared.connect_timeout_s shared.startup_timeout_s
    shared.request_timeout_s shared.probe_s shared.reconnect_s
    limits.max_delay_s
    lite.max_subscriptions lite.max_topics
    remoting.mapped_groups remoting.pulled_groups
    policies.identity policies.permission policies.rate policies.backoff policies.picking
    retention.age_s retention.max_bytes retention.interval_s retention.tombstone_s
    transactions.first_check_s transactions.check_interval_s transactions.max_checks transactions.max_age_s
    metrics.max_topics metrics.max_groups metrics.forget_s
    tracing.enabled tracing.endpoint tracing.timeout_s tracing.share tracing.max_remembered
"""
EFFECTS = {
    **dict.fromkeys(_LIVE.split(), Effect.LIVE),
    **dict.fromkeys(_LISTENERS.split(), Effect.LISTENERS),
    **dict.fromkeys(_RESTART.split(), Effect.RESTART),
}


def effect_of(name: str) -> Effect:
    """Of a setting; one that this version does not know, since a newer one read it, needs a restart."""
    return EFFECTS.get(name, Effect.RESTART)
