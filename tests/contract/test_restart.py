"""A stop and a start in the middle of everything: what was answered is there, dues and attempts too."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from popgate.errors import BrokerUnavailable, GatewayError, IllegalTransactionId, NotFound

pytestmark = pytest.mark.every_durability


async def test_everything_is_as_it_was_after_a_restart(user, texts, traits):
    topic, group = await user.topic(queues=2), await user.group(max_attempts=5)
    await user.send(topic, *(f"m{n}" for n in range(6)), keys=["k"])
    acked, freed, held, failing, resting = await user.collect(
        topic, group, 5, invisible_ms=user.either(20_000, 200_000)
    )
    await user.ack(topic, group, acked)
    await user.give_back(topic, group, freed)
    await user.hide(topic, group, failing.receipt, 0)
    await user.hide(topic, group, resting.receipt, user.either(8_000, 40_000))
    (late,) = await user.send(topic, "late", delay_ms=user.either(9_000, 75_000))
    (half,) = await user.send(topic, "half", transaction=True, recovery_ms=user.either(0, 300_000))
    (gone,) = await user.send(topic, "gone", transaction=True)
    await user.roll_back(topic, gone)
    if not traits.tells_deliveries:  # nor when it changes: two come back by themselves

        async def it_rests() -> bool:
            found = await user.broker.progress(group, topic)
            return (sum(p.lag for p in found if p.retry), sum(p.lag for p in found)) == (2, 3)

        await user.eventually(it_rests)
    before = await user.broker.progress(group, topic)

    await user.restart()

    assert await user.broker.progress(group, topic) == before
    await user.lag()
    now = await user.collect(topic, group, 3, invisible_ms=user.either(60_000, 200_000))
    attempts = {m.body: m.attempt for m in now}
    assert {freed.body, failing.body} <= attempts.keys()
    assert attempts.pop(freed.body) in ((1,) if traits.returns_are_free else (1, 2))
    assert attempts.pop(failing.body) == 2
    assert list(attempts.values()) == [1]
    await user.nothing(topic, group)
    await user.lag(user.either(8_000, 5_000))
    again = await user.one(topic, group, invisible_ms=user.either(60_000, 200_000))
    assert (again.body, again.attempt) == (resting.body, 2)
    await user.precision(user.either(1_000, 20_000))
    assert texts(await user.collect(topic, group, 1)) == ["late"]
    await user.ack(topic, group, held)
    await user.commit(topic, half)
    assert texts(await user.collect(topic, group, 1)) == ["half"]
    if traits.ends_are_idempotent:
        await user.roll_back(topic, gone)
        with pytest.raises(IllegalTransactionId):
            await user.commit(topic, gone)
    with pytest.raises(NotFound):
        await user.broker.recall(user.context, topic, late.recall_handle)
    await user.ack(topic, group, acked)
    await user.nothing(topic, group)


async def test_scenario_07_a_handle_works_after_a_restart(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *"abcd")
    a, b, c, d = await user.collect(topic, group, 4, invisible_ms=user.either(20_000, 60_000))
    await user.restart()
    await user.ack(topic, group, a)
    handle = await user.hide(topic, group, b.receipt, user.either(60_000, 30_000))
    await user.dead_letter(topic, group, c.receipt)
    assert await user.give_back(topic, group, d) == 1
    await user.restart()
    assert await user.ack_handles(topic, group, handle) == [None]
    await user.lag()
    last = await user.one(topic, group)
    assert last.body == d.body
    await user.ack(topic, group, last)
    await user.lag(user.either(120_000, 31_000))
    await user.nothing(topic, group)
    await user.dead_letters(group, 1)


async def test_what_became_due_while_it_was_stopped_is_done_after_the_start(user, texts):
    topic, group = await user.topic(), await user.group(max_attempts=1)
    other = await user.group()
    await user.send(topic, "dead")
    await user.one(topic, group, invisible_ms=10_000)
    await user.one(topic, other, invisible_ms=10_000)
    await user.send(topic, "late", delay_ms=10_000)
    await user.site.stop()
    await user.site.stay_stopped(3_600)
    await user.site.start()
    await user.settle()
    assert sorted(texts(await user.collect(topic, other, 2))) == ["dead", "late"]
    assert texts(await user.collect(topic, group, 1, invisible_ms=10_000_000)) == ["late"]
    assert texts(await user.dead_letters(group, 1)) == ["dead"]


async def test_order_and_attempt_ids_survive_a_restart(user, texts, traits):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "A3", "B1", "B2")
    held_ms = user.either(20_000, 40_000)
    first = await user.collect(topic, group, 2, attempt_id="x", invisible_ms=held_ms)
    assert texts(first) == ["A1", "A2"]
    await user.restart()
    again = await user.pop(topic, group, 2, attempt_id="x", invisible_ms=held_ms)
    assert texts(again) == ["A1", "A2"]
    if traits.repeats_keep_receipts:
        assert [m.receipt for m in again] == [m.receipt for m in first]
    first = again
    if traits.order_scope.name == "MESSAGE_GROUP":
        others = await user.collect(topic, group, 2)
        assert texts(others) == ["B1", "B2"]
    await user.nothing(topic, group)
    await user.ack(topic, group, first[0])
    await user.restart()
    await user.nothing(topic, group, attempt_id="y")
    await user.lag(held_ms)
    tail = await user.collect(topic, group, 2, attempt_id="y")
    assert [(m.body, m.attempt) for m in tail] == [(b"A2", 2), (b"A3", 1)]


async def test_delayed_messages_survive_and_can_be_recalled_after_a_restart(user, texts):
    topic, group = await user.topic(), await user.group()
    delay = user.either(10_000, 20_000)
    a, _ = await user.send(topic, "a", "b", delay_ms=delay)
    await user.restart()
    assert await user.broker.recall(user.context, topic, a.recall_handle) == a.message_id
    await user.restart()
    await user.precision(delay)
    assert texts(await user.collect(topic, group, 1)) == ["b"]
    await user.nothing(topic, group)
    await user.restart()
    await user.precision(10_000)
    await user.nothing(topic, group)


async def test_checks_go_on_after_a_restart_where_they_were(user, traits):
    step = user.either(30_000, 4_000)
    topic = await user.topic()
    user.answers_checks()
    (half,) = await user.send(topic, "a", transaction=True, recovery_ms=10_000)
    for _ in range(4):
        await user.pass_ms(step)
    if not user.site.movable:
        await user.eventually(lambda: len(user.checks) >= 2)
    assert len(user.checks) >= 2
    await user.restart()
    before = len(user.checks)
    user.answers_checks()
    for _ in range(4):
        await user.pass_ms(step)
    if not user.site.movable:
        await user.eventually(lambda: len(user.checks) > before)
    assert len(user.checks) > before
    if traits.ends_are_idempotent:  # RocketMQ counts anew for a producer that came over another connection
        assert [c.checks for c in user.checks] == list(range(1, len(user.checks) + 1))
    await user.commit(topic, half)


async def test_a_transaction_id_from_before_a_restart_ends_it(user, texts, traits):
    topic, group = await user.topic(), await user.group()
    one, two = await user.send(topic, "one", "two", transaction=True)
    await user.restart()
    await user.commit(topic, one)
    await user.roll_back(topic, two)
    if traits.ends_are_idempotent:
        await user.restart()
        await user.commit(topic, one)
    assert texts(await user.collect(topic, group, 1)) == ["one"]
    await user.nothing(topic, group)


async def test_many_restarts_in_the_middle_of_consuming_lose_and_double_nothing(user, texts):
    topic, group = await user.topic(queues=3), await user.group()
    finished: list[str] = []
    rounds, hidden = user.either((60, 5_000), (12, 20_000))
    for n in range(rounds):
        await user.send(topic, f"{n}a", f"{n}b")
        messages = await user.pop(topic, group, 3, invisible_ms=hidden)
        for message in messages[:2]:
            await user.ack(topic, group, message)
            finished += texts([message])
        if n % 12 == 7:
            await user.restart()
        if n % 5 == 0:
            await user.lag(5_000)
    await user.lag(hidden)
    rest = await user.collect(topic, group, 2 * rounds - len(finished))
    assert sorted(finished + texts(rest)) == sorted(f"{n}{x}" for n in range(rounds) for x in "ab")


async def test_what_was_running_at_the_stop_was_done_or_told(user, texts):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, *(str(n) for n in range(20)))
    hidden = user.either(5_000, 20_000)
    held = await user.collect(topic, group, 20, invisible_ms=hidden)
    acking = [user.task(user.ack_handles(topic, group, m.receipt)) for m in held]
    sending = [user.task(user.send(topic, f"s{n}")) for n in range(20)]
    await asyncio.sleep(0)
    await user.restart()
    outcomes = await asyncio.gather(*acking, return_exceptions=True)
    sent = await asyncio.gather(*sending, return_exceptions=True)
    assert all(o == [None] or isinstance(o, GatewayError) for o in outcomes), outcomes
    assert all(isinstance(o, (list, GatewayError)) for o in sent), sent
    await user.lag(hidden)
    expected = {f"s{n}" for n, outcome in enumerate(sent) if isinstance(outcome, list)}
    there = set()

    async def everything() -> bool:
        while got := await user.pop(topic, group):
            there.update(texts(got))
        return there >= expected

    await user.eventually(everything)
    for message, outcome in zip(held, outcomes, strict=True):
        if outcome == [None]:
            assert message.body.decode() not in there
        else:
            assert message.body.decode() in there or isinstance(outcome, GatewayError)


async def test_a_stopped_broker_says_so(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    message = await user.one(topic, group)
    broker = user.broker
    await user.site.stop()

    async def acknowledge() -> None:
        (answer,) = await user.ack_handles(topic, group, message.receipt)
        if answer is not None:
            raise answer

    for call in (
        user.send(topic, "b"),
        user.pop(topic, group),
        acknowledge(),
        user.hide(topic, group, message.receipt, 0),
    ):
        with pytest.raises(BrokerUnavailable):
            await call
    with contextlib.suppress(BrokerUnavailable):
        assert await user.pop(topic, group, wait_ms=20_000) == []
    await broker.stop()  # a second stop is no error
    await user.site.start()
    await user.ack(topic, group, message)


async def test_a_restart_with_nothing_in_it_is_quick_to_say_the_same(user):
    await user.restart()
    await user.restart()
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a")
    await user.one(topic, group)
