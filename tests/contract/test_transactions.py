"""Transactions: seen when committed, gone when rolled back, asked about when forgotten (scenarios 5, 6)."""

from __future__ import annotations

import asyncio

import pytest

from popgate.errors import GatewayError, IllegalTransactionId
from popgate.model import EndTransaction, Resolution

EXHAUSTED = "TRANS_CHECK_MAX_TIME_TOPIC"
HOUR = 3_600_000
NOT_IDEMPOTENT = "a second end is not known from a first"
FIRST_END_COUNTS = "test_a_first_end_counts_where_ends_are_not_idempotent"
LEFT_OVER = "something of a deleted topic is left"
ASKED = "test_a_check_asks_about_a_forgotten_half_message"


@pytest.mark.every_durability
async def test_a_half_message_is_seen_when_it_is_committed(user, texts, properties_of):
    topic, group = await user.topic(), await user.group()
    (half,) = await user.send(topic, "a", transaction=True, tag="t", keys=["k"], properties={"color": "red"})
    assert half.transaction_id
    await user.nothing(topic, group)
    await user.commit(topic, half)
    message = await user.one(topic, group)
    assert (message.body, message.attempt, message.topic) == (b"a", 1, topic)
    expected = {"color": "red", "TAGS": "t", "KEYS": "k", "UNIQ_KEY": half.message_id}
    assert expected.items() <= properties_of(message).items()
    await user.ack(topic, group, message)
    await user.nothing(topic, group)


@pytest.mark.every_durability
async def test_a_half_message_is_gone_when_it_is_rolled_back(user):
    topic, group = await user.topic(), await user.group()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True)
    await user.roll_back(topic, half)
    await user.nothing(topic, group)
    if user.site.movable:
        await user.pass_ms(24 * HOUR)
        assert user.checks == []
        await user.nothing(topic, group)


async def test_a_normal_message_has_no_transaction_id(user):
    topic = await user.topic()
    (sent,) = await user.send(topic, "a")
    assert sent.transaction_id == ""


async def test_a_half_message_is_seen_in_no_way_before(user):
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    where = (queue.broker, queue.queue_id)
    (half,) = await user.send(topic, "a", transaction=True, keys=["key-of-a"])
    bounds = await user.broker.bounds(user.context, topic, *where)
    assert bounds.minimum == bounds.maximum
    by_key = {"begin_ms": 0, "end_ms": user.now_ms() + HOUR, "limit": 10}
    assert await user.broker.find_by_id(user.context, topic, half.message_id) == []
    assert await user.broker.find_by_key(user.context, topic, "key-of-a", **by_key) == []
    assert sum(p.lag for p in await user.broker.progress(group, topic)) == 0
    await user.commit(topic, half)

    async def seen() -> bool:
        by_id = await user.broker.find_by_id(user.context, topic, half.message_id)
        return (
            len(by_id) == len(await user.broker.find_by_key(user.context, topic, "key-of-a", **by_key)) == 1
        )

    await user.eventually(seen)


async def test_a_committed_message_stays_in_the_queue_it_was_sent_to(user):
    topic, group = await user.topic(queues=3), await user.group()
    for queue in await user.queues(topic):
        (half,) = await user.put(user.message(topic, transaction=True, queue=queue))
        await user.commit(topic, half)
        assert (await user.one(topic, group, queue=queue)).queue_id == queue.queue_id


async def test_an_end_repeated_the_same_way_is_done_once(user, traits):
    if not traits.ends_are_idempotent:
        user.differs(NOT_IDEMPOTENT, FIRST_END_COUNTS)
    topic, group = await user.topic(), await user.group()
    (one,) = await user.send(topic, "one", transaction=True)
    (two,) = await user.send(topic, "two", transaction=True)
    for _ in range(3):
        await user.commit(topic, one)
        await user.roll_back(topic, two)
    assert (await user.one(topic, group)).body == b"one"
    await user.nothing(topic, group)


async def test_an_end_repeated_at_the_same_time_is_done_once(user, traits):
    if not traits.ends_are_idempotent:
        user.differs(NOT_IDEMPOTENT, FIRST_END_COUNTS)
    topic, group = await user.topic(), await user.group()
    (half,) = await user.send(topic, "a", transaction=True)
    await asyncio.gather(*(user.commit(topic, half) for _ in range(5)))
    await user.one(topic, group)
    await user.nothing(topic, group)


async def test_a_first_end_counts_where_ends_are_not_idempotent(user, traits):
    if traits.ends_are_idempotent:
        user.differs("ends are idempotent", "test_an_end_repeated_the_same_way_is_done_once")
    topic, group = await user.topic(), await user.group()
    (half,) = await user.send(topic, "a", transaction=True)
    await user.commit(topic, half)
    assert (await user.one(topic, group)).body == b"a"


async def test_an_end_the_other_way_is_refused_and_says_how_it_ended(user, traits):
    topic, group = await user.topic(), await user.group()
    (one,) = await user.send(topic, "one", transaction=True)
    (two,) = await user.send(topic, "two", transaction=True)
    await user.commit(topic, one)
    await user.roll_back(topic, two)
    if traits.ends_are_idempotent:
        with pytest.raises(IllegalTransactionId, match="commit"):
            await user.roll_back(topic, one)
        with pytest.raises(IllegalTransactionId, match="roll"):
            await user.commit(topic, two)
    assert (await user.one(topic, group)).body == b"one"
    await user.nothing(topic, group)


async def test_both_ends_at_once_end_it_one_way(user, texts, traits):
    if not traits.ends_are_idempotent:
        user.differs(NOT_IDEMPOTENT, FIRST_END_COUNTS)
    topic, group = await user.topic(), await user.group()
    for first, second in ((user.commit, user.roll_back), (user.roll_back, user.commit)):
        (half,) = await user.send(topic, "a", transaction=True)
        outcomes = await asyncio.gather(first(topic, half), second(topic, half), return_exceptions=True)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], IllegalTransactionId)
    await user.one(topic, group)
    await user.nothing(topic, group)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda text: "",
        lambda text: "x",
        lambda text: "0",
        lambda text: text[:-1],
        lambda text: text + "0",
        lambda text: ("A" if text[0] != "A" else "B") + text[1:],
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text[::-1] + "z",
        lambda text: "\x00\udcff" * 10,
        lambda text: "F" * 100_000,
    ],
)
@pytest.mark.parametrize("resolution", Resolution)
async def test_a_forged_transaction_id_ends_nothing(user, wrong, resolution):
    topic, group = await user.topic(), await user.group()
    (half,) = await user.send(topic, "a", transaction=True)
    end = EndTransaction(topic, wrong(half.transaction_id), half.message_id, resolution)
    with pytest.raises(IllegalTransactionId):
        await user.broker.end_transaction(user.context, end)
    await user.nothing(topic, group)
    await user.commit(topic, half)
    assert (await user.one(topic, group)).body == b"a"


async def test_no_single_changed_character_of_an_id_is_accepted(user):
    topic, group = await user.topic(), await user.group()
    (half,) = await user.send(topic, "a", transaction=True)
    right = half.transaction_id
    for place in range(len(right)):
        for other in "0Az-":
            if other != right[place]:
                forged = right[:place] + other + right[place + 1 :]
                with pytest.raises(IllegalTransactionId):
                    await user.commit(topic, half, transaction_id=forged)
    await user.nothing(topic, group)
    await user.commit(topic, half)


async def test_an_id_of_another_topic_or_message_is_refused(user, texts):
    topic, other, group = await user.topic(), await user.topic(), await user.group()
    (a,) = await user.send(topic, "a", transaction=True)
    (b,) = await user.send(topic, "b", transaction=True)
    with pytest.raises(IllegalTransactionId):
        await user.commit(other, a)
    with pytest.raises(IllegalTransactionId):
        await user.commit("no-such-topic", a)
    with pytest.raises(IllegalTransactionId):
        await user.commit(topic, a, transaction_id=b.transaction_id)
    wrong = EndTransaction(topic, a.transaction_id, "another-message", Resolution.COMMIT)
    with pytest.raises(IllegalTransactionId):
        await user.broker.end_transaction(user.context, wrong)
    await user.nothing(topic, group)
    await user.commit(topic, a)
    await user.commit(topic, b)
    assert sorted(texts(await user.collect(topic, group, 2))) == ["a", "b"]


async def test_ids_of_two_transactions_of_one_message_id_are_different(user, traits):
    """A client that sends again after a timeout uses its message id twice."""
    topic, group = await user.topic(), await user.group()
    message = user.message(topic, "a", transaction=True)
    (one,) = await user.put(message)
    await user.pass_ms(2 * traits.repeats_known_ms)
    (two,) = await user.put(message)
    assert one.transaction_id != two.transaction_id
    await user.roll_back(topic, one)
    await user.commit(topic, two)
    assert (await user.one(topic, group)).body == b"a"
    await user.nothing(topic, group)


async def test_a_check_asks_about_a_forgotten_half_message(user):
    topic, group = await user.topic(), await user.group()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True, properties={"color": "red"})
    for _ in range(user.either(600, 90)):
        await user.pass_ms(1_000)
        if user.checks:
            break
    check, *_ = user.checks
    assert (check.topic, check.message.topic) == (topic, topic)
    assert check.producer_group == user.producer_group
    assert check.message.body == b"a"
    assert check.checks == 1
    assert check.transaction_id
    end = EndTransaction(topic, check.transaction_id, half.message_id, Resolution.COMMIT, from_check=True)
    await user.broker.end_transaction(user.context, end)
    assert (await user.one(topic, group)).body == b"a"


async def test_the_recovery_time_of_a_message_decides_when_it_is_first_asked_about(user):
    recovery = user.either(600_000, 25_000)
    topic = await user.topic()
    user.answers_checks()
    await user.send(topic, "late", transaction=True, recovery_ms=recovery)
    await user.pass_ms(recovery - 10_000)
    assert user.checks == []
    await user.pass_ms(user.either(60_000, 30_000))
    assert user.checks
    assert {c.message.body for c in user.checks} == {b"late"}


async def test_an_ended_transaction_is_not_asked_about_again(user):
    topic = await user.topic()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True, recovery_ms=10_000)
    await user.pass_ms(user.either(15_000, 30_000))
    asked = len(user.checks)
    assert asked
    await user.roll_back(topic, half)
    await user.pass_ms(user.either(HOUR, 15_000))
    assert len(user.checks) == asked


async def test_scenario_05_a_late_commit_after_a_check_delivers_one_message(user, traits):
    topic, group = await user.topic(), await user.group()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True, recovery_ms=10_000)
    await user.pass_ms(user.either(15_000, 30_000))
    check = user.checks[-1]
    await user.commit(topic, half)
    if traits.ends_are_idempotent:
        end = EndTransaction(topic, check.transaction_id, half.message_id, Resolution.COMMIT, from_check=True)
        await user.broker.end_transaction(user.context, end)
    asked = len(user.checks)
    await user.pass_ms(user.either(HOUR, 15_000))
    assert len(user.checks) == asked
    await user.ack(topic, group, await user.one(topic, group))
    await user.pass_ms(user.either(HOUR, 10_000))
    await user.nothing(topic, group)


async def test_checks_go_on_and_then_end_and_the_message_is_kept_aside(user, texts):
    user.moved_by_hand(ASKED)
    topic, group, reader = await user.topic(), await user.group(), await user.group()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True)
    for _ in range(200):
        await user.pass_ms(30_000)
    counts = [c.checks for c in user.checks]
    assert counts == list(range(1, len(counts) + 1))
    assert 2 <= len(counts) <= 50
    asked = len(counts)
    await user.pass_ms(24 * HOUR)
    assert len(user.checks) == asked
    kept = await user.one(EXHAUSTED, reader)
    assert kept.body == b"a"
    await user.nothing(EXHAUSTED, reader)
    await user.nothing(topic, group)
    with pytest.raises(IllegalTransactionId):
        await user.commit(topic, half)
    await user.nothing(topic, group)


async def test_a_check_that_nobody_could_be_asked_does_not_count(user):
    """Scenario 6: no producer for a while must not use up the checks."""
    user.moved_by_hand(ASKED)
    topic, group = await user.topic(), await user.group()
    user.answers_checks(False)
    (half,) = await user.send(topic, "a", transaction=True, recovery_ms=10_000)
    for _ in range(200):
        await user.pass_ms(30_000)
    assert all(c.checks == 1 for c in user.checks)
    user.checks.clear()
    user.answers_checks(True)
    for _ in range(10):
        await user.pass_ms(30_000)
    assert [c.checks for c in user.checks][:2] == [1, 2]
    await user.commit(topic, half)
    assert (await user.one(topic, group)).body == b"a"


async def test_scenario_06_a_half_message_that_nobody_can_be_asked_about_is_not_kept_for_ever(user, texts):
    user.moved_by_hand(ASKED)
    topic, group, reader = await user.topic(), await user.group(), await user.group()
    user.answers_checks(False)
    (half,) = await user.send(topic, "a", transaction=True)
    kept = []
    for _ in range(100):
        await user.pass_ms(2 * HOUR)
        if EXHAUSTED in {t.name for t in await user.broker.topics()}:
            kept += await user.pop(EXHAUSTED, reader)
        if kept:
            break
    assert texts(kept) == ["a"]
    with pytest.raises(IllegalTransactionId):
        await user.commit(topic, half)
    await user.nothing(topic, group)


async def test_a_check_handler_that_fails_does_not_stop_the_checks(user):
    topic, group = await user.topic(), await user.group()

    def broken(check):
        raise RuntimeError("a bug in a handler")

    user.broker.on_check(broken)
    (half,) = await user.send(topic, "a", transaction=True, recovery_ms=10_000)
    await user.pass_ms(user.either(120_000, 25_000))
    user.answers_checks()
    await user.pass_ms(user.either(120_000, 15_000))
    assert user.checks
    await user.commit(topic, half)
    assert (await user.one(topic, group)).body == b"a"


async def test_a_check_may_be_answered_while_it_is_asked(user, texts):
    """The handler of a quick producer: its end arrives before the broker has noted the check."""
    topic, group = await user.topic(), await user.group()

    def answer(check):
        end = EndTransaction(
            check.topic, check.transaction_id, half.message_id, Resolution.COMMIT, from_check=True
        )
        user.task(user.broker.end_transaction(user.context, end))
        return True

    user.broker.on_check(answer)
    (half,) = await user.send(topic, "a", transaction=True, recovery_ms=10_000)
    await user.pass_ms(user.either(15_000, 30_000))
    assert (await user.one(topic, group)).body == b"a"
    await user.pass_ms(user.either(HOUR, 10_000))


async def test_the_first_check_asks_about_many_half_messages(user):
    topic = await user.topic()
    user.answers_checks()
    sent = await user.put(*(user.message(topic, str(n), transaction=True) for n in range(300)))
    for _ in range(20):
        await user.pass_ms(user.either(10_000, 2_500))
    assert {c.message.body for c in user.checks} == {str(n).encode() for n in range(300)}
    assert len({s.transaction_id for s in sent}) == 300


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("resolution", Resolution)
async def test_a_cancelled_end_is_done_or_not_done(user, turns, resolution, traits):
    if not traits.ends_are_idempotent:
        user.differs(NOT_IDEMPOTENT, FIRST_END_COUNTS)
    topic, group = await user.topic(), await user.group()
    (half,) = await user.send(topic, "a", transaction=True)
    ending = asyncio.ensure_future(user.end(topic, half, resolution))
    for _ in range(turns):
        await asyncio.sleep(0)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    await user.settle()
    await user.end(topic, half, resolution)
    got = await user.pop(topic, group)
    assert len(got) == (1 if resolution is Resolution.COMMIT else 0)


async def test_transactions_of_a_deleted_topic_are_over(user, traits):
    if not traits.deletes_everything:
        user.differs(LEFT_OVER, "test_a_topic_made_again_is_empty_where_old_handles_may_reach_into_it")
    topic, group = await user.topic(), await user.group()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True)
    config = await user.broker.topic(topic)
    await user.broker.delete_topic(topic)
    await user.broker.create_topic(config)
    with pytest.raises(GatewayError):
        await user.commit(topic, half)
    await user.pass_ms(24 * HOUR)
    await user.nothing(topic, group)
    assert user.checks == []


async def test_an_ordered_message_of_a_transaction_takes_its_place_at_the_commit(user, texts):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    (half,) = await user.put(user.message(topic, "A1", message_group="A", transaction=True))
    await user.send_in_order(topic, "A2")
    await user.commit(topic, half)
    assert texts(await user.collect(topic, group, 2)) == ["A2", "A1"]
