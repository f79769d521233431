"""Every number of the embedded broker, with its unit in its name and a default that suits most."""

from __future__ import annotations

from dataclasses import dataclass

from brokers.embedded.storage.store import Durability

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


@dataclass(slots=True, frozen=True)
class EmbeddedSettings:
    """Values for `EmbeddedBroker`; no module below it reads a configuration.

    `name` is the broker's name in routes and receipts; it has no blanks. `store_host` ("ip:port")
    is in every record and offset message id: clients that look up by id connect to it.
    """

    name: str = "popgate"
    store_host: str = "127.0.0.1:8081"

    durability: Durability = Durability.INTERVAL
    sync_interval_s: float = 0.1
    write_buffer_bytes: int = 16 * 1024 * 1024
    cache_bytes: int = 16 * 1024 * 1024

    min_free_disk_bytes: int = 64 * 1024 * 1024
    """No messages are taken while the disk has less room, or a twentieth of it when that is less."""

    max_topics: int = 50_000
    max_groups: int = 50_000

    max_in_flight: int = 65_536
    """Messages delivered and not finished per group and queue; at the bound only redeliveries are given."""
    max_order_window: int = 65_536
    """Messages of a queue that an ordered group looks at beyond its first unfinished one."""
    max_lite_topics: int = 1_000_000
    """Lite topics of one topic."""
    max_lite_subscriptions: int = 100_000
    """Of all clients together; each costs about half a KiB of memory."""
    lite_client_expiry_ms: int = 120_000
    """A client that neither pops nor repeats its subscriptions for so long has none any more."""
    max_lite_cached: int = 8_192
    """Lite topics, and places of groups in them, that are kept in memory; the others cost none."""
    max_scan: int = 2_048
    """Messages that one step looks at in vain before others get a turn; 4 KiB count as one."""
    max_waiting_pops: int = 100_000
    max_waiting_pops_per_group: int = 4_096
    """Per topic and group; likewise pulls per queue."""
    max_found_bytes: int = 64 * 1024 * 1024
    """Messages in one answer to a look-up; the newest one is found however large it is."""
    forget_after_ms: int = 120_000
    """Groups that ask for nothing of a topic leave memory after this time, or up to twice of it."""
    lock_ms: int = 60_000
    max_locks: int = 100_000

    dedup_window_ms: int = 600_000
    """So long a message id is known: a second send of it is answered as the first was. 0: not at all."""
    dedup_max_ids: int = 1_048_576
    """At most so many ids are known, about 80 bytes of memory each; at least the last half of them."""

    max_delay_ms: int = _DAY_MS
    max_due: int = 512
    """Delayed messages, or half messages to be asked about, that one tick moves."""
    max_due_bytes: int = 8 * 1024 * 1024

    transaction_check_after_ms: int = 6_000
    """First check of a half message that names no recovery time of its own."""
    transaction_check_interval_ms: int = 30_000
    transaction_max_checks: int = 15
    transaction_max_age_ms: int = 72 * _HOUR_MS
    transaction_end_kept_ms: int = 72 * _HOUR_MS
    """How long the end of a transaction is remembered, so that ending it again is answered alike."""

    retention_ms: int = 72 * _HOUR_MS
    """For topics that do not say otherwise."""
    retention_bytes: int | None = None
    """Per topic, for those that do not say otherwise; None: as much as there is."""
    retention_interval_ms: int = 60_000
    tombstone_retention_ms: int = _DAY_MS
    """In a compacted topic a message without a body stays so long after what it deletes was removed.
    Kafka's `delete.retention.ms`, and its default; RocketMQ removes both at once."""
