"""The names of the metrics: a contract with everybody's dashboards and alerts.

`docs/metrics.md` is generated from here. A test compares this list with a committed one, so that a
name, a type or a label is changed on purpose only, and another with what a running gateway tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(slots=True, frozen=True)
class Spec:
    """One metric. A counter's name ends in `_total`."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()


_BOTH = ("topic", "group")

_CALLS = (
    Spec("popgate_rpc_duration_seconds", "histogram", "Time of gRPC calls until their answer.", ("method",)),
    Spec("popgate_rpc_answers_total", "counter", "gRPC calls by RocketMQ's status code.", ("method", "code")),
    Spec(
        "popgate_request_duration_seconds",
        "histogram",
        "Time of answered requests, whichever door they came by; those of `receive_empty` and `pull_empty`"
        " waited in vain.",
        ("operation",),
    ),
    Spec(
        "popgate_request_failures_total",
        "counter",
        "Requests, or messages of one, that were refused or failed.",
        ("operation", "fault"),
    ),
)

_TOPICS = (
    Spec("popgate_messages_sent_total", "counter", "Messages stored.", ("topic",)),
    Spec("popgate_bytes_sent_total", "counter", "Messages stored, bytes of their bodies.", ("topic",)),
    Spec("popgate_send_duration_seconds", "histogram", "Time of answered sends.", ("topic",)),
    Spec("popgate_topic_failures_total", "counter", "gRPC calls that were refused or failed.", ("topic",)),
)

_GROUPS = (
    Spec("popgate_messages_received_total", "counter", "Messages given out.", _BOTH),
    Spec("popgate_bytes_received_total", "counter", "Messages given out, bytes of their bodies.", _BOTH),
    Spec("popgate_receives_total", "counter", "Receives that were answered with messages.", _BOTH),
    Spec("popgate_receives_empty_total", "counter", "Receives that waited in vain.", _BOTH),
    Spec("popgate_messages_acked_total", "counter", "Deliveries finished.", _BOTH),
    Spec(
        "popgate_messages_ack_refused_total",
        "counter",
        "Ack failures: handles that were not good any more. Their messages come, or came, again.",
        _BOTH,
    ),
    Spec("popgate_ack_duration_seconds", "histogram", "Time of answered acknowledgements.", _BOTH),
    Spec(
        "popgate_messages_changed_total",
        "counter",
        "Changes of invisible time by clients: renewals, and negative acknowledgements.",
        _BOTH,
    ),
    Spec("popgate_messages_renewed_total", "counter", "Renewals by the gateway for push consumers.", _BOTH),
    Spec("popgate_messages_released_total", "counter", "Freed because their client left.", _BOTH),
    Spec("popgate_messages_returned_total", "counter", "Given back because they reached nobody.", _BOTH),
    Spec("popgate_messages_forwarded_total", "counter", "Sent to the dead letters by a client.", _BOTH),
    Spec("popgate_group_failures_total", "counter", "gRPC calls that were refused or failed.", _BOTH),
)

_STANDINGS = (
    Spec("popgate_group_lag", "gauge", "Messages that the group has not finished, all in all.", _BOTH),
    Spec("popgate_group_unread", "gauge", "Of these: never given out.", _BOTH),
    Spec("popgate_group_in_flight", "gauge", "Of these: given out and invisible.", _BOTH),
    Spec("popgate_group_free", "gauge", "Of these: free to be given out again.", _BOTH),
    Spec(
        "popgate_group_behind", "gauge", "Of these: kept back by an earlier one of the message group.", _BOTH
    ),
    Spec("popgate_group_waiting", "gauge", "Receives of the group that wait now.", _BOTH),
    Spec(
        "popgate_group_renew_age_seconds",
        "gauge",
        "How long the message held longest by a push consumer of this gateway has been held.",
        _BOTH,
    ),
    Spec("popgate_group_redeliveries_total", "counter", "Deliveries after the first.", _BOTH),
    Spec("popgate_group_dead_letters_total", "counter", "Moved to the dead letters.", _BOTH),
)

_GATEWAY = (
    Spec("popgate_ready", "gauge", "1 while clients are served."),
    Spec("popgate_clients", "gauge", "Clients known."),
    Spec("popgate_known_routes", "gauge", "Routes of topics that are kept for a moment."),
    Spec("popgate_known_holders", "gauge", "Clients remembered for what they hold."),
    Spec("popgate_waiting_receives", "gauge", "Receives and pulls that wait for a message."),
    Spec("popgate_bytes_under_way", "gauge", "Bytes of requests and answers that count towards the budgets."),
    Spec("popgate_held_deliveries", "gauge", "Messages that push consumers hold."),
    Spec("popgate_longest_held_ms", "gauge", "How long the one held longest has been held."),
    Spec(
        "popgate_message_events_total",
        "counter",
        "Messages dead-lettered by clients, redriven, recalled, renewed by the gateway, returned,"
        " released; and transaction checks.",
        ("event",),
    ),
    Spec("popgate_created_total", "counter", "Topics and groups made on first use.", ("kind",)),
)

_BROKER = (
    Spec("popgate_broker_topics", "gauge", "Topics."),
    Spec("popgate_broker_groups", "gauge", "Consumer groups."),
    Spec("popgate_broker_lite_subscriptions", "gauge", "Subscriptions of clients to lite topics."),
    Spec("popgate_broker_unfinished_deliveries", "gauge", "Looked at by groups and not finished."),
    Spec("popgate_broker_waiting_pops", "gauge", "Requests that wait inside the broker."),
    Spec(
        "popgate_broker_delayed_messages",
        "gauge",
        "Delayed messages whose time has not come; RocksDB's estimate.",
    ),
    Spec(
        "popgate_broker_half_messages", "gauge", "Transactions that nobody ended; after a start an estimate."
    ),
    Spec("popgate_broker_known_sends", "gauge", "Message ids known, so that a repeated send is stored once."),
    Spec("popgate_broker_repeated_sends_total", "counter", "Sends that were answered as repeats."),
    Spec("popgate_broker_redeliveries_total", "counter", "Deliveries after the first, of all groups."),
    Spec("popgate_broker_dead_letters_total", "counter", "Moved to the dead letters, of all groups."),
    Spec(
        "popgate_broker_damaged_records",
        "gauge",
        "Stored records that cannot be decoded: set aside, or met since the start and stepped over.",
    ),
)

_STORE = (
    Spec("popgate_broker_store_failing", "gauge", "1 while the store cannot be written."),
    Spec(
        "popgate_broker_disk_nearly_full", "gauge", "1 while sends are refused for want of room on the disk."
    ),
    Spec("popgate_broker_store_bytes", "gauge", "Live data, as RocksDB estimates it."),
    Spec("popgate_broker_store_files_bytes", "gauge", "Its table files."),
    Spec("popgate_broker_store_wal_bytes", "gauge", "Its write-ahead logs."),
    Spec("popgate_broker_store_memtable_bytes", "gauge", "Fresh writes in memory."),
    Spec("popgate_broker_store_cache_bytes", "gauge", "The block cache."),
    Spec("popgate_broker_store_readers_bytes", "gauge", "Table readers outside of the cache."),
    Spec("popgate_broker_store_pending_compaction_bytes", "gauge", "What compaction has still to rewrite."),
    Spec("popgate_broker_store_compactions_running", "gauge", "Compactions under way."),
    Spec("popgate_broker_store_flushes_running", "gauge", "Flushes under way."),
    Spec("popgate_broker_store_writes_stopped", "gauge", "1 while RocksDB takes no writes."),
    Spec(
        "popgate_broker_store_delayed_write_bytes_per_second",
        "gauge",
        "The rate that RocksDB holds writes to while it cannot keep up; 0: none.",
    ),
    Spec("popgate_broker_store_background_errors", "gauge", "Flushes and compactions that failed."),
    Spec("popgate_broker_store_writes_total", "counter", "Batches written, one per turn of the loop."),
    Spec("popgate_broker_store_write_seconds_total", "counter", "Time of these; the loop stands meanwhile."),
    Spec("popgate_broker_store_write_longest_seconds", "gauge", "The longest since the start."),
    Spec("popgate_broker_store_syncs_total", "counter", "Syncs of the write-ahead log."),
    Spec("popgate_broker_store_sync_seconds_total", "counter", "Time of these, in a thread of their own."),
    Spec("popgate_broker_store_sync_longest_seconds", "gauge", "The longest since the start."),
)

OF_SHARING = (
    Spec("popgate_shared_guests", "gauge", "On a host: gateways that use its broker."),
    Spec("popgate_shared_calls", "gauge", "On a host: their calls under way, waiting receives included."),
    Spec("popgate_shared_given_back_total", "counter", "On a host: messages taken for them in vain."),
    Spec("popgate_broker_host_connected", "gauge", "On a guest: 1 while its host is reached."),
    Spec("popgate_broker_host_calls", "gauge", "On a guest: calls that its host has not answered."),
    Spec(
        "popgate_broker_host_reconnects_total", "counter", "On a guest: how often it came back to its host."
    ),
)

OF_CLUSTER = (
    Spec("popgate_broker_name_servers", "gauge", "Addresses of name servers."),
    Spec("popgate_broker_name_servers_silent_s", "gauge", "Seconds since one of them answered."),
    Spec("popgate_broker_brokers_known", "gauge", "Brokers, by name."),
    Spec("popgate_broker_routes", "gauge", "Topics whose route is known."),
    Spec("popgate_broker_oldest_route_s", "gauge", "Seconds since the oldest of these was told."),
    Spec("popgate_broker_route_failures_total", "counter", "Routes or lists of brokers that were not told."),
    Spec("popgate_broker_links", "gauge", "Links to brokers and name servers."),
    Spec("popgate_broker_links_open", "gauge", "Those that are connected."),
    Spec("popgate_broker_links_silent", "gauge", "Those that were asked for a sign of life in vain so far."),
    Spec("popgate_broker_requests_in_flight", "gauge", "Requests that wait for an answer."),
    Spec("popgate_broker_requests_queued", "gauge", "Requests that are not written yet."),
    Spec("popgate_broker_late_answers_total", "counter", "Answers that nobody waited for any more."),
    Spec("popgate_broker_probes_total", "counter", "Signs of life that were asked for."),
    Spec("popgate_broker_connections_lost_total", "counter", "Connections lost, or not made."),
    Spec("popgate_broker_oneway_dropped_total", "counter", "Oneway requests without a connection."),
)

OF_CLIENTS = (
    Spec("popgate_broker_clients_registered", "gauge", "Clients of this gateway that brokers are told of."),
    Spec("popgate_broker_clients_merged", "gauge", "Those for which a broker has no link of their own."),
    Spec("popgate_broker_client_links", "gauge", "Links to each broker that its clients take."),
    Spec("popgate_broker_registrations_refused", "gauge", "Brokers that take no heartbeats of clients."),
    Spec("popgate_broker_known_ends", "gauge", "Transactions whose end is remembered."),
    Spec("popgate_broker_checks_total", "counter", "Questions of brokers about half messages."),
    Spec("popgate_broker_checks_unasked_total", "counter", "Those that no producer here could be asked."),
    Spec(
        "popgate_broker_checks_settled_total", "counter", "Those about transactions that had ended, settled."
    ),
    Spec("popgate_broker_checks_unreadable_total", "counter", "Those that could not be read."),
)

_LOOP = (
    Spec(
        "popgate_event_loop_lag_seconds",
        "histogram",
        "How much later than asked a timer rang that is set twice a second.",
    ),
    Spec("popgate_event_loop_tasks", "gauge", "Tasks of the event loop."),
)

SECTIONS: tuple[tuple[str, tuple[Spec, ...]], ...] = (
    ("Calls and requests", _CALLS),
    ("Topics", _TOPICS),
    ("Groups: what they did", _GROUPS),
    ("Groups: where they stand", _STANDINGS),
    ("The gateway", _GATEWAY),
    ("The embedded broker", _BROKER),
    ("Its store", _STORE),
    ("One broker for several gateways", OF_SHARING),
    ("The links to a RocketMQ cluster", OF_CLUSTER),
    ("The clients and transactions at a RocketMQ cluster", OF_CLIENTS),
    ("The event loop", _LOOP),
)

SPECS: dict[str, Spec] = {spec.name: spec for _, specs in SECTIONS for spec in specs}


def contract() -> list[str]:
    """One line for each metric: name, type and labels."""
    return sorted(f"{spec.name} {spec.kind} {','.join(spec.labels)}".strip() for spec in SPECS.values())
