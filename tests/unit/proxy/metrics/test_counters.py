"""proxy.metrics.counters: what is counted, how it is told, and that labels are bounded."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from popgate.errors import Fault
from popgate.model import Resolution
from processors.observer import Observer
from protocols.observers import ConnectionObserver
from proxy.metrics import BUCKETS, OTHER, Metrics
from proxy.metrics.merged_scrapes import Sum

Labels = tuple[tuple[str, str], ...]


def told(metrics: Metrics) -> dict[tuple[str, Labels], float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_are_an_observer() -> None:
    observer: Observer = Metrics().counters
    observer.sent("orders", 3, 300, 0.002)


def test_scenario_13_requests_errors_and_durations_are_told_by_operation() -> None:
    metrics = Metrics()
    metrics.counters.sent("orders", 3, 300, 0.002)
    metrics.counters.sent("orders", 1, 50, 0.2)
    metrics.counters.received("orders", "billing", 2, 100, 0.01)
    metrics.counters.received("orders", "billing", 0, 0, 5.0)
    metrics.counters.acked("orders", "billing", 2, 1, 0.001)
    metrics.counters.failed("send", Fault.BODY_TOO_LARGE)
    found = told(metrics)
    assert found["popgate_messages_sent_total", (("topic", "orders"),)] == 4
    assert found["popgate_bytes_sent_total", (("topic", "orders"),)] == 350
    both = (("group", "billing"), ("topic", "orders"))
    assert found["popgate_messages_received_total", both] == 2
    assert found["popgate_messages_acked_total", both] == 2
    assert found["popgate_messages_ack_refused_total", both] == 1
    assert found["popgate_request_duration_seconds_count", (("operation", "send"),)] == 2
    assert found["popgate_request_duration_seconds_sum", (("operation", "receive_empty"),)] == 5
    failed = (("fault", "BODY_TOO_LARGE"), ("operation", "send"))
    assert found["popgate_request_failures_total", failed] == 1


def test_every_observation_shows_up() -> None:
    metrics = Metrics()
    before = told(metrics)
    metrics.counters.pulled("t", "", 1, 1, 0.1)
    metrics.counters.pulled("t", "", 0, 0, 0.1)
    metrics.counters.changed("t", "g", 0.1)
    metrics.counters.dead_lettered("t", "g")
    metrics.counters.returned("t", "g", 2)
    metrics.counters.renewed("t", "g", 3)
    metrics.counters.released("t", "g", 4)
    metrics.counters.recalled("t")
    metrics.counters.ended("t", Resolution.COMMIT, 0.1)
    metrics.counters.ended("t", Resolution.ROLLBACK, 0.1)
    metrics.counters.checked("t", True)
    metrics.counters.checked("t", False)
    metrics.counters.created("topic", "t")
    found = told(metrics)
    events = {
        labels[0][1]: value for (name, labels), value in found.items() if "message_events_total" in name
    }
    assert events == {
        "dead_lettered": 1,
        "returned": 2,
        "renewed": 3,
        "released": 4,
        "recalled": 1,
        "transaction_check_asked": 1,
        "transaction_check_unasked": 1,
    }
    operations = {
        labels[0][1]
        for (name, labels) in found.keys() - before.keys()
        if name == "popgate_request_duration_seconds_count"
    }
    assert operations == {
        "pull",
        "pull_empty",
        "change_invisible",
        "end_transaction_commit",
        "end_transaction_rollback",
    }
    assert found["popgate_created_total", (("kind", "topic"),)] == 1


def test_a_duration_falls_into_every_bucket_that_reaches_it() -> None:
    metrics = Metrics()
    for bound in BUCKETS:
        metrics.counters.changed("t", "g", bound)
    metrics.counters.changed("t", "g", 1e6)
    found = told(metrics)
    operation = ("operation", "change_invisible")
    for at, bound in enumerate(BUCKETS):
        name = "popgate_request_duration_seconds_bucket"
        assert found[name, (("le", str(bound)), operation)] == at + 1
    assert found["popgate_request_duration_seconds_bucket", (("le", "+Inf"), operation)] == len(BUCKETS) + 1


def test_scenario_24_label_values_are_bounded_also_with_a_hundred_thousand_topics() -> None:
    metrics = Metrics(max_topics=10, max_groups=10)
    for number in range(100_000):
        metrics.counters.sent(f"topic-{number}", 1, 1, 0.0)
        metrics.counters.received(f"topic-{number}", "g", 1, 1, 0.0)
    found = told(metrics)
    topics = {dict(labels)["topic"] for name, labels in found if name == "popgate_messages_sent_total"}
    assert topics == {*(f"topic-{number}" for number in range(10)), OTHER}
    assert found["popgate_messages_sent_total", (("topic", OTHER),)] == 100_000 - 10
    assert found["popgate_messages_received_total", (("group", OTHER), ("topic", OTHER))] == 100_000 - 10


def test_a_topic_with_figures_of_its_own_keeps_them_when_the_bound_is_reached() -> None:
    metrics = Metrics(max_topics=1)
    for topic in ("first", "second", "first"):
        metrics.counters.sent(topic, 1, 0, 0.0)
    assert told(metrics)["popgate_messages_sent_total", (("topic", "first"),)] == 2


def test_figures_and_the_process_are_told() -> None:
    metrics = Metrics(figures=lambda: {"broker_topics": 3, "ready": True})
    found = told(metrics)
    assert found["popgate_broker_topics", ()] == 3
    assert found["popgate_ready", ()] == 1
    assert found["process_resident_memory_bytes", ()] > 0


def test_hostile_names_do_not_break_the_format() -> None:
    metrics = Metrics()
    metrics.counters.sent('a"b\\c\nd', 1, 0, 0.0)
    assert told(metrics)["popgate_messages_sent_total", (("topic", 'a"b\\c\nd'),)] == 1


def test_two_gateways_in_one_process_do_not_share_figures() -> None:
    one, other = Metrics(), Metrics()
    one.counters.sent("t", 1, 0, 0.0)
    assert ("popgate_messages_sent_total", (("topic", "t"),)) not in told(other)


def test_what_groups_do_is_told_by_topic_and_group() -> None:
    metrics = Metrics()
    metrics.counters.received("t", "g", 0, 0, 1.0)
    metrics.counters.received("t", "g", 2, 9, 1.0)
    metrics.counters.changed("t", "g", 0.1)
    metrics.counters.renewed("t", "g", 3)
    metrics.counters.released("t", "g", 4)
    metrics.counters.returned("t", "g", 5)
    metrics.counters.dead_lettered("t", "g")
    metrics.counters.acked("t", "g", 1, 6, 0.002)
    found = told(metrics)
    both = (("group", "g"), ("topic", "t"))
    wanted = {
        "popgate_receives_empty_total": 1,
        "popgate_receives_total": 1,
        "popgate_messages_changed_total": 1,
        "popgate_messages_renewed_total": 3,
        "popgate_messages_released_total": 4,
        "popgate_messages_returned_total": 5,
        "popgate_messages_forwarded_total": 1,
        "popgate_messages_ack_refused_total": 6,
        "popgate_ack_duration_seconds_count": 1,
    }
    assert {name: found[name, both] for name in wanted} == wanted


def test_scenario_13_calls_are_told_by_method_and_code() -> None:
    metrics = Metrics()
    metrics.counters.answered("SendMessage", "OK", 0.002)
    metrics.counters.answered("SendMessage", "MESSAGE_BODY_TOO_LARGE", 0.001)
    found = told(metrics)
    assert found["popgate_rpc_duration_seconds_count", (("method", "SendMessage"),)] == 2
    assert found["popgate_rpc_answers_total", (("code", "OK"), ("method", "SendMessage"))] == 1


def test_connections_and_what_they_may_not_do_are_told() -> None:
    metrics = Metrics()
    before = told(metrics)
    assert before["popgate_grpc_connections_refused_total", ()] == 0
    observer: ConnectionObserver = metrics.counters.connections
    for _ in range(3):
        observer.opened()
    observer.closed()
    observer.calls(5)
    observer.calls(-2)
    observer.turned_away()
    for _ in range(4):
        observer.crowded_out()
    observer.handshakes(3)
    observer.handshakes(-1)
    observer.handshake_failed()
    observer.streams_refused(7)
    observer.violated("pings", 1)
    observer.violated("pings", 2)
    observer.violated("silence", 1)
    found = told(metrics)
    assert {key: value for key, value in found.items() if key[0].startswith("popgate_grpc_")} == {
        ("popgate_grpc_connections", ()): 2,
        ("popgate_grpc_streams", ()): 3,
        ("popgate_grpc_connections_refused_total", ()): 1,
        ("popgate_grpc_connections_crowded_total", ()): 4,
        ("popgate_grpc_handshakes", ()): 2,
        ("popgate_grpc_handshakes_failed_total", ()): 1,
        ("popgate_grpc_streams_refused_total", ()): 7,
        ("popgate_grpc_violations_total", (("kind", "pings"),)): 3,
        ("popgate_grpc_violations_total", (("kind", "silence"),)): 1,
    }


def test_connections_of_remoting_clients_are_told_apart() -> None:
    metrics = Metrics()
    observer: ConnectionObserver = metrics.counters.remoting_connections
    observer.opened()
    observer.calls(5)
    observer.turned_away()
    observer.streams_refused(7)
    observer.violated("bad_frame", 2)

    found = told(metrics)

    assert {
        key: value for key, value in found.items() if value and key[0].startswith("popgate_remoting_")
    } == {
        ("popgate_remoting_connections", ()): 1,
        ("popgate_remoting_requests", ()): 5,
        ("popgate_remoting_connections_refused_total", ()): 1,
        ("popgate_remoting_requests_refused_total", ()): 7,
        ("popgate_remoting_violations_total", (("kind", "bad_frame"),)): 2,
    }
    assert found["popgate_grpc_connections", ()] == 0


def test_a_refused_name_takes_up_no_room() -> None:
    metrics = Metrics(max_topics=2, max_groups=2)
    metrics.counters.sent("known", 1, 1, 0.0)
    metrics.counters.refused("known", "")
    metrics.counters.refused("stranger", "")
    metrics.counters.refused("known", "stranger")
    metrics.counters.refused("", "")
    found = told(metrics)
    assert found["popgate_topic_failures_total", (("topic", "known"),)] == 1
    assert found["popgate_topic_failures_total", (("topic", OTHER),)] == 1
    assert found["popgate_group_failures_total", (("group", OTHER), ("topic", OTHER))] == 1
    metrics.counters.sent("second", 1, 1, 0.0)
    assert told(metrics)["popgate_messages_sent_total", (("topic", "second"),)] == 1


async def test_a_large_scrape_tells_the_same_as_a_small_one() -> None:
    metrics = Metrics(figures=lambda: {"ready": 1})
    for number in range(60):
        metrics.counters.sent(f"t{number}", 1, 1, 0.001)
    scraped = text_string_to_metric_families((await metrics.scrape()).decode())
    expected = text_string_to_metric_families(metrics.text().decode())
    steady = "process_", "python_gc_"
    told = [one for one in scraped if not one.name.startswith(steady)]
    assert told == [one for one in expected if not one.name.startswith(steady)]
    topics = {sample.labels.get("topic") for one in told for sample in one.samples}
    assert len(topics - {None}) == 60


async def test_a_sum_over_processes_does_not_fall_when_one_has_nothing_to_count() -> None:
    """Its clients have come to another one: what falls looks to Prometheus as if that had begun anew."""
    now = 0.0
    before, after = (Metrics(forget_s=100.0, now=lambda: now, added=True) for _ in range(2))
    before.counters.sent("orders", 5, 500, 0.01)

    async def sent() -> float:
        total = Sum()
        for metrics in (before, after):
            total.add((await metrics.scrape()).decode())
        (line,) = [line for line in total.text().splitlines() if line.startswith("popgate_messages_sent")]
        return float(line.rpartition(" ")[2])

    for count in range(1, 11):
        after.counters.sent("orders", 1, 100, 0.01)
        now += 30.0
        assert await sent() == 5 + count
