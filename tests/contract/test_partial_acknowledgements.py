"""One answer, finished in part: what RocketMQ's pop promises (protocol facts 4.3 to 4.5; scenario 8).

The broker of RocketMQ keeps one check point for an answer and a bit for each of its messages; whatever
the form, each message of an answer has a fate of its own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from popgate.errors import IllegalReceipt, ReceiptExpired
from popgate.model import GroupConfig, MessageType, TopicConfig


def bodies(messages):
    return sorted(message.body.decode() for message in messages)


async def test_scenario_08_of_an_answer_only_what_was_not_acknowledged_comes_back(user):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a", "b", "c", "d")
    hidden = user.either(10_000, 20_000)
    taken = {m.body: m for m in await user.collect(topic, group, 4, invisible_ms=hidden)}
    with user.while_held(*taken.values()):
        await user.ack(topic, group, taken[b"b"], taken[b"d"])
    await user.lag(10_000)
    again = await user.collect(topic, group, 2)
    assert [(m.body, m.attempt) for m in sorted(again, key=lambda m: m.offset)] == [(b"a", 2), (b"c", 2)]
    await user.ack(topic, group, *again)
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)


@pytest.mark.every_durability
async def test_scenario_08_every_subset_of_an_answer_can_be_acknowledged_in_any_order(user):
    topic, group = await user.topic(queues=1), await user.group(max_attempts=100)
    names, hidden = "abcd", user.either(10_000, 20_000)
    subsets = range(1 << len(names))
    for chosen in user.either(subsets, (0b0000, 0b0110, 0b1001, 0b1111)):
        await user.send(topic, *names)
        taken = {m.body.decode(): m for m in await user.collect(topic, group, 4, invisible_ms=hidden)}
        acknowledged = [name for bit, name in enumerate(names) if chosen >> bit & 1]
        with user.while_held(*taken.values()):
            for name in reversed(acknowledged):
                await user.ack(topic, group, taken[name])
        await user.lag(10_000)
        rest = (
            await user.collect(topic, group, len(names) - len(acknowledged)) if len(acknowledged) < 4 else []
        )
        assert bodies(rest) == [name for name in names if name not in acknowledged]
        if rest:
            await user.ack(topic, group, *rest)
        await user.nothing(topic, group)


async def test_scenario_08_a_partly_acknowledged_answer_survives_a_restart(user):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a", "b", "c")
    hidden = user.either(10_000, 20_000)
    taken = {m.body: m for m in await user.collect(topic, group, 3, invisible_ms=hidden)}
    with user.while_held(*taken.values()):
        await user.ack(topic, group, taken[b"b"])
        await user.restart()
        await user.ack(topic, group, taken[b"c"])
    await user.lag(10_000)
    [again] = await user.collect(topic, group, 1)
    assert (again.body, again.attempt) == (b"a", 2)


async def test_each_message_of_an_answer_may_be_hidden_for_a_time_of_its_own(user):
    mean, late = user.either((10_000, 30_000), (18_000, 40_000))
    steps = user.either((1_000, 9_000, 20_000), (1_000, 7_000, 12_000))
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a", "b", "c")
    taken = {m.body: m for m in await user.collect(topic, group, 3, invisible_ms=mean)}
    with user.while_held(*taken.values()):
        await user.hide(topic, group, taken[b"a"].receipt, late)
        await user.hide(topic, group, taken[b"b"].receipt, 1_000)
    for passed, came in zip(steps, "bca", strict=True):
        await user.lag(passed)
        [message] = await user.collect(topic, group, 1, invisible_ms=600_000)
        assert message.body.decode() == came
    await user.nothing(topic, group)


async def test_an_acknowledgement_after_the_end_of_its_time_changes_nothing_for_the_next_holder(user):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a")
    late = await user.one(topic, group, invisible_ms=10_000)
    await user.lag(10_000)
    next_one = await user.one(topic, group, invisible_ms=10_000)
    [refused] = await user.ack_handles(topic, group, late.receipt)
    if user.broker.traits.acks_are_checked:
        assert isinstance(refused, ReceiptExpired | IllegalReceipt)
    await user.lag(10_000)
    again = await user.one(topic, group)
    assert (again.body, again.attempt) == (b"a", next_one.attempt + 1)


async def test_an_answer_over_several_queues_is_acknowledged_in_one_request(user):
    topic, group = await user.topic(queues=4), await user.group()
    for queue in await user.queues(topic):
        await user.send(topic, f"q{queue.queue_id}", queue=queue)
    taken = await user.collect(topic, group, 4)
    await user.ack(topic, group, *taken)
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)


async def test_scenario_08_a_partly_acknowledged_answer_of_a_topic_made_again_touches_nothing_new(
    user, traits
):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a", "b")
    # Longer than all of this takes: a RocketMQ gives out again what then is at the place of "b".
    taken = await user.collect(topic, group, 2, invisible_ms=600_000)
    await user.ack(topic, group, taken[0])
    # A RocketMQ that writes the position down later has it in the new topic, and "x" and "y" before it.
    await user.is_written_down(topic, group, 2)
    await user.broker.delete_topic(topic)
    await user.broker.create_topic(TopicConfig(topic, read_queues=1, write_queues=1))
    await user.send(topic, "x", "y")
    new = await user.collect(topic, group, 2, invisible_ms=10_000)
    [refused] = await user.ack_handles(topic, group, taken[1].receipt)
    if traits.deletes_everything:
        assert isinstance(refused, IllegalReceipt | ReceiptExpired)
    await user.lag(10_000)
    again = await user.collect(topic, group, 2)
    assert bodies(again) == bodies(new) == ["x", "y"]


async def test_settings_of_a_group_changed_between_two_deliveries_of_an_answer_hold_for_the_next_one(user):
    topic, group = await user.topic(queues=1), await user.group(max_attempts=10)
    await user.send(topic, "a", "b")
    hidden = user.either(10_000, 20_000)
    first = {m.body: m for m in await user.collect(topic, group, 2, invisible_ms=hidden)}
    await user.ack(topic, group, first[b"a"])
    await user.broker.update_group(GroupConfig(group, max_attempts=1))
    await user.lag(10_000)
    await user.nothing(topic, group)
    [letter] = await user.dead_letters(group, 1)
    assert letter.body == b"b"


async def test_a_redelivery_has_everything_that_the_first_delivery_had(user, traits, properties_of):
    topic, group = await user.topic(MessageType.NORMAL, queues=1), await user.group()
    await user.put(user.message(topic, "a", tag="T", keys=("k1", "k2"), properties={"colour": "grün"}))
    first = await user.one(topic, group, invisible_ms=10_000)
    await user.lag(10_000)
    second = await user.one(topic, group)
    delivery = {"attempt": 0, "receipt": "", "invisible_until_ms": 0}
    if not traits.redeliveries_keep_place:
        assert properties_of(first).items() <= properties_of(second).items()
        place = ("properties", "queue_id", "offset", "commit_offset", "store_ms")
        delivery |= {name: getattr(second, name) for name in place}
    assert replace(second, **delivery) == replace(first, **delivery)
    assert second.attempt == 2
