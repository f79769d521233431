"""Changing the invisible time: longer, shorter, to nothing; and what becomes of the handles."""

from __future__ import annotations

import pytest

from popgate.errors import ReceiptExpired


@pytest.mark.every_durability
async def test_zero_frees_a_message_at_once_and_the_delivery_counts(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=600_000)
    await user.hide(topic, group, message.receipt, 0)
    await user.lag()
    again = await user.one(topic, group)
    assert again.attempt == 2
    await user.ack(topic, group, again)


async def test_a_longer_time_counts_from_now(user):
    first, passed = user.either((10_000, 9_000), (20_000, 5_000))
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=first)
    await user.pass_ms(passed)
    before = user.now_ms()
    with user.while_held(message):
        await user.hide(topic, group, message.receipt, 20_000)
    assert (await user.when_due(topic, group, before + user.slow(20_000))).attempt == 2


async def test_a_shorter_time_counts_from_now(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=600_000)
    before = user.now_ms()
    await user.hide(topic, group, message.receipt, 1_000)
    if user.site.movable:
        await user.nothing(topic, group)
    assert (await user.when_due(topic, group, before + 1_000)).attempt == 2


async def test_a_time_can_be_changed_again_and_again_and_the_attempt_stays(user):
    topic, group = await user.topic(), await user.group(max_attempts=2)
    await user.send(topic, "a")
    hidden, passed, times = user.either((10_000, 9_000, 50), (20_000, 8_000, 4))
    message = await user.one(topic, group, invisible_ms=hidden)
    handle, until = message.receipt, message.invisible_until_ms
    for _ in range(times):
        await user.pass_ms(passed)
        with user.in_time(until):
            until = user.now_ms() + user.slow(hidden)
            handle = await user.hide(topic, group, handle, hidden)
        with user.in_time(until):
            await user.nothing(topic, group)
    await user.lag(10_000)
    assert (await user.one(topic, group)).attempt == 2


async def test_the_returned_handle_finishes_the_message(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=10_000)
    longer = user.either(60_000, 45_000)
    until = user.now_ms() + user.slow(longer)
    with user.while_held(message):
        handle = await user.hide(topic, group, message.receipt, longer)
    await user.lag(11_000)
    with user.in_time(until):
        assert await user.ack_handles(topic, group, handle) == [None]
    await user.lag(user.either(120_000, 30_000))
    await user.nothing(topic, group)


async def test_the_returned_handle_can_be_changed_on_and_dead_lettered(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=20_000)
    with user.while_held(message):
        handle = await user.hide(topic, group, message.receipt, 25_000)
        handle = await user.hide(topic, group, handle, 30_000)
        await user.dead_letter(topic, group, handle)
    assert texts(await user.dead_letters(group, 1)) == ["a"]
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)


async def test_an_expired_handle_cannot_be_changed(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=1_000)
    await user.lag(1_000)
    with pytest.raises(ReceiptExpired):
        await user.hide(topic, group, message.receipt, 60_000)
    assert (await user.one(topic, group)).attempt == 2


async def test_a_freed_message_cannot_be_held_on_by_its_handle(user, traits):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    after = await user.hide(topic, group, message.receipt, 0)
    if traits.acks_are_checked:
        for handle in (message.receipt, after):
            with pytest.raises(ReceiptExpired):
                await user.hide(topic, group, handle, 60_000)
            (answer,) = await user.ack_handles(topic, group, handle)
            assert isinstance(answer, ReceiptExpired)
    await user.lag()
    assert (await user.one(topic, group)).attempt == 2


async def test_a_very_long_time_is_kept(user):
    hidden = user.either(12 * 3_600_000, 45_000)
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    before = user.now_ms()
    with user.while_held(message):
        await user.hide(topic, group, message.receipt, hidden)
    assert (await user.when_due(topic, group, before + user.slow(hidden))).attempt == 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_wall_clock_that_is_set_back_keeps_nothing_away(user, restarted):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a", "b")
    held, _ = await user.collect(topic, group, 2, invisible_ms=30_000)
    await user.pass_ms(1_000)
    user.site.clock.set_wall(user.now_ms() - 3_600_000)
    with user.in_time(held.invisible_until_ms - 3_600_000):
        if restarted:
            await user.restart()
        await user.ack(topic, group, held)
        await user.pass_ms(user.either(9_000, 2_000))
        await user.nothing(topic, group)
    await user.lag(user.either(30_000, 27_000))
    again = await user.one(topic, group, invisible_ms=user.either(10_000, 20_000))
    assert again.attempt == 2
    with user.while_held(again):
        await user.pass_ms(5_000)
        await user.ack(topic, group, again)
    await user.send(topic, "c")
    await user.ack(topic, group, await user.one(topic, group))
    await user.pass_ms(user.either(7_200_000, 25_000))
    await user.nothing(topic, group)


async def test_a_wall_clock_that_is_set_forward_loses_nothing(user, texts):
    topic, group = await user.topic(), await user.group(max_attempts=5)
    await user.send(topic, "a")
    await user.send(topic, "late", delay_ms=user.either(600_000, 15_000))
    await user.one(topic, group, invisible_ms=30_000)
    user.site.clock.set_wall(user.now_ms() + 3_600_000)
    await user.lag(user.either(60_000, 30_000))
    got = await user.collect(topic, group, 2)
    assert sorted(texts(got)) == ["a", "late"]
    await user.ack(topic, group, *got)


async def test_the_filter_of_the_moment_does_not_lose_a_redelivery(user, traits):
    """A message that failed and does not pass today's filter is kept for a filter it passes."""
    if not traits.keeps_filtered_redeliveries:
        user.differs(
            "a redelivery that does not pass the filter is done",
            "test_a_redelivery_never_goes_where_it_does_not_pass",
        )
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a", tag="red")
    message = await user.one(topic, group, tags="red")
    await user.hide(topic, group, message.receipt, 0)
    await user.lag()
    for _ in range(3):
        await user.nothing(topic, group, tags="blue")
        await user.lag()
    await user.lag(user.either(60_000, 10_000))  # it may rest for a while after it did not pass
    again = await user.one(topic, group, tags="red")
    assert again.attempt == 2
    await user.ack(topic, group, again)


async def test_a_redelivery_never_goes_where_it_does_not_pass(user):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a", tag="red")
    message = await user.one(topic, group, tags="red")
    await user.hide(topic, group, message.receipt, 0)
    await user.lag()
    for _ in range(2):
        await user.nothing(topic, group, tags="blue")
    await user.send(topic, "b", tag="blue")
    assert (await user.one(topic, group, tags="blue")).body == b"b"
