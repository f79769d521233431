"""popgate.spark.read.read_plan: ranges, checked, limited, split and packed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.read.read_plan import Range, checked, limited, packed, planned, ranges_of, split

A, B, C = (QueuePlace("t", "broker-a", number) for number in range(3))
sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=40)


def ranges(*many: int) -> list[Range]:
    return [Range(QueuePlace("t", "broker-a", number), 5, 5 + size) for number, size in enumerate(many)]


def refuse(_: str) -> None:
    pytest.fail("nothing is lost here")


def test_empty_ranges_are_none() -> None:
    assert ranges_of({A: 1, B: 2}, {B: 5, A: 1}) == [Range(B, 2, 5)]


def test_a_queue_that_went_back_was_made_anew() -> None:
    with pytest.raises(
        SparkSourceError, match=r"queue 0 of t on broker-a ends at 3.*read up to 9"
    ) as refused:
        ranges_of({A: 9}, {A: 3})
    assert refused.value.code is Code.DATA_LOSS
    assert "failOnDataLoss" not in str(refused.value)


def test_what_is_kept_is_read_as_it_is() -> None:
    assert checked(ranges(4), {A: 5}, fail=True, warn=refuse) == ranges(4)
    assert checked(ranges(4), {}, fail=True, warn=refuse) == ranges(4)


def test_what_retention_took_fails_the_query() -> None:
    with pytest.raises(SparkSourceError, match=r"5 to 6 are gone.*failOnDataLoss=false"):
        checked(ranges(4), {A: 7}, fail=True, warn=refuse)


def test_what_retention_took_is_passed_over_aloud_where_that_is_wanted() -> None:
    told: list[str] = []
    found = checked(ranges(4, 3), {A: 7, B: 100}, fail=False, warn=told.append)
    assert found == [Range(A, 7, 9)]
    assert [sentence.rpartition(": ")[2] for sentence in told] == ["5 to 6 are gone", "5 to 7 are gone"]


def test_a_limit_is_shared_out_by_what_queues_have() -> None:
    assert limited({A: 10, B: 0, C: 3}, {A: 110, B: 300, C: 3}, 40) == {A: 20, B: 30, C: 3}


def test_a_limit_starves_no_queue() -> None:
    assert limited({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}


def test_what_is_below_a_limit_is_read_as_it_is() -> None:
    assert limited({A: 0, B: 4}, {A: 6, B: 8}, 10) == {A: 6, B: 8}


@given(sizes, st.integers(1, 5_000))
def test_a_limit_holds_but_for_one_of_each_queue(many: list[int], most: int) -> None:
    whole = ranges(*many)
    begins, ends = {each.queue: each.begin for each in whole}, {each.queue: each.end for each in whole}
    found = limited(begins, ends, most)
    assert all(begins[queue] < end <= ends[queue] for queue, end in found.items())
    assert sum(end - begins[queue] for queue, end in found.items()) <= most + len(many)


def test_ranges_are_split_evenly() -> None:
    assert split([Range(A, 0, 10)], largest=4) == [Range(A, 0, 3), Range(A, 3, 6), Range(A, 6, 10)]
    assert split(ranges(3), largest=None) == ranges(3)


def test_small_ranges_share_a_partition() -> None:
    many = ranges(*[1] * 64)
    assert packed(many, least=20_000) == [many]
    assert packed(many, least=16) == [many[0:16], many[16:32], many[32:48], many[48:64]]


def test_a_partition_has_no_more_than_its_most() -> None:
    many = ranges(*[4] * 5)
    assert packed(many, least=20, most=9) == [many[0:2], many[2:4], many[4:5]]
    assert planned([Range(A, 0, 10), Range(B, 0, 1)], partitions=None, largest=4, least=None) == [
        [Range(A, 0, 3)],
        [Range(A, 3, 6)],
        [Range(A, 6, 10)],
        [Range(B, 0, 1)],
    ]


def test_partitions_are_as_many_as_asked_for_but_none_too_small() -> None:
    assert len(planned(ranges(100), partitions=10, largest=None, least=None)) == 10
    sizes = [
        sum(part.size for part in group)
        for group in planned(ranges(100), partitions=10, largest=None, least=20)
    ]
    assert sizes == [20] * 5
    assert len(planned(ranges(100), partitions=4, largest=None, least=20)) == 4
    assert planned(ranges(3, 4), partitions=4, largest=None, least=20) == [ranges(3, 4)]


def test_nothing_is_no_partition() -> None:
    assert planned([], partitions=8, largest=1, least=1) == []


@given(
    sizes,
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 20_000),
    st.none() | st.integers(1, 30_000),
)
def test_a_plan_reads_all_of_it_once_and_in_order(
    many: list[int], partitions: int | None, largest: int | None, least: int | None
) -> None:
    if largest is not None:
        largest = max(largest, sum(many) // 500)
    whole = ranges(*many)
    plan = planned(whole, partitions=partitions, largest=largest, least=least)
    for each in whole:
        at = each.begin
        for part in (part for group in plan for part in group if part.queue == each.queue):
            assert part.begin == at
            assert part.end > at
            at = part.end
        assert at == each.end
    loads = [sum(part.size for part in group) for group in plan]
    if largest is not None:
        assert max(loads) <= largest
    if partitions is not None and least is None:
        assert len(plan) >= min(partitions, sum(many))
    if largest is None and (least is not None or partitions is None):
        assert all(load >= (least or 20_000) for load in loads[:-1])
