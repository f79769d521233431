"""Vectors: protocol facts 10."""

import pytest

from popgate.ids import hashes
from popgate.ids.hashes import consistent_hash, java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("order-1", -1207111310),
        ("order-2", -1207111309),
        ("中文", 646394),
        ("group", 98629247),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("😀", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_hash_is_the_one_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_of_long_texts_few_are_kept() -> None:
    """A tag has up to 32 KiB: thousands of them would be much to keep."""
    for number in range(70):
        text = f"{number}".ljust(32_767, "x")
        value = 0
        for letter in text[-3:]:
            value = value * 31 + ord(letter)
        assert (java_hash(text) - java_hash(text[:-3]) * 31**3 - value) % (1 << 32) == 0
    assert hashes._long_hash.cache_info().currsize <= 64


@pytest.mark.parametrize(
    ("text", "of_4", "of_8", "of_16"),
    [("a", 0, 0, 0), ("order-1", 3, 3, 3), ("order-2", 2, 2, 11), ("group", 0, 0, 8)],
)
def test_message_groups_go_to_the_queues_that_java_picks(text: str, of_4: int, of_8: int, of_16: int) -> None:
    value = java_hash(text)
    assert [consistent_hash(value, n) for n in (4, 8, 16)] == [of_4, of_8, of_16]


@pytest.mark.parametrize(
    ("value", "buckets", "expected"),
    [
        (10863919174838991, 11, 6),
        (2016238256797177309, 11, 3),
        (1673758223894951030, 11, 5),
        (2, 100001, 80343),
    ],
)
def test_consistent_hash_has_the_published_values(value: int, buckets: int, expected: int) -> None:
    assert consistent_hash(value, buckets) == expected


def test_consistent_hash_of_small_numbers_has_the_published_values() -> None:
    assert [consistent_hash(i, 100) for i in range(10)] == [0, 55, 62, 8, 45, 59, 86, 97, 82, 59]


def test_a_bucket_more_moves_values_only_into_it() -> None:
    for value in range(-500, 500):
        before, after = consistent_hash(value, 7), consistent_hash(value, 8)
        assert after in (before, 7)


def test_without_a_bucket_there_is_no_choice() -> None:
    with pytest.raises(ValueError, match="0 buckets"):
        consistent_hash(1, 0)
