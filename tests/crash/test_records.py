"""The verdict of a crash run sees everything that can be wrong."""

from __future__ import annotations

import pytest

from tests.crash.records import OVERDUE_S, Check, Delivery, Life, Records, Send, Stored


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


LATE_MS = int(OVERDUE_S * 1000)
DUE_MS = 5_000


def delayed(records: Records, came_ms: int, *, answered_ms: int = 0) -> Records:
    records.tried.add("later")
    records.sends["later"] = Send("t", "later", "id-later", due_ms=DUE_MS, answered_ms=answered_ms)
    records.stored.append(Stored("t", 0, 2, "id-later", "later"))
    deliver(records, "later", came_ms / 1000, answer=7)
    deliver(records, "later", came_ms / 1000 + 2 * OVERDUE_S, answer=8)
    ack(records, "later", came_ms / 1000 + 3 * OVERDUE_S)
    return records


@pytest.mark.parametrize(
    ("lives", "came_ms", "fine"),
    [
        pytest.param([Life(0)], DUE_MS + LATE_MS, True, id="in time"),
        pytest.param([Life(0)], DUE_MS + LATE_MS + 100, False, id="late in the only life"),
        pytest.param([Life(0, 6_000), Life(90_000)], 90_000 + LATE_MS, True, id="in time after a restart"),
        pytest.param([Life(0, 6_000), Life(90_000)], 90_100 + LATE_MS, False, id="late after a restart"),
        pytest.param(
            [Life(0, DUE_MS + LATE_MS + 100), Life(500_000)], 500_001, False, id="left to the next life"
        ),
        pytest.param([], 900_000, True, id="no gateway was ready"),
    ],
)
def test_a_delayed_message_is_not_due_for_long_while_a_gateway_is_ready(
    records: Records, lives: list[Life], came_ms: int, fine: bool
) -> None:
    delayed(records, came_ms)
    records.lives = lives
    assert (records.complaints() == []) is fine
    if not fine:
        (complaint,) = records.complaints()
        assert complaint == (
            f"later came when it was due for {OVERDUE_S + 0.1:.1f} s of a life; {OVERDUE_S:g} s are allowed"
        )


def test_what_was_stored_when_it_was_due_already_is_due_from_then_on(records: Records) -> None:
    records.lives = [Life(0)]
    delayed(records, 90_000 + LATE_MS, answered_ms=90_000)
    assert records.complaints() == []
    assert records.overdue_deliveries() == pytest.approx({"later": OVERDUE_S})


@pytest.mark.parametrize(("asked_ms", "fine"), [(90_000 + LATE_MS, True), (90_100 + LATE_MS, False)])
def test_a_half_message_is_asked_about_soon_after_a_gateway_is_ready(
    records: Records, asked_ms: int, fine: bool
) -> None:
    records.checkable_ms = {"back": 2_000}
    records.left_open = {"back"}
    records.lives = [Life(0, 2_500), Life(90_000)]
    records.checks = [Check("back", asked_ms), Check("back", asked_ms + 10 * LATE_MS)]
    assert records.overdue_checks() == {"back": (asked_ms - 90_000) / 1000}
    assert (records.complaints() == []) is fine
    if not fine:
        assert records.complaints()[0].startswith("back was asked about when it was due for ")
