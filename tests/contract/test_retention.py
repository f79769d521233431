"""Retention by age and by bytes: what is old goes, also while it is consumed, and harms nobody."""

from __future__ import annotations

import pytest

from popgate.errors import BadRequest, GatewayError
from popgate.filters.compiled import compile_filter
from popgate.model import FilterKind, TopicConfig

HOUR = 3_600_000


@pytest.fixture(autouse=True)
def hours_cost_nothing(user):
    user.moved_by_hand("test_plain_settings_are_kept_by_every_broker")


async def bounds(user, topic):
    (queue,) = await user.queues(topic)
    return await user.broker.bounds(user.context, topic, queue.broker, queue.queue_id)


async def hours_pass(user, hours):
    for _ in range(hours * 4):
        await user.pass_ms(HOUR // 4)


@pytest.mark.every_durability
async def test_messages_older_than_their_topic_allows_are_removed(user, texts):
    topic, group = await user.topic(queues=1, retention_ms=2 * HOUR), await user.group()
    await user.send(topic, "old", "old", keys=["k"])
    (old,) = await user.send(topic, "old", keys=["k"])
    await hours_pass(user, 2)
    await user.send(topic, "new", keys=["k"])
    await hours_pass(user, 1)
    found = await bounds(user, topic)
    assert found.maximum - found.minimum == 1
    assert texts(await user.collect(topic, group, 1)) == ["new"]
    await user.nothing(topic, group)
    assert await user.broker.find_by_id(user.context, topic, old.message_id) == []
    by_key = await user.broker.find_by_key(
        user.context, topic, "k", begin_ms=0, end_ms=user.now_ms(), limit=10
    )
    assert texts(by_key) == ["new"]


async def test_messages_that_are_young_enough_stay(user):
    topic, group = await user.topic(queues=1, retention_ms=5 * HOUR), await user.group()
    await user.send(topic, *"abc")
    await hours_pass(user, 4)
    assert len(await user.collect(topic, group, 3)) == 3


async def test_each_topic_has_its_own_age(user, texts):
    short, long = await user.topic(retention_ms=HOUR), await user.topic(retention_ms=100 * HOUR)
    group = await user.group()
    for topic in (short, long):
        await user.send(topic, "a")
    await hours_pass(user, 3)
    await user.nothing(short, group)
    assert texts(await user.collect(long, group, 1)) == ["a"]


async def test_the_default_age_is_not_for_ever(user):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a")
    await user.pass_ms(100 * HOUR)
    await user.nothing(topic, group)
    found = await bounds(user, topic)
    assert found.minimum == found.maximum


async def test_offsets_go_on_after_everything_was_removed_also_after_a_restart(user):
    topic, group = await user.topic(queues=1, retention_ms=HOUR), await user.group()
    sent = await user.send(topic, *"abc")
    await hours_pass(user, 3)
    found = await bounds(user, topic)
    assert found.minimum == found.maximum == sent[-1].offset + 1
    await user.restart()
    assert await bounds(user, topic) == found
    (again,) = await user.send(topic, "d")
    assert again.offset == sent[-1].offset + 1
    assert (await user.one(topic, group)).body == b"d"


async def test_more_bytes_than_a_topic_may_have_are_removed_oldest_first(user, texts):
    topic, group = await user.topic(queues=1, retention_bytes=1_000_000), await user.group()
    for n in range(40):
        await user.send(topic, f"{n:03}" + "x" * 100_000)
    await hours_pass(user, 1)
    found = await bounds(user, topic)
    kept = found.maximum - found.minimum
    assert 1 <= kept <= 20
    got = await user.collect(topic, group, kept)
    assert [t[:3] for t in texts(got)] == [f"{n:03}" for n in range(40 - kept, 40)]


async def test_a_pull_of_what_was_removed_is_told_and_goes_on_at_the_minimum(user, texts):
    topic = await user.topic(queues=1, retention_ms=HOUR)
    sent = await user.send(topic, *"abc")
    await hours_pass(user, 3)
    await user.send(topic, "d")
    (queue,) = await user.queues(topic)
    where = (topic, queue.broker, queue.queue_id)
    how = {
        "max_messages": 10,
        "max_bytes": 1 << 20,
        "passing": compile_filter(FilterKind.TAG, "*"),
        "wait_until": None,
    }
    with pytest.raises(BadRequest):
        await user.broker.pull(user.context, *where, sent[0].offset, **how)
    minimum = (await bounds(user, topic)).minimum
    assert texts((await user.broker.pull(user.context, *where, minimum, **how)).messages) == ["d"]


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_a_group_held_and_retention_removed_is_over(user, texts, ordered):
    topic = await user.topic(queues=1, retention_ms=HOUR)
    group = await user.group(ordered=ordered, max_attempts=2)
    await user.send_in_order(topic, "A1", "A2", "B1")
    held = await user.collect(topic, group, 2, invisible_ms=12 * HOUR)
    await hours_pass(user, 3)
    await user.send_in_order(topic, "A3")
    for message in held:
        answers = await user.ack_handles(topic, group, message.receipt)
        assert answers[0] is None or isinstance(answers[0], GatewayError)
        assert await user.give_back(topic, group, message) == 0
    got = await user.collect(topic, group, 1)
    assert texts(got) == ["A3"]
    await user.ack(topic, group, *got)
    progress = await user.broker.progress(group, topic)
    assert sum(p.lag for p in progress) == 0
    await hours_pass(user, 12)
    await user.nothing(topic, group)
    await user.dead_letters(group, 0)


async def test_progress_does_not_count_what_was_removed(user):
    topic, group = await user.topic(queues=1, retention_ms=HOUR), await user.group()
    await user.send(topic, *"abcdef")
    await user.one(topic, group, invisible_ms=1_000)
    await hours_pass(user, 3)
    (found,) = await user.broker.progress(group, topic)
    assert found.lag == 0
    (queue,) = await user.queues(topic)
    committed = await user.broker.committed(user.context, group, topic, queue.broker, queue.queue_id)
    assert committed is None or committed >= 0
    await user.send(topic, "g")
    assert (await user.one(topic, group)).body == b"g"
    (found,) = await user.broker.progress(group, topic)
    assert found.lag == 1


async def test_a_waiting_pop_survives_the_removal_of_everything(user, texts):
    topic, group = await user.topic(queues=1, retention_ms=HOUR), await user.group()
    await user.send(topic, "a")
    await user.ack(topic, group, await user.one(topic, group))
    waiting = user.waiting(topic, group, wait_ms=100 * HOUR)
    await hours_pass(user, 3)
    assert not waiting.done()
    await user.send(topic, "b")
    assert texts(await user.done(waiting)) == ["b"]


async def test_consuming_while_messages_are_removed_gets_every_young_one(user):
    topic, group = await user.topic(queues=2, retention_ms=HOUR), await user.group()
    wanted, seen = set(), set()
    for n in range(60):
        (sent,) = await user.send(topic, str(n))
        wanted.add(str(n).encode())
        await user.pass_ms(HOUR // 10)
        if n % 7 == 6:
            messages = await user.pop(topic, group)
            seen |= {m.body for m in messages}
            await user.ack(topic, group, *messages)
        assert sent.message_id
    seen |= {m.body for m in await user.pop(topic, group)}
    assert seen == wanted


async def test_a_removed_head_does_not_block_its_message_group(user, texts):
    topic, group = await user.topic(queues=1, retention_ms=HOUR), await user.group(ordered=True)
    await user.send_in_order(topic, "A1")
    await user.one(topic, group, invisible_ms=100 * HOUR)
    await user.pass_ms(HOUR // 2)
    await user.send_in_order(topic, "A2")
    await user.nothing(topic, group)
    await user.pass_ms(HOUR * 3 // 4)
    await user.pass_ms(60_000)
    await user.pass_ms(60_000)
    assert texts(await user.collect(topic, group, 1)) == ["A2"]


async def test_a_shorter_retention_takes_effect_on_what_is_there(user):
    topic, group = await user.topic(queues=1, retention_ms=100 * HOUR), await user.group()
    await user.send(topic, "a")
    await hours_pass(user, 5)
    await user.broker.update_topic(TopicConfig(topic, read_queues=1, write_queues=1, retention_ms=HOUR))
    await hours_pass(user, 1)
    await user.nothing(topic, group)


async def test_retention_and_attempts_survive_restarts_in_the_middle(user, texts):
    topic, group = await user.topic(queues=1, retention_ms=2 * HOUR), await user.group()
    await user.send(topic, "old")
    await user.one(topic, group, invisible_ms=1_000)
    await user.pass_ms(HOUR)
    await user.restart()
    await user.send(topic, "new")
    again = await user.collect(topic, group, 2, invisible_ms=1_000)
    assert sorted((m.body, m.attempt) for m in again) == [(b"new", 1), (b"old", 2)]
    await user.pass_ms(HOUR + HOUR // 2)
    await user.restart()
    await hours_pass(user, 1)
    found = await bounds(user, topic)
    assert found.minimum == found.maximum
    await user.nothing(topic, group)
