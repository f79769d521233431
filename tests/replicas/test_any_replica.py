"""Any replica can finish any message, before a real RocketMQ: what one began another ends.

Two gateways that know nothing of each other, in one process; `run.py` has processes that are killed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from popgate.model import MessageType
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.definition_pb2 import Code
from popgate.pb.duration_pb2 import Duration
from tests.support.waiting import PATIENCE_S, until

A, B = 0, 1


def handle(message: Any) -> str:
    return str(message.system_properties.receipt_handle)


def bodies(messages: list[Any]) -> list[bytes]:
    return sorted(message.body for message in messages)


class Reader:
    """Takes what there is through one client, and finishes it."""

    def __init__(self, pair: Any, which: int, name: str = "reader") -> None:
        self.client = pair.client(which, name)
        self.pair = pair
        self.got: list[bytes] = []

    async def take(self, wait_ms: int = 500) -> list[bytes]:
        """What came in this receive."""
        messages = await self.client.receive(self.pair.topic, self.pair.group, wait_ms=wait_ms, timeout=100)
        for message in messages:
            await acked(self.client, self.pair, message)
        found = bodies(messages)
        self.got += found
        return found

    async def take_until(self, *wanted: bytes) -> None:
        async def all_there() -> bool:
            await self.take()
            return set(wanted) <= set(self.got)

        await until(all_there)


async def acked(client: Any, pair: Any, *messages: Any) -> None:
    answer = await client.ack(*(handle(one) for one in messages), topic=pair.topic, group=pair.group)
    assert [entry.status.code for entry in answer.entries] == [Code.OK] * len(messages)


async def introduced(client: Any, pair: Any) -> Any:
    return await client.introduce(client.subscribing(pb.PUSH_CONSUMER, pair.topic, pair.group))


async def taken(client: Any, pair: Any, count: int, **more: Any) -> list[Any]:
    """So many messages, in as many receives as it takes."""
    found: list[Any] = []
    while len(found) < count:
        found += await client.receive(pair.topic, pair.group, wait_ms=20_000, timeout=100, **more)
    assert len(found) == count
    return found


async def test_scenario_01_popped_through_one_replica_and_acknowledged_through_another_nothing_returns(
    pair: Any,
) -> None:
    """Both connections end afterwards. What a client held that stayed with its replica is freed then."""
    await pair.make(MessageType.NORMAL)
    spread, faithful = pair.client(A, "spread"), pair.client(A, "faithful")
    await introduced(spread, pair)
    for body in (b"one", b"two"):
        await spread.send_one(pair.topic, body)
    held = await taken(spread, pair, 2, auto_renew=True)
    elsewhere = pair.client(B, "spread")
    await acked(elsewhere, pair, *held)
    await introduced(faithful, pair)
    for body in (b"done", b"freed"):
        await faithful.send_one(pair.topic, body)
    done, freed = await taken(faithful, pair, 2, auto_renew=True)
    await acked(faithful, pair, done)
    for client in (spread, elsewhere, faithful):
        await client.channel.close()
    reader = Reader(pair, B)
    await reader.take_until(freed.body)
    assert await reader.take(wait_ms=2_000) == []
    assert reader.got == [freed.body]


async def test_scenario_01_what_one_replica_hid_for_longer_is_finished_through_another(pair: Any) -> None:
    await pair.make(MessageType.NORMAL)
    here, there = pair.client(A), pair.client(B)
    await here.send_one(pair.topic, b"long")
    (message,) = await taken(here, pair, 1, invisible_duration=Duration(seconds=12))
    changed = await here.change(handle(message), 14, pair.topic, pair.group)
    assert changed.status.code == Code.OK
    again = await there.change(changed.receipt_handle, 16, pair.topic, pair.group)
    assert again.status.code == Code.OK
    # The first handle is worth nothing any more, and the replica that knows says so.
    answer = await here.ack(handle(message), topic=pair.topic, group=pair.group)
    assert answer.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
    answer = await here.ack(again.receipt_handle, topic=pair.topic, group=pair.group)
    assert answer.entries[0].status.code == Code.OK
    # Sent later with a time that is over later than those: whatever was to come has come before it.
    await here.send_one(pair.topic, b"marker")
    reader = Reader(pair, B)
    (marker,) = await taken(reader.client, pair, 1, invisible_duration=Duration(seconds=18))
    assert marker.body == b"marker"
    await reader.take_until(b"marker")
    assert reader.got == [b"marker"]


async def test_scenario_26_the_woken_replicas_client_vanishes_and_another_replica_delivers(pair: Any) -> None:
    await pair.make(MessageType.NORMAL)
    vanishing, patient = pair.client(A, "vanishing"), Reader(pair, B)
    await patient.client.send_one(pair.topic, b"first")
    await patient.take_until(b"first")
    sent, vanished = 0, 0
    while vanished < 3:
        assert sent < 30, "every client has its message before it can go"
        number, sent = sent, sent + 1
        gone = pair.client(A, f"vanishing-{number}")
        leaving = asyncio.ensure_future(gone.frames(pair.topic, pair.group, wait_ms=20_000, timeout=100))
        waiting = asyncio.ensure_future(patient.take(wait_ms=20_000))
        await until(lambda: both_wait(pair))
        body = f"number {number}".encode()
        await vanishing.send_one(pair.topic, body)
        await gone.channel.close()
        found = await waiting
        if not found:
            await patient.take_until(body)
        try:
            await leaving
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            vanished += 1
        # Else its answer was quicker than its end: what it held came back when its time was over.
    assert sorted(patient.got) == sorted([b"first", *(b"number %d" % number for number in range(sent))])


async def both_wait(pair: Any) -> bool:
    return all(gateway.broker.figures()["waiting_pops"] for gateway in pair.gateways)


async def all_stored(pair: Any, count: int) -> bool:
    """Whether so many can be received: a broker writes down a moment after its answer where they are."""
    broker = pair.gateways[A].broker
    queues = (await broker.route(pair.topic)).queues
    bounds = [await broker.bounds(pair.context, pair.topic, queue.broker, queue.queue_id) for queue in queues]
    return sum(one.maximum - one.minimum for one in bounds) >= count


async def test_scenario_05_a_transaction_sent_through_one_replica_is_ended_through_another(pair: Any) -> None:
    await pair.make(MessageType.TRANSACTION)
    here, there = pair.client(A), pair.client(B)
    kept = await half(here, pair, b"kept")
    dropped = await half(here, pair, b"dropped")
    assert await there.end(dropped, pb.ROLLBACK, topic=pair.topic) == Code.OK
    assert await there.end(kept, topic=pair.topic) == Code.OK
    # A second time through the same replica it is known, and done once.
    assert await there.end(kept, topic=pair.topic) == Code.OK
    assert await there.end(kept, pb.ROLLBACK, topic=pair.topic) == Code.INVALID_TRANSACTION_ID
    reader = Reader(pair, A)
    await reader.take_until(b"kept")
    assert await reader.take(wait_ms=1_000) == []
    assert reader.got == [b"kept"]


async def test_scenario_05_a_late_commit_after_a_check_makes_no_second_message(pair: Any) -> None:
    """The producer says it late, through a replica that knows of no check, and to the check as well."""
    await pair.make(MessageType.TRANSACTION)
    here, there = pair.client(A), pair.client(B)
    stream = await here.introduce(here.producing(pair.topic))
    entry = await half(here, pair, b"once", recovery_s=1)
    asked = (await asyncio.wait_for(stream.read(), PATIENCE_S)).recover_orphaned_transaction_command
    assert asked.message.body == b"once"
    assert await there.end(entry, topic=pair.topic) == Code.BAD_REQUEST  # too late: it is being asked
    entry.transaction_id = asked.transaction_id
    assert await here.end(entry, source=pb.SOURCE_SERVER_CHECK, topic=pair.topic) == Code.OK
    assert await here.end(entry, topic=pair.topic) == Code.OK
    reader = Reader(pair, B)
    await reader.take_until(b"once")
    assert await reader.take(wait_ms=5_000) == []
    assert reader.got == [b"once"]


async def half(client: Any, pair: Any, body: bytes, recovery_s: int = 300) -> Any:
    return await client.send_one(
        pair.topic,
        body,
        message_type=pb.MessageType.TRANSACTION,
        orphaned_transaction_recovery_duration=Duration(seconds=recovery_s),
    )


async def test_scenario_07_a_replica_that_never_saw_a_client_serves_it(pair: Any) -> None:
    """Its settings, its subscription and its telemetry stream are elsewhere."""
    await pair.make(MessageType.NORMAL)
    known, unknown = pair.client(A), pair.client(B)
    await introduced(known, pair)
    await unknown.send_one(pair.topic, b"hello")
    heartbeat = rpc.HeartbeatRequest(client_type=pb.PUSH_CONSUMER, group=pb.Resource(name=pair.group))
    assert (await unknown.call("Heartbeat", heartbeat)).status.code == Code.OK
    (message,) = await taken(unknown, pair, 1, auto_renew=True)
    changed = await unknown.change(handle(message), 30, pair.topic, pair.group)
    assert changed.status.code == Code.OK
    answer = await known.ack(changed.receipt_handle, topic=pair.topic, group=pair.group)
    assert answer.entries[0].status.code == Code.OK
    ended = rpc.NotifyClientTerminationRequest(group=pb.Resource(name=pair.group))
    assert (await unknown.call("NotifyClientTermination", ended)).status.code == Code.OK


async def test_scenario_02_an_ordered_receive_is_repeated_through_another_replica(pair: Any) -> None:
    await pair.make(MessageType.FIFO, ordered=True)
    here, there = pair.client(A), pair.client(B)
    for number in range(3):
        await here.send_one(
            pair.topic, b"%d" % number, message_type=pb.MessageType.FIFO, message_group="lane"
        )
    await until(lambda: all_stored(pair, 3))
    first = await here.receive(
        pair.topic, pair.group, wait_ms=20_000, timeout=100, attempt_id="attempt", batch_size=2
    )
    assert first
    again = await there.receive(pair.topic, pair.group, attempt_id="attempt", batch_size=2)
    assert [one.body for one in again] == [one.body for one in first]
    assert [one.system_properties.delivery_attempt for one in again] == [1] * len(again)
    assert await there.receive(pair.topic, pair.group, attempt_id="another") == []
    # Renewed through one replica, the handle that came first finishes through the other.
    renewed = await there.change(handle(again[0]), 20, pair.topic, pair.group)
    assert renewed.status.code == Code.OK
    await acked(here, pair, *again)
    reader = Reader(pair, A)
    rest = [b"%d" % number for number in range(len(first), 3)]
    await reader.take_until(*rest)
    assert await reader.take(wait_ms=1_000) == []
    assert reader.got == rest
