"""brokers.remote.transactions.end and .ends: told once, and told truly. The answers are those of a 5.5.0."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from brokers.remote.transactions.ids import Half, make_transaction_id
from brokers.remote.transactions.outcomes import TransactionOutcomes
from popgate.context import Context
from popgate.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    IllegalTransactionId,
    PreconditionFailed,
)
from popgate.model import EndTransaction, Resolution
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command

END = int(RequestCode.END_TRANSACTION)
KEY, OLDER_KEY = b"k" * 32, b"o" * 32
CONTEXT = Context(client_id="c")
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


@pytest.fixture
async def broker(make_broker: Any) -> Any:
    return await make_broker(transaction_keys=(KEY, OLDER_KEY), request_timeout_s=2.0)


@pytest.fixture
def master(asking_cluster: Cluster) -> ScriptedPeer:
    master = asking_cluster[1]["broker-a"]
    master.on(END, lambda request: request.answer(0, "not set any response code"))
    return master


@pytest.fixture
def half(clock: MovableClock) -> Half:
    return Half("broker-a", "T", "G", "01AB", 4096, 7, clock.now_ms(), 30)


def ending(half: Half, resolution: Resolution = Resolution.COMMIT, key: bytes = KEY) -> EndTransaction:
    return EndTransaction(half.topic, make_transaction_id(key, half), half.message_id, resolution)


@pytest.mark.parametrize(("resolution", "flag"), [(Resolution.COMMIT, "8"), (Resolution.ROLLBACK, "12")])
async def test_the_broker_is_told_where_the_half_message_is(
    broker: Any, master: ScriptedPeer, half: Half, resolution: Resolution, flag: str
) -> None:
    await broker.end_transaction(CONTEXT, ending(half, resolution))
    (asked,) = master.of(END)
    assert not asked.is_oneway
    assert asked.fields == {
        "topic": "T",
        "producerGroup": "G",
        "tranStateTableOffset": "7",
        "commitLogOffset": "4096",
        "commitOrRollback": flag,
        "fromTransactionCheck": "false",
        "msgId": "01AB",
        "transactionId": "01AB",
        "bname": "broker-a",
    }


async def test_scenario_05_a_second_end_through_this_replica_is_answered_as_the_first(
    broker: Any, master: ScriptedPeer, half: Half
) -> None:
    for key in (KEY, OLDER_KEY, KEY):
        await broker.end_transaction(CONTEXT, ending(half, key=key))
    with pytest.raises(IllegalTransactionId, match="was committed already"):
        await broker.end_transaction(CONTEXT, ending(half, Resolution.ROLLBACK))
    other = replace(half, message_id="other")
    await broker.end_transaction(CONTEXT, ending(other, Resolution.ROLLBACK))
    with pytest.raises(IllegalTransactionId, match="was rolled back already"):
        await broker.end_transaction(CONTEXT, ending(other))
    assert len(master.of(END)) == 2


async def test_ends_at_the_same_time_are_one(broker: Any, master: ScriptedPeer, half: Half) -> None:
    ends = [ending(half), ending(half), ending(half, Resolution.ROLLBACK), ending(half)]
    told = await asyncio.gather(
        *(broker.end_transaction(CONTEXT, end) for end in ends), return_exceptions=True
    )
    assert [type(one) for one in told] == [type(None), type(None), IllegalTransactionId, type(None)]
    assert len(master.of(END)) == 1


async def test_after_a_failure_that_did_nothing_the_next_one_is_asked_again(
    broker: Any, master: ScriptedPeer, half: Half
) -> None:
    answers = [14, 2, 0]
    master.on(END, lambda request: request.answer(answers.pop(0)))
    for _ in range(2):
        with pytest.raises(GatewayError):
            await broker.end_transaction(CONTEXT, ending(half))
    await broker.end_transaction(CONTEXT, ending(half))
    assert len(master.of(END)) == 3


async def test_an_end_without_an_answer_is_not_told_again_and_left_to_the_check(
    broker: Any, master: ScriptedPeer, half: Half, clock: MovableClock
) -> None:
    master.on(END, lambda request: None)
    first = asyncio.ensure_future(broker.end_transaction(CONTEXT, ending(half)))
    await master.until(lambda: len(master.of(END)) == 1)
    master.cut()
    with pytest.raises(BrokerTimeout):
        await first
    master.on(END, lambda request: request.answer(0))
    with pytest.raises(BrokerTimeout, match="it will ask"):
        await broker.end_transaction(CONTEXT, ending(half))
    assert len(master.of(END)) == 1
    # The check comes: the newer half message can be ended, by its own id and by the first one.
    asked = replace(half, commit_offset=9000, queue_offset=9, open_s=0, checked=True)
    await clock.run(5.0, lambda: asyncio.sleep(0))
    await broker.end_transaction(CONTEXT, ending(asked))
    await broker.end_transaction(CONTEXT, ending(half))
    assert [one.fields["commitLogOffset"] for one in master.of(END)] == ["4096", "9000"]
    assert master.of(END)[1].fields["fromTransactionCheck"] == "true"


async def test_an_end_that_is_cancelled_after_it_was_written_is_not_told_again(
    broker: Any, master: ScriptedPeer, half: Half
) -> None:
    master.on(END, lambda request: None)
    first = asyncio.ensure_future(broker.end_transaction(CONTEXT, ending(half)))
    await master.until(lambda: len(master.of(END)) == 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(BrokerTimeout):
        await broker.end_transaction(CONTEXT, ending(half))


async def test_scenario_05_the_first_id_ends_the_newer_half_message_after_a_check(
    broker: Any, master: ScriptedPeer, half: Half, clock: MovableClock
) -> None:
    broker.ends.of(replace(half, commit_offset=9000, queue_offset=9, open_s=0, checked=True))
    clock.advance(3600)
    await broker.end_transaction(CONTEXT, ending(half))
    (asked,) = master.of(END)
    assert asked.fields["commitLogOffset"] == "9000"
    assert asked.fields["tranStateTableOffset"] == "9"
    assert asked.fields["fromTransactionCheck"] == "true"


async def test_an_end_that_comes_too_late_is_refused_here_and_by_the_broker(
    broker: Any, master: ScriptedPeer, half: Half, clock: MovableClock
) -> None:
    master.on(END, lambda request: request.answer(604, "not set any response code"))
    with pytest.raises(PreconditionFailed, match="could be ended for 30 s"):
        await broker.end_transaction(CONTEXT, ending(half))
    clock.advance(30.1)
    with pytest.raises(PreconditionFailed, match="the broker asks its producer"):
        await broker.end_transaction(CONTEXT, ending(half))
    assert len(master.of(END)) == 1


@pytest.mark.parametrize(
    ("code", "remark", "error", "told"),
    [
        (1, "Find prepared transaction message failed", IllegalTransactionId, "Find prepared"),
        (1, "The producer group wrong", IllegalTransactionId, "producer group wrong"),
        (1, "The transaction state table offset wrong", IllegalTransactionId, "table offset wrong"),
        (1, "java.lang.IllegalArgumentException: newLimit < 0", GatewayError, "newLimit"),
        (11, "", BrokerUnavailable, "a slave ends no transactions"),
        (16, "no right", GatewayError, "no right"),
    ],
)
async def test_the_truth_is_told(
    broker: Any,
    master: ScriptedPeer,
    half: Half,
    code: int,
    remark: str,
    error: type[GatewayError],
    told: str,
) -> None:
    master.on(END, lambda request: request.answer(code, remark))
    with pytest.raises(error, match=told):
        await broker.end_transaction(CONTEXT, ending(half))


async def test_an_end_is_not_told_to_a_broker_that_is_gone(
    broker: Any, master: ScriptedPeer, half: Half
) -> None:
    with pytest.raises(BrokerUnavailable):
        await broker.end_transaction(CONTEXT, ending(replace(half, broker="gone")))
    await master.stop()
    with pytest.raises(BrokerUnavailable):
        await broker.end_transaction(CONTEXT, ending(half))
    await master.start()
    async with asyncio.timeout(60):
        while True:
            try:
                await broker.end_transaction(CONTEXT, ending(half))
                break
            except BrokerUnavailable:
                broker.clock.advance(0.5)  # type: ignore[attr-defined]
                await asyncio.sleep(0)
    assert len(master.of(END)) == 1


async def test_an_id_of_another_key_ends_nothing(broker: Any, master: ScriptedPeer, half: Half) -> None:
    with pytest.raises(IllegalTransactionId, match="not given out"):
        await broker.end_transaction(CONTEXT, ending(half, key=b"x" * 32))
    assert master.of(END) == []


async def test_a_timeout_that_the_broker_tells_is_one_too(
    broker: Any, master: ScriptedPeer, half: Half
) -> None:
    def flush_timeout(request: Command) -> Command:
        return request.answer(10, "")

    master.on(END, flush_timeout)
    for _ in range(2):
        with pytest.raises(BrokerTimeout):
            await broker.end_transaction(CONTEXT, ending(half))
    assert len(master.of(END)) == 1


def test_what_is_remembered_is_bounded(half: Half) -> None:
    ends = TransactionOutcomes(3)
    for number in range(5):
        ends.of(replace(half, message_id=str(number)))
    assert len(ends) == 3
    kept = ends.of(replace(half, message_id="4"))
    kept.verdict = Resolution.COMMIT
    assert ends.of(replace(half, message_id="4")) is kept
    assert "4 commit at 4096" in repr(kept)
    assert "open" in repr(ends.of(half))
    assert repr(ends) == "<TransactionOutcomes 3>"


def test_a_message_sent_twice_is_two_transactions(half: Half) -> None:
    """A client that sends again after a timeout uses its message id twice."""
    ends = TransactionOutcomes(10)
    assert ends.of(half) is not ends.of(replace(half, born_ms=half.born_ms + 1, commit_offset=5000))
    assert ends.of(half).newest is half
