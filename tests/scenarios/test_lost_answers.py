"""Scenarios 2 and 3: what was taken and never arrived."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import grpc
import pytest

from popgate.model import GroupConfig
from popgate.pb.definition_pb2 import PUSH_CONSUMER, Code

LATER = "after=1000000"


async def lost(receiving: Any) -> None:
    """A receive that the client sees fail."""
    with pytest.raises(grpc.aio.AioRpcError, match="on purpose"):
        await receiving


async def test_scenario_02_a_lost_answer_comes_again_for_the_same_attempt(world: Any, handle: Any) -> None:
    gateway = await world.gateway("seed=2;drop=ReceiveMessage:times=1")
    await gateway.broker.create_group(GroupConfig("o", ordered=True))
    client, other = world.client(gateway), world.client(gateway, client_id="client-2")
    for n in range(3):
        await client.send_one(body=b"%d" % n, message_group="a")
    await lost(client.receive(group="o", attempt_id="one", batch_size=2))
    assert await other.receive(group="o", attempt_id="two") == []
    again = await client.receive(group="o", attempt_id="one", batch_size=2)
    assert [m.body for m in again] == [b"0", b"1"]
    assert {m.system_properties.delivery_attempt for m in again} == {1}
    for message in again:
        assert (await client.ack(handle(message), group="o")).status.code == Code.OK
    assert [m.body for m in await other.receive(group="o", attempt_id="two")] == [b"2"]


async def test_scenario_02_the_same_attempt_comes_again_after_a_crash(world: Any, handle: Any) -> None:
    gateway = await world.gateway("seed=2;drop=ReceiveMessage:times=1")
    await gateway.broker.create_group(GroupConfig("o", ordered=True))
    client = world.client(gateway)
    for n in range(2):
        await client.send_one(body=b"%d" % n, message_group="a")
    await lost(client.receive(group="o", attempt_id="one", batch_size=1))
    client = world.client(await world.crashed(gateway))
    assert await client.receive(group="o", attempt_id="two") == []
    (again,) = await client.receive(group="o", attempt_id="one", batch_size=1)
    assert again.body == b"0"
    assert (await client.ack(handle(again), group="o")).status.code == Code.OK
    assert [m.body for m in await client.receive(group="o", attempt_id="two")] == [b"1"]


async def test_scenario_02_another_message_group_goes_on_meanwhile(world: Any) -> None:
    gateway = await world.gateway("seed=2;drop=ReceiveMessage:times=1")
    await gateway.broker.create_group(GroupConfig("o", ordered=True))
    client = world.client(gateway)
    await client.send_one(body=b"blocked", message_group="a")
    await lost(client.receive(group="o", attempt_id="one"))
    await client.send_one(body=b"free", message_group="b")
    assert [m.body for m in await client.receive(group="o", attempt_id="two")] == [b"free"]


async def test_scenario_02_the_head_is_free_again_when_its_client_is_gone(world: Any) -> None:
    """Its answer was lost, and so was the client: nobody renews what nobody holds."""
    gateway = await world.gateway("seed=2;drop=ReceiveMessage:times=1")
    await gateway.broker.create_group(GroupConfig("o", ordered=True, consume_timeout_ms=60_000))
    client, other = world.client(gateway), world.client(gateway, client_id="client-2")
    stream = await client.introduce(client.subscribing(PUSH_CONSUMER, group="o"))
    await client.send_one(body=b"head", message_group="a")
    await lost(client.receive(group="o", auto_renew=True, attempt_id="one"))
    stream.cancel()
    await world.until(lambda: not gateway.processor.clients.get("client-1").alive)
    await gateway.pass_s(6)  # the grace in which it might have come back

    async def come() -> list[Any]:
        return await other.receive(group="o", attempt_id="two")

    (message,) = await world.until(come)
    assert message.body == b"head"


async def test_scenario_02_a_client_that_lives_and_never_got_it_blocks_for_its_time_only(world: Any) -> None:
    """It reconnected after the loss and asks with other attempts: its connection proves nothing."""
    gateway = await world.gateway("seed=2;drop=ReceiveMessage:times=1")
    await gateway.broker.create_group(GroupConfig("o", ordered=True, consume_timeout_ms=60_000))
    first, again = world.client(gateway), world.client(gateway)
    await first.introduce(first.subscribing(PUSH_CONSUMER, group="o"))
    await first.send_one(body=b"head", message_group="a")
    await lost(first.receive(group="o", auto_renew=True, attempt_id="one"))
    await first.channel.close(None)
    await again.introduce(again.subscribing(PUSH_CONSUMER, group="o"))
    await gateway.pass_s(30)
    assert await again.receive(group="o", auto_renew=True, attempt_id="two") == []
    assert gateway.processor.figures()["longest_held_ms"] >= 30_000
    await gateway.pass_s(31)
    (message,) = await again.receive(group="o", auto_renew=True, attempt_id="three")
    assert message.body == b"head"


async def test_scenario_03_a_stream_that_breaks_gives_back_what_it_did_not_deliver(
    world: Any, handle: Any, arrived: Any
) -> None:
    gateway = await world.gateway("seed=3;break=ReceiveMessage:messages=2:times=1")
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1))
    client, other = world.client(gateway), world.client(gateway, client_id="client-2")
    for n in range(5):
        await client.send_one(body=b"%d" % n)
    got = await arrived(client.stream(client.receive_request(batch_size=5)))
    assert len(got) == 2
    rest = await other.receive()
    assert len(rest) == 3
    assert {m.system_properties.delivery_attempt for m in rest} == {1}
    assert not {m.body for m in got} & {m.body for m in rest}
    handles = [handle(m) for m in (*got, *rest)]
    assert (await other.ack(*handles)).status.code == Code.OK
    assert gateway.observer.freed == 3


async def test_scenario_03_a_call_that_is_cancelled_before_its_answer_holds_nothing(world: Any) -> None:
    gateway = await world.gateway("seed=3;cancel=ReceiveMessage:times=2")
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1))
    client = world.client(gateway)
    await client.send_one()
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.receive()
        assert failed.value.code() is grpc.StatusCode.CANCELLED
    (message,) = await client.receive()
    assert message.system_properties.delivery_attempt == 1


async def test_scenario_03_in_an_ordered_group_what_was_not_delivered_keeps_its_order(
    world: Any, handle: Any, arrived: Any
) -> None:
    gateway = await world.gateway("seed=3;break=ReceiveMessage:messages=1:times=1")
    await gateway.broker.create_group(GroupConfig("o", ordered=True, max_attempts=1))
    client, other = world.client(gateway), world.client(gateway, client_id="client-2")
    for n in range(4):
        await client.send_one(body=b"%d" % n, message_group="a")
    got = await arrived(client.stream(client.receive_request(group="o", attempt_id="one")))
    assert [m.body for m in got] == [b"0"]
    assert await other.receive(group="o", attempt_id="two") == []  # its head is at the first client
    assert (await client.ack(handle(got[0]), group="o")).status.code == Code.OK
    assert [m.body for m in await other.receive(group="o", attempt_id="three")] == [b"1", b"2", b"3"]


async def test_scenario_03_giving_back_goes_on_when_the_store_was_in_trouble(world: Any) -> None:
    """Even that failed: then the time of the delivery brings it back."""
    gateway = await world.gateway(f"seed=3;break=ReceiveMessage:times=1;full=commit:{LATER}:for=5s:times=1")
    await gateway.broker.create_group(GroupConfig("g"))
    client = world.client(gateway)
    await client.send_one()
    gateway.arm("commit", spare=1)  # the pop is written, what it gives back is not
    with suppress(grpc.aio.AioRpcError):
        await client.receive()
    assert [one.step for one in gateway.faults.happened] == ["ReceiveMessage", "commit"]
    assert gateway.observer.freed == 0
    await gateway.pass_s(31)

    async def come() -> list[Any]:
        with suppress(AssertionError):
            return await client.receive()
        await gateway.pass_s(1)
        return []

    (message,) = await world.until(come)
    assert message.body == b"hello"
