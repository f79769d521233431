"""Compacted topics: the newest message of each key stays, and everybody passes over what is gone."""

from __future__ import annotations

import pytest

from popgate.errors import BadRequest, Fault, GatewayError
from popgate.filters.compiled import compile_filter
from popgate.model import Bounds, FilterKind, MessageType, StartFrom, TopicConfig

DAY = 86_400_000
EVERYTHING = compile_filter(FilterKind.TAG, "*")
COMPACTION = {"cleanup.policy": "COMPACTION"}


@pytest.fixture(autouse=True)
def hours_cost_nothing(user):
    """A RocketMQ compacts every quarter of an hour, and never the 100 MB that it wrote last."""
    user.moved_by_hand("test_plain_settings_are_kept_by_every_broker")


@pytest.fixture
async def topic(user):
    return await user.topic(queues=1, attributes=COMPACTION)


async def send(user, topic, *keys, body="", **how):
    """One message per key, in one send; without `body` the body is key and number."""
    messages = [
        user.message(topic, body or f"{key}{number}", keys=[key], **how) for number, key in enumerate(keys)
    ]
    return [sent.offset for sent in await user.put(*messages)]


async def compacted(user, topic, kept):
    """Let compaction have its time, and wait until it has done what there was to do."""
    await user.pass_ms(61_000)

    async def done():
        await user.pass_ms(1)
        return len((await pull(user, topic, 0, most=kept + 1)).messages) == kept

    await user.eventually(done)


async def pull(user, topic, offset, *, most=32, passing=EVERYTHING):
    (queue,) = await user.queues(topic)
    return await user.broker.pull(
        user.context,
        *(topic, queue.broker, queue.queue_id, offset),
        max_messages=most,
        max_bytes=1 << 26,
        passing=passing,
        wait_until=None,
    )


async def test_the_newest_message_of_each_key_is_read_at_its_offset(user, topic, texts):
    assert (await user.broker.topic(topic)).attributes == COMPACTION
    await send(user, topic, *"abacba")
    await compacted(user, topic, 3)
    pulled = await pull(user, topic, 0)
    assert [(m.offset, m.body) for m in pulled.messages] == [(3, b"c3"), (4, b"b4"), (5, b"a5")]
    assert (pulled.next_offset, pulled.bounds) == (6, Bounds(0, 6))
    assert texts((await pull(user, topic, 4, most=1)).messages) == ["b4"]
    assert (await pull(user, topic, 6)).messages == []


async def test_one_pull_passes_over_many_that_are_gone(user, topic, texts):
    await send(user, topic, "first")
    for _ in range(5):
        await send(user, topic, *["same"] * 1000)
    await send(user, topic, "last", tag="t")
    await compacted(user, topic, 3)
    assert texts((await pull(user, topic, 0)).messages) == ["first0", "same999", "last0"]
    assert texts((await pull(user, topic, 1)).messages) == ["same999", "last0"]
    tagged = compile_filter(FilterKind.TAG, "t")
    assert texts((await pull(user, topic, 1, passing=tagged)).messages) == ["last0"]
    # What an operator sees of a group that is in front of all that is gone, within it, behind it.
    group = await user.group()
    assert (await user.broker.standing(group, topic)).lag == 3
    await user.broker.reset(group, topic, 100)
    assert (await user.broker.standing(group, topic)).lag <= 3
    await user.broker.reset(group, topic, StartFrom.LAST)
    assert (await user.broker.standing(group, topic)).lag == 0


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_pop_passes_over_what_is_gone(user, topic, texts, ordered):
    group, late = await user.group(ordered=ordered), await user.group(ordered=ordered)
    await send(user, topic, "first")
    (held,) = await user.collect(topic, group, 1)
    for _ in range(4):
        await send(user, topic, *["same"] * 1000)
    await send(user, topic, "last")
    await compacted(user, topic, 3)
    # One pop each: a receiver that found nothing would wait, with messages there.
    if ordered:
        assert await user.broker.ack(user.context, topic, group, [held.receipt]) is not None
    assert texts(await user.pop(topic, late)) == ["first0", "same999", "last0"]
    found = await user.pop(topic, group)
    assert texts(found)[-2:] == ["same999", "last0"]
    await user.broker.ack(user.context, topic, group, [message.receipt for message in found])
    assert (await user.broker.standing(group, topic)).unread == 0


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_was_delivered_and_is_gone_does_not_come_again(user, topic, texts, ordered):
    group = await user.group(ordered=ordered)
    await send(user, topic, "a", "b")
    held = await user.collect(topic, group, 2, invisible_ms=200_000)
    await send(user, topic, "a")
    await compacted(user, topic, 2)
    if not ordered:  # what is held can still be finished
        assert await user.broker.ack(user.context, topic, group, [held[0].receipt]) == [None]
    await user.pass_ms(200_000)
    again = await user.pop(topic, group)
    assert sorted(texts(again)) == ["a0", "b1"]
    assert [message.offset for message in sorted(again, key=lambda one: one.offset)] == [1, 2]
    await user.broker.ack(user.context, topic, group, [message.receipt for message in again])
    standing = await user.broker.standing(group, topic)
    assert (standing.lag, standing.in_flight) == (0, 0)


async def test_a_tombstone_is_read_for_a_day_and_goes(user, topic):
    await send(user, topic, "a", "b")
    await user.put(user.message(topic, b"", keys=["a"]))
    await send(user, topic, "c")
    await compacted(user, topic, 3)
    read = [(m.offset, m.body) for m in (await pull(user, topic, 0)).messages]
    assert read == [(1, b"b1"), (2, b""), (3, b"c0")]
    await user.pass_ms(DAY + 60_000)
    assert [m.offset for m in (await pull(user, topic, 0)).messages] == [1, 3]
    assert (await user.broker.route(topic)).tombstones


async def test_age_removes_none_that_is_the_newest_of_its_key(user, topic):
    await send(user, topic, *"aab")
    for _ in range(4):
        await user.pass_ms(DAY)
    assert [m.offset for m in (await pull(user, topic, 0)).messages] == [1, 2]


async def test_a_message_without_a_key_is_refused(user, topic):
    for message in (
        user.message(topic),
        user.message(topic, delay_ms=1000),
        user.message(topic, transaction=True),
        user.message(topic, properties={"KEYS": "  "}),
    ):
        with pytest.raises(BadRequest, match="has no key, and topic") as told:
            await user.put(message)
        assert told.value.fault is Fault.ILLEGAL_KEY
    results = await user.broker.send(user.context, [user.message(topic), user.message(topic, keys=["k"])])
    assert [isinstance(result, GatewayError) for result in results] == [True, False]
    assert [m.offset for m in (await pull(user, topic, 0)).messages] == [0]
    plain = await user.topic(queues=1)
    await user.send(plain, "no key")
    assert not (await user.broker.route(plain)).tombstones


async def test_delayed_and_transactional_messages_supersede_when_they_come(user, texts):
    topic = await user.topic(queues=1, attributes=COMPACTION)
    await send(user, topic, "a", delay_ms=5_000, body="later")
    await send(user, topic, "a", body="now")
    await user.pass_ms(6_000)
    await compacted(user, topic, 1)
    assert texts((await pull(user, topic, 0)).messages) == ["later"]


async def test_the_policy_is_set_when_a_topic_is_created(user, topic):
    with pytest.raises(BadRequest, match="it is set when a topic is created"):
        await user.broker.update_topic(TopicConfig(topic, read_queues=1, write_queues=1))
    with pytest.raises(BadRequest, match="lite topics"):
        await user.topic(MessageType.LITE, attributes=COMPACTION)
    with pytest.raises(BadRequest, match="DELETE or COMPACTION"):
        await user.topic(attributes={"cleanup.policy": "compact"})
    assert (await user.broker.topic(topic)).attributes == COMPACTION


@pytest.mark.every_durability
async def test_after_a_restart_it_goes_on(user, topic, texts):
    await send(user, topic, *"aab")
    await compacted(user, topic, 2)
    await user.site.stop()
    await user.site.start()
    assert await send(user, topic, "b", "c") == [3, 4]
    await compacted(user, topic, 3)
    assert texts((await pull(user, topic, 0)).messages) == ["a1", "b0", "c1"]
