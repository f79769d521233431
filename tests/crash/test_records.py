"""The verdict of a crash run sees everything that can be wrong."""

from __future__ import annotations

import pytest

from tests.crash.records import Check, Delivery, Records, Send, Stored


def deliver(records: Records, body: str, at: float, *, answer: int, place: int = 0) -> None:
    records.deliveries.append(Delivery("t", body, 1, at - 0.1, at, int(at * 1000), answer, place))


def ack(records: Records, body: str, at: float) -> None:
    records.acking[body], records.acked[body] = at - 0.01, at


@pytest.fixture
def records() -> Records:
    """Two messages of a lane, one after the other, and one that was rolled back."""
    records = Records()
    for number, body in enumerate(("one", "two")):
        records.tried.add(body)
        records.sends[body] = Send("t", body, f"id-{body}", offset=number, lane="lane", number=number)
        records.stored.append(Stored("t", 0, number, f"id-{body}", body))
        deliver(records, body, number + 1.0, answer=number)
        ack(records, body, number + 1.5)
    records.tried.add("back")
    records.sends["back"] = Send("t", "back", "id-back", delivered=False)
    return records


def test_a_run_in_which_all_is_well_has_no_complaints(records: Records) -> None:
    assert records.complaints() == []
    assert records.missing() == set()


def test_what_is_stored_twice_is_seen(records: Records) -> None:
    records.stored.append(Stored("t", 0, 7, "id-one", "one"))
    assert "one is stored 2 times" in records.complaints()


def test_what_nobody_sent_is_seen(records: Records) -> None:
    records.stored.append(Stored("t", 1, 0, "id", "stranger"))
    assert records.complaints() == ["stranger is stored, and nobody sent it"]


def test_what_is_lost_is_seen(records: Records) -> None:
    del records.stored[1], records.acked["two"]
    assert records.missing() == {"two"}
    assert records.complaints() == [
        "two was answered and is not stored",
        "two was answered and could not be consumed",
    ]


def test_what_was_rolled_back_and_delivered_is_seen(records: Records) -> None:
    deliver(records, "back", 3.0, answer=9)
    assert records.complaints() == ["back was rolled back or recalled, and is there"]


def test_what_was_answered_differently_is_seen(records: Records) -> None:
    records.stored[0].message_id = "other"
    records.sends["two"].offset = 5
    assert records.complaints() == [
        "one is stored as other, its sender was told id-one",
        "two is at offset 1, its sender was told 5",
    ]


def test_what_comes_again_after_its_acknowledgement_is_seen(records: Records) -> None:
    deliver(records, "one", 1.55, answer=8)
    assert records.complaints() == []  # its receive began before the acknowledgement was answered
    deliver(records, "one", 4.0, answer=9)
    (complaint,) = records.complaints()
    assert complaint.startswith("one was delivered again")


def test_what_comes_before_its_predecessor_is_finished_is_seen(records: Records) -> None:
    records.acking["one"] = records.acked["one"] = 2.5
    assert records.complaints() == ["two came before one was acknowledged"]
    deliver(records, "one", 2.0, answer=1)
    records.deliveries[1].place = 1
    assert records.complaints() == []  # in the same answer, and before it


def test_a_lane_that_is_stored_out_of_order_is_seen(records: Records) -> None:
    records.stored[0].offset, records.sends["one"].offset = 4, 4
    assert records.complaints() == ["the messages of lane are not stored in their order"]


def test_what_comes_too_early_is_seen(records: Records) -> None:
    records.sends["one"].due_ms = 1_001
    assert records.complaints() == ["one came 1 ms too early"]


def test_odd_answers_are_told(records: Records) -> None:
    records.odd.append("odd")
    assert records.complaints() == ["odd"]


def test_what_is_asked_about_too_early_is_seen(records: Records) -> None:
    records.checkable_ms = {"back": 2_000}
    records.checks = [Check("back", 2_000), Check("back", 3_500)]
    assert records.complaints() == []
    records.checks.append(Check("back", 1_997))
    assert records.complaints() == ["back was asked about 3 ms too early"]


def test_what_is_asked_about_and_was_no_half_message_is_seen(records: Records) -> None:
    records.checks.append(Check("one", 9_000))
    assert records.complaints() == ["one was asked about, and is no half message"]


def test_what_is_left_open_and_never_asked_about_is_seen(records: Records) -> None:
    records.checkable_ms = {"back": 2_000}
    records.left_open = {"back"}
    assert records.unasked() == {"back"}
    assert records.complaints() == ["back was left open, and nobody asked about it"]
    records.checks.append(Check("back", 60_000))
    assert records.unasked() == set()
    assert records.complaints() == []
