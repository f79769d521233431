"""What a failed test of clients tells beside its failure."""

from __future__ import annotations

from pathlib import Path

from tests.support.evidence import complaints, figures, timeline


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
