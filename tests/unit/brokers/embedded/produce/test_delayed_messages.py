import base64
from collections.abc import Callable
from typing import Any

import pytest

from brokers.embedded.produce.delayed_messages import RecallHandle, parse_recall_handle
from brokers.embedded.storage.keys import TIMERS
from popgate.errors import BadRequest, Fault, NotFound

Parts = Any
Make = Callable[..., Parts]


async def hold(parts: Parts, topic: Any, message_id: str, after_ms: int, **options: Any) -> str:
    record = parts.record(topic, message_id, **options)
    handle = parts.timers.add(topic, 0, record, parts.clock.now_ms() + after_ms, message_id.encode())
    await parts.store.commit()
    return handle


def ids(parts: Parts, topic: Any) -> list[str]:
    return [record.properties.decode().split("\x02")[0][9:] for record in parts.delivered(topic)]


def test_the_handle_is_the_published_one() -> None:
    handle = RecallHandle("DelayTopic", "broker-a", 1735689600001, "01AB").encode()
    assert handle == "djEgRGVsYXlUb3BpYyBicm9rZXItYSAxNzM1Njg5NjAwMDAxIDAxQUI="
    assert parse_recall_handle(handle) == ("DelayTopic", "broker-a", 1735689600001, "01AB")


def test_a_message_id_with_blanks_survives_the_handle() -> None:
    handle = RecallHandle("T", "b", 5, "id with blanks é")
    assert parse_recall_handle(handle.encode()) == handle


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "é",
        "not base64!",
        "djEgRGVsYXlUb3BpYyBicm9rZXItYSAxNzM1Njg5NjAwMDAxIDAxQUI",
        base64.urlsafe_b64encode(b"v1 T b 5 \xff\xff").decode(),
        encoded("v1 T b 5"),
        encoded("v1 T b 5 "),
        encoded("v1  b 5 id"),
        encoded("v2 T b 5 id"),
        encoded("v1 T b five id"),
        encoded("v1 T b -5 id"),
        encoded("v1 T b ٥ id"),
        encoded(f"v1 T b {1 << 63} id"),
        encoded("v1 T b 5 " + "x" * 2000),
    ],
)
def test_a_malformed_handle_is_a_bad_request(handle: str) -> None:
    with pytest.raises(BadRequest, match="invalid recall handle"):
        parse_recall_handle(handle)


async def test_a_message_comes_at_its_millisecond_and_not_before(parts: Parts) -> None:
    topic = await parts.topic()
    await hold(parts, topic, "m", 1500, KEYS="k1 k2")
    due = parts.clock.now_ms() + 1500
    assert parts.timers.deadline() == due
    parts.timers.tick(due - 1)
    await parts.store.commit()
    assert parts.delivered(topic) == []
    assert parts.timers.deadline() == due
    parts.clock.advance(1.5)
    parts.timers.tick(due)
    await parts.store.commit()
    [record] = parts.delivered(topic)
    assert (record.topic, record.queue_id, record.offset, record.body) == ("T", 0, 0, b"body")
    assert record.store_ms == parts.clock.now_ms()
    assert parts.timers.deadline() is None
    assert list(parts.store.scan(TIMERS, b"")) == []


async def test_messages_come_in_the_order_of_their_due_times(parts: Parts) -> None:
    topic = await parts.topic()
    for number in (5, 1, 4, 2, 3):
        await hold(parts, topic, f"m{number}", number * 1000)
    parts.clock.advance(3)
    await parts.run(parts.timers)
    assert ids(parts, topic) == ["m1", "m2", "m3"]
    parts.clock.advance(60)
    await parts.run(parts.timers)
    assert ids(parts, topic) == ["m1", "m2", "m3", "m4", "m5"]


async def test_an_earlier_message_added_later_brings_the_deadline_forward(parts: Parts) -> None:
    topic = await parts.topic()
    await hold(parts, topic, "late", 5000)
    await hold(parts, topic, "early", 1000)
    assert parts.timers.deadline() == parts.clock.now_ms() + 1000
    parts.clock.advance(1)
    await parts.run(parts.timers)
    assert ids(parts, topic) == ["early"]
    assert parts.timers.deadline() == parts.clock.now_ms() + 4000


async def test_a_message_added_in_the_turn_of_a_tick_is_not_forgotten(parts: Parts) -> None:
    topic = await parts.topic()
    await hold(parts, topic, "first", 1000)
    parts.clock.advance(1)
    now = parts.clock.now_ms()
    # Not written yet when the tick looks, and due before what the tick takes.
    parts.timers.add(topic, 0, parts.record(topic, "second"), now - 500, b"second")
    parts.timers.tick(now)
    assert parts.timers.deadline() == now - 500
    await parts.store.commit()
    await parts.run(parts.timers)
    assert ids(parts, topic) == ["first", "second"]
    assert parts.timers.deadline() is None


async def test_two_ticks_of_one_turn_move_a_message_once(parts: Parts) -> None:
    topic = await parts.topic()
    await hold(parts, topic, "m", 1000)
    parts.clock.advance(1)
    parts.timers.tick(parts.clock.now_ms())
    parts.timers.tick(parts.clock.now_ms())
    await parts.store.commit()
    assert ids(parts, topic) == ["m"]


async def test_a_backlog_is_moved_in_slices_and_the_deadline_says_now(make_parts: Make) -> None:
    parts = make_parts()
    topic = await parts.topic()
    for number in range(100):
        parts.timers.add(topic, 0, parts.record(topic, f"m{number:03}"), parts.clock.now_ms() + number, b"m")
    await parts.store.commit()
    parts.clock.advance(3600)
    parts = make_parts(max_due=16)
    topic = parts.catalogue.topic("T")
    assert parts.timers.deadline() <= parts.clock.now_ms()
    parts.timers.tick(parts.clock.now_ms())
    await parts.store.commit()
    assert len(parts.delivered(topic)) == 16
    assert parts.timers.deadline() <= parts.clock.now_ms()
    assert await parts.run(parts.timers) == 6
    assert ids(parts, topic) == [f"m{number:03}" for number in range(100)]
    assert parts.timers.deadline() is None


async def test_large_messages_make_small_slices(make_parts: Make) -> None:
    parts = make_parts(max_due_bytes=1000)
    topic = await parts.topic()
    for number in range(6):
        parts.timers.add(topic, 0, parts.record(topic, f"m{number}", b"x" * 600), number, b"m")
    await parts.store.commit()
    parts.timers.tick(parts.clock.now_ms())
    await parts.store.commit()
    assert len(parts.delivered(topic)) == 2


async def test_messages_are_held_over_a_restart(make_parts: Make) -> None:
    parts = make_parts()
    topic = await parts.topic()
    handle = await hold(parts, topic, "a", 1000)
    await hold(parts, topic, "b", 2000)
    parts = make_parts()
    topic = parts.catalogue.topic("T")
    assert parts.timers.deadline() == parts.clock.now_ms() + 1000
    assert parts.timers.recall(topic, handle) == "a"
    await parts.store.commit()
    parts.clock.advance(10)
    await parts.run(parts.timers)
    assert ids(parts, topic) == ["b"]


async def test_a_recalled_message_never_comes(parts: Parts) -> None:
    topic = await parts.topic()
    handle = await hold(parts, topic, "m", 1000)
    assert parts.timers.recall(topic, handle) == "m"
    await parts.store.commit()
    with pytest.raises(NotFound, match="'m' is held for topic T: it was delivered or recalled"):
        parts.timers.recall(topic, handle)
    parts.clock.advance(5)
    await parts.run(parts.timers)
    assert parts.delivered(topic) == []
    assert parts.timers.deadline() is None


async def test_a_delivered_message_cannot_be_recalled(parts: Parts) -> None:
    topic = await parts.topic()
    handle = await hold(parts, topic, "m", 1000)
    parts.clock.advance(1)
    parts.timers.tick(parts.clock.now_ms())
    with pytest.raises(NotFound) as refused:  # moved in this very turn
        parts.timers.recall(topic, handle)
    assert refused.value.fault is Fault.MESSAGE_NOT_FOUND
    await parts.store.commit()
    with pytest.raises(NotFound):
        parts.timers.recall(topic, handle)
    assert ids(parts, topic) == ["m"]


async def test_a_recall_and_a_tick_in_one_turn_deliver_nothing(parts: Parts) -> None:
    topic = await parts.topic()
    handle = await hold(parts, topic, "m", 1000)
    parts.clock.advance(1)
    assert parts.timers.recall(topic, handle) == "m"
    parts.timers.tick(parts.clock.now_ms())
    with pytest.raises(NotFound):
        parts.timers.recall(topic, handle)
    await parts.store.commit()
    assert parts.delivered(topic) == []


async def test_a_recall_takes_back_every_copy_of_a_message_sent_twice(parts: Parts) -> None:
    topic = await parts.topic()
    assert await hold(parts, topic, "m", 1000) == await hold(parts, topic, "m", 1000)
    handle = await hold(parts, topic, "m", 1000)
    await hold(parts, topic, "other", 1000)
    parts.timers.recall(topic, handle)
    await parts.store.commit()
    parts.clock.advance(1)
    await parts.run(parts.timers)
    assert ids(parts, topic) == ["other"]


async def test_a_handle_of_another_topic_or_broker_is_refused(parts: Parts) -> None:
    topic, other = await parts.topic(), await parts.topic("U")
    handle = await hold(parts, topic, "m", 1000)
    with pytest.raises(BadRequest, match="it is for topic 'T', not for 'U'"):
        parts.timers.recall(other, handle)
    forged = RecallHandle("T", "elsewhere", parts.clock.now_ms() + 1000, "m").encode()
    with pytest.raises(BadRequest, match="broker 'elsewhere'"):
        parts.timers.recall(topic, forged)
    wrong = RecallHandle("U", parts.settings.name, parts.clock.now_ms() + 1000, "m").encode()
    with pytest.raises(NotFound):
        parts.timers.recall(other, wrong)
    parts.clock.advance(1)
    await parts.run(parts.timers)
    assert ids(parts, topic) == ["m"]


async def test_messages_of_a_deleted_topic_vanish_also_when_its_name_comes_back(parts: Parts) -> None:
    topic = await parts.topic()
    handle = await hold(parts, topic, "m", 1000)
    parts.catalogue.delete_topic("T")
    again = await parts.topic()
    with pytest.raises(NotFound):
        parts.timers.recall(again, handle)
    parts.clock.advance(1)
    await parts.run(parts.timers)
    assert parts.delivered(again) == []
    assert list(parts.store.scan(TIMERS, b"")) == []


async def test_a_clock_set_back_delays_and_never_spins(parts: Parts) -> None:
    topic = await parts.topic()
    await hold(parts, topic, "m", 1000)
    due = parts.timers.deadline()
    parts.timers.tick(due - 3_600_000)
    await parts.store.commit()
    assert parts.timers.deadline() == due
    assert parts.delivered(topic) == []


async def test_many_taken_messages_leave_nothing_that_a_later_tick_reads_again(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await parts.topic()
    for number in range(2000):
        parts.timers.add(topic, 0, parts.record(topic, "m"), parts.clock.now_ms() + number, b"%d" % number)
    await parts.store.commit()
    begins: list[bytes] = []
    scan = parts.store.scan
    monkeypatch.setattr(
        parts.store, "scan", lambda space, begin, end=None: begins.append(begin) or scan(space, begin, end)
    )
    parts.clock.advance(2)
    while (due := parts.timers.deadline()) is not None and due <= parts.clock.now_ms():
        parts.timers.tick(parts.clock.now_ms())
        await parts.store.commit()
    assert begins == sorted(begins)
    assert len(set(begins)) == len(begins) > 2
    assert len(parts.delivered(topic)) == 2000
