"""Priorities: what is more urgent comes first, of what can be had at the same time."""

from __future__ import annotations

import pytest

from popgate.errors import Unsupported
from popgate.model import MessageType


def needs_priorities(user):
    if user.lacks("priority topics"):
        user.differs(
            "priorities are not known", "test_a_broker_that_knows_no_priorities_refuses_a_topic_of_them"
        )


async def urgent(user, queues: int = 8, **group):
    needs_priorities(user)
    return await user.topic(MessageType.PRIORITY, queues=queues), await user.group(**group)


@pytest.mark.every_durability
async def test_a_higher_priority_comes_before_a_lower_one(user, texts):
    topic, group = await urgent(user)
    for priority in (3, 0, 7, 1, 5):
        await user.send(topic, f"p{priority}", priority=priority)
    seen = []
    while len(seen) < 5:
        [message] = await user.collect(topic, group, 1)
        seen += texts([message])
        await user.ack(topic, group, message)
    assert seen == ["p7", "p5", "p3", "p1", "p0"]


async def test_one_answer_has_the_most_urgent_first(user, texts):
    topic, group = await urgent(user)
    for priority in (1, 4, 2):
        await user.send(topic, f"p{priority}a", f"p{priority}b", priority=priority)
    assert texts(await user.collect(topic, group, 6)) == ["p4a", "p4b", "p2a", "p2b", "p1a", "p1b"]


async def test_what_arrives_late_and_is_more_urgent_overtakes(user, texts):
    topic, group = await urgent(user)
    await user.send(topic, "low 1", "low 2", priority=0)
    assert texts(await user.collect(topic, group, 1)) == ["low 1"]
    await user.send(topic, "high", priority=2)
    assert texts(await user.collect(topic, group, 2)) == ["high", "low 2"]


async def test_the_same_priority_keeps_its_order(user, texts):
    topic, group = await urgent(user)
    bodies = [f"m{n}" for n in range(20)]
    await user.send(topic, *bodies, priority=3)
    assert texts(await user.collect(topic, group, 20)) == bodies


async def test_priorities_above_the_last_queue_count_as_the_highest(user, texts):
    topic, group = await urgent(user, queues=4)
    await user.send(topic, "three", priority=3)
    await user.send(topic, "many", priority=2_000_000)
    await user.send(topic, "two", priority=2)
    assert texts(await user.collect(topic, group, 3)) == ["three", "many", "two"]


async def test_a_failed_message_keeps_its_priority(user, texts, traits):
    topic, group = await urgent(user)
    await user.send(topic, "high", priority=5)
    held = await user.one(topic, group)
    await user.send(topic, "low", priority=1)
    await user.hide(topic, group, held.receipt, 0)
    await user.lag()
    again = await user.collect(topic, group, 2)
    assert sorted(texts(again)) == ["high", "low"]
    assert texts(again) == ["high", "low"] or not traits.redeliveries_keep_place
    assert {message.body: message.attempt for message in again} == {b"high": 2, b"low": 1}


async def test_messages_without_a_priority_are_delivered_too(user, texts):
    topic, group = await urgent(user)
    await user.send(topic, "plain")
    await user.send(topic, "urgent", priority=7)
    assert sorted(texts(await user.collect(topic, group, 2))) == ["plain", "urgent"]


async def test_a_factor_of_the_group_keeps_low_priorities_from_starving(user, texts):
    topic, group = await urgent(user, attributes={"priority.factor": "0"})
    await user.send(topic, *(f"high {n}" for n in range(16)), priority=7)
    await user.send(topic, "low", priority=0)
    seen = [texts(await user.collect(topic, group, 1))[0] for _ in range(8)]
    assert "low" in seen


@pytest.mark.parametrize("factor", ["100", "", "-1", "much", "٣", "9" * 40])
async def test_a_factor_that_is_none_means_always_by_priority(user, texts, traits, factor):
    needs_priorities(user)
    if not traits.keeps_all_settings:
        user.differs(
            "the cluster says what a factor may be",
            "test_a_factor_of_the_group_keeps_low_priorities_from_starving",
        )
    topic, group = await urgent(user, attributes={"priority.factor": factor})
    await user.send(topic, "low", priority=0)
    await user.send(topic, *(f"high {n}" for n in range(16)), priority=7)
    for n in range(16):
        assert texts(await user.collect(topic, group, 1)) == [f"high {n}"]


async def test_a_topic_of_another_type_goes_through_its_queues_in_turn(user, texts):
    topic, group = await user.topic(MessageType.NORMAL, queues=2), await user.group()
    first, second = await user.queues(topic)
    await user.send(topic, *(f"a{n}" for n in range(24)), queue=first)
    await user.send(topic, *(f"b{n}" for n in range(24)), queue=second)
    seen: set[str] = set()
    for _ in range(24):  # RocketMQ begins at a queue by chance: once in 2 ** 23 it is always the same
        seen.add(texts(await user.collect(topic, group, 1))[0][0])
        if seen == {"a", "b"}:
            return
    raise AssertionError(f"only the queue of {seen} was asked")


async def test_priorities_outlive_a_restart(user, texts):
    topic, group = await urgent(user)
    await user.send(topic, "low", priority=1)
    await user.send(topic, "high", priority=6)
    await user.restart()
    assert texts(await user.collect(topic, group, 2)) == ["high", "low"]


async def test_a_broker_that_knows_no_priorities_refuses_a_topic_of_them(user):
    if not user.lacks("priority topics"):
        user.differs("priorities are known", "test_a_higher_priority_comes_before_a_lower_one")
    with pytest.raises(Unsupported, match=r"type 'PRIORITY' at broker .* knows only '.*NORMAL"):
        await user.topic(MessageType.PRIORITY)
