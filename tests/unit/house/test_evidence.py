"""What a failed test of clients tells beside its failure."""

from __future__ import annotations

from pathlib import Path

from tests.support.evidence import complaints, figures, stacks, timeline


def test_a_timeline_has_a_line_for_each_fact_in_ms_since_the_first() -> None:
    facts = [
        {"fact": "sent", "at": 1_000, "body": "a", "queue": 0, "sha256": "long"},
        {"fact": "received", "at": 1_250, "by": "one", "body": "a"},
    ]
    assert [line.split() for line in timeline(facts)] == [
        ["0", "sent", "a", "0"],
        ["250", "received", "one", "a"],
    ]
    assert timeline([]) == []


def test_figures_are_those_of_the_names_and_those_that_went_wrong() -> None:
    metrics = """# TYPE popgate_messages_total counter
popgate_messages_total{topic="x-restart-topic"} 3.0
popgate_messages_total{topic="other"} 3.0
popgate_messages_returned_total{topic="other"} 0.0
popgate_connections_lost_total 2.0
popgate_late_seconds_bucket{le="1"} 7.0
"""
    assert figures(metrics, "x-restart") == [
        'popgate_messages_total{topic="x-restart-topic"} 3.0',
        "popgate_connections_lost_total 2.0",
    ]


def test_complaints_are_of_the_names_but_for_logs_about_messages_alone(tmp_path: Path) -> None:
    text = "1 INFO x-restart is fine\n2 WARN x-restart is not\n3 ERROR other\n"
    for name in ("broker", "pop"):
        (tmp_path / f"{name}.log").write_text(text)
    assert complaints(tmp_path / "broker.log", "x-restart") == ["broker.log: 2 WARN x-restart is not"]
    assert complaints(tmp_path / "pop.log", "x-restart") == [
        "pop.log: 2 WARN x-restart is not",
        "pop.log: 3 ERROR other",
    ]
    (tmp_path / "broker.log").write_text(
        "4 WARN remove expired channel[127.0.0.1:1]\n5 INFO IDLE exception\n"
    )
    assert complaints(tmp_path / "broker.log", "x-restart") == [
        "broker.log: 4 WARN remove expired channel[127.0.0.1:1]"
    ]
    assert complaints(tmp_path / "none.log", "x-restart") == []


def test_of_a_dump_of_threads_those_are_told_that_wait_for_a_lock_or_write() -> None:
    def dump(*blocks: str) -> str:
        return "\n\n".join(("2026 Full thread dump OpenJDK", *blocks, "JNI global refs: 21"))

    idle = '"AdminBrokerThread_1" #71\n   java.lang.Thread.State: WAITING (parking)'
    blocked = '"AdminBrokerThread_2" #72\n   java.lang.Thread.State: BLOCKED (on object monitor)'
    writing = '"AdminBrokerThread_3" #73\n\tat common.ConfigManager.persist(ConfigManager.java:1)'
    output = f"boot success\n{dump(blocked)}\n{dump(idle, writing)}\n"
    assert stacks(output) == writing.splitlines()
