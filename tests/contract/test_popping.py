"""Popping: what is taken is hidden, from this group only, and no more than was asked for."""

from __future__ import annotations

import asyncio

import pytest

from popgate.errors import Forbidden, GatewayError, GroupNotFound, TopicNotFound
from popgate.ids.receipt import parse_receipt
from popgate.model import GroupConfig, Permission, StartFrom, TopicConfig


@pytest.mark.every_durability
async def test_a_popped_message_is_hidden_from_its_group(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    before = user.now_ms()
    message = await user.one(topic, group, invisible_ms=20_000)
    assert message.attempt == 1
    assert message.receipt
    assert before + 15_000 < message.invisible_until_ms < user.now_ms() + 25_000
    await user.nothing(topic, group)


async def test_every_group_gets_every_message(user):
    topic = await user.topic()
    groups = [await user.group() for _ in range(3)]
    await user.send(topic, "a")
    for group in groups:
        message = await user.one(topic, group)
        await user.ack(topic, group, message)
        await user.nothing(topic, group)


async def test_an_empty_topic_gives_an_empty_answer(user):
    topic, group = await user.topic(), await user.group()
    await user.nothing(topic, group)


@pytest.mark.parametrize("at_most", [1, 2, 5])
async def test_no_more_messages_than_asked_for(user, at_most):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *(str(n) for n in range(12)))
    seen = 0
    while seen < 12:
        taken = await user.pop(topic, group, at_most)
        assert len(taken) <= at_most
        seen += len(taken)
        if not taken:
            taken = await user.collect(topic, group, 1)
            seen += 1
    await user.nothing(topic, group)


async def test_no_more_bytes_than_asked_for_but_always_one_message(user):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, *("x" * 50_000 for _ in range(4)))
    first = await user.pop(topic, group, max_bytes=1_000) or await user.collect(topic, group, 1)
    assert len(first) == 1
    second = await user.pop(topic, group, max_bytes=130_000) or await user.collect(topic, group, 1)
    assert 1 <= len(second) <= 2
    rest = 4 - 1 - len(second)
    assert len(await user.collect(topic, group, rest)) == rest


async def test_a_pop_that_names_a_queue_gets_nothing_of_the_others(user):
    topic, group = await user.topic(queues=3), await user.group()
    queues = await user.queues(topic)
    for queue in queues:
        await user.put(*(user.message(topic, f"q{queue.queue_id}", queue=queue) for _ in range(2)))
    got = await user.collect(topic, group, 2, queue=queues[1])
    assert {m.queue_id for m in got} == {queues[1].queue_id}
    await user.nothing(topic, group, queue=queues[1])
    rest = await user.collect(topic, group, 4)
    assert {m.queue_id for m in rest} == {queues[0].queue_id, queues[2].queue_id}


async def test_a_queue_that_does_not_exist_is_refused(user):
    topic, group = await user.topic(queues=2), await user.group()
    request = user.request(topic, group, queue=(await user.queues(topic))[0])
    request.queue_id = 77
    with pytest.raises(GatewayError):
        await user.broker.pop(user.context, request)


async def test_unknown_topics_and_groups_are_told_apart(user):
    topic, group = await user.topic(), await user.group()
    with pytest.raises(TopicNotFound):
        await user.pop("contract-no-such-topic", group)
    with pytest.raises(GroupNotFound):
        await user.pop(topic, "no-such-group")


@pytest.mark.parametrize("permission", [Permission.WRITE, Permission.NONE])
async def test_a_topic_that_is_not_readable_is_forbidden(user, permission):
    topic, group = await user.topic(permission=permission), await user.group()
    with pytest.raises(Forbidden):
        await user.pop(topic, group)


async def test_a_group_that_is_not_enabled_is_forbidden_until_it_is(user):
    topic, group = await user.topic(), await user.group(consume_enabled=False)
    await user.send(topic, "a")
    with pytest.raises(Forbidden):
        await user.pop(topic, group)
    await user.broker.update_group(GroupConfig(group))
    assert (await user.one(topic, group)).body == b"a"


async def test_what_was_sent_before_the_group_existed_comes_when_it_starts_from_the_first(user):
    topic = await user.topic()
    await user.send(topic, "old")
    group = await user.group()
    assert (await user.one(topic, group)).body == b"old"


async def test_handles_are_different_and_name_their_message(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *(str(n) for n in range(20)))
    got = await user.collect(topic, group, 20)
    assert len({m.receipt for m in got}) == 20
    for message in got:
        receipt = parse_receipt(message.receipt)
        assert receipt.broker == message.broker
        assert receipt.queue_id == message.queue_id
        assert receipt.offset == message.offset
        assert not receipt.ordered


@pytest.mark.every_durability
async def test_many_consumers_at_once_hold_nothing_twice(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *(str(n) for n in range(200)))

    async def consume() -> list[bytes]:
        mine: list[bytes] = []
        while taken := await user.pop(topic, group, 7):
            mine += [m.body for m in taken]
        return mine

    taken = [body for some in await asyncio.gather(*(consume() for _ in range(10))) for body in some]
    taken += [m.body for m in await user.collect(topic, group, 200 - len(taken))]
    assert sorted(taken, key=int) == [str(n).encode() for n in range(200)]


async def test_no_queue_starves_while_another_is_full(user):
    topic, group = await user.topic(queues=4), await user.group()
    queues = await user.queues(topic)
    await user.put(*(user.message(topic, "many", queue=queues[0]) for _ in range(300)))
    for queue in queues[1:]:
        await user.put(user.message(topic, "few", queue=queue))
    few = 0
    for _ in range(60):
        for message in await user.pop(topic, group, 5):
            few += message.body == b"few"
            await user.ack(topic, group, message)
        if few == 3:
            break
    assert few == 3


async def test_redeliveries_do_not_starve_new_messages_nor_the_other_way_round(user):
    topic, group = await user.topic(queues=1), await user.group(max_attempts=1000)
    await user.send(topic, *(f"old-{n}" for n in range(20)))
    for message in await user.collect(topic, group, 20):
        await user.hide(topic, group, message.receipt, 0)
    await user.send(topic, *(f"new-{n}" for n in range(20)))
    await user.lag()
    seen: set[bytes] = set()
    for _ in range(100):
        # For longer than it takes a slow broker to hide eight.
        for message in await user.pop(topic, group, 8, invisible_ms=600_000):
            seen.add(message.body)
            if message.body.startswith(b"old"):
                await user.hide(topic, group, message.receipt, 0)  # fails for ever
            else:
                await user.ack(topic, group, message)
        if len(seen) == 40:
            break
        await user.lag()
    assert len(seen) == 40


@pytest.mark.parametrize("at_most", [1, 2, 3, 6])
async def test_returned_failed_and_new_messages_together_are_no_more_than_asked_for(user, at_most):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, *(str(n) for n in range(12)))
    first = await user.collect(topic, group, 12)
    for number, message in enumerate(first):
        if number < 3:
            await user.give_back(topic, group, message)
        else:
            await user.hide(topic, group, message.receipt, 0)
    await user.send(topic, *(str(n) for n in range(12, 18)))
    await user.lag()
    seen: list[bytes] = []

    async def all_there() -> bool:
        got = await user.pop(topic, group, at_most, invisible_ms=600_000)
        assert len(got) <= at_most
        seen.extend(m.body for m in got)
        return len(seen) >= 18

    await user.eventually(all_there)
    assert len(set(seen)) == len(seen) == 18


async def test_a_topic_that_grows_loses_nothing_of_its_new_queues(user, texts):
    topic = await user.topic(queues=1)
    first, last = await user.group(), await user.group(start_from=StartFrom.LAST)
    await user.nothing(topic, first)
    await user.nothing(topic, last)
    await user.broker.update_topic(TopicConfig(topic, read_queues=3, write_queues=3))
    queues = await user.queues(topic)
    assert len(queues) == 3
    for queue in queues:
        await user.put(user.message(topic, f"q{queue.queue_id}", queue=queue))
    expected = sorted(f"q{q.queue_id}" for q in queues)
    assert sorted(texts(await user.collect(topic, first, 3))) == expected
    assert sorted(texts(await user.collect(topic, last, 3))) == expected


@pytest.mark.parametrize("turns", range(12))  # through a socket the answer is there after nine or ten
async def test_a_cancelled_pop_holds_nothing(user, traits, turns):
    topic, group = await user.topic(), await user.group(max_attempts=1 if traits.returns_are_free else 16)
    await user.send(topic, "a", "b")
    popping = asyncio.ensure_future(user.pop(topic, group))
    for _ in range(turns):
        await asyncio.sleep(0)
    popping.cancel()
    (outcome,) = await asyncio.gather(popping, return_exceptions=True)
    if not isinstance(outcome, BaseException):
        assert len(outcome) == 2  # it was faster than the cancellation: the caller has them
        return
    await user.settle()
    again = await user.collect(topic, group, 2)
    if traits.returns_are_free:
        assert [m.attempt for m in again] == [1, 1]
    await user.ack(topic, group, *again)
    await user.lag(user.either(60_000, 31_000))
    await user.nothing(topic, group)
    await user.dead_letters(group, 0)
