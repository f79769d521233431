"""Scenarios 1 and 4: a handle outlives its process, and an acknowledgement sticks or fails aloud."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from popgate.errors import Fault
from popgate.model import GroupConfig
from popgate.pb.definition_pb2 import PUSH_CONSUMER, Code
from processors.limits import Limits


async def test_scenario_01_a_renewed_handle_finishes_its_message_after_a_crash(
    world: Any, handle: Any
) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    await client.send_one()
    (message,) = await client.receive()
    renewed = (await client.change(handle(message), 600)).receipt_handle
    after = await world.crashed(gateway)
    client = world.client(after)
    assert (await client.ack(renewed)).status.code == Code.OK
    await after.pass_s(3600)
    assert await client.receive() == []


@pytest.mark.parametrize("which", ["first", "newest"])
async def test_scenario_01_what_the_gateway_renewed_by_itself_outlives_it(
    world: Any, handle: Any, which: str
) -> None:
    gateway = await world.gateway()
    await gateway.broker.create_group(GroupConfig("g", consume_timeout_ms=60_000))
    client = world.client(gateway)
    await client.introduce(client.subscribing(PUSH_CONSUMER))
    await client.send_one()
    (message,) = await client.receive(auto_renew=True)
    first = handle(message)
    await gateway.pass_s(55)  # a handler that takes longer than the consume timeout
    (delivery,) = gateway.processor.auto_renewal.holdings.holder("client-1").deliveries
    await world.until(lambda: delivery.due_ms > (gateway.clock.monotonic() + 30) * 1000)
    (newest,) = delivery.newest.values()
    after = await world.crashed(gateway)
    await after.pass_s(30)  # beyond the time that the message was popped for
    client = world.client(after)
    assert await client.receive() == []
    assert (await client.ack(first if which == "first" else newest)).status.code == Code.OK
    await after.pass_s(3600)
    assert await client.receive() == []


async def test_scenario_01_a_renewal_whose_answer_was_lost_leaves_a_handle_that_works(
    world: Any, handle: Any
) -> None:
    gateway = await world.gateway("seed=1;drop=ChangeInvisibleDuration")
    client = world.client(gateway)
    await client.send_one()
    (message,) = await client.receive()
    with pytest.raises(grpc.aio.AioRpcError, match="lost on purpose"):
        await client.change(handle(message), 600)
    assert [(one.number, one.step) for one in gateway.faults.happened] == [(1, "ChangeInvisibleDuration")]
    after = await world.crashed(gateway)
    await after.pass_s(60)  # only the renewal, which was done, still hides it
    client = world.client(after)
    assert await client.receive() == []
    assert (await client.ack(handle(message))).status.code == Code.OK


async def test_scenario_01_nothing_is_forgotten_before_the_store_has_the_acknowledgement(
    world: Any, handle: Any
) -> None:
    gateway = await world.gateway(
        "seed=1;full=commit:after=1000000:for=60s:times=1", limits=Limits(ack_retry_s=0)
    )
    await gateway.broker.create_group(GroupConfig("g", consume_timeout_ms=600_000))
    client = world.client(gateway)
    await client.introduce(client.subscribing(PUSH_CONSUMER))
    await client.send_one()
    (message,) = await client.receive(auto_renew=True)
    gateway.arm("commit")
    answer = await client.ack(handle(message))
    assert answer.status.code == Code.HA_NOT_AVAILABLE
    assert gateway.processor.auto_renewal.holdings.held == 1
    await gateway.pass_s(70)
    assert (await client.ack(handle(message))).status.code == Code.OK
    assert gateway.processor.auto_renewal.holdings.held == 0


async def test_scenario_04_an_acknowledgement_is_tried_again_while_the_store_is_in_trouble(
    world: Any, handle: Any
) -> None:
    gateway = await world.gateway("seed=4;full=commit:after=1000000:for=1s:times=1")
    client = world.client(gateway)
    await client.send_one()
    (message,) = await client.receive()
    gateway.arm("commit")
    acking = asyncio.ensure_future(client.ack(handle(message)))
    await world.until(lambda: gateway.faults.count == 1)
    await world.until(acking.done, turn=lambda: gateway.pass_s(0.1))
    assert (await acking).status.code == Code.OK
    assert gateway.observer.failures["ack_try", Fault.BROKER_UNAVAILABLE] > 0
    assert gateway.observer.failures["ack", Fault.BROKER_UNAVAILABLE] == 0
    await gateway.pass_s(3600)
    assert await client.receive() == []


async def test_scenario_04_an_acknowledgement_that_cannot_be_done_fails_aloud_and_is_counted(
    world: Any, handle: Any
) -> None:
    gateway = await world.gateway("seed=4;full=commit:after=1000000:for=30s:times=1")
    client = world.client(gateway)
    await client.send_one()
    (message,) = await client.receive()
    gateway.arm("commit")
    acking = asyncio.ensure_future(client.ack(handle(message)))
    await world.until(lambda: gateway.faults.count == 1)
    await world.until(acking.done, turn=lambda: gateway.pass_s(0.1))
    status = (await acking).status
    assert status.code == Code.HA_NOT_AVAILABLE
    assert "cannot" in status.message
    assert sum(count for (what, _), count in gateway.observer.failures.items() if what == "ack") == 1
    await gateway.pass_s(60)
    (again,) = await client.receive()  # it said so, and so it is
    assert again.system_properties.delivery_attempt == 2
    assert (await client.ack(handle(again))).status.code == Code.OK


@pytest.mark.parametrize("seed", range(4))
async def test_scenario_04_what_was_answered_ok_never_comes_again(world: Any, handle: Any, seed: int) -> None:
    """Answers are lost and writes fail at random; the client goes by what it was told."""
    faults = f"seed={seed};fail=commit:0.1:after=4;drop=AckMessage:0.2;cancel=AckMessage:0.1"
    gateway = await world.gateway(faults, limits=Limits(ack_retry_s=0))
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1000))
    client = world.client(gateway)
    sent = set()
    for n in range(20):
        body = b"%d" % n
        try:
            answer = await client.send(client.message(body=body))
        except grpc.aio.AioRpcError:
            continue
        if answer.status.code == Code.OK:
            sent.add(body)
        else:
            await gateway.pass_s(1)
    done: set[bytes] = set()
    for _ in range(200):
        try:
            messages = await client.receive(batch_size=3)
        except AssertionError:  # refused: the store is coming back
            messages = []
        assert not done & {message.body for message in messages}
        for message in messages:
            try:
                answer = await client.ack(handle(message))
            except grpc.aio.AioRpcError:
                continue
            if answer.status.code == Code.OK:
                done.add(message.body)
        if done >= sent:
            break
        await gateway.pass_s(31)
    assert gateway.faults.count > 3
    # What was finished and not told so is finished all the same: nothing is left to come.
    await gateway.pass_s(31)
    left = {message.body for message in await client.receive()}
    assert not left & done
