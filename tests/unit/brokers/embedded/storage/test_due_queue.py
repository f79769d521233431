from typing import Any

from brokers.embedded.storage.due_queue import DueQueue
from brokers.embedded.storage.keys import CHECKS, check_key

Parts = Any
LARGE = 1 << 30


async def keys_of(parts: Parts, *dues: int) -> DueQueue:
    due_keys = DueQueue(parts.store, CHECKS)
    due_keys.load()
    for number, due in enumerate(dues):
        due_keys.add(check_key(due, number), b"v")
    await parts.store.commit()
    return due_keys


def dues(taken: list[tuple[bytes, bytes]]) -> list[int]:
    return [int.from_bytes(key[:8], "big") for key, _ in taken]


async def test_an_empty_keyspace_has_no_deadline(parts: Parts) -> None:
    keys = await keys_of(parts)
    assert keys.deadline() is None
    assert keys.take(1 << 60, 10, LARGE) == []


async def test_what_is_due_is_taken_lowest_first_up_to_the_number_asked_for(parts: Parts) -> None:
    keys = await keys_of(parts, 30, 10, 20, 40)
    assert dues(keys.take(30, 2, LARGE)) == [10, 20]
    assert keys.deadline() == 30
    assert dues(keys.take(30, 2, LARGE)) == [30]
    assert keys.deadline() == 40
    await parts.store.commit()
    assert [key for key, _ in parts.store.scan(CHECKS, b"")] == [check_key(40, 3)]


async def test_the_value_that_reaches_the_bytes_is_the_last_one_taken(parts: Parts) -> None:
    keys = await keys_of(parts)
    for number in range(5):
        keys.add(check_key(1, number), b"x" * 10)
    await parts.store.commit()
    assert len(keys.take(1, 100, 11)) == 2


async def test_a_removed_key_is_neither_found_nor_taken_in_its_turn_or_later(parts: Parts) -> None:
    keys = await keys_of(parts, 10, 20)
    keys.remove(check_key(10, 0))
    for _ in range(2):
        assert [key for key, _ in keys.within(b"", b"\xff" * 16)] == [check_key(20, 1)]
        await parts.store.commit()
    assert dues(keys.take(100, 10, LARGE)) == [20]


async def test_a_key_put_back_in_the_turn_it_was_taken_is_there(parts: Parts) -> None:
    keys = await keys_of(parts, 10)
    [(key, value)] = keys.take(10, 10, LARGE)
    keys.add(key, value)
    assert keys.deadline() == 10
    await parts.store.commit()
    assert dues(keys.take(10, 10, LARGE)) == [10]


async def test_the_deadline_after_a_removal_may_be_early_once_and_never_late(parts: Parts) -> None:
    keys = await keys_of(parts, 10, 20)
    keys.remove(check_key(10, 0))
    await parts.store.commit()
    assert keys.deadline() == 10
    assert keys.take(10, 10, LARGE) == []
    assert keys.deadline() == 20
