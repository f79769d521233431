"""Dead letters given to their group again: to it alone, once, with nothing lost whatever happens."""

import asyncio

import pytest

from brokers.capabilities import LiteTopics, Redriven, RedrivesDeadLetters
from popgate.errors import (
    AlreadyExists,
    BadRequest,
    GroupNotFound,
    IllegalReceipt,
    NotFound,
    ReceiptExpired,
    TopicNotFound,
    Unsupported,
)
from popgate.ids.receipt import parse_receipt
from popgate.lite import LiteAction, LiteSync
from popgate.model import GroupConfig, MessageType, StartFrom


@pytest.fixture
async def redriver(user):
    if not isinstance(user.broker, RedrivesDeadLetters):
        user.differs("nothing is redriven", "test_dead_letters_are_consumed_like_any_message")
    return user


async def bury(user, topic, group, *bodies, **how):
    """Send messages and let them die; the offsets of the dead letters, which are in the same order."""
    await user.send(topic, *bodies, **how)
    for message in await user.collect(topic, group, len(bodies)):
        await user.dead_letter(topic, group, message.receipt)
    return await letters(user, group)


async def letters(user, group):
    bounds = await user.broker.bounds(user.context, f"%DLQ%{group}", user.broker.name, 0)
    return list(range(bounds.minimum, bounds.maximum))


async def redrive(user, group, *offsets):
    return await user.broker.redrive(user.context, group, user.broker.name, 0, offsets)


async def test_a_redriven_message_reaches_its_group_and_nobody_else(redriver, texts, properties_of):
    user = redriver
    topic, group, other = await user.topic(), await user.group(), await user.group()
    (sent,) = await user.send(topic, "a", properties={"color": "red"})
    await user.ack(topic, other, await user.one(topic, other))
    await user.dead_letter(topic, group, (await user.one(topic, group)).receipt)
    (result,) = await redrive(user, group, 0)
    assert isinstance(result, Redriven)
    assert (result.message_id, result.topic) == (sent.message_id, topic)
    message = await user.one(topic, group)
    assert (message.topic, message.body, message.attempt) == (topic, b"a", 1)
    found = properties_of(message)
    assert (found["color"], found["UNIQ_KEY"], found["REDRIVE_COUNT"]) == ("red", sent.message_id, "1")
    if user.broker.traits.dead_letters_name_origin:
        assert found["DLQ_ORIGIN_TOPIC"] == topic
    assert parse_receipt(message.receipt).topic_type != 0
    await user.ack(topic, group, message)
    await user.lag(60_000)
    await user.nothing(topic, group)
    await user.nothing(topic, other)
    await user.nothing(topic, await user.group(start_from=StartFrom.LAST))


async def test_what_was_redriven_stands_with_its_topic_once_also_after_a_restart(redriver):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await redrive(user, group, *await bury(user, topic, group, "a", "b"))
    for _ in range(2):
        found, start = await user.broker.standings(0, 1_000)
        while start is not None:
            more, start = await user.broker.standings(start, 1_000)
            found += more
        assert [(one.topic, one.lag) for one in found if one.group == group] == [(topic, 2)]
        await user.restart()


async def test_a_group_that_starts_at_the_end_of_topics_gets_what_is_redriven_to_it(redriver):
    user = redriver
    topic, group = await user.topic(), await user.group(start_from=StartFrom.LAST)
    await user.nothing(topic, group)
    await bury(user, topic, group, "a")
    await redrive(user, group, 0)
    assert (await user.one(topic, group)).body == b"a"


async def test_each_dead_letter_is_redriven_once(redriver, texts):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await bury(user, topic, group, "a", "b")
    assert await user.broker.redriven(group, user.broker.name, 0, 0, 99) == {}
    one, again, other = await redrive(user, group, 0, 0, 1)
    assert isinstance(one, Redriven)
    assert isinstance(other, Redriven)
    assert isinstance(again, AlreadyExists)
    at_once = await asyncio.gather(*(redrive(user, group, 0) for _ in range(3)))
    assert all(isinstance(result, AlreadyExists) for (result,) in at_once)
    assert set(await user.broker.redriven(group, user.broker.name, 0, 0, 99)) == {0, 1}
    assert set(await user.broker.redriven(group, user.broker.name, 0, 1, 2)) == {1}
    assert sorted(texts(await user.collect(topic, group, 2))) == ["a", "b"]
    await user.nothing(topic, group)


async def test_redrives_of_one_letter_at_the_same_moment_are_one(redriver, texts):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await bury(user, topic, group, "a")
    results = [result for (result,) in await asyncio.gather(*(redrive(user, group, 0) for _ in range(4)))]
    assert sum(isinstance(result, Redriven) for result in results) == 1
    assert texts(await user.collect(topic, group, 1)) == ["a"]
    await user.nothing(topic, group)


async def test_what_fails_again_dies_again_and_counts_its_redrives(redriver, properties_of):
    user = redriver
    topic, group = await user.topic(), await user.group(max_attempts=2)
    await bury(user, topic, group, "a")
    for redrives in (1, 2):
        offset = (await letters(user, group))[-1]
        (result,) = await redrive(user, group, offset)
        assert isinstance(result, Redriven)
        for attempt in (1, 2):
            message = await user.one(topic, group, invisible_ms=1_000)
            assert (message.attempt, properties_of(message)["REDRIVE_COUNT"]) == (attempt, str(redrives))
            await user.lag(1_000)
        await user.nothing(topic, group)
    assert len(await letters(user, group)) == 3


async def test_a_waiting_pop_gets_what_is_redriven(redriver, texts):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await bury(user, topic, group, "a")
    for how in ({}, {"queue": (await user.queues(topic))[1]}):
        waiting = user.waiting(topic, group, **how)
        await user.settle()
        assert not waiting.done()
        await redrive(user, group, (await letters(user, group))[-1])
        (message,) = await user.done(waiting)
        assert message.body == b"a"
        await user.dead_letter(topic, group, message.receipt)


async def test_a_delivery_of_a_redriven_message_takes_every_step(redriver):
    user = redriver
    topic, group, stranger = await user.topic(), await user.group(), await user.group()
    await bury(user, topic, group, "a")
    await redrive(user, group, 0)
    first = await user.one(topic, group)
    assert await user.give_back(topic, group, first) == 1
    second = await user.one(topic, group)
    assert second.attempt == (1 if user.broker.traits.returns_are_free else 2)
    handle = await user.hide(topic, group, second.receipt, 5_000)
    await user.nothing(topic, group)
    await user.lag(5_000)
    (expired,) = await user.ack_handles(topic, group, handle)
    assert isinstance(expired, ReceiptExpired)
    third = await user.one(topic, group)
    (refused,) = await user.ack_handles(topic, stranger, third.receipt)
    assert isinstance(refused, IllegalReceipt)
    await user.ack(topic, group, third)
    await user.ack(topic, group, third)
    with pytest.raises(ReceiptExpired):
        await user.dead_letter(topic, group, third.receipt)


async def test_handles_of_the_topic_and_of_its_retries_do_not_mean_each_other(redriver):
    user = redriver
    topic, group = await user.topic(queues=1), await user.group()
    await bury(user, topic, group, "a")
    await redrive(user, group, 0)
    again = await user.one(topic, group)
    await user.ack(topic, group, again)
    fields = again.receipt.split(" ")
    fields[4] = "0"
    (refused,) = await user.ack_handles(topic, group, " ".join(fields))
    assert isinstance(refused, IllegalReceipt)


async def test_new_messages_and_retries_are_both_served(redriver, texts):
    user = redriver
    topic, group = await user.topic(queues=1), await user.group()
    offsets = await bury(user, topic, group, *(f"old{n}" for n in range(4)))
    await redrive(user, group, *offsets)
    await user.send(topic, *(f"new{n}" for n in range(4)))
    first_four = texts([await user.one(topic, group) for _ in range(4)])
    assert sorted(text[:3] for text in first_four) == ["new", "new", "old", "old"]
    assert sorted(texts(await user.collect(topic, group, 4)) + first_four) == sorted(
        [f"old{n}" for n in range(4)] + [f"new{n}" for n in range(4)]
    )
    await user.nothing(topic, group)


async def test_an_ordered_group_gets_retries_in_the_order_of_their_message_groups(redriver, texts):
    user = redriver
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "B1", "A2", "B2")
    for _ in range(2):
        for message in await user.collect(topic, group, 2, one_per_message_group=True):
            await user.dead_letter(topic, group, message.receipt)
    await redrive(user, group, *(await letters(user, group)))
    head = await user.pop(topic, group, 32, one_per_message_group=True)
    assert sorted(texts(head)) == ["A1", "B1"]
    await user.nothing(topic, group)
    await user.ack(topic, group, *(m for m in head if m.body == b"A1"))
    assert texts([await user.one(topic, group)]) == ["A2"]
    await user.nothing(topic, group)


async def test_a_repeated_receive_of_an_ordered_group_gets_its_retries_again(redriver):
    user = redriver
    topic, group = await user.topic(), await user.group(ordered=True)
    await bury(user, topic, group, "A1", message_group="A")
    await redrive(user, group, 0)
    first = await user.pop(topic, group, attempt_id="one")
    second = await user.pop(topic, group, attempt_id="one")
    assert [m.receipt for m in first] == [m.receipt for m in second] != []
    assert [m.topic for m in second] == [topic]
    await user.ack(topic, group, *second)


async def test_progress_counts_retries(redriver):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await bury(user, topic, group, "a", "b")
    queues = len(await user.queues(topic))
    assert len(await user.broker.progress(group, topic)) == queues
    await redrive(user, group, 0, 1)

    async def figures():
        found = await user.broker.progress(group, topic)
        lag, in_flight = sum(one.lag for one in found), sum(one.in_flight for one in found)
        return lag, in_flight, [one.retry for one in found]

    assert await figures() == (2, 0, [False] * queues + [True])
    message = await user.one(topic, group)
    assert (await figures())[:2] == (2, 1)
    await user.ack(topic, group, message)
    assert (await figures())[:2] == (1, 0)
    assert await user.broker.topics_of(group) == [topic]


async def test_a_reset_to_the_last_message_leaves_out_retries_too(redriver):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await bury(user, topic, group, "a")
    await redrive(user, group, 0)
    await user.broker.reset(group, topic, StartFrom.LAST)
    await user.nothing(topic, group)


async def test_retries_go_with_their_topic_and_with_their_group(redriver):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await bury(user, topic, group, "a", "b")
    (result, _) = await redrive(user, group, 0, 1)
    held = await user.one(topic, group)
    before = await user.broker.topic(topic)
    await user.broker.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        await user.broker.topic(result.retry_topic)
    await user.broker.create_topic(before)
    await user.nothing(topic, group)
    (refused,) = await user.ack_handles(topic, group, held.receipt)
    assert isinstance(refused, IllegalReceipt)

    await bury(user, topic, group, "c")
    await redrive(user, group, (await letters(user, group))[-1])
    await user.broker.delete_group(group)
    with pytest.raises(TopicNotFound):
        await user.broker.topic(result.retry_topic)
    await user.broker.create_group(GroupConfig(group, start_from=StartFrom.LAST))
    await user.nothing(topic, group)


async def test_names_that_run_into_each_other_share_no_retries(redriver, texts):
    """`%RETRY%a_b_c` could be of the groups `a` and `a_b`: the newer name of retry topics cannot."""
    user = redriver
    stem = await user.topic()
    pairs = [(f"{stem}_b", f"{stem}"), (f"{stem}", f"b_{stem}")]
    for group, topic in pairs:
        await user.broker.create_group(GroupConfig(group))
        if topic != stem:
            await user.broker.create_topic((await user.broker.topic(stem)).__class__(topic))
        await bury(user, topic, group, topic)
        await redrive(user, group, 0)
    for group, topic in pairs:
        assert texts(await user.collect(topic, group, 1)) == [topic]
        await user.nothing(topic, group)


async def test_a_dead_letter_of_a_reader_of_dead_letters_goes_back_to_where_it_was_read(redriver):
    user = redriver
    topic, group, reader = await user.topic(), await user.group(), await user.group()
    await bury(user, topic, group, "a")
    dead = f"%DLQ%{group}"
    await user.dead_letter(dead, reader, (await user.one(dead, reader)).receipt)
    for _ in range(2):
        (result,) = await redrive(user, reader, (await letters(user, reader))[-1])
        assert result.topic == dead
        message = await user.one(dead, reader)
        assert message.topic == dead
        await user.dead_letter(dead, reader, message.receipt)


@pytest.mark.every_durability
async def test_retries_survive_a_restart_with_what_is_held_of_them(redriver, texts):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await bury(user, topic, group, "a", "b", "c")
    await redrive(user, group, 0, 1)
    held = await user.one(topic, group, invisible_ms=20_000)
    await user.restart()
    assert set(await user.broker.redriven(group, user.broker.name, 0, 0, 99)) == {0, 1}
    rest = await user.one(topic, group)
    await user.nothing(topic, group)
    await user.ack(topic, group, held, rest)
    assert sorted(texts([held, rest])) == ["a", "b"]
    await redrive(user, group, 2)
    assert texts([await user.one(topic, group)]) == ["c"]


async def test_what_cannot_be_redriven_is_told_and_stays(redriver):
    user = redriver
    topic, group, unread = await user.topic(), await user.group(), await user.group()
    await bury(user, topic, group, "a")
    await user.send(f"%DLQ%{group}", "put there by hand")
    absent, nameless, fine = await redrive(user, group, 7, 1, 0)
    assert isinstance(absent, NotFound)
    assert isinstance(nameless, BadRequest)
    assert isinstance(fine, Redriven)
    with pytest.raises(TopicNotFound):
        await redrive(user, unread, 0)
    with pytest.raises(GroupNotFound):
        await redrive(user, "never-made", 0)
    with pytest.raises(BadRequest):
        await user.broker.redrive(user.context, group, user.broker.name, 5, [0])

    await bury(user, topic, group, "b")
    await user.broker.delete_topic(topic)
    (gone,) = await redrive(user, group, 2)
    assert isinstance(gone, TopicNotFound)
    assert 2 not in await user.broker.redriven(group, user.broker.name, 0, 0, 99)


async def test_a_broadcast_group_has_no_queue_of_its_own_to_redrive_to(redriver):
    user = redriver
    topic, group = await user.topic(), await user.group()
    await bury(user, topic, group, "a")
    await user.broker.update_group(GroupConfig(group, broadcast=True))
    with pytest.raises(Unsupported):
        await redrive(user, group, 0)


async def test_a_group_that_takes_lite_topics_reads_no_retries_so_its_dead_letters_stay(redriver):
    user = redriver
    if not isinstance(user.broker, LiteTopics):
        user.differs("there are no lite topics", "test_a_broker_without_lite_topics_stores_nothing_for_one")
    topic, other = await user.topic(MessageType.LITE), await user.topic()
    group = await user.group(attributes={"lite.bind.topic": topic})
    await user.broker.subscribe_lite(user.context, LiteSync(topic, group, LiteAction.ADD, ("room",)))
    await user.send(topic, "a", lite_topic="room")
    (message,) = await user.broker.pop_lite(user.context, user.request(topic, group))
    await user.dead_letter(topic, group, message.receipt)
    await bury(user, other, group, "b")
    refused, moved = await redrive(user, group, 0, 1)
    assert isinstance(refused, Unsupported)
    assert topic in refused.sentence
    assert isinstance(moved, Redriven)  # of another topic the group reads retries as every group does
    assert set(await user.broker.redriven(group, user.broker.name, 0, 0, 99)) == {1}
    assert (await user.one(other, group)).body == b"b"
