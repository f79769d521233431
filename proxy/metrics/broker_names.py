"""The metric names of brokers: the embedded one and its store, a shared one, a cluster. See `names`."""

from __future__ import annotations

from proxy.metrics.spec import Spec

BROKER = (
    Spec("popgate_broker_topics", "gauge", "Topics.", over="max"),
    Spec("popgate_broker_groups", "gauge", "Consumer groups.", over="max"),
    Spec(
        "popgate_broker_lite_subscriptions", "gauge", "Subscriptions of clients to lite topics.", over="max"
    ),
    Spec(
        "popgate_broker_unfinished_deliveries", "gauge", "Looked at by groups and not finished.", over="max"
    ),
    Spec("popgate_broker_waiting_pops", "gauge", "Requests that wait inside the broker."),
    Spec(
        "popgate_broker_delayed_messages",
        "gauge",
        "Delayed messages whose time has not come; RocksDB's estimate.",
        over="max",
    ),
    Spec(
        "popgate_broker_half_messages",
        "gauge",
        "Transactions that nobody ended; after a start an estimate.",
        over="max",
    ),
    Spec(
        "popgate_broker_known_sends",
        "gauge",
        "Message ids known, so that a repeated send is stored once.",
        over="max",
    ),
    Spec(
        "popgate_broker_repeat_window_seconds",
        "gauge",
        "How far back repeated sends are recognised: less than configured when too much is sent.",
        over="min",
    ),
    Spec(
        "popgate_broker_repeat_window_configured_seconds",
        "gauge",
        "`embedded.dedup_window_s`.",
        over="max",
    ),
    Spec("popgate_broker_repeated_sends_total", "counter", "Sends that were answered as repeats."),
    Spec("popgate_broker_redeliveries_total", "counter", "Deliveries after the first, of all groups."),
    Spec("popgate_broker_dead_letters_total", "counter", "Moved to the dead letters, of all groups."),
    Spec(
        "popgate_broker_damaged_records",
        "gauge",
        "Stored records that cannot be decoded: set aside, or met since the start and stepped over.",
        over="max",
    ),
)

STORE = (
    Spec("popgate_broker_store_failing", "gauge", "1 while the store cannot be written.", over="max"),
    Spec(
        "popgate_broker_disk_nearly_full",
        "gauge",
        "1 while sends are refused for want of room on the disk.",
        over="max",
    ),
    Spec("popgate_broker_store_bytes", "gauge", "Live data, as RocksDB estimates it.", over="max"),
    Spec("popgate_broker_store_files_bytes", "gauge", "Its table files.", over="max"),
    Spec("popgate_broker_store_wal_bytes", "gauge", "Its write-ahead logs.", over="max"),
    Spec("popgate_broker_store_memtable_bytes", "gauge", "Fresh writes in memory.", over="max"),
    Spec("popgate_broker_store_cache_bytes", "gauge", "The block cache.", over="max"),
    Spec("popgate_broker_store_readers_bytes", "gauge", "Table readers outside of the cache.", over="max"),
    Spec(
        "popgate_broker_store_pending_compaction_bytes",
        "gauge",
        "What compaction has still to rewrite.",
        over="max",
    ),
    Spec("popgate_broker_store_compactions_running", "gauge", "Compactions under way.", over="max"),
    Spec("popgate_broker_store_flushes_running", "gauge", "Flushes under way.", over="max"),
    Spec("popgate_broker_store_writes_stopped", "gauge", "1 while RocksDB takes no writes.", over="max"),
    Spec(
        "popgate_broker_store_delayed_write_bytes_per_second",
        "gauge",
        "The rate that RocksDB holds writes to while it cannot keep up; 0: none.",
        over="max",
    ),
    Spec(
        "popgate_broker_store_background_errors", "gauge", "Flushes and compactions that failed.", over="max"
    ),
    Spec("popgate_broker_store_writes_total", "counter", "Batches written, one per turn of the loop."),
    Spec("popgate_broker_store_write_seconds_total", "counter", "Time of these; the loop stands meanwhile."),
    Spec("popgate_broker_store_write_longest_seconds", "gauge", "The longest since the start.", over="max"),
    Spec("popgate_broker_store_syncs_total", "counter", "Syncs of the write-ahead log."),
    Spec("popgate_broker_store_sync_seconds_total", "counter", "Time of these, in a thread of their own."),
    Spec("popgate_broker_store_sync_longest_seconds", "gauge", "The longest since the start.", over="max"),
)

OF_SHARING = (
    Spec("popgate_shared_guests", "gauge", "On a host: gateways that use its broker."),
    Spec("popgate_shared_calls", "gauge", "On a host: their calls under way, waiting receives included."),
    Spec("popgate_shared_given_back_total", "counter", "On a host: messages taken for them in vain."),
    Spec("popgate_broker_host_connected", "gauge", "On a guest: 1 while its host is reached.", over="min"),
    Spec("popgate_broker_host_calls", "gauge", "On a guest: calls that its host has not answered."),
    Spec(
        "popgate_broker_host_reconnects_total", "counter", "On a guest: how often it came back to its host."
    ),
)

OF_CLUSTER = (
    Spec("popgate_broker_name_servers", "gauge", "Addresses of name servers.", over="max"),
    Spec("popgate_broker_name_servers_silent_s", "gauge", "Seconds since one of them answered.", over="max"),
    Spec(
        "popgate_broker_brokers_away_s",
        "gauge",
        "Seconds for which no broker could be reached; 0: one answers.",
        over="min",
    ),
    Spec(
        "popgate_broker_needed_brokers_away",
        "gauge",
        "1 while that makes this gateway not ready (remote.ready_needs_brokers).",
        over="min",
    ),
    Spec("popgate_broker_brokers_known", "gauge", "Brokers, by name.", over="max"),
    Spec("popgate_broker_routes", "gauge", "Topics whose route is known.", over="max"),
    Spec("popgate_broker_oldest_route_s", "gauge", "Seconds since the oldest of these was told.", over="max"),
    Spec("popgate_broker_route_failures_total", "counter", "Routes or lists of brokers that were not told."),
    Spec(
        "popgate_broker_groups_unserved",
        "gauge",
        "Groups that a broker gave nothing lately, by group and broker: what it has for them waits.",
        over="max",
    ),
    Spec(
        "popgate_broker_numbers_unkept",
        "gauge",
        "Topics whose numbers of queues, and `.brokers` for those of brokers, the name servers do not keep.",
        over="max",
    ),
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
    Spec("popgate_broker_client_links", "gauge", "Links to each broker that its clients take.", over="max"),
    Spec(
        "popgate_broker_registrations_refused",
        "gauge",
        "Brokers that take no heartbeats of clients.",
        over="max",
    ),
    Spec("popgate_broker_known_ends", "gauge", "Transactions whose end is remembered."),
    Spec("popgate_broker_checks_total", "counter", "Questions of brokers about half messages."),
    Spec(
        "popgate_broker_checks_put_off_total",
        "counter",
        "Those that nobody was asked, because the broker did not say whether the message is committed.",
    ),
    Spec("popgate_broker_checks_unasked_total", "counter", "Those that no producer here could be asked."),
    Spec(
        "popgate_broker_checks_settled_total", "counter", "Those about transactions that had ended, settled."
    ),
    Spec("popgate_broker_checks_unreadable_total", "counter", "Those that could not be read."),
)
