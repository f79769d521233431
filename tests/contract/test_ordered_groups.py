"""Ordered groups: the order of a message group, whoever consumes, whatever fails."""

from __future__ import annotations

import asyncio
import random

import pytest

from popgate.errors import IllegalReceipt
from popgate.ids.receipt import parse_receipt

BY_QUEUE = ("test_a_held_message_blocks_its_queue",)
BY_MESSAGE_GROUP = ("test_a_held_group_does_not_block_the_others_of_its_queue",)


@pytest.fixture
def by_message_group(traits, differs):
    if traits.order_scope.name != "MESSAGE_GROUP":
        differs("a held message blocks its whole queue", *BY_QUEUE)


@pytest.fixture
def by_queue(traits, differs):
    if traits.order_scope.name != "QUEUE":
        differs("only a message group is blocked", *BY_MESSAGE_GROUP)


@pytest.mark.every_durability
async def test_a_message_group_comes_in_its_order(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3", "A4")
    seen: list[str] = []
    while len(seen) < 4:
        for message in await user.collect(topic, group, 1):
            seen += texts([message])
            await user.ack(topic, group, message)
    assert seen == ["A1", "A2", "A3", "A4"]
    await user.nothing(topic, group)


async def test_one_answer_holds_a_message_group_in_order(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3")
    got = await user.collect(topic, group, 3)
    assert texts(got) == ["A1", "A2", "A3"]
    assert all(parse_receipt(m.receipt).ordered for m in got)
    await user.ack(topic, group, *got)
    await user.nothing(topic, group)


async def test_a_held_message_blocks_what_follows_it(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    held = await user.one(topic, group)
    await user.nothing(topic, group)
    await user.send_in_order(topic, "A3")
    await user.nothing(topic, group)
    await user.ack(topic, group, held)
    assert texts(await user.collect(topic, group, 2)) == ["A2", "A3"]


async def test_a_held_group_does_not_block_the_others_of_its_queue(user, texts, by_message_group):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "B1", "A3", "B2", "C1")
    assert texts(await user.collect(topic, group, 1)) == ["A1"]
    got = await user.collect(topic, group, 3)
    assert texts(got) == ["B1", "B2", "C1"]
    await user.nothing(topic, group)


async def test_a_held_message_blocks_its_queue(user, texts, by_queue):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "B1")
    held = await user.one(topic, group)
    await user.nothing(topic, group)
    await user.ack(topic, group, held)
    assert texts(await user.collect(topic, group, 1)) == ["B1"]


async def test_message_groups_do_not_wait_for_each_other_in_time(user, texts, by_message_group):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "B1", "A2", "B2")
    a, b = await user.collect(topic, group, 1), await user.collect(topic, group, 1)
    assert texts(a + b) == ["A1", "B1"]
    await user.ack(topic, group, *b)
    got = await user.collect(topic, group, 1)
    assert texts(got) == ["B2"]
    await user.ack(topic, group, *a)
    assert texts(await user.collect(topic, group, 1)) == ["A2"]


async def test_messages_without_a_message_group_keep_the_order_of_their_queue(user, texts):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send(topic, "1", "2", "3")
    held = await user.one(topic, group)
    assert held.body == b"1"
    await user.nothing(topic, group)
    await user.ack(topic, group, held)
    assert texts(await user.collect(topic, group, 2)) == ["2", "3"]


async def test_a_failed_head_comes_again_before_what_follows(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    for attempt in (1, 2, 3):
        head = await user.one(topic, group, invisible_ms=user.either(10_000, 20_000))
        assert (head.body, head.attempt) == (b"A1", attempt)
        with user.while_held(head):
            await user.nothing(topic, group)
        await user.lag(10_000)
    again = await user.collect(topic, group, 2)
    assert texts(again) == ["A1", "A2"]
    assert [m.attempt for m in again] == [4, 1]


async def test_a_failed_middle_holds_its_followers_back_but_finished_ones_stay_away(user, texts, traits):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3")
    one, two, three = await user.collect(topic, group, 3, invisible_ms=user.either(10_000, 20_000))
    with user.while_held(one, two, three):
        await user.ack(topic, group, one, three)
        await user.nothing(topic, group)
    await user.lag(10_000)
    again = await user.collect(topic, group, 1)
    assert texts(again) == ["A2"]
    assert again[0].attempt == 2
    await user.nothing(topic, group)
    await user.ack(topic, group, *again)
    await user.lag(user.either(60_000, 31_000))
    if not traits.keeps_gaps:
        rest = await user.pop(topic, group)
        assert texts(rest) in ([], ["A3"])
        await user.ack(topic, group, *rest)
    await user.nothing(topic, group)
    assert two.receipt != again[0].receipt


async def test_what_follows_a_held_middle_waits_for_it_though_its_head_is_free(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3", "A4")
    one, two, three = await user.collect(topic, group, 3, invisible_ms=600_000)
    await user.hide(topic, group, one.receipt, 0)
    await user.hide(topic, group, three.receipt, 0)
    await user.lag()
    got = await user.pop(topic, group)
    assert texts(got) in ([], ["A1"])
    await user.ack(topic, group, *got)
    await user.nothing(topic, group)
    await user.ack(topic, group, two)
    rest = ["A3", "A4"] if got else ["A1", "A3", "A4"]
    seen: list[str] = []

    async def everything() -> bool:
        some = await user.pop(topic, group)
        await user.ack(topic, group, *some)
        seen.extend(texts(some))
        return len(seen) >= len(rest)

    await user.eventually(everything)
    assert seen == rest


async def test_a_held_head_is_renewed_and_its_first_handle_still_acknowledges(user, texts):
    """any-replica section 1: ordered groups may be renewed freely, on every broker."""
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    head = await user.one(topic, group, invisible_ms=user.either(10_000, 20_000))
    until = user.now_ms() + user.slow(60_000)
    with user.while_held(head):
        await user.hide(topic, group, head.receipt, 60_000)
    await user.lag(15_000)
    with user.in_time(until):
        await user.nothing(topic, group)
        await user.ack(topic, group, head)
    assert texts(await user.collect(topic, group, 1)) == ["A2"]


async def test_a_freed_head_comes_before_what_follows(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3")
    head = await user.one(topic, group)
    await user.hide(topic, group, head.receipt, 0)
    await user.lag()
    again = await user.collect(topic, group, 3)
    assert texts(again) == ["A1", "A2", "A3"]
    assert [m.attempt for m in again] == [2, 1, 1]


async def test_a_head_that_rests_blocks_what_follows(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    head = await user.one(topic, group)
    rest = user.either(5_000, 20_000)
    with user.in_time(user.now_ms() + user.slow(rest)):
        await user.hide(topic, group, head.receipt, rest)
        await user.nothing(topic, group)
    await user.lag(user.either(5_000, 10_000))
    assert texts(await user.collect(topic, group, 2)) == ["A1", "A2"]


async def test_a_handle_of_an_older_delivery_finishes_nothing(user, texts, traits):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    old = await user.one(topic, group, invisible_ms=10_000)
    await user.lag(10_000)
    new = await user.one(topic, group)
    (answer,) = await user.ack_handles(topic, group, old.receipt)
    if traits.acks_are_checked:
        assert isinstance(answer, IllegalReceipt)
    await user.nothing(topic, group)
    await user.ack(topic, group, new)
    assert texts(await user.collect(topic, group, 1)) == ["A2"]


@pytest.mark.every_durability
async def test_scenario_02_the_same_attempt_id_gets_the_same_messages_again(user, texts, traits):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3", "A4")
    first = await user.collect(topic, group, 2, attempt_id="attempt-1")
    for _ in range(3):
        again = await user.pop(topic, group, 2, attempt_id="attempt-1")
        assert texts(again) == ["A1", "A2"]
        assert [m.attempt for m in again] == [1, 1]
        assert [m.receipt for m in again] == [m.receipt for m in first] or not traits.repeats_keep_receipts
        first = again
    await user.ack(topic, group, *first)
    assert texts(await user.collect(topic, group, 2)) == ["A3", "A4"]


async def test_a_repeated_attempt_gets_no_more_than_it_asks_for_now(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3")
    await user.collect(topic, group, 3, attempt_id="x")
    assert texts(await user.pop(topic, group, 2, attempt_id="x")) == ["A1", "A2"]
    assert texts(await user.pop(topic, group, 3, attempt_id="x")) == ["A1", "A2", "A3"]


async def test_another_attempt_id_gets_nothing_of_what_is_held(user):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    await user.collect(topic, group, 1, attempt_id="attempt-1")
    await user.nothing(topic, group, attempt_id="attempt-2")
    await user.nothing(topic, group)
    await user.nothing(topic, group, attempt_id="")


async def test_another_attempt_id_gets_the_other_message_groups(user, texts, by_message_group):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "B1")
    assert texts(await user.collect(topic, group, 1, attempt_id="one")) == ["A1"]
    assert texts(await user.collect(topic, group, 1, attempt_id="two")) == ["B1"]
    assert texts(await user.pop(topic, group, 1, attempt_id="one")) == ["A1"]
    assert texts(await user.pop(topic, group, 1, attempt_id="two")) == ["B1"]


async def test_a_repeated_attempt_gives_what_is_not_finished_yet(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3")
    one, *_ = await user.collect(topic, group, 2, attempt_id="x")
    await user.ack(topic, group, one)
    again = await user.pop(topic, group, 2, attempt_id="x")
    assert texts(again)[:1] == ["A2"]
    assert again[0].attempt == 1


async def test_a_repeated_attempt_for_everything_finished_gets_what_is_next(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    await user.ack(topic, group, *await user.collect(topic, group, 1, attempt_id="x"))
    assert texts(await user.collect(topic, group, 1, attempt_id="x")) == ["A2"]


async def test_a_repeated_attempt_whose_time_is_over_is_a_new_delivery(user, traits):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1")
    await user.collect(topic, group, 1, attempt_id="x", invisible_ms=10_000)
    await user.lag(10_000)
    again = await user.one(topic, group, attempt_id="x")
    assert again.attempt == (2 if traits.repeats_keep_receipts else 1)


async def test_a_repeated_attempt_does_not_wait(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, "A1")
    await user.collect(topic, group, 1, attempt_id="x")
    assert texts(await user.done(user.waiting(topic, group, attempt_id="x"))) == ["A1"]


async def test_a_cancelled_ordered_pop_with_an_attempt_id_can_be_repeated(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True, max_attempts=1)
    await user.send_in_order(topic, "A1", "A2")
    for turns in range(6):
        popping = asyncio.ensure_future(user.pop(topic, group, 2, attempt_id="x"))
        for _ in range(turns):
            await asyncio.sleep(0)
        popping.cancel()
        await asyncio.gather(popping, return_exceptions=True)
        await user.settle()
    got = await user.collect(topic, group, 2, attempt_id="x")
    assert texts(got) == ["A1", "A2"]
    assert [m.attempt for m in got] == [1, 1]
    await user.ack(topic, group, *got)
    await user.nothing(topic, group)


async def test_one_message_of_each_message_group_when_asked(user, texts, traits):
    """clients.md: what the ordered consumer of the Go client needs."""
    if not traits.exact_message_groups:
        user.differs(
            "message groups are not told apart",
            "test_without_exact_message_groups_the_order_holds_all_the_same",
        )
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "B1", "A3", "B2", "C1")
    rounds = []
    for _ in range(3):
        got = await user.collect(topic, group, 1, one_per_message_group=True)
        got += await user.pop(topic, group, one_per_message_group=True)
        rounds.append(sorted(texts(got)))
        await user.ack(topic, group, *got)
    assert rounds == [["A1", "B1", "C1"], ["A2", "B2"], ["A3"]]


async def test_without_exact_message_groups_the_order_holds_all_the_same(user, texts, traits):
    if traits.exact_message_groups:
        user.differs("message groups are told apart", "test_one_message_of_each_message_group_when_asked")
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2")
    seen: list[str] = []
    while len(seen) < 2:
        got = await user.collect(topic, group, 1, one_per_message_group=True)
        seen += texts(got)
        await user.ack(topic, group, *got)
    assert seen == ["A1", "A2"]


async def test_two_groups_keep_their_own_order(user, texts):
    topic = await user.topic()
    ordered, plain = await user.group(ordered=True), await user.group()
    await user.send_in_order(topic, "A1", "A2")
    await user.one(topic, ordered)
    assert sorted(texts(await user.collect(topic, plain, 2))) == ["A1", "A2"]
    await user.nothing(topic, ordered)


async def test_a_message_group_spread_over_queues_is_ordered_in_each(user, texts):
    topic, group = await user.topic(queues=2), await user.group(ordered=True)
    for queue in await user.queues(topic):
        await user.put(
            *(user.message(topic, f"{queue.queue_id}.{n}", message_group="A", queue=queue) for n in range(3))
        )
    seen: list[str] = []
    while len(seen) < 6:
        got = await user.collect(topic, group, 1)
        seen += texts(got)
        await user.ack(topic, group, *got)
    for queue in await user.queues(topic):
        mine = [t for t in seen if t.startswith(f"{queue.queue_id}.")]
        assert mine == sorted(mine)


async def test_no_more_messages_than_asked_for_and_the_rest_in_order(user, texts):
    topic, group = await user.topic(), await user.group(ordered=True)
    await user.send_in_order(topic, *(f"A{n}" for n in range(9)))
    got = await user.pop(topic, group, 4) or await user.collect(topic, group, 4)
    assert texts(got) == ["A0", "A1", "A2", "A3"]
    await user.nothing(topic, group)
    await user.ack(topic, group, *got)
    assert texts(await user.collect(topic, group, 5)) == ["A4", "A5", "A6", "A7", "A8"]


async def test_message_groups_of_any_text_are_kept_apart(user, texts, by_message_group):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    (queue,) = await user.queues(topic)
    names = ["a", "A", " a", "\u00e4", "\U0001f40d", "x" * 63, "0", "%"]
    await user.put(
        *(
            user.message(topic, f"{k}.{n}", message_group=m, queue=queue)
            for n in (1, 2)
            for k, m in enumerate(names)
        )
    )
    first = await user.collect(topic, group, len(names), one_per_message_group=True)
    assert sorted(texts(first)) == [f"{k}.1" for k in range(len(names))]
    await user.nothing(topic, group)
    await user.ack(topic, group, *first)
    assert sorted(texts(await user.collect(topic, group, len(names)))) == [
        f"{k}.2" for k in range(len(names))
    ]


async def test_a_long_queue_behind_a_held_group_is_still_served(user, by_message_group):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    (queue,) = await user.queues(topic)
    await user.put(user.message(topic, "head", message_group="A", queue=queue))
    head = await user.one(topic, group)
    for _ in range(10):
        await user.put(*(user.message(topic, "behind", message_group="A", queue=queue) for _ in range(100)))
    await user.put(user.message(topic, "free", message_group="B", queue=queue))
    assert (await user.one(topic, group)).body == b"free"
    await user.nothing(topic, group)
    await user.ack(topic, group, head)
    assert len(await user.collect(topic, group, 1_000)) == 1_000


@pytest.mark.parametrize("seed", range(4))
async def test_a_crowd_of_failing_consumers_keeps_every_order(user, seed):
    """Consumers fail, free, renew and finish at random; each message group is finished in order."""
    user.moved_by_hand(
        "test_what_follows_a_held_middle_waits_for_it_though_its_head_is_free",
        "test_order_and_attempt_ids_survive_a_restart",
    )
    chance = random.Random(seed)
    topic, group = await user.topic(queues=2), await user.group(ordered=True, max_attempts=10_000)
    queues = await user.queues(topic)
    letters = "ABCDEF"
    sent = [(letter, n) for n in range(12) for letter in letters]
    await user.put(
        *(
            user.message(topic, f"{x}{n}", message_group=x, queue=queues[ord(x) % len(queues)])
            for x, n in sent
        )
    )
    finished: dict[str, list[int]] = {letter: [] for letter in letters}
    held: list = []

    async def step() -> bool:
        held.extend(await user.pop(topic, group, chance.randint(1, 5), invisible_ms=5_000))
        chance.shuffle(held)
        for _ in range(min(len(held), 3)):
            message = held.pop()
            text = message.body.decode()
            match chance.randint(0, 9):
                case 0:
                    await user.hide(topic, group, message.receipt, 0)
                case 1:
                    await user.give_back(topic, group, message)
                case 2:
                    await user.hide(topic, group, message.receipt, 5_000)
                    held.append(message)
                case 3:
                    pass  # forgotten: its time will end
                case _:
                    await user.ack(topic, group, message)
                    finished[text[0]].append(int(text[1:]))
        if chance.random() < 0.2:
            held.clear()
            await user.lag(5_000)
        return sum(map(len, finished.values())) == len(sent)

    for _ in range(4_000):
        if await step():
            break
    for letter in letters:
        assert sorted(finished[letter]) == list(range(12))
