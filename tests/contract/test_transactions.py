"""Transactions: seen when committed, gone when rolled back, asked about when forgotten (scenarios 5, 6)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from popgate.errors import GatewayError, IllegalTransactionId
from popgate.model import EndTransaction, HalfPlace, Resolution

EXHAUSTED = "TRANS_CHECK_MAX_TIME_TOPIC"
HOUR = 3_600_000
NOT_IDEMPOTENT = "a second end is not known from a first"
FIRST_END_COUNTS = "test_a_first_end_counts_where_ends_are_not_idempotent"
LEFT_OVER = "something of a deleted topic is left"
ASKED = "test_a_check_asks_about_a_forgotten_half_message"


async def is_asked(user, ms):
    """Let the time pass in which somebody is asked; where it cannot be moved, until somebody was."""
    if user.site.movable:
        await user.pass_ms(ms)
    else:
        await user.eventually(lambda: user.checks)
    assert user.checks


async def nobody_is_asked_again(user, asked):
    """After `asked` checks. A RocketMQ asks each 3 s, perhaps just before the transaction ended."""
    if user.site.movable:
        await user.pass_ms(HOUR)
        assert len(user.checks) == asked
        return

    async def quiet() -> bool:
        before = len(user.checks)
        await user.pass_ms(15_000)
        return len(user.checks) == before

    await user.eventually(quiet)


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
    # At another millisecond: by id and time of birth transactions are told apart.
    await user.pass_ms(2 * traits.repeats_known_ms + 2)
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
    before = user.now_ms()
    await user.send(topic, "late", transaction=True, recovery_ms=recovery)
    await user.pass_ms(recovery - 10_000)
    assert user.checks == [] or not user.site.movable  # there the machine may have stood still
    await is_asked(user, 60_000)
    assert user.asked_ms[0] >= before + recovery
    assert {c.message.body for c in user.checks} == {b"late"}


async def test_an_ended_transaction_is_not_asked_about_again(user):
    topic = await user.topic()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True, recovery_ms=10_000)
    await is_asked(user, 15_000)
    asked = len(user.checks)
    await user.roll_back(topic, half)
    await nobody_is_asked_again(user, asked)


async def test_scenario_05_a_late_commit_after_a_check_delivers_one_message(user, traits):
    topic, group = await user.topic(), await user.group()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True, recovery_ms=10_000)
    await is_asked(user, 15_000)
    check = user.checks[-1]
    await user.commit(topic, half)
    if traits.ends_are_idempotent:
        end = EndTransaction(topic, check.transaction_id, half.message_id, Resolution.COMMIT, from_check=True)
        await user.broker.end_transaction(user.context, end)
    await nobody_is_asked_again(user, len(user.checks))
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
    await is_asked(user, 120_000)
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
    everybody = {str(n).encode() for n in range(300)}

    async def all_are_asked() -> bool:
        await user.pass_ms(user.either(10_000, 2_500))
        return {c.message.body for c in user.checks} >= everybody

    await user.eventually(all_are_asked)
    assert {c.message.body for c in user.checks} == everybody
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

    async def both_are_there() -> bool:
        return await user.readable(topic) == 2

    await user.eventually(both_are_there)  # who gets the first alone gets nothing until it is acknowledged
    assert texts(await user.collect(topic, group, 2)) == ["A2", "A1"]


def _place(user, half):
    return HalfPlace(half.broker, user.producer_group, half.commit_offset, half.offset)


@pytest.mark.every_durability
async def test_a_classic_producer_ends_a_transaction_by_the_place_of_its_half_message(user, texts):
    """It knows no transaction id; and before 5.x it does not say which topic either."""
    topic, group = await user.topic(), await user.group()
    a, b, c = await user.send(topic, "a", "b", "c", transaction=True)
    assert min(a.commit_offset, a.offset, b.commit_offset) >= 0
    assert len({half.commit_offset for half in (a, b, c)}) == 3
    for half, named, resolution in (
        (a, topic, Resolution.COMMIT),
        (b, topic, Resolution.ROLLBACK),
        (c, "", Resolution.COMMIT),
    ):
        end = EndTransaction(named, "", half.message_id, resolution, place=_place(user, half))
        await user.broker.end_transaction(user.context, end)
    assert sorted(texts(await user.collect(topic, group, 2))) == ["a", "c"]
    await user.nothing(topic, group)
    again = EndTransaction(topic, "", a.message_id, Resolution.COMMIT, place=_place(user, a))
    await user.broker.end_transaction(user.context, again)
    await user.nothing(topic, group)
    with pytest.raises(IllegalTransactionId):
        await user.broker.end_transaction(user.context, replace(again, resolution=Resolution.ROLLBACK))


async def test_a_place_that_was_not_given_out_ends_nothing(user):
    topic, group = await user.topic(), await user.group()
    (half,) = await user.send(topic, "a", transaction=True)
    place = _place(user, half)
    for wrong in (
        replace(place, commit_offset=half.commit_offset + 1),
        replace(place, queue_offset=half.offset + 1),
        replace(place, commit_offset=0, queue_offset=0),
        replace(place, producer_group="of-somebody-else"),
    ):
        end = EndTransaction(topic, "", half.message_id, Resolution.COMMIT, place=wrong)
        with pytest.raises(GatewayError):
            await user.broker.end_transaction(user.context, end)
    await user.nothing(topic, group)


async def test_a_check_tells_a_classic_producer_the_place_to_end(user, properties_of):
    topic, group = await user.topic(), await user.group()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True)
    for _ in range(user.either(600, 90)):
        await user.pass_ms(1_000)
        if user.checks:
            break
    check, *_ = user.checks
    assert check.place is not None
    assert (check.place.broker, check.place.producer_group) == (half.broker, user.producer_group)
    assert properties_of(check.message)["PGROUP"] == user.producer_group
    assert properties_of(check.message)["UNIQ_KEY"] == half.message_id
    end = EndTransaction(topic, "", half.message_id, Resolution.COMMIT, from_check=True, place=check.place)
    await user.broker.end_transaction(user.context, end)
    assert (await user.one(topic, group)).body == b"a"
    await user.nothing(topic, group)
