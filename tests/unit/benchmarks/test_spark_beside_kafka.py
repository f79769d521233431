"""Spark's two sources side by side: what is made of the figures of the rounds."""

from __future__ import annotations

from benchmarks.spark_beside_kafka import KAFKA, OURS, Figure, lines_of


def test_ratios_are_those_of_one_round_and_the_rest_are_medians() -> None:
    found = {
        OURS: [Figure(100.0, 1.0, 2.0), Figure(220.0, 3.0, 4.0)],
        KAFKA: [Figure(200.0, 1.0, 0.1), Figure(200.0, 1.0, 0.3)],
    }
    ours, theirs = lines_of("lean", found)
    assert ours == "lean ours 160 rows/s, CPU 2.00 us of Spark, 3.00 of the broker"
    assert theirs.startswith("lean kafka 200 rows/s, CPU 1.00 us of Spark, 0.20 of the broker; ours reaches")
    assert theirs.endswith(" 0.80 of it (0.50, 1.10)")


def test_where_ours_does_not_take_part_nothing_is_compared() -> None:
    assert lines_of("sink", {KAFKA: [Figure(1.0, 1.0, 1.0)]}) == [
        "sink kafka 1 rows/s, CPU 1.00 us of Spark, 1.00 of the broker"
    ]
