"""Where a group begins, how far it is, and setting it elsewhere."""

from __future__ import annotations

import pytest

from brokers.resets import HoldsResets
from popgate.errors import GatewayError, GroupNotFound, IllegalOffset, TopicNotFound
from popgate.model import StartFrom


async def summed(user, group, topic):
    found = await user.broker.progress(group, topic)
    return {
        "lag": sum(p.lag for p in found),
        "in_flight": sum(p.in_flight for p in found),
        "waiting": sum(p.waiting for p in found),
    }


async def test_a_group_starts_at_the_first_message_unless_told_otherwise(user, texts):
    topic = await user.topic(queues=1)
    await user.send(topic, "old")
    group = await user.group()
    await user.send(topic, "new")
    assert texts(await user.collect(topic, group, 2)) == ["old", "new"]


BROKERS_DECISION = "its brokers decide where a group from the last message begins"
GETS_ALL_AFTER = "test_a_start_at_the_last_that_the_broker_decides_skips_nothing_that_comes_later"


async def test_a_group_that_starts_at_the_last_gets_what_comes_after_its_first_pop(user, texts):
    if not user.broker.traits.begins_at_the_end:
        user.differs(BROKERS_DECISION, GETS_ALL_AFTER)
    topic, group = await user.topic(), await user.group(start_from=StartFrom.LAST)
    await user.send(topic, *"abc")
    await user.nothing(topic, group)
    await user.send(topic, *"def")
    assert sorted(texts(await user.collect(topic, group, 3))) == list("def")


@pytest.mark.parametrize("queues", [1, 4])
async def test_a_start_at_the_last_that_the_broker_decides_skips_nothing_that_comes_later(
    user, texts, queues
):
    """Nor what was there while the topic is young, as RocketMQ's own proxy has it; whatever gateway asks."""
    if user.broker.traits.begins_at_the_end:
        user.differs(
            "a start from the last message is exact",
            "test_a_group_that_starts_at_the_last_gets_what_comes_after_its_first_pop",
        )
    topic, group = await user.topic(queues=queues), await user.group(start_from=StartFrom.LAST)
    places = [queue for queue in await user.queues(topic) for _ in range(6)]
    await user.put(*(user.message(topic, f"before{n}", queue=one) for n, one in enumerate(places)))
    assert len(await user.pop(topic, group, queue=places[0])) > 0
    await user.put(*(user.message(topic, f"between{n}", queue=one) for n, one in enumerate(places)))
    await user.restart()
    await user.put(*(user.message(topic, f"after{n}", queue=one) for n, one in enumerate(places)))
    wanted = {f"{when}{n}" for when in ("between", "after") for n in range(len(places))}
    got: set[str] = set()

    async def all_there():
        got.update(texts(await user.pop(topic, group)))
        return wanted <= got

    await user.eventually(all_there)


async def test_a_start_at_the_last_is_fixed_on_every_queue_at_the_first_pop(user, texts):
    if not user.broker.traits.begins_at_the_end:
        user.differs(BROKERS_DECISION, GETS_ALL_AFTER)
    topic, group = await user.topic(queues=4), await user.group(start_from=StartFrom.LAST)
    queues = await user.queues(topic)
    await user.nothing(topic, group, queue=queues[0])
    await user.put(*(user.message(topic, f"{q.queue_id}", queue=q) for q in queues))
    got = await user.collect(topic, group, 4)
    assert sorted(m.queue_id for m in got) == sorted(q.queue_id for q in queues)


@pytest.mark.every_durability
async def test_a_start_at_the_last_survives_a_restart(user, texts):
    if not user.broker.traits.begins_at_the_end:
        user.differs(BROKERS_DECISION, GETS_ALL_AFTER)
    topic, group = await user.topic(), await user.group(start_from=StartFrom.LAST)
    await user.send(topic, "before")
    await user.nothing(topic, group)
    await user.send(topic, "after")
    await user.restart()
    assert texts(await user.collect(topic, group, 1)) == ["after"]
    await user.nothing(topic, group)


async def test_progress_counts_what_is_new_held_and_resting(user):
    if not user.broker.traits.tells_deliveries:
        user.differs(
            "this broker tells nobody what is held",
            "test_a_position_is_how_far_a_group_popped_where_deliveries_are_not_told",
        )
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *(str(n) for n in range(10)))
    messages = await user.collect(topic, group, 6, invisible_ms=10_000)
    assert await summed(user, group, topic) == {"lag": 10, "in_flight": 6, "waiting": 0}
    await user.ack(topic, group, *messages[:2])
    assert await summed(user, group, topic) == {"lag": 8, "in_flight": 4, "waiting": 0}
    await user.hide(topic, group, messages[2].receipt, 0)
    await user.lag()
    assert await summed(user, group, topic) == {"lag": 8, "in_flight": 3, "waiting": 1}
    await user.lag(10_000)
    assert await summed(user, group, topic) == {"lag": 8, "in_flight": 0, "waiting": 4}
    rest = await user.collect(topic, group, 8)
    await user.ack(topic, group, *rest)
    assert await summed(user, group, topic) == {"lag": 0, "in_flight": 0, "waiting": 0}


async def test_progress_names_every_queue_and_its_bounds(user):
    topic, group = await user.topic(queues=3), await user.group()
    queues = await user.queues(topic)
    await user.put(*(user.message(topic, queue=queues[1]) for _ in range(5)))
    found = {p.queue_id: p for p in await user.broker.progress(group, topic)}
    assert set(found) == {q.queue_id for q in queues}
    for queue in queues:
        bounds = await user.broker.bounds(user.context, topic, queue.broker, queue.queue_id)
        assert found[queue.queue_id].bounds == bounds
    assert found[queues[1].queue_id].lag == 5


async def test_progress_asks_for_known_names(user):
    topic, group = await user.topic(), await user.group()
    with pytest.raises(TopicNotFound):
        await user.broker.progress(group, "no-such-topic")
    with pytest.raises(GroupNotFound):
        await user.broker.progress("no-such-group", topic)


async def test_a_group_knows_the_topics_it_has_read(user):
    one, two, other, group = await user.topic(), await user.topic(), await user.topic(), await user.group()
    assert await user.broker.topics_of(group) == []
    await user.send(one, "a")
    await user.ack(one, group, await user.one(one, group))
    await user.nothing(two, group)

    async def are_known() -> bool:
        return sorted(await user.broker.topics_of(group)) == sorted([one, two])

    await user.eventually(are_known)
    assert other not in await user.broker.topics_of(group)
    await user.is_written_down(one, group, 1)  # not after the deletion, which it would undo
    await user.broker.delete_topic(one)
    assert await user.broker.topics_of(group) == [two]
    with pytest.raises(GroupNotFound):
        await user.broker.topics_of("no-such-group")


async def test_committed_is_none_before_the_group_reads_and_then_the_lowest_unfinished(user):
    if not user.broker.traits.tells_deliveries:
        user.differs(
            "this broker tells nobody what is held",
            "test_a_position_is_how_far_a_group_popped_where_deliveries_are_not_told",
        )
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    where = (group, topic, queue.broker, queue.queue_id)

    async def committed():
        return await user.broker.committed(user.context, *where)

    assert await committed() is None
    sent = await user.send(topic, *"abcd")
    first = sent[0].offset
    a, b, c, d = await user.collect(topic, group, 4)
    assert await committed() == first
    await user.ack(topic, group, b)
    assert await committed() == first
    await user.ack(topic, group, a)
    assert await committed() == first + 2
    await user.hide(topic, group, c.receipt, 0)
    await user.ack(topic, group, d)
    assert await committed() == first + 2
    await user.lag()
    await user.ack(topic, group, await user.one(topic, group))
    assert await committed() == first + 4


async def test_a_commit_backwards_brings_everything_again_as_if_new(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    sent = await user.send(topic, *"abcd")
    got = await user.collect(topic, group, 4)
    await user.ack(topic, group, *got)
    where = (group, topic, queue.broker, queue.queue_id)
    await user.is_written_down(topic, group, 4)
    await user.broker.commit(user.context, *where, sent[1].offset)
    assert await user.broker.committed(user.context, *where) == sent[1].offset
    again = await user.collect(topic, group, 3)
    assert texts(again) == ["b", "c", "d"]
    assert [m.attempt for m in again] == [1, 1, 1]
    await user.ack(topic, group, *again)
    await user.nothing(topic, group)


async def test_a_commit_forwards_skips_and_forgets_what_was_held(user, texts):
    if not user.broker.traits.resets_forget_deliveries:
        user.differs(
            "what was held comes back after a commit",
            "test_what_was_held_comes_back_after_a_reset_where_it_is_not_forgotten",
        )
    topic, group = await user.topic(queues=1), await user.group(max_attempts=1)
    (queue,) = await user.queues(topic)
    sent = await user.send(topic, *"abcd")
    await user.collect(topic, group, 2, invisible_ms=10_000)
    where = (group, topic, queue.broker, queue.queue_id)
    await user.broker.commit(user.context, *where, sent[3].offset)
    assert await user.broker.committed(user.context, *where) == sent[3].offset
    assert texts(await user.collect(topic, group, 1, invisible_ms=600_000)) == ["d"]
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)
    await user.dead_letters(group, 0)


async def test_handles_of_before_a_commit_finish_nothing(user, texts, traits):
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    sent = await user.send(topic, *"ab")
    old = await user.collect(topic, group, 2)
    await user.is_written_down(topic, group, 2)
    await user.broker.commit(user.context, group, topic, queue.broker, queue.queue_id, sent[0].offset)
    answers = await user.ack_handles(topic, group, *(m.receipt for m in old))
    if traits.acks_are_checked:
        assert all(isinstance(a, GatewayError) for a in answers)
    new = await user.collect(topic, group, 2, invisible_ms=10_000)
    assert texts(new) == ["a", "b"]
    assert [m.attempt for m in new] == [1, 1]
    answers = await user.ack_handles(topic, group, *(m.receipt for m in old))
    if traits.acks_are_checked:
        assert all(isinstance(a, GatewayError) for a in answers)
    await user.lag(10_000)
    assert texts(await user.collect(topic, group, 2)) == ["a", "b"]


async def test_a_commit_outside_the_bounds_is_refused(user):
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    sent = await user.send(topic, *"ab")
    for offset in (-1, sent[1].offset + 2, 1 << 62, 1 << 80):
        with pytest.raises(IllegalOffset):
            await user.broker.commit(user.context, group, topic, queue.broker, queue.queue_id, offset)
    assert len(await user.collect(topic, group, 2)) == 2


async def test_positions_of_unknown_names_and_queues_are_refused(user):
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    wrong = [
        (GroupNotFound, ("no-such-group", topic, queue.broker, queue.queue_id)),
        (TopicNotFound, (group, "no-such-topic", queue.broker, queue.queue_id)),
        (GatewayError, (group, topic, queue.broker, 99)),
        (GatewayError, (group, topic, queue.broker, -1)),
        (GatewayError, (group, topic, "another-broker", queue.queue_id)),
    ]
    for error, where in wrong:
        with pytest.raises(error):
            await user.broker.committed(user.context, *where)
        with pytest.raises(error):
            await user.broker.commit(user.context, *where, 0)


async def test_a_commit_of_a_group_that_never_read_sets_where_it_starts(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    sent = await user.send(topic, *"abc")
    await user.broker.commit(user.context, group, topic, queue.broker, queue.queue_id, sent[2].offset)
    assert texts(await user.collect(topic, group, 1)) == ["c"]
    await user.nothing(topic, group)


async def test_a_commit_of_one_queue_leaves_the_start_of_the_others(user, texts):
    topic, group = await user.topic(queues=2), await user.group()
    one, two = await user.queues(topic)
    await user.put(user.message(topic, "one", queue=one), user.message(topic, "two", queue=two))
    bounds = await user.broker.bounds(user.context, topic, one.broker, one.queue_id)
    await user.broker.commit(user.context, group, topic, one.broker, one.queue_id, bounds.maximum)
    assert texts(await user.collect(topic, group, 1)) == ["two"]
    await user.nothing(topic, group)


async def test_a_reset_to_the_first_brings_everything_again(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abcd")
    await user.ack(topic, group, *await user.collect(topic, group, 3))
    await user.is_written_down(topic, group, 3)
    was_set = await user.broker.reset(group, topic, StartFrom.FIRST)
    assert was_set == {(one.broker, one.queue_id): 0 for one in await user.queues(topic)}
    again = await user.collect(topic, group, 4)
    assert sorted(texts(again)) == list("abcd")
    assert {m.attempt for m in again} == {1}


async def test_a_reset_to_the_last_skips_everything(user, texts):
    if not user.broker.traits.resets_forget_deliveries:
        user.differs(
            "what was held comes back after a reset",
            "test_what_was_held_comes_back_after_a_reset_where_it_is_not_forgotten",
        )
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, *"abcd")
    await user.collect(topic, group, 2, invisible_ms=5_000)
    was_set = await user.broker.reset(group, topic, StartFrom.LAST)
    assert sum(was_set.values()) == 4
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)
    assert (await summed(user, group, topic))["lag"] == 0
    await user.send(topic, "e")
    assert texts(await user.collect(topic, group, 1)) == ["e"]
    await user.dead_letters(group, 0)


async def test_a_reset_to_a_time_brings_what_was_stored_since(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "old", "older")
    await user.pass_ms(user.either(60_000, 2_000))
    since = user.now_ms()
    await user.pass_ms(1)
    await user.send(topic, "new", "newer")
    await user.ack(topic, group, *await user.collect(topic, group, 4))
    await user.is_written_down(topic, group, 4)
    await user.broker.reset(group, topic, since)
    assert sorted(texts(await user.collect(topic, group, 2))) == ["new", "newer"]
    await user.nothing(topic, group)
    await user.is_written_down(topic, group, 4)
    await user.broker.reset(group, topic, 0)
    assert len(await user.collect(topic, group, 4)) == 4
    await user.is_written_down(topic, group, 4)
    await user.broker.reset(group, topic, user.now_ms() + 3_600_000)
    await user.nothing(topic, group)


async def test_a_reset_of_a_group_that_never_read_sets_where_it_starts(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "old")
    await user.broker.reset(group, topic, StartFrom.LAST)
    await user.send(topic, "new")
    assert texts(await user.collect(topic, group, 1)) == ["new"]
    await user.nothing(topic, group)


async def test_a_reset_frees_an_ordered_group_that_was_blocked(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    await user.one(topic, group, invisible_ms=600_000)
    await user.nothing(topic, group)
    await user.broker.reset(group, topic, StartFrom.FIRST)
    assert texts(await user.collect(topic, group, 2)) == ["A1", "A2"]


async def test_a_reset_asks_for_known_names(user):
    topic, group = await user.topic(), await user.group()
    with pytest.raises(TopicNotFound):
        await user.broker.reset(group, "no-such-topic", StartFrom.FIRST)
    with pytest.raises(GroupNotFound):
        await user.broker.reset("no-such-group", topic, StartFrom.FIRST)


async def test_a_position_set_by_hand_survives_a_restart(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, *"ab")
    await user.ack(topic, group, *await user.collect(topic, group, 2))
    await user.is_written_down(topic, group, 2)
    await user.broker.reset(group, topic, StartFrom.FIRST)
    await user.restart()
    assert texts(await user.collect(topic, group, 2)) == ["a", "b"]


async def test_a_position_is_how_far_a_group_popped_where_deliveries_are_not_told(user):
    if user.broker.traits.tells_deliveries:
        user.differs(
            "this broker tells what is held",
            "test_committed_is_none_before_the_group_reads_and_then_the_lowest_unfinished",
        )
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    where = (group, topic, queue.broker, queue.queue_id)
    assert await user.broker.committed(user.context, *where) is None
    sent = await user.send(topic, *"abcd")
    await user.collect(topic, group, 3)
    await user.is_written_down(topic, group, 3)
    assert await user.broker.committed(user.context, *where) == sent[2].offset + 1
    (found,) = await user.broker.progress(group, topic)
    assert (found.committed, found.frontier, found.lag) == (sent[2].offset + 1, sent[2].offset + 1, 1)


async def test_what_was_held_comes_back_after_a_reset_where_it_is_not_forgotten(user, texts):
    if user.broker.traits.resets_forget_deliveries:
        user.differs("a reset forgets what is held", "test_a_reset_to_the_last_skips_everything")
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, *"abcd")
    await user.collect(topic, group, 2, invisible_ms=user.either(5_000, 20_000))
    await user.is_written_down(topic, group, 2)
    await user.broker.reset(group, topic, StartFrom.LAST)
    await user.nothing(topic, group)
    await user.lag(user.either(5_000, 10_000))
    assert sorted(texts(await user.collect(topic, group, 2))) == ["a", "b"]
    await user.nothing(topic, group)


async def test_a_position_on_one_queue_is_none_on_the_others(user):
    """A classic consumer decides for each queue where it begins, by whether there is a position."""
    topic, group = await user.topic(queues=3), await user.group(start_from=StartFrom.LAST)
    queues = await user.queues(topic)
    await user.put(*(user.message(topic, "a", queue=queue) for queue in queues))
    first, second, third = ((group, topic, queue.broker, queue.queue_id) for queue in queues)
    context = user.context
    end = (await user.broker.bounds(context, *second[1:])).maximum
    await user.broker.commit(context, *second, end)
    await user.positions_are_kept()
    for _ in range(2):
        assert await user.broker.committed(context, *second) == end
        assert await user.broker.committed(context, *first) is None
        assert await user.broker.committed(context, *third) is None
        await user.restart()
    await user.broker.commit(context, *third, 0)
    await user.positions_are_kept()
    assert await user.broker.committed(context, *third) == 0
    assert await user.broker.committed(context, *first) is None


@pytest.fixture
async def readers(user):
    """What holds resets, and the place where a group has read three of four messages by true pull."""
    topic, group = await user.topic(queues=2), await user.group()
    queue, _ = await user.queues(topic)
    await user.put(*(user.message(topic, text, queue=queue) for text in "abcd"))
    holder = user.broker.capability(HoldsResets)
    assert holder is not None
    place = group, topic, queue.broker, queue.queue_id
    assert await holder.begin_read(user.context, *place, 0) == 0
    assert await holder.commit_read(user.context, *place, 3) is None
    assert await user.broker.committed(user.context, *place) == 3
    return holder, place


async def test_a_reader_that_has_not_heard_of_a_reset_does_not_undo_it(user, readers):
    holder, place = readers
    await user.broker.reset(place[0], place[1], StartFrom.FIRST)
    assert await holder.commit_read(user.context, *place, 3) == 0
    assert await holder.commit_read(user.context, *place, 4) == 0
    assert await user.broker.committed(user.context, *place) == 0


async def test_a_reader_that_began_where_a_reset_sent_it_goes_on(user, readers):
    holder, place = readers
    await user.broker.reset(place[0], place[1], StartFrom.FIRST)
    assert await holder.begin_read(user.context, *place, 0) == 0
    assert await holder.commit_read(user.context, *place, 2) is None
    assert await user.broker.committed(user.context, *place) == 2
    # Where no reset is pending a reader begins where it wants, and sets nothing by that.
    assert await holder.begin_read(user.context, *place, 1) == 1
    assert await user.broker.committed(user.context, *place) == 2


async def test_a_reader_that_begins_elsewhere_is_sent_where_the_last_reset_was(user, readers):
    holder, place = readers
    await user.broker.reset(place[0], place[1], StartFrom.FIRST)
    await holder.reset_queue(user.context, *place, 1)
    assert await user.broker.committed(user.context, *place) == 1
    assert await holder.begin_read(user.context, *place, 0) == 1
    assert await holder.commit_read(user.context, *place, 2) is None
    assert await user.broker.committed(user.context, *place) == 2


async def test_a_position_that_is_set_by_somebody_else_ends_a_reset(user, readers):
    holder, place = readers
    await user.broker.reset(place[0], place[1], StartFrom.FIRST)
    await user.broker.commit(user.context, *place, 2)
    assert await user.broker.committed(user.context, *place) == 2
    assert await holder.begin_read(user.context, *place, 2) == 2
    assert await holder.commit_read(user.context, *place, 3) is None


async def test_one_queue_is_reset_within_its_bounds(user, readers):
    holder, place = readers
    with pytest.raises(IllegalOffset):
        await holder.reset_queue(user.context, *place, 5)
    with pytest.raises(IllegalOffset):
        await holder.commit_read(user.context, *place, 5)
    with pytest.raises(GroupNotFound):
        await holder.reset_queue(user.context, "no-such-group", *place[1:], 1)
    assert await user.broker.committed(user.context, *place) == 3
