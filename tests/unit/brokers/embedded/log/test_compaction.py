"""Compacted topics: the newest message of each key stays where it is, whatever happens in between."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from brokers.embedded.log import compaction as compaction_module
from brokers.embedded.storage.keys import COMPACTED, FLOORS, INDEX, MESSAGES, message_key
from popgate.errors import BadRequest, Fault
from popgate.model import MessageType, TopicConfig

Parts = Any
Make = Callable[..., Parts]
DAY_S = 86_400
COMPACTION = {"cleanup.policy": "COMPACTION"}


async def compacted(parts: Parts, name: str = "T", queues: int = 1, **settings: Any) -> Any:
    return await parts.topic(name, read_queues=queues, write_queues=queues, attributes=COMPACTION, **settings)


def put(parts: Parts, topic: Any, key: str, body: bytes = b"body", queue_id: int = 0) -> int:
    message_id = f"id-{topic.queues[queue_id].maximum}"
    record = parts.record(topic, message_id, body, KEYS=key)
    keys = [one.encode() for one in key.split()]
    return parts.log.append(topic, queue_id, record, message_id=message_id.encode(), keys=keys)


async def send(parts: Parts, topic: Any, *keys: str, body: bytes = b"body") -> list[int]:
    offsets = [put(parts, topic, key, body) for key in keys]
    await parts.store.commit()
    return offsets


async def clean(parts: Parts) -> int:
    """One whole round of retention, now; how many ticks it took."""
    parts.retention._next_ms = parts.clock.now_ms()
    return await parts.run(parts.retention)


def offsets(parts: Parts, topic: Any, queue_id: int = 0) -> list[int]:
    return [record.offset for record in parts.delivered(topic, queue_id)]


def keys(parts: Parts, space: str) -> list[bytes]:
    return [key for key, _ in parts.store.scan(space, b"")]


# -- what stays ----------------------------------------------------------------------------------


async def test_the_newest_message_of_each_key_stays_at_its_offset(parts: Parts) -> None:
    topic = await compacted(parts)
    await send(parts, topic, "a", "b", "a", "c", "b", "a")
    await clean(parts)
    assert offsets(parts, topic) == [3, 4, 5]
    queue = topic.queues[0]
    assert (queue.minimum, queue.visible, queue.kept, queue.holes) == (0, 6, 3, 3)
    await send(parts, topic, "c", "c")
    await clean(parts)
    assert offsets(parts, topic) == [4, 5, 7]


async def test_each_queue_has_its_own_keys(parts: Parts) -> None:
    topic = await compacted(parts, queues=2)
    for queue_id in (0, 1, 0):
        put(parts, topic, "a", queue_id=queue_id)
    await parts.store.commit()
    await clean(parts)
    assert (offsets(parts, topic, 0), offsets(parts, topic, 1)) == ([1], [0])


async def test_several_keys_of_a_message_are_one(parts: Parts) -> None:
    topic = await compacted(parts)
    await send(parts, topic, "a b", "a", "b a", "a b")
    await clean(parts)
    assert offsets(parts, topic) == [1, 2, 3]


async def test_neither_age_nor_size_removes_what_is_the_newest_of_its_key(make_parts: Make) -> None:
    parts = make_parts(retention_ms=1000, retention_bytes=4096)
    topic, plain = await compacted(parts), await parts.topic("plain")
    await send(parts, topic, *(f"key-{number}" for number in range(200)))
    parts.send(plain, 0, "old")
    await parts.store.commit()
    parts.clock.advance(30 * DAY_S)
    await clean(parts)
    await clean(parts)
    assert len(parts.delivered(topic)) == 200
    assert parts.delivered(plain) == []
    assert topic.queues[0].minimum == 0


async def test_an_ordinary_topic_keeps_all_and_has_nothing_of_it_in_the_store(parts: Parts) -> None:
    for name, attributes in (("T", {}), ("U", {"cleanup.policy": "DELETE"})):
        topic = await parts.topic(name, read_queues=1, write_queues=1, attributes=attributes)
        await send(parts, topic, "a", "a", "a")
        await clean(parts)
        assert offsets(parts, topic) == [0, 1, 2]
    assert keys(parts, COMPACTED) == []


# -- tombstones ----------------------------------------------------------------------------------


async def test_a_tombstone_deletes_its_key_and_goes_after_its_time(make_parts: Make) -> None:
    parts = make_parts(tombstone_retention_ms=10_000)
    topic = await compacted(parts)
    await send(parts, topic, "a", "b")
    await send(parts, topic, "a", body=b"")
    await send(parts, topic, "c")
    await clean(parts)
    assert offsets(parts, topic) == [1, 2, 3]
    parts.clock.advance(9.999)
    await clean(parts)
    assert offsets(parts, topic) == [1, 2, 3]
    parts.clock.advance(0.001)
    await clean(parts)
    assert offsets(parts, topic) == [1, 3]
    await send(parts, topic, "a")
    await clean(parts)
    assert offsets(parts, topic) == [1, 3, 4]


async def test_a_tombstone_that_was_superseded_takes_nothing_with_it(make_parts: Make) -> None:
    parts = make_parts(tombstone_retention_ms=10_000)
    topic = await compacted(parts)
    await send(parts, topic, "a", body=b"")
    await clean(parts)
    await send(parts, topic, "a", "b")
    await clean(parts)
    parts.clock.advance(60)
    await clean(parts)
    assert offsets(parts, topic) == [1, 2]
    assert len(keys(parts, COMPACTED)) == 3  # how far it is, and two keys


async def test_the_last_message_stays_so_that_offsets_go_on_after_a_restart(make_parts: Make) -> None:
    parts = make_parts(tombstone_retention_ms=0)
    topic = await compacted(parts)
    await send(parts, topic, "a")
    await send(parts, topic, "a", body=b"")
    for _ in range(3):
        await clean(parts)
    assert offsets(parts, topic) == [1]
    parts = make_parts(tombstone_retention_ms=0)
    topic = parts.catalogue.topic("T")
    assert (topic.queues[0].maximum, topic.queues[0].kept) == (2, 1)
    assert await send(parts, topic, "b") == [2]
    await clean(parts)
    assert offsets(parts, topic) == [2]


async def test_many_tombstones_go_in_steps(make_parts: Make) -> None:
    parts = make_parts(tombstone_retention_ms=1000)
    topic = await compacted(parts)
    await send(parts, topic, *(f"key-{number}" for number in range(300)), body=b"")
    await send(parts, topic, "last")
    await clean(parts)
    assert len(parts.delivered(topic)) == 301
    parts.clock.advance(5)
    assert await clean(parts) > 4
    assert offsets(parts, topic) == [300]


async def test_what_has_no_key_goes_like_a_tombstone_and_supersedes_nothing(make_parts: Make) -> None:
    """Such came before an upgrade, when the attribute meant nothing here."""
    parts = make_parts(tombstone_retention_ms=1000)
    topic = await compacted(parts)
    parts.send(topic, 0, "keyless")
    await send(parts, topic, " ", "a")
    await clean(parts)
    assert offsets(parts, topic) == [0, 1, 2]
    parts.clock.advance(5)
    await clean(parts)
    assert offsets(parts, topic) == [2]


async def test_what_is_damaged_stays(make_parts: Make) -> None:
    parts = make_parts(tombstone_retention_ms=0)
    topic = await compacted(parts)
    await send(parts, topic, "a", "a", "b")
    parts.store.put(MESSAGES, message_key(topic.id, 0, 1), b"noise")
    await parts.store.commit()
    await clean(parts)
    assert [offset for offset, _ in parts.log.read(topic, 0, 0, 3)] == [0, 1, 2]


# -- bounds --------------------------------------------------------------------------------------


async def test_the_work_is_cut_into_steps_and_each_is_one_batch(parts: Parts) -> None:
    topic = await compacted(parts)
    await send(parts, topic, *("same" for _ in range(1000)))
    parts.retention._next_ms = parts.clock.now_ms()
    left = [1000]
    while parts.retention.deadline() <= parts.clock.now_ms():
        parts.retention.tick(parts.clock.now_ms())
        assert len(parts.delivered(topic)) == left[-1], "something was removed before its batch was written"
        await parts.store.commit()
        left.append(len(parts.delivered(topic)))
    gone = [before - after for before, after in itertools.pairwise(left)]
    assert max(gone) <= compaction_module._AT_ONCE
    assert left[-1] == 1


async def test_a_busy_queue_keeps_no_other_one_waiting(parts: Parts) -> None:
    """It was so: one to which a message came during each step was never done, and no other one begun."""
    topic, plain = await compacted(parts, queues=2), await parts.topic("plain", retention_ms=1000)
    parts.send(plain, 0, "old")
    for queue_id in (0, 1, 1):
        put(parts, topic, "same", queue_id=queue_id)
    await parts.store.commit()
    parts.clock.advance(2)
    parts.retention._next_ms = parts.clock.now_ms()
    ticks = 0
    while parts.retention.deadline() <= parts.clock.now_ms():
        parts.retention.tick(parts.clock.now_ms())
        await send(parts, topic, "same")
        ticks += 1
        assert ticks < 50, "the round does not end"
    assert offsets(parts, topic, 1) == [1]
    assert parts.delivered(plain) == []


async def test_a_step_that_is_dropped_is_done_anew(parts: Parts) -> None:
    topic = await compacted(parts)
    await send(parts, topic, *(f"key-{number % 7}" for number in range(300)))
    parts.retention._next_ms = parts.clock.now_ms()
    for number in range(200):
        if parts.retention.deadline() > parts.clock.now_ms():
            break
        parts.retention.tick(parts.clock.now_ms())
        if number % 2:
            parts.store.abandon(RuntimeError("as after a failed write"))
        else:
            await parts.store.commit()
    topic = parts.catalogue.topic("T")
    await clean(parts)
    assert offsets(parts, topic) == list(range(293, 300))
    assert (topic.queues[0].holes, topic.queues[0].kept) == (293, 7)


async def test_large_messages_are_looked_at_a_few_at_a_time(parts: Parts) -> None:
    topic = await compacted(parts)
    await send(parts, topic, *("same" for _ in range(12)), body=bytes(600_000))
    assert await clean(parts) >= 12
    assert offsets(parts, topic) == [11]


async def test_what_is_idle_is_not_read_again(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await compacted(parts)
    await send(parts, topic, "a", "a", "b")
    await clean(parts)

    def refuse(*_: object) -> None:
        raise AssertionError("it was read again")

    monkeypatch.setattr(parts.log, "read", refuse)
    monkeypatch.setattr(parts.log, "get", refuse)
    before = parts.store.turn
    await clean(parts)
    assert not parts.store.filling
    assert parts.store.turn == before + 1  # that of the commit here
    monkeypatch.undo()
    assert offsets(parts, topic) == [1, 2]


async def test_room_is_given_back_when_there_are_more_holes_than_messages(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, bytes, bytes]] = []
    monkeypatch.setattr(compaction_module, "_LEAST_RECLAIMED", 100)
    monkeypatch.setattr(parts.store, "reclaim", lambda *which: told.append(which))
    topic = await compacted(parts)
    await send(parts, topic, *(f"key-{number}" for number in range(150)))
    await send(parts, topic, *(f"key-{number}" for number in range(140)))
    await clean(parts)
    assert told == []
    await send(parts, topic, *(f"key-{number}" for number in range(140)))
    await clean(parts)
    assert [(space, begin) for space, begin, _ in told] == [(MESSAGES, message_key(topic.id, 0, 0))]
    assert 290 < int.from_bytes(told[0][2][6:], "big") <= 430


# -- what is left behind -------------------------------------------------------------------------


async def test_the_index_of_ids_and_keys_has_only_what_is_there(parts: Parts) -> None:
    topic = await compacted(parts)
    await send(parts, topic, "a b", "a b", "c", "a b")
    assert len(keys(parts, INDEX)) == 4 * 3 - 1
    await clean(parts)
    assert len(keys(parts, INDEX)) == 3 + 2
    assert {key[-8:] for key in keys(parts, INDEX)} == {(2).to_bytes(8, "big"), (3).to_bytes(8, "big")}


async def test_a_deleted_topic_leaves_nothing_and_one_made_again_begins_anew(parts: Parts) -> None:
    topic = await compacted(parts)
    await send(parts, topic, "a", "a", "b")
    await send(parts, topic, "c", body=b"")
    await clean(parts)
    assert keys(parts, COMPACTED) != []
    parts.catalogue.delete_topic("T")
    await parts.store.commit()
    await clean(parts)
    assert [keys(parts, space) for space in (COMPACTED, MESSAGES, FLOORS, INDEX)] == [[]] * 4
    topic = await compacted(parts)
    assert topic.queues[0].holes == 0
    assert await send(parts, topic, "a") == [0]


async def test_a_topic_that_is_deleted_meanwhile_is_let_go(parts: Parts) -> None:
    topic = await compacted(parts)
    await send(parts, topic, *("same" for _ in range(500)))
    parts.retention._next_ms = parts.clock.now_ms()
    parts.retention.tick(parts.clock.now_ms())
    await parts.store.commit()
    assert 0 < topic.queues[0].holes < 499
    parts.catalogue.delete_topic("T")
    await parts.store.commit()
    await clean(parts)
    await clean(parts)
    assert keys(parts, COMPACTED) == []


async def test_the_offset_at_a_time_is_found_over_holes(parts: Parts) -> None:
    topic = await compacted(parts)
    times = []
    for number in range(40):
        times.append(parts.clock.now_ms())
        await send(parts, topic, f"key-{number % 2}" if 5 < number < 35 else f"key-{number}")
        parts.clock.advance(1)
    await clean(parts)
    there = offsets(parts, topic)
    assert there == [2, 3, 4, 5, *range(33, 40)]
    for number, time_ms in enumerate(times):
        at = parts.log.offset_at(topic.queues[0], time_ms)
        assert [offset for offset in there if offset >= at] == [o for o in there if o >= number]


# -- against a model -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_it_is_as_a_dictionary_by_key_says(make_parts: Make, seed: int) -> None:
    """Random sends, tombstones, steps, times and restarts; whatever is removed was superseded."""
    chance = random.Random(seed)
    settings = {"tombstone_retention_ms": 5_000, "retention_interval_ms": 1_000}
    parts = make_parts(**settings)
    topic = await compacted(parts, queues=2)
    newest: list[dict[str, tuple[int, bytes]]] = [{}, {}]
    sent: list[list[tuple[str, bytes]]] = [[], []]
    for number in range(200):
        match chance.choice(["send", "send", "send", "tick", "tick", "wait", "clean", "restart"]):
            case "send":
                for _ in range(chance.randint(1, 40)):
                    queue_id, key = chance.randrange(2), f"key-{chance.randrange(25)}"
                    body = b"" if chance.random() < 0.2 else b"%d" % number
                    offset = put(parts, topic, key, body, queue_id)
                    assert offset == len(sent[queue_id])
                    newest[queue_id][key] = offset, body
                    sent[queue_id].append((key, body))
                await parts.store.commit()
            case "tick":
                parts.retention.tick(parts.clock.now_ms())
                if chance.random() < 0.2:
                    parts.store.abandon(RuntimeError("as after a failed write"))
                    topic = parts.catalogue.topic("T")
                else:
                    await parts.store.commit()
            case "wait":
                parts.clock.advance(chance.choice([0.01, 1, 3]))
            case "clean":
                await clean(parts)
            case "restart":
                parts = make_parts(**settings)
                topic = parts.catalogue.topic("T")
        for queue_id in (0, 1):
            check(parts, topic, queue_id, newest[queue_id], sent[queue_id])
    parts.clock.advance(10)
    for _ in range(2):
        await clean(parts)
        parts.clock.advance(10)
    for queue_id in (0, 1):
        expected = {offset for offset, body in newest[queue_id].values() if body}
        expected |= {len(sent[queue_id]) - 1} - {-1}
        assert set(offsets(parts, topic, queue_id)) == expected


def check(
    parts: Parts,
    topic: Any,
    queue_id: int,
    newest: dict[str, tuple[int, bytes]],
    sent: list[tuple[str, bytes]],
) -> None:
    """Nothing that is the newest of its key is missing; a tombstone may be, when all of its key is."""
    records = parts.delivered(topic, queue_id)
    there = {record.offset: record.body for record in records}
    assert all(sent[offset][1] == body for offset, body in there.items())
    keys_there = {sent[offset][0] for offset in there}
    for key, (offset, body) in newest.items():
        assert offset in there or (not body and key not in keys_there), (key, offset)
    queue = topic.queues[queue_id]
    assert (queue.minimum, queue.visible, queue.kept) == (0, len(sent), len(there))


# -- the policy ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (TopicConfig("T", attributes={"cleanup.policy": "compact"}), "DELETE or COMPACTION"),
        (TopicConfig("%RETRY%g", attributes=COMPACTION), "belongs to a group"),
        (TopicConfig("T", (MessageType.LITE,), attributes=COMPACTION), "lite topics"),
        (TopicConfig("T", retention_ms=1000, attributes=COMPACTION), "no retention by age or size"),
        (TopicConfig("T", retention_bytes=1000, attributes=COMPACTION), "no retention by age or size"),
    ],
)
async def test_a_policy_that_cannot_be_is_refused(parts: Parts, config: TopicConfig, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as told:
        parts.catalogue.create_topic(config)
    assert told.value.fault is Fault.BAD_REQUEST
    assert parts.catalogue.find_topic(config.name) is None


async def test_the_policy_of_a_topic_stays(parts: Parts) -> None:
    await compacted(parts)
    await parts.topic("U")
    with pytest.raises(BadRequest, match=r"of topic T is COMPACTION: it is set when a topic is created"):
        parts.catalogue.update_topic(TopicConfig("T"))
    with pytest.raises(BadRequest, match="of topic U is DELETE"):
        parts.catalogue.update_topic(TopicConfig("U", attributes=COMPACTION))
    with pytest.raises(BadRequest, match="no retention"):
        parts.catalogue.update_topic(TopicConfig("T", attributes=COMPACTION, retention_ms=1000))
    parts.catalogue.update_topic(TopicConfig("T", read_queues=9, write_queues=9, attributes=COMPACTION))
    parts.catalogue.update_topic(TopicConfig("U", attributes={"cleanup.policy": "DELETE"}))
