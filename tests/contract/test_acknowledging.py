"""Acknowledging: once is enough, for ever; and no handle finishes what it does not hold."""

from __future__ import annotations

import asyncio

import pytest

from popgate.errors import GatewayError, GroupNotFound, IllegalReceipt, ReceiptExpired, TopicNotFound
from popgate.ids.receipt import parse_receipt


@pytest.mark.every_durability
async def test_an_acknowledged_message_never_comes_back(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    await user.ack(topic, group, await user.one(topic, group))
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)


@pytest.mark.every_durability
@pytest.mark.also_in_real_time
async def test_an_unacknowledged_message_comes_back_with_the_next_attempt(user):
    topic, group = await user.topic(), await user.group()
    (sent,) = await user.send(topic, "a")
    for attempt in (1, 2, 3):
        message = await user.one(topic, group, invisible_ms=200)
        assert message.attempt == attempt
        assert message.body == b"a"
        assert message.topic == topic
        await user.lag(200)
    last = await user.one(topic, group)
    assert last.attempt == 4
    await user.ack(topic, group, last)
    await user.nothing(topic, group)
    assert sent.message_id


async def test_a_message_is_not_back_before_its_time(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    before = user.now_ms()
    await user.one(topic, group, invisible_ms=10_000)
    assert (await user.when_due(topic, group, before + 10_000)).attempt == 2


async def test_acknowledging_twice_is_no_error(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    await user.ack(topic, group, message)
    await user.ack(topic, group, message)
    await user.ack(topic, group, message, message)
    await user.nothing(topic, group)


async def test_a_batch_is_answered_one_by_one_in_order(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abc")
    a, b, c = await user.collect(topic, group, 3)
    answers = await user.ack_handles(topic, group, a.receipt, "no handle at all", b.receipt, "", c.receipt)
    assert answers[0] is None
    assert isinstance(answers[1], IllegalReceipt)
    assert answers[2] is None
    assert isinstance(answers[3], IllegalReceipt)
    assert answers[4] is None
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)


async def test_a_batch_may_name_a_message_twice(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"ab")
    a, b = await user.collect(topic, group, 2)
    assert await user.ack_handles(topic, group, a.receipt, a.receipt, b.receipt) == [None] * 3


async def test_an_empty_batch_is_answered_with_nothing(user):
    topic, group = await user.topic(), await user.group()
    assert await user.ack_handles(topic, group) == []


@pytest.mark.parametrize(
    "handle",
    [
        "",
        " ",
        "x",
        "1 2 3",
        "a b c d e f g h i",
        "0 1 2 0 0 broker 0 0 0 0",
        "-1 -1 -1 -1 -1 b -1 -1 -1",
        "9" * 30 + " 1 1 0 0 b 0 0 0",
        "0 \u0661 1 0 0 b 0 0 0",
        "x" * 100_000,
        "0 0 0 0 0 \x00 0 0 0",
        "\udcff",
    ],
)
async def test_a_malformed_handle_is_told_so(user, handle):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    (answer,) = await user.ack_handles(topic, group, handle)
    assert isinstance(answer, IllegalReceipt)
    with pytest.raises(IllegalReceipt):
        await user.hide(topic, group, handle, 10_000)
    with pytest.raises(IllegalReceipt):
        await user.dead_letter(topic, group, handle)
    assert await user.broker.give_back(user.context, topic, group, [handle]) == 0
    await user.ack(topic, group, message)


async def test_a_well_formed_handle_for_nothing_finishes_nothing(user, texts):
    topic, group = await user.topic(queues=2), await user.group()
    await user.send(topic, *"abcd")
    held = await user.one(topic, group)
    real = parse_receipt(held.receipt)
    now = user.now_ms()
    inventions = [
        real._replace(broker="another-broker").encode(),
        real._replace(queue_id=700).encode(),
        real._replace(start_offset=1_000_000, offset=1_000_000, commit_offset=-1).encode(),
        real._replace(pop_ms=now + 3_600_000).encode(),
    ]
    if user.broker.traits.acks_are_checked:
        for handle in inventions:
            (answer,) = await user.ack_handles(topic, group, handle)
            assert isinstance(answer, IllegalReceipt), handle
            with pytest.raises(IllegalReceipt):
                await user.hide(topic, group, handle, 10_000)
            with pytest.raises(IllegalReceipt):
                await user.dead_letter(topic, group, handle)
    await user.broker.give_back(user.context, topic, group, inventions)
    rest = await user.collect(topic, group, 3)
    assert sorted(texts([held, *rest])) == list("abcd")
    await user.nothing(topic, group)
    await user.ack(topic, group, held, *rest)
    await user.dead_letters(group, 0)


async def test_a_handle_of_another_group_finishes_nothing_here(user, traits):
    topic, mine, other = await user.topic(), await user.group(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, mine, invisible_ms=10_000)
    (answer,) = await user.ack_handles(topic, other, message.receipt)
    if traits.acks_are_checked:
        assert isinstance(answer, IllegalReceipt)
    theirs = await user.one(topic, other)
    assert theirs.attempt == 1
    await user.lag(10_000)
    assert (await user.one(topic, mine)).attempt == 2


async def test_a_handle_of_another_topic_finishes_nothing_there(user, traits):
    one, two, group = await user.topic(queues=1), await user.topic(queues=1), await user.group()
    await user.send(one, "a")
    await user.send(two, "b")
    a = await user.one(one, group, invisible_ms=10_000)
    b = await user.one(two, group, invisible_ms=10_000)
    (answer,) = await user.ack_handles(two, group, a.receipt)
    if traits.acks_are_checked:
        assert isinstance(answer, IllegalReceipt)
        with pytest.raises(IllegalReceipt):
            await user.hide(two, group, a.receipt, 0)
        with pytest.raises(IllegalReceipt):
            await user.dead_letter(two, group, a.receipt)
        assert await user.give_back(two, group, a) == 0
    await user.ack(one, group, a)
    await user.lag(10_000)
    assert (await user.one(two, group)).attempt == 2
    assert b.body == b"b"


async def test_unknown_topics_and_groups_are_told(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    for t, g, error in (("no-such-topic", group, TopicNotFound), (topic, "no-such-group", GroupNotFound)):
        with pytest.raises(error):
            await user.ack_handles(t, g, message.receipt)
        with pytest.raises(error):
            await user.hide(t, g, message.receipt, 10_000)
        with pytest.raises(error):
            await user.dead_letter(t, g, message.receipt)
    await user.ack(topic, group, message)


async def test_the_handle_of_an_older_attempt_finishes_nothing(user, traits):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    first = await user.one(topic, group, invisible_ms=10_000)
    await user.lag(10_000)
    before = user.now_ms()
    second = await user.one(topic, group, invisible_ms=10_000)
    assert first.receipt != second.receipt
    (answer,) = await user.ack_handles(topic, group, first.receipt)
    if traits.acks_are_checked:
        assert isinstance(answer, ReceiptExpired)
        with pytest.raises(ReceiptExpired):
            await user.hide(topic, group, first.receipt, 0)
        with pytest.raises(ReceiptExpired):
            await user.dead_letter(topic, group, first.receipt)
        assert await user.give_back(topic, group, first) == 0
    third = await user.when_due(topic, group, before + 10_000)
    assert third.attempt == 3
    await user.ack(topic, group, third)
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)


async def test_two_deliveries_in_one_millisecond_have_different_handles(user, traits):
    """A message that is freed and popped again at once must not be finished by the older handle."""
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    handles = []
    for _ in range(3):
        message = await user.one(topic, group)
        handles.append(message.receipt)
        await user.hide(topic, group, message.receipt, 0)
    message = await user.one(topic, group, invisible_ms=10_000)
    assert len({*handles, message.receipt}) == 4
    answers = await user.ack_handles(topic, group, *handles)
    if traits.acks_are_checked:
        assert all(isinstance(a, ReceiptExpired) for a in answers)
    await user.lag(10_000)
    assert (await user.one(topic, group)).attempt == 5


async def test_handles_of_a_finished_message_bring_nothing_back(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    await user.ack(topic, group, message)
    with pytest.raises(ReceiptExpired):
        await user.hide(topic, group, message.receipt, 0)
    with pytest.raises(ReceiptExpired):
        await user.dead_letter(topic, group, message.receipt)
    assert await user.give_back(topic, group, message) == 0
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)
    await user.dead_letters(group, 0)


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancelled_acknowledgement_is_done_or_not_done(user, turns):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    acking = asyncio.ensure_future(user.ack_handles(topic, group, message.receipt))
    for _ in range(turns):
        await asyncio.sleep(0)
    acking.cancel()
    await asyncio.gather(acking, return_exceptions=True)
    await user.settle()
    (answer,) = await user.ack_handles(topic, group, message.receipt)
    assert answer is None
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)


async def test_acknowledging_and_changing_at_once_ends_in_one_of_both(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *(str(n) for n in range(30)))
    messages = await user.collect(topic, group, 30)
    work = []
    for message in messages:
        work.append(user.ack_handles(topic, group, message.receipt))
        work.append(user.hide(topic, group, message.receipt, 0))
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, (list, str, GatewayError)), outcome
    await user.lag(user.either(60_000, 31_000))
    left = [m.body for m, o in zip(messages, outcomes[::2], strict=True) if o != [None]]
    back = await user.collect(topic, group, len(left))
    assert sorted(m.body for m in back) == sorted(left)
    await user.nothing(topic, group)
