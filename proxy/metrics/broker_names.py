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
        "popgate_broker_unfinished_deliveries",
        "gauge",
        "Messages that a group has examined and not finished: delivered, waiting for redelivery, or blocked.",
        over="max",
    ),
    Spec("popgate_broker_waiting_pops", "gauge", "Requests that wait for messages in the broker."),
    Spec(
        "popgate_broker_delayed_messages",
        "gauge",
        "Delayed messages that are not due yet, as estimated by RocksDB.",
        over="max",
    ),
    Spec(
        "popgate_broker_half_messages",
        "gauge",
        "Half messages of open transactions; an estimate after a start.",
        over="max",
    ),
    Spec(
        "popgate_broker_known_sends",
        "gauge",
        "Message ids remembered to detect repeated sends.",
        over="max",
    ),
    Spec(
        "popgate_broker_repeat_window_seconds",
        "gauge",
        "Time span in which repeated sends are detected; shorter than configured when too many"
        " messages are sent.",
        over="min",
    ),
    Spec(
        "popgate_broker_repeat_window_configured_seconds",
        "gauge",
        "The setting `embedded.dedup_window_s`.",
        over="max",
    ),
    Spec(
        "popgate_broker_repeated_sends_total",
        "counter",
        "Repeated sends, which were answered without storing them again.",
    ),
    Spec("popgate_broker_redeliveries_total", "counter", "Deliveries after the first, of all groups."),
    Spec(
        "popgate_broker_dead_letters_total", "counter", "Messages moved to dead-letter topics, of all groups."
    ),
    Spec(
        "popgate_broker_damaged_records",
        "gauge",
        "Stored records that cannot be decoded: set aside, or found since the start and skipped.",
        over="max",
    ),
)

STORE = (
    Spec("popgate_broker_store_failing", "gauge", "1 while writes to the store fail.", over="max"),
    Spec(
        "popgate_broker_disk_nearly_full",
        "gauge",
        "1 while sends are refused because the disk is nearly full.",
        over="max",
    ),
    Spec(
        "popgate_broker_store_bytes", "gauge", "Size of the live data, as estimated by RocksDB.", over="max"
    ),
    Spec("popgate_broker_store_files_bytes", "gauge", "Size of the table files.", over="max"),
    Spec("popgate_broker_store_wal_bytes", "gauge", "Size of the write-ahead logs.", over="max"),
    Spec(
        "popgate_broker_store_memtable_bytes", "gauge", "Memory of the memtables (recent writes).", over="max"
    ),
    Spec("popgate_broker_store_cache_bytes", "gauge", "Memory of the block cache.", over="max"),
    Spec(
        "popgate_broker_store_readers_bytes",
        "gauge",
        "Memory of table readers outside the block cache.",
        over="max",
    ),
    Spec(
        "popgate_broker_store_pending_compaction_bytes",
        "gauge",
        "Bytes that compaction has yet to rewrite.",
        over="max",
    ),
    Spec("popgate_broker_store_compactions_running", "gauge", "Running compactions.", over="max"),
    Spec("popgate_broker_store_flushes_running", "gauge", "Running flushes.", over="max"),
    Spec("popgate_broker_store_writes_stopped", "gauge", "1 while RocksDB accepts no writes.", over="max"),
    Spec(
        "popgate_broker_store_delayed_write_bytes_per_second",
        "gauge",
        "Rate to which RocksDB limits writes while compaction falls behind; 0: no limit.",
        over="max",
    ),
    Spec(
        "popgate_broker_store_background_errors", "gauge", "Flushes and compactions that failed.", over="max"
    ),
    Spec(
        "popgate_broker_store_writes_total",
        "counter",
        "Batches written, one per iteration of the event loop.",
    ),
    Spec(
        "popgate_broker_store_write_seconds_total",
        "counter",
        "Total duration of these writes, which block the event loop.",
    ),
    Spec(
        "popgate_broker_store_write_longest_seconds",
        "gauge",
        "Duration of the longest write since the start.",
        over="max",
    ),
    Spec("popgate_broker_store_syncs_total", "counter", "Syncs of the write-ahead log."),
    Spec(
        "popgate_broker_store_sync_seconds_total",
        "counter",
        "Total duration of these syncs, which run in a thread of their own.",
    ),
    Spec(
        "popgate_broker_store_sync_longest_seconds",
        "gauge",
        "Duration of the longest sync since the start.",
        over="max",
    ),
)

OF_SHARING = (
    Spec("popgate_shared_guests", "gauge", "On a host: gateways connected to its broker."),
    Spec(
        "popgate_shared_calls",
        "gauge",
        "On a host: calls of these gateways in progress, including waiting receives.",
    ),
    Spec(
        "popgate_shared_given_back_total",
        "counter",
        "On a host: messages popped for a guest and released because they could not be delivered to it.",
    ),
    Spec(
        "popgate_broker_host_connected",
        "gauge",
        "On a guest: 1 while it is connected to its host.",
        over="min",
    ),
    Spec("popgate_broker_host_calls", "gauge", "On a guest: calls that its host has not answered yet."),
    Spec("popgate_broker_host_reconnects_total", "counter", "On a guest: reconnections to its host."),
)

OF_CLUSTER = (
    Spec("popgate_broker_name_servers", "gauge", "Name server addresses.", over="max"),
    Spec(
        "popgate_broker_name_servers_silent_s",
        "gauge",
        "Seconds since the last response of any name server.",
        over="max",
    ),
    Spec(
        "popgate_broker_brokers_away_s",
        "gauge",
        "Seconds without any reachable broker; 0 while one responds.",
        over="min",
    ),
    Spec(
        "popgate_broker_needed_brokers_away",
        "gauge",
        "1 while the gateway is not ready for that reason (`remote.ready_needs_brokers`).",
        over="min",
    ),
    Spec("popgate_broker_brokers_known", "gauge", "Known broker names.", over="max"),
    Spec("popgate_broker_routes", "gauge", "Topics whose route is in the cache.", over="max"),
    Spec(
        "popgate_broker_oldest_route_s",
        "gauge",
        "Age in seconds of the oldest route in the cache.",
        over="max",
    ),
    Spec(
        "popgate_broker_route_failures_total", "counter", "Requests for routes or broker lists that failed."
    ),
    Spec(
        "popgate_broker_groups_unserved",
        "gauge",
        "Pairs of group and broker where the broker refuses to serve the group while others serve it:"
        " its messages there wait.",
        over="max",
    ),
    Spec(
        "popgate_broker_numbers_unkept",
        "gauge",
        "Topics whose queue numbers could not be saved at the name servers; `.brokers` stands for"
        " the broker numbers.",
        over="max",
    ),
    Spec("popgate_broker_links", "gauge", "Connections to brokers and name servers, open or not."),
    Spec("popgate_broker_links_open", "gauge", "Open connections to brokers and name servers."),
    Spec(
        "popgate_broker_links_silent", "gauge", "Connections whose keepalive probe has not been answered yet."
    ),
    Spec("popgate_broker_requests_in_flight", "gauge", "Requests that wait for their response."),
    Spec("popgate_broker_requests_queued", "gauge", "Requests that wait to be written."),
    Spec(
        "popgate_broker_late_answers_total",
        "counter",
        "Responses that arrived after their request had been given up.",
    ),
    Spec("popgate_broker_probes_total", "counter", "Keepalive probes sent."),
    Spec(
        "popgate_broker_connections_lost_total",
        "counter",
        "Connections that were lost or could not be opened.",
    ),
    Spec(
        "popgate_broker_oneway_dropped_total",
        "counter",
        "One-way requests dropped because there was no connection.",
    ),
)

OF_CLIENTS = (
    Spec(
        "popgate_broker_clients_registered",
        "gauge",
        "Clients of this gateway that are registered at brokers.",
    ),
    Spec(
        "popgate_broker_clients_merged",
        "gauge",
        "Clients that share a registration because no more connections to a broker may be opened"
        " for their group.",
    ),
    Spec(
        "popgate_broker_client_links",
        "gauge",
        "Connections to each broker that are used to register clients.",
        over="max",
    ),
    Spec(
        "popgate_broker_registrations_refused",
        "gauge",
        "Brokers that refuse heartbeats of clients.",
        over="max",
    ),
    Spec("popgate_broker_known_ends", "gauge", "Transactions whose outcome is remembered."),
    Spec("popgate_broker_checks_total", "counter", "Transaction checks received from brokers."),
    Spec(
        "popgate_broker_checks_put_off_total",
        "counter",
        "Transaction checks postponed because the broker did not report whether the message is committed.",
    ),
    Spec(
        "popgate_broker_checks_unasked_total",
        "counter",
        "Transaction checks for which this gateway had no producer to ask.",
    ),
    Spec(
        "popgate_broker_checks_settled_total",
        "counter",
        "Transaction checks answered without asking a producer, because the transaction had ended.",
    ),
    Spec(
        "popgate_broker_checks_unreadable_total", "counter", "Transaction checks that could not be decoded."
    ),
)
