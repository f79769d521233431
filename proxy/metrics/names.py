"""The names of the metrics: a contract with dashboards and alerts.

`docs/metrics.md` is generated from here. A test compares this list with a committed one, so that a
name, a type or a label is only changed on purpose, and another test compares it with a running gateway.
"""

from __future__ import annotations

from popgate.wire.bodies.query_reports import FIGURES, LAGS
from proxy.metrics.broker_names import BROKER, OF_CLIENTS, OF_CLUSTER, OF_SHARING, STORE
from proxy.metrics.spec import Spec

_BOTH = ("topic", "group")

_CALLS = (
    Spec(
        "popgate_rpc_duration_seconds",
        "histogram",
        "Time of calls until their answer, by gRPC method or request code.",
        ("method",),
    ),
    Spec("popgate_rpc_answers_total", "counter", "Calls by RocketMQ's status code.", ("method", "code")),
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


def _of_connections(
    door: str, calls: str, refused: str, violations: str, about: str = "Connections open."
) -> tuple[Spec, ...]:
    of_calls = (
        Spec(f"popgate_{door}_{calls}", "gauge", "Calls open on them, as counted each second."),
        Spec(f"popgate_{door}_{calls}_refused_total", "counter", refused),
    )
    return (
        Spec(f"popgate_{door}_connections", "gauge", about),
        Spec(
            f"popgate_{door}_connections_refused_total",
            "counter",
            "Connections closed at once: there were as many as `connections.max` allows.",
        ),
        Spec(
            f"popgate_{door}_connections_crowded_total",
            "counter",
            "Connections closed at once: there were as many from their address as"
            " `connections.max_per_address` allows.",
        ),
        Spec(f"popgate_{door}_handshakes", "gauge", "TLS handshakes under way; they count as connections."),
        Spec(
            f"popgate_{door}_handshakes_failed_total",
            "counter",
            "TLS handshakes that failed, or took longer than 10 s.",
        ),
        *(of_calls if calls else ()),
        Spec(f"popgate_{door}_violations_total", "counter", violations, ("kind",)),
    )


_CONNECTIONS = _of_connections(
    "grpc",
    "streams",
    "Calls refused: their connection had as many open as `connections.max_streams` allows.",
    "Connections closed for what their peer did or did not do: too much of what costs and means nothing"
    " (`resets`, `continuations`, `settings`, `pings`, `empty_frames`, `window_updates`, `priorities`,"
    " `bombs`), nonsense (`protocol`, `compression`, `flow_control`, `frame_size`), or nothing"
    " (`greeting`, `silence`, `slow_requests`, `answers_unread`), or TLS where none is spoken (`tls`)."
    " Calls ended alone count as `bombs`,"
    " `holding` (too many bytes of requests that had not come as a whole), `slow_requests` and"
    " `answers_unread`.",
)
_REMOTING = _of_connections(
    "remoting",
    "requests",
    "Long polls refused: four times `connections.max_streams` of their connection waited.",
    "Connections closed for what their peer did or did not do: nonsense (`bad_frame`, `bad_proxy_header`),"
    " TLS where none is spoken (`tls`), a request or answers that hardly went on for a minute"
    " (`slow_requests`, `answers_unread`), or most of too many bytes of requests that"
    " had not come as a whole (`holding`).",
)
_SNIFFING = (
    *_of_connections(
        "sniffing",
        "",
        "",
        "Connections closed before anybody served them: they said nothing for 10 s (`silence`), or began"
        " with what is of no protocol served there (`unknown`), with TLS where none is spoken (`tls`),"
        " with none where it must be (`clear_text`), with no header of the PROXY protocol where one comes"
        " first (`bad_proxy_header`).",
        "Connections of which it is not known yet what they speak; afterwards they count by their protocol.",
    ),
    Spec(
        "popgate_sniffing_found_total",
        "counter",
        "Connections by the protocol that was found, and whether inside of TLS (`yes`, `no`).",
        ("protocol", "tls"),
    ),
)

_TOPICS = (
    Spec("popgate_messages_sent_total", "counter", "Messages stored.", ("topic",)),
    Spec("popgate_bytes_sent_total", "counter", "Messages stored, bytes of their bodies.", ("topic",)),
    Spec("popgate_send_duration_seconds", "histogram", "Time of answered sends.", ("topic",)),
    Spec("popgate_topic_failures_total", "counter", "Calls that were refused or failed.", ("topic",)),
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
    Spec("popgate_group_failures_total", "counter", "Calls that were refused or failed.", _BOTH),
)

_STANDINGS = (
    Spec(
        "popgate_group_lag",
        "gauge",
        "Messages that the group has not finished, all in all.",
        _BOTH,
        over="max",
    ),
    Spec("popgate_group_unread", "gauge", "Of these: never given out.", _BOTH, over="max"),
    Spec("popgate_group_in_flight", "gauge", "Of these: given out and invisible.", _BOTH, over="max"),
    Spec("popgate_group_free", "gauge", "Of these: free to be given out again.", _BOTH, over="max"),
    Spec(
        "popgate_group_behind",
        "gauge",
        "Of these: kept back by an earlier one of the message group.",
        _BOTH,
        over="max",
    ),
    Spec("popgate_group_waiting", "gauge", "Receives of the group that wait now.", _BOTH, over="max"),
    Spec(
        "popgate_group_renew_age_seconds",
        "gauge",
        "How long the message held longest by a push consumer of this gateway has been held.",
        _BOTH,
        over="max",
    ),
    Spec("popgate_group_redeliveries_total", "counter", "Deliveries after the first.", _BOTH, over="max"),
    Spec("popgate_group_dead_letters_total", "counter", "Moved to the dead letters.", _BOTH, over="max"),
)

_GATEWAY = (
    Spec(
        "popgate_build_info",
        "gauge",
        "1, for the version that runs and whether it is compiled (`yes`, `no`).",
        ("version", "compiled"),
        over="max",
    ),
    Spec("popgate_ready", "gauge", "1 while clients are served.", over="max"),
    Spec(
        "popgate_config_last_reload_successful",
        "gauge",
        "0 after a reload of the settings that failed: the old ones count.",
        over="max",
    ),
    Spec(
        "popgate_config_last_reload_success_timestamp_seconds",
        "gauge",
        "When the settings were last taken, since 1970.",
        over="max",
    ),
    Spec(
        "popgate_config_restart_pending",
        "gauge",
        "Settings that were reloaded, and whose new value counts only after a restart.",
        over="max",
    ),
    Spec("popgate_clients", "gauge", "Clients known."),
    Spec(
        "popgate_groups_mapped",
        "gauge",
        "Groups whose classic push consumers here are mapped onto pop (`remoting.mapped_groups`).",
        over="max",
    ),
    Spec(
        "popgate_groups_pulled",
        "gauge",
        "Groups that the setting names and that have classic consumers here, but are on true pull:"
        " `popgate group show` tells why.",
        over="max",
    ),
    Spec(
        "popgate_reclaimed_retries_total",
        "counter",
        "Messages that came back to a group from pops, and were moved to where its classic consumers pull.",
    ),
    Spec("popgate_mapped_held", "gauge", "Messages that classic push consumers of mapped groups hold."),
    Spec("popgate_mapped_renewed_total", "counter", "Times that one of those was hidden for longer."),
    Spec(
        "popgate_mapped_window_pauses_total",
        "counter",
        "Pulls of mapped groups that got nothing because their client had not finished enough.",
    ),
    Spec(
        "popgate_mapped_given_back_gone_total",
        "counter",
        "Messages of mapped groups given back because their client left, or its connection ended.",
    ),
    Spec(
        "popgate_mapped_given_back_restarted_total",
        "counter",
        "The same because it took the queue anew.",
    ),
    Spec(
        "popgate_mapped_given_back_switched_total",
        "counter",
        "The same because its group is on true pull from then on.",
    ),
    Spec(
        "popgate_mapped_given_back_unread_total",
        "counter",
        "The same because their answer never reached it.",
    ),
    Spec("popgate_known_routes", "gauge", "Routes of topics that are kept for a moment.", over="max"),
    Spec("popgate_known_holders", "gauge", "Clients remembered for what they hold."),
    Spec("popgate_waiting_receives", "gauge", "Receives and pulls that wait for a message."),
    Spec("popgate_bytes_under_way", "gauge", "Bytes of requests and answers that count towards the budgets."),
    Spec("popgate_held_deliveries", "gauge", "Messages that push consumers hold."),
    Spec("popgate_longest_held_ms", "gauge", "How long the one held longest has been held.", over="max"),
    Spec(
        "popgate_message_events_total",
        "counter",
        "Messages dead-lettered by clients, redriven, recalled, renewed by the gateway, returned,"
        " released; and transaction checks.",
        ("event",),
    ),
    Spec("popgate_created_total", "counter", "Topics and groups made on first use.", ("kind",)),
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
        "How long ago the last trigger ended that its driver told of.",
        ("query",),
        over="min",
    ),
)

_WORKERS = (
    Spec("popgate_workers", "gauge", "Worker processes that serve.", over="max"),
    Spec(
        "popgate_workers_silent",
        "gauge",
        "Processes of the gateway that did not answer this scrape; what they counted before is in the sums.",
        over="max",
    ),
    Spec("popgate_worker_restarts_total", "counter", "Processes that ended unasked, and were started again."),
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
    ("The connections of gRPC clients (`transport=http2`)", _CONNECTIONS),
    ("The connections of remoting clients", _REMOTING),
    ("Addresses that protocols share, or with `tls=permissive`", _SNIFFING),
    ("Topics", _TOPICS),
    ("Groups: what they did", _GROUPS),
    ("Groups: where they stand", _STANDINGS),
    ("The gateway", _GATEWAY),
    ("Streaming queries of Spark whose drivers report to this gateway", _QUERIES),
    ("Several processes (`workers`)", _WORKERS),
    ("The embedded broker", BROKER),
    ("Its store", STORE),
    ("One broker for several gateways", OF_SHARING),
    ("The links to a RocketMQ cluster", OF_CLUSTER),
    ("The clients and transactions at a RocketMQ cluster", OF_CLIENTS),
    ("The event loop", _LOOP),
)

SPECS: dict[str, Spec] = {spec.name: spec for _, specs in SECTIONS for spec in specs}


def contract() -> list[str]:
    """One line for each metric: name, type and labels."""
    return sorted(f"{spec.name} {spec.kind} {','.join(spec.labels)}".strip() for spec in SPECS.values())
