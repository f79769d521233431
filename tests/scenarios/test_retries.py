"""Scenario 8: retries lose nothing and double nothing, whatever happens in the middle."""

from __future__ import annotations

import random
from typing import Any

import grpc
import pytest

from popgate.model import GroupConfig, TopicConfig
from popgate.pb.definition_pb2 import Code
from processors.limits import Limits

CODES_OF_A_DEAD_HANDLE = (Code.INVALID_RECEIPT_HANDLE, Code.TOPIC_NOT_FOUND)


@pytest.mark.parametrize("ordered", [False, True])
async def test_scenario_08_of_a_partly_acknowledged_batch_the_rest_comes_again_once(
    world: Any, handle: Any, ordered: bool
) -> None:
    gateway = await world.gateway()
    await gateway.broker.create_group(GroupConfig("g", ordered=ordered))
    client = world.client(gateway)
    for n in range(6):
        await client.send_one(body=b"%d" % n, message_group=f"lane-{n}")
    batch = {m.body: handle(m) for m in await client.receive()}
    assert len(batch) == 6
    acked = (b"0", b"3", b"4")
    answer = await client.ack(*(batch[body] for body in acked))
    assert answer.status.code == Code.OK
    await gateway.pass_s(31)
    again = await client.receive()
    assert sorted(m.body for m in again) == [b"1", b"2", b"5"]
    assert {m.system_properties.delivery_attempt for m in again} == {2}
    late = await client.ack(*(batch[m.body] for m in again))  # the handles of the first time
    assert {entry.status.code for entry in late.entries} == {Code.INVALID_RECEIPT_HANDLE}
    assert await client.receive() == []
    assert (await client.ack(*(handle(m) for m in again))).status.code == Code.OK
    await gateway.pass_s(3600)
    assert await client.receive() == []


async def test_scenario_08_handles_of_a_topic_made_again_touch_nothing_in_it(world: Any, handle: Any) -> None:
    gateway = await world.gateway()
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    client = world.client(gateway)
    await client.send_one(body=b"old")
    (old,) = await client.receive()
    await gateway.broker.delete_topic("t")
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    after = await world.crashed(gateway)
    client = world.client(after)
    await client.send_one(body=b"new")
    assert (await client.ack(handle(old))).status.code in CODES_OF_A_DEAD_HANDLE
    (new,) = await client.receive()
    assert (new.body, new.system_properties.delivery_attempt) == (b"new", 1)
    assert (await client.ack(handle(old))).status.code in CODES_OF_A_DEAD_HANDLE
    await after.pass_s(31)
    (again,) = await client.receive()
    assert (again.body, again.system_properties.delivery_attempt) == (b"new", 2)


async def test_scenario_08_the_last_attempt_becomes_one_dead_letter_although_writes_fail(world: Any) -> None:
    gateway = await world.gateway("seed=8;full=commit:after=1000000:for=3s:times=3")
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1))
    client = world.client(gateway)
    for n in range(3):
        await client.send_one(body=b"%d" % n)
    assert len(await client.receive()) == 3
    gateway.arm("commit")
    await gateway.pass_s(200)
    after = await world.crashed(gateway)
    await after.pass_s(5)
    dead = await world.client(after).receive("%DLQ%g", "undertaker")
    assert sorted(m.body for m in dead) == [b"0", b"1", b"2"]
    assert await world.client(after).receive() == []


@pytest.mark.parametrize("seed", range(6))
async def test_scenario_08_nothing_is_lost_or_doubled_through_failures_and_crashes(
    world: Any, handle: Any, arrived: Any, seed: int
) -> None:
    """Random receives, acknowledgements, refusals and crashes, with faults by seed, against a set."""
    chance = random.Random(seed)
    faults = f"seed={seed};fail=commit:0.15:after=10;drop=AckMessage:0.2;break=ReceiveMessage:0.3:messages=1"
    limits = Limits(ack_retry_s=0, min_invisible_ms=0)
    gateway = await world.gateway(faults, limits=limits)
    await gateway.broker.create_topic(TopicConfig("t", read_queues=2, write_queues=2))
    await gateway.broker.create_group(GroupConfig("g", max_attempts=100_000))
    client = world.client(gateway)
    number, sent, unsure, done, maybe = 0, set[bytes](), set[bytes](), set[bytes](), set[bytes]()
    happened = 0

    async def send() -> None:
        nonlocal number
        number += 1
        body = b"%d" % number
        answer = await client.send(client.message(body=body))
        (sent if answer.status.code == Code.OK else unsure).add(body)

    async def consume() -> None:
        for message in await arrived(client.stream(client.receive_request(batch_size=4))):
            assert message.body not in done, "finished, and yet it came again"
            assert message.body in sent | unsure
            if chance.random() < 0.6:
                try:
                    answer = await client.ack(handle(message))
                except grpc.aio.AioRpcError:
                    maybe.add(message.body)
                    continue
                if answer.status.code == Code.OK:
                    done.add(message.body)

    for step in range(60):
        await (send() if chance.random() < 0.5 else consume())
        if chance.random() < 0.3:
            await gateway.pass_s(chance.choice([0.3, 5, 31]))
        if step % 20 == 19:
            happened += gateway.faults.count
            gateway = await world.crashed(gateway, f"{faults};fail=open:0.2", limits=limits)
            client = world.client(gateway)
    last = await world.crashed(gateway)
    client = world.client(last)
    await last.pass_s(31)
    left: list[bytes] = []
    while messages := await client.receive():
        left += [message.body for message in messages]
        assert (await client.ack(*(handle(m) for m in messages))).status.code == Code.OK
    assert len(left) == len(set(left))
    assert not done & set(left)
    assert sent <= done | maybe | set(left)
    assert happened > 3
