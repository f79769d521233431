"""A client whose answer was lost sends the same message id once more: both sides of `repeats_known_ms`."""

from __future__ import annotations

import asyncio

import pytest

from popgate.errors import BadRequest
from popgate.model import Sent


@pytest.fixture
def known(traits, differs):
    if not traits.repeats_known_ms:
        differs("a repeat is stored", "test_a_repeat_is_stored_twice_where_nothing_is_known_of_it")
    return traits.repeats_known_ms


async def everything(user, topic):
    """The bodies in a topic, by reading."""
    found = []
    for queue in await user.queues(topic):
        where = topic, queue.broker, queue.queue_id
        bounds = await user.broker.bounds(user.context, *where)
        offset = bounds.minimum
        while offset < bounds.maximum:
            pulled = await user.broker.pull(
                user.context,
                *where,
                offset,
                max_messages=1_000,
                max_bytes=1 << 26,
                passing=user.request(topic, "").filter,
                wait_until=None,
            )
            found += [message.body.decode() for message in pulled.messages]
            offset = pulled.next_offset
    return sorted(found)


@pytest.mark.also_without_repeats
async def test_a_repeat_is_stored_twice_where_nothing_is_known_of_it(user, traits):
    if traits.repeats_known_ms:
        user.differs("a repeat is known", "test_a_repeat_is_answered_as_the_first_was_and_stored_once")
    topic = await user.topic()
    message = user.message(topic, "again")
    first, second = await user.put(message), await user.put(message)
    assert first[0].message_id == second[0].message_id
    assert await everything(user, topic) == ["again", "again"]


@pytest.mark.every_durability
@pytest.mark.usefixtures("known")
async def test_a_repeat_is_answered_as_the_first_was_and_stored_once(user):
    topic = await user.topic()
    messages = [user.message(topic, f"m{n}") for n in range(20)]
    first = await user.put(*messages)
    again = [(await user.put(message))[0] for message in messages]
    assert again == first
    assert await user.put(*messages) == first
    assert await everything(user, topic) == sorted(f"m{n}" for n in range(20))


@pytest.mark.every_durability
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("count", [1, 40, 1_500])
async def test_a_repeat_is_known_after_a_restart(user, count):
    topic = await user.topic()
    messages = [user.message(topic, str(n)) for n in range(count)]
    first = await user.put(*messages)
    await user.restart()
    assert await user.put(*messages) == first
    await user.restart()
    assert await user.put(*messages) == first
    more = user.message(topic, "more")
    await user.put(more)
    assert await everything(user, topic) == sorted([*(str(n) for n in range(count)), "more"])


@pytest.mark.usefixtures("known")
async def test_repeats_at_the_same_time_are_stored_once(user):
    topic = await user.topic()
    message = user.message(topic, "a")
    answers = await asyncio.gather(*(user.put(message) for _ in range(10)))
    assert all(answer == answers[0] for answer in answers)
    assert await everything(user, topic) == ["a"]


@pytest.mark.usefixtures("known")
async def test_the_same_id_twice_in_one_send_is_stored_once(user):
    topic = await user.topic()
    message, other = user.message(topic, "a"), user.message(topic, "b")
    one, two, three = await user.put(message, other, message)
    assert one == three
    assert one.message_id != two.message_id
    assert await everything(user, topic) == ["a", "b"]


@pytest.mark.usefixtures("known")
async def test_a_repeat_counts_by_its_id_alone(user):
    topic = await user.topic()
    queues = await user.queues(topic)
    (first,) = await user.put(user.message(topic, "a", message_id="ID", tag="x", queue=queues[0]))
    assert await user.put(user.message(topic, "b", message_id="ID", tag="y", queue=queues[1])) == [first]
    assert await user.put(user.message(topic, "c", message_id="ID", delay_ms=5_000)) == [first]
    assert await everything(user, topic) == ["a"]


@pytest.mark.usefixtures("known")
async def test_the_same_id_in_another_topic_is_another_message(user):
    topic, other = await user.topic(), await user.topic()
    await user.put(user.message(topic, "a", message_id="ID"))
    await user.put(user.message(other, "b", message_id="ID"))
    assert await everything(user, topic) == ["a"]
    assert await everything(user, other) == ["b"]


@pytest.mark.usefixtures("known")
async def test_a_topic_made_again_knows_nothing_of_the_former_one(user):
    topic = await user.topic()
    config = await user.broker.topic(topic)
    message = user.message(topic, "a")
    await user.put(message)
    await user.broker.delete_topic(topic)
    await user.broker.create_topic(config)
    await user.put(message)
    assert await everything(user, topic) == ["a"]


@pytest.mark.parametrize("restart", [False, True])
async def test_after_the_window_an_id_is_new(user, known, restart):
    user.moved_by_hand("test_a_repeat_is_answered_as_the_first_was_and_stored_once")
    topic = await user.topic()
    message = user.message(topic, "a")
    (first,) = await user.put(message)
    await user.pass_ms(known - 1)
    assert await user.put(message) == [first]
    if restart:
        await user.restart()
    await user.pass_ms(2 * known)
    (second,) = await user.put(message)
    assert (second.queue_id, second.offset) != (first.queue_id, first.offset)
    assert await user.put(message) == [second]
    assert await everything(user, topic) == ["a", "a"]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_delayed_message_sent_again_is_delivered_once(user, known, restart):
    user.moved_by_hand("test_a_repeat_is_answered_as_the_first_was_and_stored_once")
    topic, group = await user.topic(), await user.group()
    message = user.message(topic, "later", delay_ms=10_000)
    (first,) = await user.put(message)
    if restart:
        await user.restart()
    (again,) = await user.put(message)
    assert again == first
    assert again.recall_handle
    await user.precision(10_000)
    assert (await user.one(topic, group)).body == b"later"
    assert await user.put(message) == [first]  # also when it was delivered meanwhile
    await user.nothing(topic, group)


@pytest.mark.usefixtures("known")
async def test_a_recalled_message_sent_again_stays_recalled(user):
    user.moved_by_hand("test_a_repeat_is_answered_as_the_first_was_and_stored_once")
    topic, group = await user.topic(), await user.group()
    message = user.message(topic, "later", delay_ms=10_000)
    (first,) = await user.put(message)
    await user.broker.recall(user.context, topic, first.recall_handle)
    assert await user.put(message) == [first]
    await user.precision(20_000)
    await user.nothing(topic, group)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("restart", [False, True])
async def test_a_half_message_sent_again_has_the_same_transaction(user, restart):
    topic, group = await user.topic(), await user.group()
    message = user.message(topic, "half", transaction=True)
    (first,) = await user.put(message)
    if restart:
        await user.restart()
    (again,) = await user.put(message)
    assert again == first
    assert again.transaction_id
    await user.commit(topic, again)
    assert await user.put(message) == [first]
    assert (await user.one(topic, group)).body == b"half"
    await user.nothing(topic, group)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("restart", [False, True])
async def test_a_half_message_rolled_back_and_sent_again_stays_rolled_back(user, restart):
    topic, group = await user.topic(), await user.group()
    message = user.message(topic, "half", transaction=True)
    (first,) = await user.put(message)
    await user.roll_back(topic, first)
    if restart:
        await user.restart()
    assert await user.put(message) == [first]
    await user.nothing(topic, group)


@pytest.mark.usefixtures("known")
async def test_a_message_that_was_refused_is_new_when_it_comes_again(user):
    topic = await user.topic(queues=2)
    good, bad = user.message(topic, "good"), user.message(topic, "bad")
    bad.queue_id = 9
    stored, refused = await user.broker.send(user.context, [good, bad])
    assert isinstance(stored, Sent)
    assert isinstance(refused, BadRequest)
    bad.queue_id = -1
    assert await user.put(good, bad) == [stored, (await user.put(bad))[0]]
    assert await everything(user, topic) == ["bad", "good"]


@pytest.mark.also_without_repeats
async def test_messages_without_an_id_are_never_repeats(user):
    topic = await user.topic()
    for _ in range(3):
        message = user.message(topic, "a")
        message.message_id, message.properties = "", b""
        await user.put(message)
    assert await everything(user, topic) == ["a", "a", "a"]


@pytest.mark.usefixtures("known")
async def test_ids_that_are_stored_alike_are_not_taken_for_one(user):
    topic = await user.topic()
    for message_id in ("\ud800", "\ud801", "?"):
        message = user.message(topic, "a")
        message.message_id = message_id
        await user.put(message)
    assert await everything(user, topic) == ["a", "a", "a"]
