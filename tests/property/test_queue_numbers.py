"""Numbers of queues: given once, never changed, and the same for all gateways."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from popgate.ids.queue_numbers import MOST_NUMBERS, Numbered, QueueNumbers, joined, may_be_numbered

queue = st.tuples(st.sampled_from(["broker-a", "broker-b", "broker-c", "ä"]), st.integers(0, 6))
queues = st.lists(queue, max_size=12)
steps = st.lists(queues, max_size=6)


def grown(numbers: QueueNumbers, steps: list[list[Numbered]]) -> QueueNumbers:
    for step in steps:
        numbers = numbers.grown(step)
    return numbers


@given(steps)
def test_a_queue_keeps_its_number_whatever_comes_after(steps: list[list[Numbered]]) -> None:
    numbers = QueueNumbers()
    told: dict[Numbered, int] = {}
    for step in steps:
        numbers = numbers.grown(step)
        for one in step:
            number = numbers.number_of(*one)
            assert number is not None
            assert told.setdefault(one, number) == number
            assert numbers.queue_of(number) == one
    assert {one: numbers.number_of(*one) for one in told} == told
    assert sorted(told.values()) == list(range(len(numbers)))


@given(steps, queues, st.randoms(use_true_random=False))
def test_who_sees_the_same_queues_gives_the_same_numbers(
    steps: list[list[Numbered]], fresh: list[Numbered], chance: object
) -> None:
    known = grown(QueueNumbers(), steps)
    other = fresh + fresh
    chance.shuffle(other)  # type: ignore[attr-defined]
    assert known.grown(fresh) == known.grown(other)


@given(steps, steps)
def test_of_one_story_the_longer_form_counts_and_the_order_does_not(
    steps: list[list[Numbered]], more: list[list[Numbered]]
) -> None:
    short = grown(QueueNumbers(), steps)
    long = grown(short, more)
    assert short.begins(long)
    assert short.joined(long) == long.joined(short) == joined([short, long, short]) == long


@given(steps, st.lists(queues, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_gateways_that_gave_numbers_at_once_come_to_the_same(
    steps: list[list[Numbered]], fresh: list[list[Numbered]], chance: object
) -> None:
    known = grown(QueueNumbers(), steps)
    records = [known.grown(one) for one in fresh]
    together = joined(records)
    shuffled = list(records)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert joined(shuffled) == together
    # What all had told before stays, and nothing that anybody numbered is left out.
    assert known.begins(together)
    assert all(together.has_all(one.queues) for one in records)
    assert joined([*records, together]).begins(together)
    assert joined([together, known]) == together


@given(steps)
def test_as_a_text_it_says_the_same(steps: list[list[Numbered]]) -> None:
    numbers = grown(QueueNumbers(), steps)
    assert QueueNumbers.decode(numbers.encode()) == numbers


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.text(max_size=40) | json_values.map(json.dumps))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        found = QueueNumbers.decode(text)
    except ValueError:
        return
    assert len(found) <= MOST_NUMBERS
    assert QueueNumbers.decode(found.encode()) == found


@given(
    st.lists(st.text(max_size=6) | st.text("[", max_size=4) | st.text(min_size=200, max_size=300), max_size=6)
)
def test_brokers_that_may_be_numbered_are_read_again_whatever_they_are_called(names: list[str]) -> None:
    numbers = QueueNumbers().grown((name, 0) for name in names if may_be_numbered(name))
    assert QueueNumbers.decode(numbers.encode()) == numbers
