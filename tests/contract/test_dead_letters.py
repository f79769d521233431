"""Dead letters: exactly once, with all they had, and never back to the group (scenarios 4, 8, 19)."""

from __future__ import annotations

import asyncio

import pytest

from popgate.errors import IllegalReceipt, ReceiptExpired
from popgate.model import GroupConfig


@pytest.mark.every_durability
async def test_a_message_whose_attempts_are_used_up_is_moved_once(user, traits, properties_of):
    topic, group = await user.topic(), await user.group(max_attempts=3)
    (sent,) = await user.send(topic, "a", tag="t", keys=["k"], properties={"color": "red"})
    for attempt in (1, 2, 3):
        message = await user.one(topic, group, invisible_ms=1_000)
        assert message.attempt == attempt
        await user.lag(1_000)
    await user.nothing(topic, group)
    (letter,) = await user.dead_letters(group, 1)
    assert letter.body == b"a"
    assert letter.attempt == 1
    properties = properties_of(letter)
    assert {"color": "red", "TAGS": "t", "KEYS": "k"}.items() <= properties.items()
    if traits.dead_letters_name_origin:
        assert properties["DLQ_ORIGIN_TOPIC"] == topic
        assert properties["DLQ_ORIGIN_MESSAGE_ID"] == sent.message_id
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)


async def test_the_origin_of_dead_letters_is_named(user, traits, properties_of):
    """The other side of the trait: where it is not named, body and properties are all there is."""
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a", properties={"color": "red"})
    await user.dead_letter(topic, group, (await user.one(topic, group)).receipt)
    properties = properties_of((await user.dead_letters(group, 1))[0])
    named = {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"} & properties.keys()
    assert len(named) == (2 if traits.dead_letters_name_origin else 0)
    assert properties["color"] == "red"


async def test_attempts_are_used_up_by_freeing_too(user, texts):
    topic, group = await user.topic(), await user.group(max_attempts=2)
    await user.send(topic, "a")
    for _ in range(2):
        await user.hide(topic, group, (await user.one(topic, group)).receipt, 0)
        await user.lag()
    await user.nothing(topic, group)
    assert texts(await user.dead_letters(group, 1)) == ["a"]


async def test_the_last_attempt_can_still_be_acknowledged(user):
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, "a")
    await user.ack(topic, group, await user.one(topic, group))
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)
    await user.dead_letters(group, 0)


async def test_the_last_attempt_can_be_held_longer(user):
    first, held = user.either((10_000, 60_000), (20_000, 45_000))
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=first)
    await user.pass_ms(user.either(9_000, 4_000))
    until = user.now_ms() + user.slow(held)
    with user.while_held(message):
        handle = await user.hide(topic, group, message.receipt, held)
    await user.pass_ms(user.either(50_000, 25_000))
    with user.in_time(until):
        await user.nothing(topic, group)
        await user.dead_letters(group, 0)
        assert await user.ack_handles(topic, group, handle) == [None]
    await user.lag(user.either(60_000, 22_000))
    await user.nothing(topic, group)
    await user.dead_letters(group, 0)


async def test_nobody_needs_to_pop_for_a_message_to_be_moved(user, texts, traits):
    if not traits.buries_unasked:
        user.differs("pops of the group bury", "test_a_message_whose_attempts_are_used_up_is_moved_once")
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, "a", "b")
    await user.collect(topic, group, 2, invisible_ms=5_000)
    await user.lag(5_000)
    assert sorted(texts(await user.dead_letters(group, 2))) == ["a", "b"]


async def test_the_handle_of_a_dead_letter_is_worth_nothing(user):
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=1_000)
    await user.lag(1_000)
    await user.dead_letters(group, 1)
    with pytest.raises(ReceiptExpired):
        await user.hide(topic, group, message.receipt, 0)
    with pytest.raises(ReceiptExpired):
        await user.dead_letter(topic, group, message.receipt)
    assert await user.give_back(topic, group, message) == 0
    await user.ack_handles(topic, group, message.receipt)
    await user.lag(10_000)
    await user.nothing(topic, group)
    await user.dead_letters(group, 1)


@pytest.mark.every_durability
async def test_scenario_19_a_dead_letter_on_request_is_moved_at_once_and_never_lost(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a", "b")
    a, b = await user.collect(topic, group, 2)
    await user.dead_letter(topic, group, a.receipt)
    await user.ack(topic, group, b)
    assert texts(await user.dead_letters(group, 1)) == texts([a])
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)
    await user.dead_letters(group, 1)


async def test_a_second_request_for_the_same_dead_letter_is_refused(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    await user.dead_letter(topic, group, message.receipt)
    with pytest.raises(ReceiptExpired):
        await user.dead_letter(topic, group, message.receipt)
    await user.dead_letters(group, 1)


async def test_two_requests_at_once_move_it_once(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    outcomes = await asyncio.gather(
        *(user.dead_letter(topic, group, message.receipt) for _ in range(3)), return_exceptions=True
    )
    assert outcomes.count(None) == 1
    assert sum(isinstance(o, ReceiptExpired) for o in outcomes) == 2
    await user.dead_letters(group, 1)


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancelled_request_moves_it_or_not(user, turns, texts):
    topic, group = await user.topic(), await user.group(max_attempts=5)
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=5_000)
    task = asyncio.ensure_future(user.dead_letter(topic, group, message.receipt))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await user.lag(5_000)
    back: list[str] = []

    async def moved_or_back() -> bool:
        back.extend(texts(await user.pop(topic, group)))
        return bool(back) or await user.buried(group) > 0

    await user.eventually(moved_or_back)
    assert back in ([], ["a"])
    await user.dead_letters(group, 0 if back else 1)


async def test_an_expired_or_false_handle_moves_nothing(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group, invisible_ms=1_000)
    await user.lag(1_000)
    with pytest.raises(ReceiptExpired):
        await user.dead_letter(topic, group, message.receipt)
    with pytest.raises(IllegalReceipt):
        await user.dead_letter(topic, group, "nothing")
    assert (await user.one(topic, group)).attempt == 2
    await user.dead_letters(group, 0)


async def test_a_delivery_that_was_cancelled_or_given_back_is_not_a_used_attempt(user, traits):
    """any-replica section 1: with one attempt allowed nobody's drain may dead-letter a message."""
    if not traits.returns_are_free:
        user.differs("a return is an attempt", "test_a_return_counts_where_the_broker_counts_it")
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, "a")
    for _ in range(5):
        message = await user.one(topic, group)
        assert message.attempt == 1
        assert await user.give_back(topic, group, message) == 1
        await user.lag(user.either(60_000, 31_000))
    await user.dead_letters(group, 0)
    await user.ack(topic, group, await user.one(topic, group))


@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
async def test_a_return_counts_where_the_broker_counts_it(user, traits, ordered):
    """It is an attempt, and all the same no dead letter as long as who gave it back remembers that."""
    if traits.returns_are_free:
        user.differs(
            "returns are free", "test_a_delivery_that_was_cancelled_or_given_back_is_not_a_used_attempt"
        )
    topic, group = await user.topic(), await user.group(max_attempts=1, ordered=ordered)
    if ordered:
        await user.send_in_order(topic, "A1")
    else:
        await user.send(topic, "a")
    for _ in range(2):
        assert await user.give_back(topic, group, await user.one(topic, group)) == 1
        await user.lag()
    message = await user.one(topic, group)
    assert message.attempt in (1, 2, 3)
    await user.ack(topic, group, message)
    await user.dead_letters(group, 0)


async def test_fewer_allowed_attempts_count_for_what_is_in_flight(user):
    topic, group = await user.topic(), await user.group(max_attempts=10)
    await user.send(topic, "a")
    for _ in range(3):
        await user.one(topic, group, invisible_ms=1_000)
        await user.lag(1_000)
    message = await user.one(topic, group, invisible_ms=1_000)
    assert message.attempt == 4
    await user.broker.update_group(GroupConfig(group, max_attempts=2))
    await user.lag(1_000)
    await user.nothing(topic, group)
    await user.dead_letters(group, 1)


async def test_dead_letters_of_several_topics_meet_in_one_topic(user, texts, traits, properties_of):
    one, two, group = await user.topic(), await user.topic(), await user.group(max_attempts=1)
    for topic, body in ((one, "a"), (two, "b")):
        await user.send(topic, body)
        await user.hide(topic, group, (await user.one(topic, group)).receipt, 0)
    await user.lag()
    letters = await user.dead_letters(group, 2)
    assert sorted(texts(letters)) == ["a", "b"]
    if traits.dead_letters_name_origin:
        assert {properties_of(m)["DLQ_ORIGIN_TOPIC"] for m in letters} == {one, two}


async def test_dead_letters_are_consumed_like_any_message(user):
    topic, group, reader = await user.topic(), await user.group(), await user.group()
    await user.send(topic, "a")
    await user.dead_letter(topic, group, (await user.one(topic, group)).receipt)
    letters = f"%DLQ%{group}"
    first = await user.one(letters, reader, invisible_ms=1_000)
    await user.lag(1_000)
    second = await user.one(letters, reader)
    assert (first.attempt, second.attempt) == (1, 2)
    await user.ack(letters, reader, second)
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(letters, reader)


async def test_a_dead_letter_can_be_found_by_its_message_id(user):
    topic, group = await user.topic(), await user.group()
    (sent,) = await user.send(topic, "a")
    await user.dead_letter(topic, group, (await user.one(topic, group)).receipt)
    found = await user.looked_up(
        lambda: user.broker.find_by_id(user.context, f"%DLQ%{group}", sent.message_id)
    )
    assert [m.body for m in found] == [b"a"]


async def test_many_messages_die_together_and_none_is_lost_or_doubled(user, texts):
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, *(str(n) for n in range(200)))
    await user.collect(topic, group, 200, invisible_ms=5_000)
    await user.lag(5_000)
    letters = await user.dead_letters(group, 200)
    assert sorted(texts(letters), key=int) == [str(n) for n in range(200)]


async def test_an_ordered_group_goes_on_behind_a_dead_letter(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True, max_attempts=2)
    await user.send_in_order(topic, "A1", "A2")
    for attempt in (1, 2):
        (head,) = await user.collect(topic, group, 1, invisible_ms=1_000)
        assert (head.body, head.attempt) == (b"A1", attempt)
        await user.lag(1_000)
    message = await user.one(topic, group)
    assert (message.body, message.attempt) == (b"A2", 1)
    await user.ack(topic, group, message)
    assert texts(await user.dead_letters(group, 1)) == ["A1"]


async def test_an_ordered_group_goes_on_behind_a_dead_letter_on_request(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    head = await user.one(topic, group)
    await user.dead_letter(topic, group, head.receipt)
    assert texts([await user.one(topic, group)]) == ["A2"]
    assert texts(await user.dead_letters(group, 1)) == ["A1"]
