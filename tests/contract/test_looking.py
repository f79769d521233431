"""What an operator sees of a group: who holds what since when, what waits behind it, and where it stands."""

from __future__ import annotations

import pytest

from popgate.errors import GroupNotFound, ReceiptExpired, TopicNotFound, Unsupported


async def test_a_held_message_is_named_with_its_holder_and_its_times(user):
    if not user.broker.traits.tells_deliveries:
        user.differs("this broker tells nobody what is held", "test_what_is_held_is_said_not_to_be_told")
    topic, group = await user.topic(), await user.group()
    (sent,) = await user.send(topic, "a", tag="new", keys=("k1", "k2"))
    before = user.now_ms()
    message = await user.one(topic, group, invisible_ms=60_000)
    (held,) = await user.broker.held(group, topic, 10)
    assert (held.topic, held.broker, held.queue_id, held.offset) == (
        topic,
        message.broker,
        message.queue_id,
        message.offset,
    )
    assert held.message_id == sent.message_id
    assert (held.tag, held.keys, held.message_group) == ("new", ("k1", "k2"), "")
    assert held.holder == user.context.client_id
    assert held.receipt == message.receipt
    assert (held.attempt, held.renewals, held.waiting_behind) == (1, 0, 0)
    assert before <= held.since_ms <= user.now_ms()
    assert held.until_ms == message.invisible_until_ms
    await user.ack(topic, group, message)
    assert await user.broker.held(group, topic, 10) == []


async def test_who_has_renewed_is_told_how_often_and_since_when_it_was_first_held(user):
    if not user.broker.traits.tells_deliveries:
        user.differs("this broker tells nobody what is held", "test_what_is_held_is_said_not_to_be_told")
    user.moved_by_hand()
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=10_000)
    since = (await user.broker.held(group, topic, 1))[0].since_ms
    handle = message.receipt
    for _ in range(3):
        await user.pass_ms(5_000)
        handle = await user.hide(topic, group, handle, 10_000)
    (held,) = await user.broker.held(group, topic, 1)
    assert (held.renewals, held.since_ms) == (3, since)
    assert held.until_ms == user.now_ms() + 10_000
    await user.restart()
    (held,) = await user.broker.held(group, topic, 1)
    assert (held.renewals, held.since_ms, held.holder) == (3, since, user.context.client_id)


async def test_renewals_are_counted_as_far_as_there_is_room(user):
    if not user.broker.traits.tells_deliveries:
        user.differs("this broker tells nobody what is held", "test_what_is_held_is_said_not_to_be_told")
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    handle = (await user.one(topic, group)).receipt
    for _ in range(70):
        handle = await user.hide(topic, group, handle, 30_000)
    assert (await user.broker.held(group, topic, 1))[0].renewals >= 63


async def test_scenario_02_the_held_head_of_a_message_group_is_told_with_what_waits_behind_it(user):
    if not user.broker.traits.tells_deliveries:
        user.differs("this broker tells nobody what is held", "test_what_is_held_is_said_not_to_be_told")
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "B1", "A2", "A3", "B2")
    head = await user.one(topic, group, invisible_ms=60_000)
    assert head.body == b"A1"
    (held,) = await user.broker.held(group, topic, 10)
    assert (held.message_group, held.waiting_behind, held.offset) == ("A", 2, head.offset)
    freed = await user.hide(topic, group, held.receipt, 0)
    assert freed
    await user.lag()
    again = {m.body: m.attempt for m in await user.pop(topic, group)}
    assert again[b"A1"] == 2


async def test_what_is_held_the_longest_comes_first_and_never_more_than_asked_for(user):
    if not user.broker.traits.tells_deliveries:
        user.differs("this broker tells nobody what is held", "test_what_is_held_is_said_not_to_be_told")
    user.moved_by_hand()
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abcdef")
    order = []
    for _ in range(3):
        order += [m.offset for m in await user.collect(topic, group, 2)]
        await user.pass_ms(1_000)
    assert len(order) == 6
    held = await user.broker.held(group, topic, 4)
    assert len(held) == 4
    assert [one.since_ms for one in held] == sorted(one.since_ms for one in held)
    assert held[0].since_ms == min(one.since_ms for one in await user.broker.held(group, topic, 100))


async def test_what_came_back_or_was_given_back_is_not_held(user):
    if not user.broker.traits.tells_deliveries:
        user.differs("this broker tells nobody what is held", "test_what_is_held_is_said_not_to_be_told")
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a", "b")
    first, second = await user.collect(topic, group, 2, invisible_ms=1_000)
    await user.give_back(topic, group, first)
    assert [one.offset for one in await user.broker.held(group, topic, 9)] == [second.offset]
    await user.lag(1_000)
    assert await user.broker.held(group, topic, 9) == []


async def test_freeing_what_is_held_never_undoes_an_acknowledgement(user):
    if not user.broker.traits.tells_deliveries:
        user.differs("this broker tells nobody what is held", "test_what_is_held_is_said_not_to_be_told")
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=60_000)
    (held,) = await user.broker.held(group, topic, 1)
    await user.ack(topic, group, message)
    if not user.broker.traits.acks_are_checked:
        pytest.skip("this broker does not check acknowledgements")
    with pytest.raises(ReceiptExpired):
        await user.hide(topic, group, held.receipt, 0)
    await user.lag(60_000 if user.site.movable else 0)
    await user.nothing(topic, group)


async def test_a_standing_adds_up_to_the_lag(user):
    if not user.broker.traits.tells_deliveries:
        user.differs(
            "this broker tells nobody what is held",
            "test_a_standing_tells_what_was_never_popped_and_what_came_back",
        )
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abcdefgh")
    never_read = await user.broker.standing(group, topic)
    assert (never_read.lag, never_read.unread, never_read.in_flight) == (8, 8, 0)
    taken = await user.collect(topic, group, 5, invisible_ms=60_000)
    await user.ack(topic, group, taken[0])
    await user.give_back(topic, group, taken[1])
    found = await user.broker.standing(group, topic)
    assert (found.group, found.topic) == (group, topic)
    assert (found.lag, found.unread, found.in_flight, found.free) == (7, 3, 3, 1)
    assert found.lag == found.unread + found.free + found.in_flight + found.behind
    progress = await user.broker.progress(group, topic)
    assert found.lag == sum(one.lag for one in progress)
    assert found.in_flight == sum(one.in_flight for one in progress)


async def test_a_standing_of_an_ordered_group_tells_what_is_kept_back(user):
    if not user.broker.traits.tells_deliveries:
        user.differs(
            "this broker tells nobody what is held",
            "test_a_standing_tells_what_was_never_popped_and_what_came_back",
        )
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3", "B1")
    await user.one(topic, group, invisible_ms=60_000)
    found = await user.broker.standing(group, topic)
    assert (found.lag, found.in_flight) == (4, 1)
    assert found.unread + found.free + found.behind == 3
    assert found.behind >= 2


async def test_what_passes_no_filter_and_who_waits_are_told(user):
    if not user.broker.traits.tells_deliveries:
        user.differs(
            "this broker tells nobody what is held",
            "test_a_standing_tells_what_was_never_popped_and_what_came_back",
        )
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a", tag="old")
    message = await user.one(topic, group)
    await user.hide(topic, group, message.receipt, 0)
    await user.lag()
    waiting = user.waiting(topic, group, tags="new")
    await user.settle()
    found = await user.broker.standing(group, topic)
    assert (found.receivers, found.refused, found.free, found.lag) == (1, 1, 1, 1)
    waiting.cancel()


async def test_redeliveries_and_dead_letters_are_counted(user):
    if not user.broker.traits.tells_deliveries:
        user.differs(
            "this broker tells nobody what is held",
            "test_a_standing_tells_what_was_never_popped_and_what_came_back",
        )
    topic, group = await user.topic(), await user.group(max_attempts=2)
    await user.send(topic, "a")
    for _ in range(2):
        message = await user.one(topic, group)
        await user.hide(topic, group, message.receipt, 0)
        await user.lag()
    await user.dead_letters(group, 1)
    found = await user.broker.standing(group, topic)
    assert (found.redelivered, found.dead_lettered, found.lag) == (1, 1, 0)


async def test_standings_go_round_in_slices(user):
    group = await user.group()
    topics = sorted([await user.topic(queues=2) for _ in range(5)])
    for topic in topics:
        await user.send(topic, "a")
        await user.one(topic, group)

    async def everything() -> bool:
        found: list[str] = []
        start: int | None = 0
        slices = 0
        while start is not None:
            # Where others make and delete groups meanwhile, every slice more is another chance to miss one.
            some, start = await user.broker.standings(start, user.either(3, 5_000))
            found += [one.topic for one in some if one.group == group]
            slices += 1
        assert slices > 1 or not user.site.movable
        assert set(found) <= set(topics)
        return sorted(found) == topics if user.site.movable else set(found) == set(topics)

    await user.eventually(everything)


async def test_what_is_not_there_has_no_standing_and_holds_nothing(user):
    topic, group = await user.topic(), await user.group()
    if user.broker.traits.tells_deliveries:
        assert await user.broker.held(group, topic, 5) == []
    for ask in (lambda g, t: user.broker.held(g, t, 5), user.broker.standing):
        with pytest.raises(GroupNotFound):
            await ask("no-such-group", topic)
        with pytest.raises(TopicNotFound):
            await ask(group, "no-such-topic")


async def test_what_is_held_is_said_not_to_be_told(user):
    if user.broker.traits.tells_deliveries:
        user.differs(
            "this broker tells what is held", "test_a_held_message_is_named_with_its_holder_and_its_times"
        )
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    await user.one(topic, group)
    with pytest.raises(Unsupported):
        await user.broker.held(group, topic, 10)


async def test_a_standing_tells_what_was_never_popped_and_what_came_back(user):
    if user.broker.traits.tells_deliveries:
        user.differs("this broker tells what is held", "test_a_standing_adds_up_to_the_lag")
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abcdefgh")

    async def standing(lag, unread, free):
        async def so():
            found = await user.broker.standing(group, topic)
            return (found.lag, found.unread, found.free) == (lag, unread, free)

        await user.eventually(so)

    await standing(8, 8, 0)
    taken = await user.collect(topic, group, 5, invisible_ms=600_000)
    await user.ack(topic, group, taken[0])
    await standing(3, 3, 0)
    await user.hide(topic, group, taken[1].receipt, 0)
    await user.lag()
    await standing(4, 3, 1)
    progress = await user.broker.progress(group, topic)
    assert sum(one.lag for one in progress) == 4
    assert sum(one.lag for one in progress if one.retry) == 1

    async def among_everybodys() -> set[tuple[int, int, int]]:
        found = set()
        start: int | None = 0
        while start is not None:
            # What others make and delete meanwhile shifts the numbers: it may be passed over, or come twice.
            some, start = await user.broker.standings(start, 50)
            mine = (one for one in some if (one.group, one.topic) == (group, topic))
            found |= {(one.lag, one.unread, one.free) for one in mine}
        return found

    assert await user.eventually(among_everybodys) == {(4, 3, 1)}
