"""Scenario 19: a message goes to the dead letters when told to, stays known, and comes back when told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from popgate.context import Context
from popgate.model import GroupConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from processors.admin.redrive import Moved

OPERATOR = Context(client_id="operator")


async def bury(client: Any, message: Any, topic: str = "t", group: str = "g") -> int:
    answer = await client.call(
        "ForwardMessageToDeadLetterQueue",
        rpc.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            delivery_attempt=message.system_properties.delivery_attempt,
            max_delivery_attempts=16,
        ),
    )
    return int(answer.status.code)


async def buried(gateway: Any, client: Any, *bodies: bytes) -> list[str]:
    """Send messages and bury each; their ids."""
    ids = [(await client.send_one(body=body)).message_id for body in bodies]
    left = len(bodies)
    while left:
        for message in await client.receive():
            assert await bury(client, message) == pb.Code.OK
            left -= 1
    return ids


async def redrive_all(gateway: Any, group: str = "g", **how: Any) -> Moved:
    """Step by step, as the command does."""
    letters, total = gateway.processor.dead_letters, Moved()
    start, until = None, []
    while True:
        step = await letters.redrive(OPERATOR, group, start=start, until=until, **how)
        total.moved += step.moved
        total.refused += step.refused
        if step.next is None:
            return total
        start, until = step.next, step.until


async def test_scenario_19_a_message_dies_at_once_when_told_to_and_its_renewal_ends_with_it(
    world: Any,
) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    await client.send_one(body=b"bad")
    stream = client.telemetry()
    settings = pb.Settings(
        client_type=pb.ClientType.PUSH_CONSUMER,
        subscription=pb.Subscription(
            group=pb.Resource(name="g"),
            subscriptions=[
                pb.SubscriptionEntry(
                    topic=pb.Resource(name="t"), expression=pb.FilterExpression(expression="*")
                )
            ],
        ),
    )
    await stream.write(rpc.TelemetryCommand(settings=settings))
    await stream.read()
    (message,) = await client.receive(auto_renew=True)
    assert gateway.processor.auto_renewal.holdings.held == 1
    assert await bury(client, message) == pb.Code.OK
    assert gateway.processor.auto_renewal.holdings.held == 0
    # Neither a late acknowledgement nor a second burial does anything, and nobody renews it.
    assert await bury(client, message) == pb.Code.INVALID_RECEIPT_HANDLE
    await gateway.pass_s(4 * 3600)
    assert await client.receive() == []
    (letter,) = await gateway.processor.dead_letters.find(OPERATOR, "g")
    assert (letter.origin, letter.message.body) == ("t", b"bad")
    stream.cancel()


async def test_scenario_19_a_burial_whose_answer_was_lost_can_be_repeated(world: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    await client.send_one(body=b"bad")
    (message,) = await client.receive()
    answers = await asyncio.gather(*(bury(client, message) for _ in range(3)))
    assert Counter(answers) == {pb.Code.OK: 1, pb.Code.INVALID_RECEIPT_HANDLE: 2}
    heaps = await gateway.processor.dead_letters.heaps(OPERATOR, "g")
    assert {topic: heap.count for topic, heap in heaps.items()} == {"t": 1}


async def test_scenario_19_a_redriven_message_comes_to_its_group_alone(world: Any, handle: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    (message_id,) = await buried(gateway, client, b"bad")
    (elsewhere,) = await client.receive(group="other")
    assert (await client.ack(handle(elsewhere), group="other")).status.code == pb.Code.OK

    waiting = asyncio.ensure_future(client.receive(wait_ms=5_000))
    await world.until(lambda: gateway.processor.figures()["waiting_receives"] == 1)
    result = await redrive_all(gateway)
    assert [one.message_id for one in result.moved] == [message_id]
    (again,) = await waiting
    assert (again.body, again.topic.name, again.system_properties.message_id) == (b"bad", "t", message_id)
    assert again.system_properties.delivery_attempt == 1
    assert again.system_properties.dead_letter_queue.topic == "t"
    assert again.user_properties["REDRIVE_COUNT"] == "1"
    for group in ("other", "newcomer"):
        if group == "newcomer":
            (first,) = await client.receive(group=group)
            assert "REDRIVE_COUNT" not in first.user_properties
        assert await client.receive(group=group) == []
    changed = await client.change(handle(again), 60)
    assert changed.status.code == pb.Code.OK
    assert (await client.ack(changed.receipt_handle)).status.code == pb.Code.OK
    await gateway.pass_s(3600)
    assert await client.receive() == []
    assert await gateway.processor.dead_letters.heaps(OPERATOR, "g") == {}


async def test_scenario_19_what_is_chosen_is_redriven_and_nothing_else(world: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    first, second, third = await buried(gateway, client, b"1", b"2", b"3")
    letters = gateway.processor.dead_letters
    dry = await letters.redrive(OPERATOR, "g", dry_run=True)
    assert [one.message_id for one in dry.moved] == [first, second, third]
    assert await client.receive() == []
    await letters.redrive(OPERATOR, "g", message_ids=[second])
    assert [m.body for m in await client.receive()] == [b"2"]
    assert (await letters.redrive(OPERATOR, "g", topic="another")).moved == []
    one = await letters.redrive(OPERATOR, "g", limit=1)
    assert ([m.message_id for m in one.moved], one.next is None) == ([first], False)
    rest = await redrive_all(gateway)
    assert [one.message_id for one in rest.moved] == [third]
    assert (await redrive_all(gateway)).moved == []


async def test_scenario_19_what_dies_again_is_not_redriven_for_ever(world: Any) -> None:
    gateway = await world.gateway()
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1))
    client = world.client(gateway)
    await buried(gateway, client, *(b"%d" % n for n in range(10)))
    step = await gateway.processor.dead_letters.redrive(OPERATOR, "g", limit=4)
    for message in await client.receive():
        assert await bury(client, message) == pb.Code.OK
    rest = 0
    while step.next is not None:
        step = await gateway.processor.dead_letters.redrive(
            OPERATOR, "g", limit=4, start=step.next, until=step.until
        )
        rest += len(step.moved)
    assert rest == 6
    assert (
        sum(heap.count for heap in (await gateway.processor.dead_letters.heaps(OPERATOR, "g")).values()) == 4
    )


@pytest.mark.parametrize("killed_after", [0, 1, 3, 7])
async def test_scenario_19_a_kill_in_the_middle_of_a_redrive_neither_loses_nor_doubles(
    world: Any, handle: Any, killed_after: int
) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    bodies = [b"%d" % n for n in range(200)]
    await buried(gateway, client, *bodies)
    steps = asyncio.ensure_future(redrive_all(gateway, limit=16))
    await world.until(lambda: steps.done() or gateway.broker.figures()["topics"] > 2 or killed_after == 0)
    for _ in range(killed_after):
        await asyncio.sleep(0)
    after = await world.crashed(gateway)
    await asyncio.gather(steps, return_exceptions=True)

    # What stands in both places, or in none, would be doubled or lost here.
    await redrive_all(after)
    client = world.client(after)
    found: Counter[bytes] = Counter()
    while messages := await client.receive():
        found.update(m.body for m in messages)
        assert (await client.ack(*(handle(m) for m in messages))).status.code == pb.Code.OK
    assert found == Counter(bodies)
    assert await after.processor.dead_letters.heaps(OPERATOR, "g") == {}


async def test_scenario_19_a_dead_letter_whose_topic_is_gone_stays_and_is_told(world: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    (message_id,) = await buried(gateway, client, b"bad")
    await gateway.broker.delete_topic("t")
    result = await redrive_all(gateway)
    assert result.moved == []
    ((letter, error),) = result.refused
    assert (letter.message_id, error.sentence) == (message_id, "topic t does not exist")
    assert len(await gateway.processor.dead_letters.find(OPERATOR, "g")) == 1
