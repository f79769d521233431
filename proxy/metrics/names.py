"""The names of the metrics: a contract with dashboards and alerts.

`docs/metrics.md` is generated from here. A test compares this list with a committed one, so that a
name, a type or a label is only changed on purpose, and another test compares it with a running gateway.
"""

from __future__ import annotations

from popgate.wire.bodies.query_reports import FIGURES, LAGS
from proxy.metrics.broker_names import BROKER, OF_CLIENTS, OF_CLUSTER, OF_SHARING, STORE
from proxy.metrics.spec import Spec
from proxy.metrics.tls_names import OF_REVOCATION

_BOTH = ("topic", "group")

_CALLS = (
    Spec(
        "popgate_rpc_duration_seconds",
        "histogram",
        "Duration of calls until their response, by gRPC method or request code.",
        ("method",),
    ),
    Spec("popgate_rpc_answers_total", "counter", "Calls by RocketMQ status code.", ("method", "code")),
    Spec(
        "popgate_request_duration_seconds",
        "histogram",
        "Duration of successful requests of all protocols. A receive or pull includes its wait for"
        " messages; `receive_empty` and `pull_empty` are those that returned none.",
        ("operation",),
    ),
    Spec(
        "popgate_request_failures_total",
        "counter",
        "Requests, or single messages of a request, that were refused or failed.",
        ("operation", "fault"),
    ),
)


def _of_connections(
    door: str, calls: str, refused: str, violations: str, about: str = "Open connections."
) -> tuple[Spec, ...]:
    of_calls = (
        Spec(f"popgate_{door}_{calls}", "gauge", "Open calls on these connections, sampled every second."),
        Spec(f"popgate_{door}_{calls}_refused_total", "counter", refused),
    )
    return (
        Spec(f"popgate_{door}_connections", "gauge", about),
        Spec(
            f"popgate_{door}_connections_refused_total",
            "counter",
            "Connections closed at once because `connections.max` were open.",
        ),
        Spec(
            f"popgate_{door}_connections_crowded_total",
            "counter",
            "Connections closed at once because `connections.max_per_address` from their address were open.",
        ),
        Spec(f"popgate_{door}_handshakes", "gauge", "TLS handshakes in progress; they count as connections."),
        Spec(
            f"popgate_{door}_handshakes_failed_total",
            "counter",
            "TLS handshakes that failed or took more than 10 s.",
        ),
        *(of_calls if calls else ()),
        Spec(f"popgate_{door}_violations_total", "counter", violations, ("kind",)),
    )


_CONNECTIONS = _of_connections(
    "grpc",
    "streams",
    "Calls refused because `connections.max_streams` were open on their connection.",
    "Connections closed because of their peer: floods (`resets`, `continuations`, `settings`, `pings`,"
    " `empty_frames`, `window_updates`, `priorities`, `bombs`), protocol errors (`protocol`, `compression`,"
    " `flow_control`, `frame_size`), inactivity (`greeting`, `silence`, `slow_requests`, `answers_unread`),"
    " or TLS where it is not enabled (`tls`). Single calls that were ended count as `bombs`, `holding` (too"
    " many bytes of incomplete requests and unread answers), `slow_requests` or `answers_unread`.",
)
_REMOTING = _of_connections(
    "remoting",
    "requests",
    "Long polls refused because four times `connections.max_streams` were waiting on their connection.",
    "Connections closed because of their peer: protocol errors (`bad_frame`, `bad_proxy_header`), TLS where"
    " it is not enabled (`tls`), a request that arrives too slowly for a minute (`slow_requests`), responses"
    " that are read too slowly for a minute (`answers_unread`), or the most memory when incomplete requests"
    " exceed their limit (`holding`).",
)
_SNIFFING = (
    *_of_connections(
        "sniffing",
        "",
        "",
        "Connections closed before their protocol was known: nothing received for 10 s (`silence`), a"
        " protocol that is not served there (`unknown`), TLS where it is not enabled (`tls`), plain text"
        " where TLS is required (`clear_text`), or no PROXY protocol header where one is required"
        " (`bad_proxy_header`).",
        "Connections whose protocol is not known yet; later they count under their protocol.",
    ),
    Spec(
        "popgate_sniffing_found_total",
        "counter",
        "Connections by detected protocol, and whether inside TLS (`yes`, `no`).",
        ("protocol", "tls"),
    ),
)

_TOPICS = (
    Spec("popgate_messages_sent_total", "counter", "Messages stored.", ("topic",)),
    Spec("popgate_bytes_sent_total", "counter", "Body bytes of the messages stored.", ("topic",)),
    Spec("popgate_send_duration_seconds", "histogram", "Duration of successful sends.", ("topic",)),
    Spec("popgate_topic_failures_total", "counter", "Calls that were refused or failed.", ("topic",)),
)

_GROUPS = (
    Spec("popgate_messages_received_total", "counter", "Messages delivered.", _BOTH),
    Spec("popgate_bytes_received_total", "counter", "Body bytes of the messages delivered.", _BOTH),
    Spec("popgate_receives_total", "counter", "Receives that returned messages.", _BOTH),
    Spec("popgate_receives_empty_total", "counter", "Receives that returned no message.", _BOTH),
    Spec("popgate_messages_acked_total", "counter", "Messages acknowledged.", _BOTH),
    Spec(
        "popgate_messages_ack_refused_total",
        "counter",
        "Acknowledgements refused because the handle had expired or was unknown. The message is, or"
        " already was, delivered again, or it is a dead letter.",
        _BOTH,
    ),
    Spec("popgate_ack_duration_seconds", "histogram", "Duration of successful acknowledgements.", _BOTH),
    Spec(
        "popgate_messages_changed_total",
        "counter",
        "Changes of invisible time by clients: renewals and negative acknowledgements.",
        _BOTH,
    ),
    Spec(
        "popgate_messages_renewed_total",
        "counter",
        "Renewals of invisible time by the gateway for push consumers.",
        _BOTH,
    ),
    Spec(
        "popgate_messages_released_total",
        "counter",
        "Messages made visible again because their client left.",
        _BOTH,
    ),
    Spec(
        "popgate_messages_returned_total",
        "counter",
        "Messages made visible again because they could not be delivered.",
        _BOTH,
    ),
    Spec(
        "popgate_messages_forwarded_total",
        "counter",
        "Messages moved to the dead-letter topic by a client.",
        _BOTH,
    ),
    Spec("popgate_group_failures_total", "counter", "Calls that were refused or failed.", _BOTH),
)

_STANDINGS = (
    Spec(
        "popgate_group_lag",
        "gauge",
        "Messages that the group has not finished: the sum of the next four. In front of a RocketMQ cluster"
        " only `unread` and `free` are known, so messages in flight are not counted.",
        _BOTH,
        over="max",
    ),
    Spec(
        "popgate_group_unread", "gauge", "Unfinished messages that were never delivered.", _BOTH, over="max"
    ),
    Spec(
        "popgate_group_in_flight",
        "gauge",
        "Unfinished messages that were delivered and are invisible. Embedded broker only.",
        _BOTH,
        over="max",
    ),
    Spec(
        "popgate_group_free",
        "gauge",
        "Unfinished messages that were delivered before and can be delivered again now.",
        _BOTH,
        over="max",
    ),
    Spec(
        "popgate_group_behind",
        "gauge",
        "Unfinished messages that wait for an earlier one of their message group. Embedded broker only.",
        _BOTH,
        over="max",
    ),
    Spec(
        "popgate_group_waiting",
        "gauge",
        "Receives of the group that are waiting for messages.",
        _BOTH,
        over="max",
    ),
    Spec(
        "popgate_group_renew_age_seconds",
        "gauge",
        "Age of the oldest delivery that a push consumer of this gateway holds.",
        _BOTH,
        over="max",
    ),
    Spec("popgate_group_redeliveries_total", "counter", "Deliveries after the first.", _BOTH, over="max"),
    Spec(
        "popgate_group_dead_letters_total",
        "counter",
        "Messages moved to the dead-letter topic.",
        _BOTH,
        over="max",
    ),
)

_GATEWAY = (
    Spec(
        "popgate_build_info",
        "gauge",
        "Always 1; labels: the running version, and whether it is compiled (`yes`, `no`).",
        ("version", "compiled"),
        over="max",
    ),
    Spec("popgate_ready", "gauge", "1 while the gateway is ready for clients.", over="max"),
    Spec(
        "popgate_config_last_reload_successful",
        "gauge",
        "0 after a reload of the configuration that failed; the previous configuration stays in force.",
        over="max",
    ),
    Spec(
        "popgate_config_last_reload_success_timestamp_seconds",
        "gauge",
        "Unix time at which the configuration was last loaded.",
        over="max",
    ),
    Spec(
        "popgate_config_restart_pending",
        "gauge",
        "Settings that were reloaded but take effect only after a restart.",
        over="max",
    ),
    Spec("popgate_clients", "gauge", "Known clients."),
    Spec(
        "popgate_groups_mapped",
        "gauge",
        "Groups whose classic push consumers at this gateway are mapped onto pop (`remoting.mapped_groups`).",
        over="max",
    ),
    Spec(
        "popgate_groups_pulled",
        "gauge",
        "Groups that match the setting and have classic consumers here but use true pull; `popgate"
        " group show` names the reason.",
        over="max",
    ),
    Spec(
        "popgate_reclaimed_retries_total",
        "counter",
        "Messages due for redelivery that were moved from the pop retry topic to the one that"
        " classic consumers pull.",
    ),
    Spec("popgate_mapped_held", "gauge", "Messages held by classic push consumers of mapped groups."),
    Spec(
        "popgate_mapped_renewed_total", "counter", "Renewals of invisible time for messages of mapped groups."
    ),
    Spec(
        "popgate_mapped_window_pauses_total",
        "counter",
        "Pulls of mapped groups that returned nothing because their client held too many unfinished"
        " messages.",
    ),
    Spec(
        "popgate_mapped_given_back_gone_total",
        "counter",
        "Messages of mapped groups released because their client left or its connection closed.",
    ),
    Spec(
        "popgate_mapped_given_back_restarted_total",
        "counter",
        "Messages of mapped groups released because their client began to read the queue again.",
    ),
    Spec(
        "popgate_mapped_given_back_switched_total",
        "counter",
        "Messages of mapped groups released because their group switched to true pull.",
    ),
    Spec(
        "popgate_mapped_given_back_unread_total",
        "counter",
        "Messages of mapped groups released because the response could not be delivered.",
    ),
    Spec("popgate_known_routes", "gauge", "Topic routes in the cache.", over="max"),
    Spec(
        "popgate_known_holders",
        "gauge",
        "Push consumers that hold messages, or held some and are still known.",
    ),
    Spec("popgate_waiting_receives", "gauge", "Receives and pulls that are waiting for messages."),
    Spec(
        "popgate_bytes_under_way",
        "gauge",
        "Bytes of requests and responses in progress, which count towards the budgets.",
    ),
    Spec("popgate_held_deliveries", "gauge", "Messages held by push consumers."),
    Spec(
        "popgate_longest_held_ms",
        "gauge",
        "Age of the oldest delivery that a push consumer holds.",
        over="max",
    ),
    Spec(
        "popgate_message_events_total",
        "counter",
        "Messages moved to the dead-letter topic by clients, redriven, recalled, renewed by the"
        " gateway, returned or released, and transaction checks.",
        ("event",),
    ),
    Spec("popgate_created_total", "counter", "Topics and groups created on first use.", ("kind",)),
)

_QUERIES = (
    *(
        Spec(f"popgate_spark_{name}", "gauge", about, ("query", "source"), over="max")
        for name, about in LAGS.items()
    ),
    *(
        Spec(
            f"popgate_spark_{name}",
            "counter" if kind == "counter" else "gauge",
            about,
            ("query",),
            over="max",
        )
        for name, (kind, about) in FIGURES.items()
    ),
    Spec(
        "popgate_spark_trigger_age_seconds",
        "gauge",
        "Time since the end of the last trigger that the driver reported.",
        ("query",),
        over="min",
    ),
)

_WORKERS = (
    Spec("popgate_workers", "gauge", "Worker processes that serve clients.", over="max"),
    Spec(
        "popgate_workers_silent",
        "gauge",
        "Processes of the gateway that did not answer this scrape; the sums contain their earlier values.",
        over="max",
    ),
    Spec("popgate_worker_restarts_total", "counter", "Processes that ended unexpectedly and were restarted."),
)

_LOOP = (
    Spec(
        "popgate_event_loop_lag_seconds",
        "histogram",
        "Delay of a timer in the event loop, sampled twice a second.",
    ),
    Spec("popgate_event_loop_tasks", "gauge", "Tasks in the event loop."),
)

SECTIONS: tuple[tuple[str, tuple[Spec, ...]], ...] = (
    ("Calls and requests", _CALLS),
    ("gRPC connections (`transport=http2`)", _CONNECTIONS),
    ("Remoting connections", _REMOTING),
    ("Addresses shared by several protocols, or with `tls=permissive`", _SNIFFING),
    ("Topics", _TOPICS),
    ("Groups: activity", _GROUPS),
    ("Groups: progress", _STANDINGS),
    ("The gateway", _GATEWAY),
    ("Spark streaming queries that report to this gateway", _QUERIES),
    ("Several processes (`workers`)", _WORKERS),
    ("The embedded broker", BROKER),
    ("The embedded broker's store", STORE),
    ("A shared embedded broker", OF_SHARING),
    ("Connections to a RocketMQ cluster", OF_CLUSTER),
    ("Clients and transactions at a RocketMQ cluster", OF_CLIENTS),
    ("Revocation lists, where settings name some", OF_REVOCATION),
    ("The event loop", _LOOP),
)

SPECS: dict[str, Spec] = {spec.name: spec for _, specs in SECTIONS for spec in specs}


def contract() -> list[str]:
    """One line for each metric: name, type and labels."""
    return sorted(f"{spec.name} {spec.kind} {','.join(spec.labels)}".strip() for spec in SPECS.values())
