"""Reading by position and looking up: without taking, without counting."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from popgate.errors import Forbidden, GatewayError, IllegalOffset, TopicNotFound
from popgate.filters.compiled import compile_filter
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import Bounds, FilterKind, Permission, Pulled, TopicConfig


class Shelf:
    """A topic of one queue, and a reader of it."""

    def __init__(self, user, topic, queue):
        self.user = user
        self.topic = topic
        self.queue = queue
        self.where = (topic, queue.broker, queue.queue_id)

    async def pull(self, offset, *, most=32, max_bytes=1 << 26, tags="*", wait_ms=None) -> Pulled:
        return await self.user.broker.pull(
            self.user.context,
            *self.where,
            offset,
            max_messages=most,
            max_bytes=max_bytes,
            passing=compile_filter(FilterKind.TAG, tags),
            wait_until=None if wait_ms is None else self.user.until(wait_ms),
        )

    async def bounds(self) -> Bounds:
        return await self.user.broker.bounds(self.user.context, *self.where)

    async def first(self) -> int:
        return (await self.bounds()).minimum


@pytest.fixture
async def shelf(user):
    topic = await user.topic(queues=1)
    return Shelf(user, topic, (await user.queues(topic))[0])


@pytest.mark.every_durability
async def test_a_pull_reads_in_order_and_takes_nothing(user, shelf, texts):
    group = await user.group()
    sent = await user.send(shelf.topic, *"abcde")
    first = await shelf.first()
    for _ in range(2):
        pulled = await shelf.pull(first)
        assert texts(pulled.messages) == list("abcde")
        assert [m.offset for m in pulled.messages] == [s.offset for s in sent]
        assert pulled.next_offset == pulled.bounds.maximum == first + 5
        assert {(m.attempt, m.receipt) for m in pulled.messages} == {(0, "")}
    assert texts(await user.collect(shelf.topic, group, 5)) == list("abcde")
    assert texts((await shelf.pull(first)).messages) == list("abcde")


async def test_a_pull_goes_on_where_the_last_one_ended(user, shelf, texts):
    await user.send(shelf.topic, *"abcdefg")
    offset, seen = await shelf.first(), []
    while offset < (await shelf.bounds()).maximum:
        pulled = await shelf.pull(offset, most=3)
        assert 0 < len(pulled.messages) <= 3
        seen += texts(pulled.messages)
        offset = pulled.next_offset
    assert seen == list("abcdefg")


async def test_a_pull_reads_no_more_bytes_than_asked_for_but_one_message(user, shelf):
    await user.send(shelf.topic, *("x" * 10_000 for _ in range(5)))
    first = await shelf.first()
    assert len((await shelf.pull(first, max_bytes=1)).messages) == 1
    assert 1 <= len((await shelf.pull(first, max_bytes=25_000)).messages) <= 2


async def test_a_pull_leaves_out_what_does_not_pass_and_goes_past_it(user, shelf, texts):
    await user.put(
        *(user.message(shelf.topic, str(n), tag="even" if n % 2 == 0 else "odd") for n in range(8))
    )
    first = await shelf.first()
    pulled = await shelf.pull(first, tags="odd")
    assert texts(pulled.messages) == ["1", "3", "5", "7"]
    assert pulled.next_offset == first + 8
    offset = first
    while offset < first + 8:
        pulled = await shelf.pull(offset, tags="none")
        assert pulled.messages == []
        assert pulled.next_offset > offset
        offset = pulled.next_offset


async def test_a_pull_past_many_that_do_not_pass_makes_progress(user, shelf, texts):
    for _ in range(10):
        await user.put(*(user.message(shelf.topic, "no", tag="no") for _ in range(300)))
    await user.put(user.message(shelf.topic, "yes", tag="yes"))
    offset, seen = await shelf.first(), []
    for _ in range(3_001):
        pulled = await shelf.pull(offset, tags="yes", most=1)
        seen += texts(pulled.messages)
        assert pulled.next_offset > offset
        offset = pulled.next_offset
        if seen:
            break
    assert seen == ["yes"]


async def test_a_pull_outside_the_bounds_is_refused_and_at_the_maximum_is_empty(user, shelf):
    await user.send(shelf.topic, *"ab")
    bounds = await shelf.bounds()
    for offset in (-1, bounds.maximum + 1, 1 << 62, 1 << 80):
        with pytest.raises(IllegalOffset) as refused:
            await shelf.pull(offset)
        assert refused.value.nearest == (bounds.minimum if offset < 0 else bounds.maximum)
    pulled = await shelf.pull(bounds.maximum)
    assert (pulled.messages, pulled.next_offset) == ([], bounds.maximum)


async def test_a_pull_at_the_maximum_waits_for_a_message(user, shelf, texts):
    await user.send(shelf.topic, "a")
    maximum = (await shelf.bounds()).maximum
    waiting = [user.task(shelf.pull(maximum, wait_ms=20_000)) for _ in range(3)]
    await user.settle()
    assert not any(w.done() for w in waiting)
    await user.send(shelf.topic, "b")
    for waiter in waiting:
        pulled = await user.done(waiter)
        assert texts(pulled.messages) == ["b"]


@pytest.mark.also_in_real_time
async def test_a_pull_that_waits_ends_at_its_time(user, shelf):
    maximum = (await shelf.bounds()).maximum
    began = user.site.monotonic()

    async def timed() -> tuple[Pulled, float]:
        return await shelf.pull(maximum, wait_ms=300), user.site.monotonic() - began

    waiting = user.task(timed())
    await user.settle()
    assert not waiting.done() or not user.site.movable  # there the machine may have stood still
    await user.pass_ms(400)
    pulled, after_s = await user.done(waiting)
    assert (pulled.messages, pulled.next_offset) == ([], maximum)
    assert after_s > 0.2


async def test_a_cancelled_pull_harms_nobody(user, shelf, texts):
    maximum = (await shelf.bounds()).maximum
    gone, stays = (user.task(shelf.pull(maximum, wait_ms=20_000)) for _ in range(2))
    await user.settle()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await user.send(shelf.topic, "a")
    assert texts((await user.done(stays)).messages) == ["a"]


async def test_waiting_pulls_and_pops_are_both_woken(user, shelf, texts):
    group = await user.group()
    pulling = user.task(shelf.pull((await shelf.bounds()).maximum, wait_ms=20_000))
    popping = user.waiting(shelf.topic, group)
    await user.settle()
    await user.send(shelf.topic, "a")
    assert texts((await user.done(pulling)).messages) == ["a"]
    assert texts(await user.done(popping)) == ["a"]


async def test_a_pull_that_waits_ends_when_its_topic_is_deleted(user, shelf):
    waiting = user.task(shelf.pull((await shelf.bounds()).maximum, wait_ms=20_000))
    await user.settle()
    await user.broker.delete_topic(shelf.topic)
    with contextlib.suppress(GatewayError):
        assert (await user.done(waiting)).messages == []


async def test_unknown_topics_and_queues_are_refused(user, shelf):
    everything = compile_filter(FilterKind.TAG, "*")
    wrong = [
        (TopicNotFound, ("no-such-topic", shelf.queue.broker, shelf.queue.queue_id)),
        (GatewayError, (shelf.topic, shelf.queue.broker, 99)),
        (GatewayError, (shelf.topic, shelf.queue.broker, -1)),
        (GatewayError, (shelf.topic, "another-broker", shelf.queue.queue_id)),
    ]
    for error, where in wrong:
        with pytest.raises(error):
            await user.broker.pull(
                user.context, *where, 0, max_messages=1, max_bytes=1, passing=everything, wait_until=None
            )
        with pytest.raises(error):
            await user.broker.bounds(user.context, *where)
        with pytest.raises(error):
            await user.broker.offset_at(user.context, *where, 0)


async def test_a_topic_that_is_not_readable_cannot_be_pulled(user, shelf):
    await user.broker.update_topic(
        TopicConfig(shelf.topic, read_queues=1, write_queues=1, permission=Permission.WRITE)
    )
    with pytest.raises(Forbidden):
        await shelf.pull(0)


async def test_bounds_grow_with_what_is_sent(user, shelf):
    before = await shelf.bounds()
    assert before.minimum == before.maximum
    await user.send(shelf.topic, *"abc")
    after = await shelf.bounds()
    assert (after.minimum, after.maximum) == (before.minimum, before.maximum + 3)


async def test_the_offset_at_a_time_is_the_first_stored_since(user, shelf):
    apart = user.either(10_000, 1_000)
    marks = []
    for body in "abcd":
        marks.append(user.now_ms())
        await user.send(shelf.topic, body, body)
        await user.pass_ms(apart)
    first = await shelf.first()
    # What took how long is known to the broker alone, where time cannot be moved.
    stored = [message.store_ms for message in (await shelf.pull(first)).messages]
    assert len(stored) == 8

    def since(time_ms: int) -> int:
        return int(first) + sum(one < time_ms for one in stored)

    for n, mark in enumerate(marks):
        if user.site.movable:
            assert (since(mark), since(mark + apart // 2)) == (first + 2 * n, first + 2 * (n + 1))
        for time_ms in (mark, mark + apart // 2, stored[2 * n], stored[2 * n] + 1):
            assert await user.broker.offset_at(user.context, *shelf.where, time_ms) == since(time_ms)
    assert await user.broker.offset_at(user.context, *shelf.where, 0) == first
    assert await user.broker.offset_at(user.context, *shelf.where, user.now_ms() + 1) == first + 8
    for absurd in (-5, 1 << 62, 1 << 70):
        assert first <= await user.broker.offset_at(user.context, *shelf.where, absurd) <= first + 8


async def test_the_offset_at_a_time_of_an_empty_queue_is_its_maximum(user, shelf):
    bounds = await shelf.bounds()
    assert await user.broker.offset_at(user.context, *shelf.where, user.now_ms()) == bounds.maximum


@pytest.mark.every_durability
async def test_a_message_is_found_by_its_id(user, texts):
    topic = await user.topic()
    sent = await user.send(topic, *"abc")
    # What was stored before is found when this is.
    await user.looked_up(lambda: user.broker.find_by_id(user.context, topic, sent[-1].message_id))
    for body, one in zip("abc", sent, strict=True):
        found = await user.broker.find_by_id(user.context, topic, one.message_id)
        assert texts(found) == [body]
        assert (found[0].queue_id, found[0].offset, found[0].receipt) == (one.queue_id, one.offset, "")


async def test_a_message_is_found_by_its_offset_id(user, texts):
    topic, other = await user.topic(), await user.topic()
    await user.send(topic, *"abc")
    group = await user.group()
    for message in await user.collect(topic, group, 3):
        offset_id = encode_offset_message_id(message.store_host, message.commit_offset)
        found = await user.broker.find_by_id(user.context, topic, offset_id)
        assert texts(found) == texts([message])
        assert await user.broker.find_by_id(user.context, other, offset_id) == []


async def test_every_copy_is_found_by_its_id(user, traits):
    topic, other = await user.topic(), await user.topic()
    message = user.message(topic, "a", message_id="0" * 30 + "ABCD")
    await user.put(message)
    await user.pass_ms(2 * traits.repeats_known_ms)
    await user.put(message)
    await user.put(user.message(other, "b", message_id=message.message_id))
    found = await user.looked_up(lambda: user.broker.find_by_id(user.context, topic, message.message_id), 2)
    assert [m.body for m in found] == [b"a", b"a"]


@pytest.mark.parametrize(
    "unknown", ["", "x", "F" * 32, "F" * 56, "0" * 32, "7F0000010000" * 3, "\x00", "\udcff", "A" * 100_000]
)
async def test_an_id_of_nothing_finds_nothing(user, unknown):
    topic = await user.topic()
    await user.send(topic, "a")
    assert await user.broker.find_by_id(user.context, topic, unknown) == []


async def test_a_message_is_found_by_each_of_its_keys(user, texts):
    topic, other = await user.topic(), await user.topic()
    await user.send(topic, "a", keys=["k1", "k2"])
    await user.send(topic, "b", keys=["k2"])
    await user.send(other, "c", keys=["k1"])

    async def find(key, limit=10):
        return await user.broker.find_by_key(
            user.context, topic, key, begin_ms=0, end_ms=user.now_ms() + 1, limit=limit
        )

    await user.looked_up(lambda: find("k2"), 2)
    assert texts(await find("k1")) == ["a"]
    assert sorted(texts(await find("k2"))) == ["a", "b"]
    assert await find("k3") == []
    assert await find("") == []
    assert len(await find("k2", limit=1)) == 1


async def test_keys_are_found_in_a_range_of_time_newest_first(user, texts):
    topic = await user.topic(queues=3, **user.either({"retention_ms": 40 * 86_400_000}, {}))
    times = []
    for n in range(6):
        times.append(user.now_ms())
        await user.send(topic, str(n), keys=["k"])
        await user.pass_ms(user.either(50 * 60_000, 1_000))

    async def find(begin, end, limit=10):
        return texts(
            await user.broker.find_by_key(user.context, topic, "k", begin_ms=begin, end_ms=end, limit=limit)
        )

    await user.looked_up(lambda: find(0, user.now_ms()), 6)
    assert await find(0, user.now_ms()) == list("543210")
    if not user.site.movable:  # when they were stored is known to the broker alone
        stored = await user.broker.find_by_key(
            user.context, topic, "k", begin_ms=0, end_ms=user.now_ms(), limit=10
        )
        times = [message.store_ms for message in reversed(stored)]
    assert await find(times[2], times[4]) == list("432")
    assert await find(times[2] + 1, times[4] - 1) == ["3"]
    assert await find(0, user.now_ms(), limit=2) == list("54")
    assert await find(times[4], times[2]) == []
    assert await find(user.now_ms() + 1, user.now_ms() + 10_000) == []
    assert await find(-(1 << 70), 1 << 70) == list("543210")


async def test_keys_of_any_text_are_found(user, texts):
    topic = await user.topic()
    keys = ("\u00e4\u00f6", "a" * 10_000, "%s;--", "\U0001f40d")
    for key in keys:
        await user.send(topic, key[:5], keys=[key])

    async def find(key):
        return await user.broker.find_by_key(
            user.context, topic, key, begin_ms=0, end_ms=user.now_ms() + 1, limit=5
        )

    await user.looked_up(lambda: find(keys[-1]))
    for key in keys:
        assert texts(await find(key)) == [key[:5]]


async def test_a_look_up_in_an_unknown_topic_is_told_or_empty(user):
    for call in (
        user.broker.find_by_id(user.context, "no-such-topic", "F" * 32),
        user.broker.find_by_key(user.context, "no-such-topic", "k", begin_ms=0, end_ms=1, limit=1),
    ):
        with contextlib.suppress(TopicNotFound):
            assert await call == []


async def test_what_was_read_survives_a_restart(user, shelf, texts):
    (sent,) = await user.send(shelf.topic, "a", keys=["k"])
    bounds = await shelf.bounds()
    offset = await user.broker.offset_at(user.context, *shelf.where, 0)
    await user.restart()
    assert await shelf.bounds() == bounds
    assert await user.broker.offset_at(user.context, *shelf.where, 0) == offset
    assert texts((await shelf.pull(bounds.minimum)).messages) == ["a"]
    found = await user.looked_up(lambda: user.broker.find_by_id(user.context, shelf.topic, sent.message_id))
    assert len(found) == 1
    (again,) = await user.send(shelf.topic, "b")
    assert again.offset == sent.offset + 1
