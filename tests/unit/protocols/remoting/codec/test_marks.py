"""Places in several logs as one number."""

from __future__ import annotations

import pytest

from popgate.ids.queue_numbers import QueueNumbers
from protocols.remoting.codec.marks import MOST_BROKERS, OFFSET_BITS, Marks, Origin

MARKS = Marks(QueueNumbers([("b", 0), ("a", 0)]))
LARGEST = (1 << OFFSET_BITS) - 1


@pytest.mark.parametrize("offset", [0, 1, 4096, LARGEST])
def test_a_place_leads_back_to_its_broker(offset: int) -> None:
    for broker in ("a", "b"):
        place = MARKS.marked(broker, offset)
        assert 0 <= place < 1 << 63
        assert MARKS.broker_of(place) == (broker, offset)


def test_those_of_the_first_broker_are_as_they_are() -> None:
    assert MARKS.marked("b", 4711) == 4711
    assert not Marks(QueueNumbers([("b", 0)])).are_needed
    assert MARKS.are_needed


@pytest.mark.parametrize(("broker", "offset"), [("c", 5), ("a", LARGEST + 1)])
def test_what_cannot_be_said_is_of_nobody(broker: str, offset: int) -> None:
    place = MARKS.marked(broker, offset)
    assert 0 <= place < 1 << 63
    assert MARKS.broker_of(place)[0] is None


def test_no_place_is_no_place() -> None:
    assert MARKS.marked("a", -1) == -1
    assert MARKS.broker_of(-1)[0] is None


def test_the_last_number_is_no_brokers() -> None:
    many = Marks(QueueNumbers([(f"broker-{number}", 0) for number in range(MOST_BROKERS + 5)]))
    assert many.broker_of(many.marked("broker-1", 7)) == ("broker-1", 7)
    assert many.marked(f"broker-{MOST_BROKERS}", 7) == many.marked("nobody", 7)
    assert Origin("", many).has_number(f"broker-{MOST_BROKERS - 1}")
    assert not Origin("", many).has_number(f"broker-{MOST_BROKERS}")


def test_the_only_broker_is_the_first_while_no_numbers_are_known() -> None:
    marks = Marks(QueueNumbers(), "b")
    assert (marks.marked("b", 7), marks.broker_of(7)) == (7, ("b", 7))
    assert marks.leave("b")
    assert marks.broker_of(marks.marked("a", 7))[0] is None
    assert [Origin("", marks).has_number(broker) for broker in "ab"] == [False, True]
    assert not marks.are_known
    known = Marks(QueueNumbers([("a", 0)]), "b")
    assert known.broker_of(known.marked("b", 7))[0] is None


def test_where_there_can_be_one_broker_only_all_is_as_it_is() -> None:
    here = Origin("10.0.0.9:8080")
    assert here.place("b", LARGEST + 1) == LARGEST + 1
    assert here.leaves("b")
    assert here.has_number("b")


@pytest.mark.parametrize("origin", [Origin("10.0.0.9:8080"), Origin("[fe80::1]:80", MARKS)])
@pytest.mark.parametrize("broker", ["a", "b", "nobody"])
def test_ids_of_several_places_are_those_of_each(origin: Origin, broker: str) -> None:
    places = [0, 4711, LARGEST, LARGEST + 1]
    assert origin.message_ids(broker, places) == [origin.message_id(broker, place) for place in places]
