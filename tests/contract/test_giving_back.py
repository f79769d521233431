"""Giving back what never reached a client: scenario 3, and no attempt where the broker can do so."""

from __future__ import annotations

import pytest

from popgate.errors import ReceiptExpired


@pytest.mark.every_durability
async def test_scenario_03_what_was_given_back_is_free_at_once(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abc")
    messages = await user.collect(topic, group, 3, invisible_ms=600_000)
    assert await user.give_back(topic, group, *messages) == 3
    await user.lag()
    assert len(await user.collect(topic, group, 3)) == 3


async def test_a_given_back_message_keeps_the_order_of_its_queue(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, *"abcdef")
    messages = await user.collect(topic, group, 3)
    await user.give_back(topic, group, *reversed(messages))
    await user.lag()
    assert sorted(texts(await user.collect(topic, group, 6))) == list("abcdef")


async def test_the_handle_of_a_given_back_message_is_worth_nothing(user, traits):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    await user.give_back(topic, group, message)
    if traits.acks_are_checked:
        (answer,) = await user.ack_handles(topic, group, message.receipt)
        assert isinstance(answer, ReceiptExpired)
        with pytest.raises(ReceiptExpired):
            await user.hide(topic, group, message.receipt, 10_000)
        with pytest.raises(ReceiptExpired):
            await user.dead_letter(topic, group, message.receipt)
    assert await user.give_back(topic, group, message) == 0
    await user.lag()
    again = await user.one(topic, group)
    assert again.receipt != message.receipt
    await user.ack(topic, group, again)


async def test_giving_back_twice_does_not_take_it_from_the_next_holder(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    await user.give_back(topic, group, message)
    await user.lag()
    held = await user.one(topic, group, invisible_ms=600_000)
    assert await user.give_back(topic, group, message) == 0
    await user.lag()
    await user.nothing(topic, group)
    await user.ack(topic, group, held)


async def test_unknown_and_finished_ones_are_skipped(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"ab")
    a, b = await user.collect(topic, group, 2)
    await user.ack(topic, group, a)
    handles = [a.receipt, "nonsense", b.receipt, ""]
    assert await user.broker.give_back(user.context, topic, group, handles) == 1
    await user.lag()
    assert (await user.one(topic, group)).body == b.body
    await user.nothing(topic, group)


async def test_giving_back_for_unknown_topics_and_groups_frees_nothing(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    for t, g in (("no-such-topic", group), (topic, "no-such-group")):
        assert await user.broker.give_back(user.context, t, g, [message.receipt]) == 0
    await user.ack(topic, group, message)


async def test_an_expired_delivery_cannot_be_given_back(user):
    """It counted when its time was over."""
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=1_000)
    await user.lag(1_000)
    again = await user.one(topic, group)
    assert again.attempt == 2
    assert await user.give_back(topic, group, message) == 0
    await user.nothing(topic, group)


async def test_what_was_given_back_on_a_later_attempt_keeps_that_attempt(user, traits):
    topic, group = await user.topic(), await user.group(max_attempts=9)
    await user.send(topic, "a")
    await user.hide(topic, group, (await user.one(topic, group)).receipt, 0)
    await user.lag()
    second = await user.one(topic, group)
    assert second.attempt == 2
    await user.give_back(topic, group, second)
    await user.lag()
    assert (await user.one(topic, group)).attempt in ((2,) if traits.returns_are_free else (2, 3))


async def test_giving_back_in_an_ordered_group_keeps_the_order(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3")
    messages = await user.collect(topic, group, 3)
    await user.give_back(topic, group, *reversed(messages))
    await user.lag()
    assert texts(await user.collect(topic, group, 3)) == ["A1", "A2", "A3"]


async def test_giving_back_the_tail_of_an_ordered_answer_keeps_it_behind_its_head(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3")
    head, *tail = await user.collect(topic, group, 3)
    await user.give_back(topic, group, *tail)
    await user.lag()
    await user.nothing(topic, group)
    await user.ack(topic, group, head)
    await user.lag()
    assert texts(await user.collect(topic, group, 2)) == ["A2", "A3"]


async def test_giving_back_the_head_of_an_ordered_answer_blocks_until_its_tail_is_free(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3")
    head, *tail = await user.collect(topic, group, 3, invisible_ms=30_000)
    await user.give_back(topic, group, head)
    await user.lag()
    got = await user.pop(topic, group)
    assert texts(got) in ([], ["A1"])  # its tail is held: alone, or not before the tail
    await user.give_back(topic, group, *got, *tail)
    await user.lag()
    assert texts(await user.collect(topic, group, 3)) == ["A1", "A2", "A3"]
