"""Locks of queues."""

from __future__ import annotations

import pytest

from popgate.wire.bodies.small_bodies import MessageQueue, QueueLocks, decode_locked
from popgate.wire.frames.codes import RequestCode, ResponseCode
from protocols.remoting.consume.queue_locks import QueueLockHandler
from tests.unit.protocols.remoting.conftest import Caller, Stage

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
QUEUES = tuple(MessageQueue("orders", "popgate", number) for number in range(4))


@pytest.fixture
async def caller(stage: Stage) -> Caller:
    await stage.topic()
    return Caller(QueueLockHandler(stage.door_context))


async def locked(caller: Caller, client: str, queues: tuple[MessageQueue, ...] = QUEUES) -> set[MessageQueue]:
    answer = await caller.ok(LOCK, body=QueueLocks("readers", client, queues).encode())
    return set(decode_locked(answer.body))


async def test_one_client_has_a_queue(caller: Caller) -> None:
    assert await locked(caller, "a", QUEUES[:2]) == set(QUEUES[:2])
    assert await locked(caller, "b") == set(QUEUES[2:])
    assert await locked(caller, "a", QUEUES[:2]) == set(QUEUES[:2])


async def test_a_lock_that_is_given_up_is_free(caller: Caller) -> None:
    await locked(caller, "a")
    body = QueueLocks("readers", "a", QUEUES[:1]).encode()
    await caller.call(UNLOCK, body=body, oneway=True)
    assert await locked(caller, "b") == {QUEUES[0]}


async def test_a_lock_ends_after_a_minute(stage: Stage, caller: Caller) -> None:
    await locked(caller, "a")
    stage.clock.advance(59)
    assert await locked(caller, "b") == set()
    stage.clock.advance(2)
    assert await locked(caller, "b") == set(QUEUES)


async def test_every_client_of_a_broadcast_group_has_all_queues(stage: Stage, caller: Caller) -> None:
    await stage.group("readers", broadcast=True)
    assert await locked(caller, "a") == await locked(caller, "b") == set(QUEUES)


async def test_no_queues_are_no_locks(caller: Caller) -> None:
    assert await locked(caller, "a", ()) == set()


@pytest.mark.parametrize("code", [LOCK, UNLOCK])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"consumerGroup":"readers","clientId":"a","mqSet":[1]}',
        b'{"consumerGroup":"readers","clientId":"a","mqSet":[{"topic":"orders","brokerName":"b","queueId":"x"}]}',
        b'{"consumerGroup":"readers","clientId":"","mqSet":[]}',
        QueueLocks("readers", "a" * 256, QUEUES).encode(),
    ],
)
async def test_what_is_no_lock_is_refused(caller: Caller, code: int, body: bytes) -> None:
    assert (await caller.ask(code, body=body)).code == ResponseCode.SYSTEM_ERROR


async def test_a_group_that_cannot_be_locks_nothing(caller: Caller) -> None:
    answer = await caller.ask(LOCK, body=QueueLocks("read ers", "a", QUEUES).encode())
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
