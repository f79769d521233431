"""Scenarios 1 to 4 and 8 before a real RocketMQ: handles, lost answers, acknowledgements, retries."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import grpc
import pytest

from popgate.errors import Fault
from popgate.receipt import parse_receipt
from popgate.wire.codes import RequestCode
from processors.limits import Limits
from protocols.grpc.pb.definition_pb2 import PUSH_CONSUMER, Code
from protocols.grpc.pb.duration_pb2 import Duration

pytestmark = pytest.mark.timeout(600)  # the first waits until all of them have begun

ACKS = (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)
SHORT = Duration(seconds=10)
"""The shortest invisible time that a receive may ask for."""
LONG = Duration(seconds=600)


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def attempts(messages: list[Any]) -> set[int]:
    return {message.system_properties.delivery_attempt for message in messages}


async def sent(client: Any, topic: str, count: int, **system: Any) -> list[bytes]:
    wanted = [b"%d" % number for number in range(count)]
    for body in wanted:
        await client.send_one(topic, body, **system)
    return wanted


async def nothing_more(client: Any, topic: str, group: str, seconds: float) -> None:
    """Nothing comes for so long, and then once more."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert await client.receive(topic, group, wait_ms=2_000) == []


# 1. a handle outlives the process that gave it


async def test_scenario_01_before_a_cluster_another_process_finishes_what_a_killed_one_gave_or_renewed(
    live: Any, handle: Any
) -> None:
    topic, group = await live.topic(), await live.group()
    gateway, other = await live.process(), await live.survivor()
    client, next_one = live.client(gateway), live.client(other)
    await sent(client, topic, 4)
    messages = await client.gather(topic, group, 4, invisible_duration=SHORT)
    renewed = [(await client.change(handle(one), 15, topic, group)).receipt_handle for one in messages[:2]]
    await live.killed(gateway)
    acked = await next_one.ack(*renewed, *map(handle, messages[2:]), topic=topic, group=group)
    assert [entry.status.code for entry in acked.entries] == [Code.OK] * 4
    await nothing_more(next_one, topic, group, 20)


async def test_scenario_01_before_a_cluster_a_push_consumer_has_the_whole_consume_timeout(
    live: Any, handle: Any
) -> None:
    """Nothing is renewed that need not be, so that the first handle stays the only one."""
    topic, group = await live.topic(), await live.group(consume_timeout_ms=60_000)
    gateway, other = await live.gateway(), live.client(await live.survivor())
    client = live.client(gateway)
    await client.introduce(client.subscribing(PUSH_CONSUMER, topic, group))
    await sent(client, topic, 1)
    [message] = await client.gather(topic, group, 1, auto_renew=True)
    assert parse_receipt(handle(message)).invisible_ms == 60_000
    await gateway.stop()
    await nothing_more(other, topic, group, 20)
    assert await other.settle([message], topic, group) == [Code.OK]


# 2. an ordered queue heals after a lost answer


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_scenario_02_before_a_cluster_the_same_attempt_gets_what_was_lost(
    live: Any, where: str
) -> None:
    topic, group = await live.topic("FIFO"), await live.group(ordered=True)
    gateway = await live.gateway("seed=2;drop=ReceiveMessage:times=1")
    client, other = live.client(gateway), live.client(await live.survivor())
    await sent(client, topic, 3, message_group="a")
    asked = {"attempt_id": "one", "batch_size": 2, "wait_ms": 5_000, "invisible_duration": LONG}
    with pytest.raises(grpc.aio.AioRpcError, match="on purpose"):
        await client.receive(topic, group, **asked)
    assert await other.receive(topic, group, attempt_id="two") == []
    heir = client if where == "here" else other
    again = await heir.receive(topic, group, **asked)
    assert (bodies(again), attempts(again)) == ([b"0", b"1"], {1})
    assert await heir.settle(again, topic, group) == [Code.OK] * 2
    assert bodies(await other.gather(topic, group, 1, attempt_id="three")) == [b"2"]


# 3. what was not delivered is there again at once


async def test_scenario_03_before_a_cluster_a_stream_that_breaks_gives_back_what_it_did_not_deliver(
    live: Any, arrived: Any
) -> None:
    topic, group = await live.topic(queues=1), await live.group()
    gateway = await live.gateway("seed=3;break=ReceiveMessage:messages=2:times=1")
    client, other = live.client(gateway), live.client(await live.survivor())
    everything = await sent(client, topic, 5)
    request = client.receive_request(topic, group, wait_ms=5_000, invisible_duration=LONG)
    got = await arrived(client.stream(request))
    rest = await other.gather(topic, group, 5 - len(got))
    assert sorted(bodies([*got, *rest])) == everything
    assert gateway.observer.freed == len(rest)
    assert await other.settle([*got, *rest], topic, group) == [Code.OK] * 5


async def test_scenario_03_before_a_cluster_a_call_that_is_cancelled_before_its_answer_holds_nothing(
    live: Any,
) -> None:
    """With one attempt allowed, too: nobody has seen the message, so it is no dead letter."""
    topic, group = await live.topic(), await live.group(max_attempts=1)
    client = live.client(await live.gateway("seed=3;cancel=ReceiveMessage:times=2"))
    await sent(client, topic, 1)
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.receive(topic, group, wait_ms=10_000, invisible_duration=LONG)
        assert failed.value.code() is grpc.StatusCode.CANCELLED
    assert bodies(await client.gather(topic, group, 1)) == [b"0"]


async def test_scenario_03_before_a_cluster_what_was_not_delivered_keeps_its_order(
    live: Any, arrived: Any
) -> None:
    topic, group = await live.topic("FIFO"), await live.group(ordered=True)
    client = live.client(await live.gateway("seed=3;break=ReceiveMessage:messages=1:times=1"))
    other = live.client(await live.survivor())
    everything = await sent(client, topic, 4, message_group="a")
    request = client.receive_request(topic, group, wait_ms=5_000, attempt_id="one", invisible_duration=LONG)
    got = await arrived(client.stream(request))
    assert bodies(got) == [b"0"]
    assert await client.settle(got, topic, group) == [Code.OK]
    found: list[bytes] = []

    async def all_came() -> bool:
        messages = await other.receive(topic, group, wait_ms=2_000)
        found.extend(bodies(messages))
        if messages:
            await other.settle(messages, topic, group)
        return len(found) >= 3

    await live.until(all_came)
    assert found == everything[1:]


# 4. an acknowledgement sticks, or fails aloud


async def test_scenario_04_before_a_cluster_an_acknowledgement_is_tried_again_while_a_broker_is_cut_off(
    live: Any,
) -> None:
    topic, group = await live.topic(), await live.group()
    gateway = await live.gateway()
    client = live.client(gateway)
    await sent(client, topic, 1)
    messages = await client.gather(topic, group, 1, invisible_duration=SHORT)
    gateway.watch()
    gateway.refuse(*ACKS, times=2)
    assert await client.settle(messages, topic, group) == [Code.OK]
    assert gateway.observer.failures["ack_try", Fault.BROKER_UNAVAILABLE] > 0
    assert gateway.observer.failures["ack", Fault.BROKER_UNAVAILABLE] == 0
    await nothing_more(client, topic, group, 18)


async def test_scenario_04_before_a_cluster_an_acknowledgement_that_cannot_be_done_fails_aloud(
    live: Any, handle: Any
) -> None:
    topic, group = await live.topic(), await live.group()
    gateway = await live.gateway(limits=Limits(ack_retry_s=0))
    client = live.client(gateway)
    await sent(client, topic, 1)
    messages = await client.gather(topic, group, 1, invisible_duration=SHORT)
    gateway.watch()
    gateway.refuse(*ACKS, times=1)
    refused = await client.ack(handle(messages[0]), topic=topic, group=group)
    assert refused.status.code == Code.HA_NOT_AVAILABLE
    assert sum(count for (what, _), count in gateway.observer.failures.items() if what == "ack") == 1
    again = await client.gather(topic, group, 1)  # it said so, and so it is
    assert attempts(again) == {2}
    assert await client.settle(again, topic, group) == [Code.OK]


# 8. retries lose nothing and double nothing


async def test_scenario_08_before_a_cluster_of_a_partly_acknowledged_batch_the_rest_comes_again_once(
    live: Any,
) -> None:
    topic, group = await live.topic(queues=1), await live.group()
    client = live.client(await live.survivor())
    await sent(client, topic, 6)
    batch = await client.gather(topic, group, 6, invisible_duration=SHORT)
    kept = [one for one in batch if one.body in (b"0", b"3", b"4")]
    rest = [one for one in batch if one not in kept]
    assert await client.settle(kept, topic, group) == [Code.OK] * 3
    again = await client.gather(topic, group, 3)
    assert (sorted(bodies(again)), attempts(again)) == ([b"1", b"2", b"5"], {2})
    assert await client.settle(rest, topic, group) == [Code.INVALID_RECEIPT_HANDLE] * 3  # of the first time
    assert await client.settle(again, topic, group) == [Code.OK] * 3
    await nothing_more(client, topic, group, 5)


async def test_scenario_08_before_a_cluster_the_last_attempt_becomes_one_dead_letter(live: Any) -> None:
    topic, group, undertaker = await live.topic(), await live.group(max_attempts=1), await live.group()
    client = live.client(await live.survivor())
    wanted = await sent(client, topic, 3)
    assert len(await client.gather(topic, group, 3, invisible_duration=SHORT)) == 3

    async def buried() -> bool:
        assert await client.receive(topic, group, wait_ms=1_000) == []
        return await client.receive_status(f"%DLQ%{group}", undertaker) == Code.MESSAGE_NOT_FOUND

    await live.until(buried)
    dead = await client.gather(f"%DLQ%{group}", undertaker, 3)
    assert sorted(bodies(dead)) == wanted
    assert await client.settle(dead, f"%DLQ%{group}", undertaker) == [Code.OK] * 3
    await nothing_more(client, f"%DLQ%{group}", undertaker, 3)


async def test_scenario_08_before_a_cluster_nothing_is_lost_or_doubled_through_failures_and_restarts(
    live: Any, handle: Any, arrived: Any
) -> None:
    """Answers are lost and streams break by seed, and the gateway is another one twice."""
    chance = random.Random(8)
    faults = "seed=8;drop=AckMessage:0.2;break=ReceiveMessage:0.3:messages=1"
    topic, group = await live.topic(queues=2), await live.group(max_attempts=1_000)
    gateway = await live.gateway(faults)
    client = live.client(gateway)
    stored, done, maybe, happened = set[bytes](), set[bytes](), set[bytes](), 0

    async def consume() -> None:
        request = client.receive_request(topic, group, batch_size=4, invisible_duration=SHORT, wait_ms=500)
        for message in await arrived(client.stream(request)):
            assert message.body in stored
            assert message.body not in done, "finished, and yet it came again"
            if chance.random() < 0.6:
                try:
                    [code] = await client.settle([message], topic, group)
                except grpc.aio.AioRpcError:
                    maybe.add(message.body)
                    continue
                if code == Code.OK:
                    done.add(message.body)

    for step in range(60):
        if chance.random() < 0.5:
            await client.send_one(topic, b"%d" % step)
            stored.add(b"%d" % step)
        else:
            await consume()
        if step % 20 == 19:
            assert gateway.faults is not None
            happened += gateway.faults.count
            await gateway.stop()
            gateway = await live.gateway(faults)
            client = live.client(gateway)
    assert happened > 3
    client = live.client(await live.survivor())
    left: list[bytes] = []

    async def everything_came() -> bool:
        messages = await client.receive(topic, group, wait_ms=2_000)
        left.extend(bodies(messages))
        assert not done & set(left)
        if messages:
            assert set(await client.settle(messages, topic, group)) == {Code.OK}
        return stored <= done | maybe | set(left)

    await live.until(everything_came)
    await asyncio.sleep(0)
    assert len(left) == len(set(left))
