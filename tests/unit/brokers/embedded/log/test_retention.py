import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from brokers.embedded.log import retention as retention_module
from brokers.embedded.log.index_blocks import BLOCK
from brokers.embedded.storage.keys import (
    FLOORS,
    GROUPS,
    HOUR_MS,
    INDEX,
    INFLIGHT,
    MESSAGES,
    PROGRESS,
    REMOVED,
    SIZES,
    index_key,
    inflight_key,
    message_key,
    progress_key,
    split_index_key,
)
from popgate.model import GroupConfig

Parts = Any
Make = Callable[..., Parts]
HOUR_S = 3600


async def send(parts: Parts, topic: Any, count: int, *, queue_id: int = 0, size: int = 10) -> None:
    for number in range(count):
        parts.send(topic, queue_id, f"{topic.name}-{queue_id}-{number}", os.urandom(size))
    await parts.store.commit()


async def round_of(parts: Parts) -> int:
    """One whole round of retention, now; how many ticks it took."""
    parts.retention._next_ms = parts.clock.now_ms()
    return await parts.run(parts.retention)


def keys(parts: Parts, space: str) -> list[bytes]:
    return [key for key, _ in parts.store.scan(space, b"")]


def kept_bytes(parts: Parts, topic: Any) -> int:
    return sum(
        len(record)
        for queue in topic.queues
        for _, record in parts.log.read(topic, queue.queue_id, 0, queue.visible)
    )


async def test_messages_are_kept_at_least_as_long_as_said_and_not_much_longer(parts: Parts) -> None:
    topic = await parts.topic(retention_ms=HOUR_S * 1000)
    for _ in range(10):
        await send(parts, topic, 5)
        parts.clock.advance(600)
    # Batches of five are now 6000 s, 5400 s … 600 s old.
    await round_of(parts)
    queue = topic.queues[0]
    assert (queue.minimum, queue.visible) == (20, 50)
    assert [record.offset for record in parts.delivered(topic)] == list(range(20, 50))
    assert len(keys(parts, MESSAGES)) == 30
    parts.clock.advance(0.001)
    await round_of(parts)
    assert queue.minimum == 25


async def test_the_default_holds_for_topics_that_say_nothing_and_zero_means_for_ever(parts: Parts) -> None:
    topic = await parts.topic()
    forever = await parts.topic("F", retention_ms=0)
    await send(parts, topic, 3)
    await send(parts, forever, 3)
    parts.clock.advance(72 * HOUR_S)
    await round_of(parts)
    assert len(parts.delivered(topic)) == 3
    parts.clock.advance(1)
    await round_of(parts)
    assert parts.delivered(topic) == []
    assert len(parts.delivered(forever)) == 3


async def test_a_queue_that_lost_everything_goes_on_where_it_was_after_a_restart(make_parts: Make) -> None:
    parts = make_parts()
    await send(parts, await parts.topic(retention_ms=1000), 40)
    parts.clock.advance(5)
    await round_of(parts)
    assert keys(parts, MESSAGES) == []
    assert len(keys(parts, FLOORS)) == 1
    parts = make_parts()
    topic = parts.catalogue.topic("T")
    assert (topic.queues[0].minimum, topic.queues[0].maximum) == (40, 40)
    assert parts.send(topic, 0, "next") == 40


async def test_the_floor_and_the_removal_are_one_batch(parts: Parts) -> None:
    topic = await parts.topic(retention_ms=1000)
    await send(parts, topic, 100)
    await send(parts, topic, 3, queue_id=1)
    parts.clock.advance(5)
    turn = parts.store.turn
    parts.retention.tick(parts.clock.now_ms())
    assert parts.store.turn == turn
    assert (len(keys(parts, MESSAGES)), len(keys(parts, FLOORS))) == (103, 0)
    await parts.store.commit()
    assert (len(keys(parts, MESSAGES)), len(keys(parts, FLOORS))) == (0, 2)


async def test_whoever_wants_to_know_is_told_of_a_new_floor(parts: Parts) -> None:
    told: list[tuple[str, int, int]] = []
    parts.retention.on_floor = lambda topic, queue: told.append((topic.name, queue.queue_id, queue.minimum))
    topic = await parts.topic(retention_ms=1000)
    await send(parts, topic, 4, queue_id=2)
    parts.clock.advance(2)
    await round_of(parts)
    await round_of(parts)
    assert told == [("T", 2, 4)]


async def test_a_round_comes_every_interval_also_when_the_clock_is_set_back(parts: Parts) -> None:
    await parts.run(parts.retention)
    now = parts.clock.now_ms()
    interval = parts.settings.retention_interval_ms
    assert parts.retention.deadline() == now + interval
    parts.retention.tick(now + interval - 1)
    assert parts.retention.deadline() == now + interval
    parts.clock.set_wall(now - 10 * interval)
    assert parts.retention.deadline() == now - 9 * interval
    parts.clock.set_wall(now - 9 * interval)
    parts.retention.tick(parts.clock.now_ms())
    assert parts.retention.deadline() == parts.clock.now_ms() + interval


async def test_a_round_over_many_queues_is_cut_into_ticks(parts: Parts) -> None:
    for number in range(60):
        await send(parts, await parts.topic(f"T{number}", read_queues=64, write_queues=64), 1)
    assert await round_of(parts) > 3


# -- bytes -------------------------------------------------------------------------------------


async def test_a_topic_is_kept_within_its_bytes_and_keeps_its_newest(parts: Parts) -> None:
    topic = await parts.topic(retention_bytes=1_000_000, read_queues=1, write_queues=1)
    for _ in range(10):
        await send(parts, topic, 50, size=1000)
    await round_of(parts)
    assert kept_bytes(parts, topic) < 1_000_000
    assert topic.queues[0].minimum == 0
    for _ in range(20):
        await send(parts, topic, 50, size=1000)
        parts.clock.advance(60)
        await round_of(parts)
        assert 1_000_000 - 2 * 1_000_000 // 32 < kept_bytes(parts, topic) <= 1_000_000 or (
            topic.queues[0].minimum == 0
        )
    assert topic.queues[0].minimum > 0
    assert parts.delivered(topic)[-1].offset == topic.queues[0].visible - 1


async def test_the_oldest_of_all_queues_go_first(parts: Parts) -> None:
    topic = await parts.topic(retention_bytes=200_000, read_queues=2, write_queues=2)
    await send(parts, topic, 100, queue_id=0, size=1000)
    parts.clock.advance(1)
    await send(parts, topic, 150, queue_id=1, size=1000)
    await round_of(parts)
    assert topic.queues[0].minimum > 30
    assert topic.queues[1].minimum == 0
    parts.clock.advance(1)
    await send(parts, topic, 150, queue_id=0, size=1000)
    await round_of(parts)
    # The first hundred of queue 0 are gone before anything of the later ones in queue 1.
    assert topic.queues[0].minimum >= 100
    assert topic.queues[1].minimum > 0
    assert kept_bytes(parts, topic) <= 200_000


async def test_queues_of_one_age_give_alike(parts: Parts) -> None:
    topic = await parts.topic(retention_bytes=400_000, read_queues=4, write_queues=4)
    for queue_id in range(4):
        await send(parts, topic, 200, queue_id=queue_id, size=1000)
    await round_of(parts)
    kept = [queue.visible - queue.minimum for queue in topic.queues]
    assert min(kept) > 70
    assert max(kept) - min(kept) < 10


async def test_uneven_messages_are_counted_not_guessed(parts: Parts) -> None:
    topic = await parts.topic(retention_bytes=500_000, read_queues=1, write_queues=1)
    for _ in range(20):
        await send(parts, topic, 40, size=10)
        await send(parts, topic, 1, size=60_000)
    await round_of(parts)
    assert 380_000 < kept_bytes(parts, topic) <= 500_000
    assert parts.retention.bytes_of(topic) >= kept_bytes(parts, topic)


async def test_sums_survive_a_restart_without_reading_the_messages_again(
    make_parts: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = make_parts()
    topic = await parts.topic(retention_bytes=400_000, read_queues=1, write_queues=1)
    await send(parts, topic, 300, size=1000)
    await round_of(parts)
    parts = make_parts()
    topic = parts.catalogue.topic("T")
    begins: list[int] = []
    read = parts.log.read
    monkeypatch.setattr(
        parts.log,
        "read",
        lambda topic, queue_id, begin, end: begins.append(begin) or read(topic, queue_id, begin, end),
    )
    await send(parts, topic, 200, size=1000)
    await round_of(parts)
    assert min(begins) > 280
    monkeypatch.undo()
    assert 400_000 - 2 * 400_000 // 32 < kept_bytes(parts, topic) <= 400_000


async def test_the_default_bound_holds_for_topics_that_say_nothing(make_parts: Make) -> None:
    parts = make_parts(retention_bytes=100_000)
    topic = await parts.topic(read_queues=1, write_queues=1)
    free = await parts.topic("F", read_queues=1, write_queues=1, retention_bytes=0)
    await send(parts, topic, 200, size=1000)
    await send(parts, free, 200, size=1000)
    await round_of(parts)
    assert kept_bytes(parts, topic) <= 100_000
    assert kept_bytes(parts, free) > 200_000
    assert parts.retention.bytes_of(free) is None


async def test_what_went_by_age_no_longer_counts_by_bytes(parts: Parts) -> None:
    topic = await parts.topic(retention_ms=60_000, retention_bytes=300_000, read_queues=1, write_queues=1)
    await send(parts, topic, 250, size=1000)
    await round_of(parts)
    parts.clock.advance(61)
    await send(parts, topic, 250, size=1000)
    await round_of(parts)
    assert topic.queues[0].minimum == 250
    assert parts.retention.bytes_of(topic) == kept_bytes(parts, topic)
    assert all(key >= message_key(topic.id, 0, 250) for key in keys(parts, SIZES))


async def test_big_removals_give_their_space_back(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "_RECLAIM_BYTES", 100_000)
    reclaimed: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(parts.store, "reclaim", lambda space, begin, end: reclaimed.append((begin, end)))
    topic = await parts.topic(retention_ms=1000)
    await send(parts, topic, 50, size=1000)
    parts.clock.advance(2)
    await round_of(parts)
    assert reclaimed == []
    await send(parts, topic, 60, size=1000)
    parts.clock.advance(2)
    await round_of(parts)
    assert reclaimed == [(message_key(topic.id, 0, 0), message_key(topic.id, 0, 110))]


# -- what is left behind -------------------------------------------------------------------------


async def test_the_index_of_removed_messages_goes_hour_by_hour_and_topic_by_topic(parts: Parts) -> None:
    short = await parts.topic("S", retention_ms=2 * HOUR_S * 1000)
    long = await parts.topic("L", retention_ms=10 * HOUR_S * 1000)
    for _ in range(6):
        await send(parts, short, 10)
        await send(parts, long, 10)
        parts.clock.advance(HOUR_S)
    await round_of(parts)
    per_topic = {
        topic: sum(key[4:8] == topic.id.to_bytes(4, "big") for key in keys(parts, INDEX))
        for topic in (short, long)
    }
    assert len(parts.delivered(short)) == 20
    assert 20 <= per_topic[short] <= 30
    assert per_topic[long] == 60
    parts.clock.advance(20 * HOUR_S)
    await round_of(parts)
    assert keys(parts, INDEX) == []


async def test_blocks_of_the_index_go_with_their_hour(parts: Parts) -> None:
    topic = await parts.topic(retention_ms=2 * HOUR_S * 1000)
    hour = parts.clock.now_ms() // HOUR_MS
    for age, queue_id in ((0, 0), (0, 9), (5, 0)):
        parts.store.put(INDEX, index_key(hour + age, topic.id, BLOCK, queue_id, 1 << 40), b"block")
    await parts.store.commit()
    parts.clock.advance(5 * HOUR_S)
    await send(parts, topic, 1)
    await round_of(parts)
    assert {split_index_key(key)[0] for key in keys(parts, INDEX)} == {hour + 5}


async def test_the_index_of_a_kept_message_stays(parts: Parts) -> None:
    topic = await parts.topic(retention_ms=0)
    other = await parts.topic("O", retention_ms=1000)
    await send(parts, topic, 1)
    for _ in range(5):
        parts.clock.advance(100 * HOUR_S)
        await send(parts, other, 1)
        await round_of(parts)
    assert len(keys(parts, INDEX)) == 2


def leave_traces(parts: Parts, group_id: int, topic_id: int) -> None:
    for offset in range(3):
        parts.store.put(INFLIGHT, inflight_key(group_id, topic_id, 1, offset), b"entry")
    parts.store.put(PROGRESS, progress_key(group_id, topic_id, 1), b"frontier")


async def test_everything_of_a_deleted_topic_goes_and_nothing_else(parts: Parts) -> None:
    kept, gone = await parts.topic("K", retention_bytes=10**9), await parts.topic("G", retention_bytes=10**9)
    groups = [parts.catalogue.create_group(GroupConfig(name)) for name in ("g1", "g2")]
    for topic in (kept, gone):
        await send(parts, topic, 20)
        parts.store.put(SIZES, message_key(topic.id, 0, 10), (1).to_bytes(8, "big"))
        parts.store.put(FLOORS, message_key(topic.id, 0, 0)[:6], (0).to_bytes(8, "big"))
        for group in groups:
            leave_traces(parts, group.id, topic.id)
    parts.catalogue.delete_topic("G")
    await parts.store.commit()
    await round_of(parts)
    for space, kept_count in (
        (MESSAGES, 20),
        (FLOORS, 1),
        (SIZES, 1),
        (INDEX, 20),
        (INFLIGHT, 6),
        (PROGRESS, 2),
    ):
        assert len(keys(parts, space)) == kept_count, space
    assert keys(parts, REMOVED) == []


async def test_everything_of_a_deleted_group_goes_and_nothing_else(parts: Parts) -> None:
    topic = await parts.topic()
    kept, gone = (parts.catalogue.create_group(GroupConfig(name)) for name in ("k", "g"))
    for group in (kept, gone):
        leave_traces(parts, group.id, topic.id)
    parts.catalogue.delete_group("g")
    await parts.store.commit()
    await round_of(parts)
    assert {key[:4] for space in (INFLIGHT, PROGRESS) for key in keys(parts, space)} == {
        kept.id.to_bytes(4, "big")
    }
    assert keys(parts, REMOVED) == []
    assert len(keys(parts, GROUPS)) == 1


async def test_a_removal_interrupted_by_a_restart_is_finished(make_parts: Make) -> None:
    parts = make_parts()
    topic = await parts.topic()
    group = parts.catalogue.create_group(GroupConfig("g"))
    leave_traces(parts, group.id, topic.id)
    await send(parts, topic, 5)
    parts.catalogue.delete_topic("T")
    await parts.store.commit()
    parts = make_parts()
    assert len(keys(parts, REMOVED)) == 1
    await parts.run(parts.retention)
    assert [keys(parts, space) for space in (INFLIGHT, PROGRESS, INDEX, REMOVED)] == [[], [], [], []]


async def test_an_id_is_not_given_again_while_something_of_it_is_left(parts: Parts) -> None:
    topic = await parts.topic()
    parts.catalogue.delete_topic("T")
    await parts.store.commit()
    parts.catalogue._next_topic_id = topic.id  # the numbers have gone all the way round
    assert (await parts.topic()).id == topic.id + 1
    await round_of(parts)
    parts.catalogue._next_topic_id = topic.id
    assert (await parts.topic("again")).id == topic.id


async def test_a_failed_write_leaves_the_messages_and_the_round_begins_anew(parts: Parts) -> None:
    topic = await parts.topic(retention_ms=1000)
    await send(parts, topic, 10)
    parts.clock.advance(5)
    parts.retention.tick(parts.clock.now_ms())
    assert topic.queues[0].minimum == 10
    parts.store._fail(OSError("full"))
    deadline = asyncio.get_running_loop().time() + 60
    while parts.store.failing:
        assert asyncio.get_running_loop().time() < deadline, "the store did not come back"
        parts.clock.advance(1)
        await asyncio.sleep(0.005)  # a sync under way ends first
    topic = parts.catalogue.topic("T")
    assert topic.queues[0].minimum == 0
    assert len(parts.delivered(topic)) == 10
    await parts.run(parts.retention)
    assert parts.delivered(topic) == []


async def test_a_clock_that_was_ahead_for_a_moment_delays_no_removal_for_years(make_parts: Make) -> None:
    parts = make_parts(retention_ms=80 * HOUR_S * 1000)
    topic = await parts.topic("t", read_queues=2, write_queues=2)
    await send(parts, topic, 3)
    right = parts.clock.now_ms()
    parts.clock.set_wall(right + 14 * 365 * 24 * HOUR_S * 1000)
    await send(parts, topic, 3)
    parts.clock.set_wall(right)
    await send(parts, topic, 3)  # their store times are of that year, too
    queue, other = topic.queues
    assert queue.last_store_ms > right + HOUR_S
    for _ in range(8):
        await round_of(parts)
        parts.clock.advance(9 * HOUR_S)
    assert (queue.minimum, queue.visible) == (0, 9)  # 72 h are not enough
    await send(parts, topic, 1)
    parts.clock.advance(9 * HOUR_S)
    await round_of(parts)
    assert queue.minimum == 9
    parts = make_parts(retention_ms=80 * HOUR_S * 1000)
    for _ in range(11):
        await round_of(parts)
        parts.clock.advance(9 * HOUR_S)
    queue = next(iter(parts.catalogue.topics())).queues[0]
    assert queue.minimum == 10
    assert other.minimum == 0
