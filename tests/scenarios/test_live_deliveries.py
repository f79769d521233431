"""Scenarios 1 to 4 and 8 before a real RocketMQ: handles, lost answers, acknowledgements, retries."""

from __future__ import annotations

import random
import time
from typing import Any

import grpc
import pytest

from popgate.errors import Fault
from popgate.ids.receipt import parse_receipt
from popgate.pb.definition_pb2 import PUSH_CONSUMER, Code
from popgate.pb.duration_pb2 import Duration
from popgate.wire.frames.codes import RequestCode
from processors.limits import Limits
from tests.replicas.books import RocketMQBooks

pytestmark = pytest.mark.timeout(1800)  # the first waits until all of them have begun

ACKS = (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)
SHORT_S = 25
SHORT = Duration(seconds=SHORT_S)
"""An invisible time that is waited for, and that is not over because a machine stands still for a while."""
TIMES_S = (SHORT_S, 4 * SHORT_S, 16 * SHORT_S)
"""Such times, where something must be done in time: the next one when the machine stood still for so long."""
LONG = Duration(seconds=600)
WAIT_MS = 60_000
"""Of a receive that must find what is there: it ends with the first message, also of a busy broker."""
_MOST_STEPS = 600


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def attempts(messages: list[Any]) -> set[int]:
    return {message.system_properties.delivery_attempt for message in messages}


async def sent(client: Any, topic: str, count: int, **system: Any) -> list[bytes]:
    wanted = [b"%d" % number for number in range(count)]
    for body in wanted:
        await client.send_one(topic, body, **system)
    return wanted


def over(messages: list[Any]) -> bool:
    """Whether the time of one of these deliveries is over, as the broker that gave them counts it."""
    due = min(parse_receipt(one.system_properties.receipt_handle).due_ms for one in messages)
    return time.time_ns() // 1_000_000 >= due


Finished = dict[str, tuple[int, str]]
"""By message id, of what was acknowledged: the attempt, and the handle that did it."""


def finished(messages: list[Any]) -> Finished:
    """By the handles that came with them."""
    told = [one.system_properties for one in messages]
    return {one.message_id: (one.delivery_attempt, one.receipt_handle) for one in told}


async def nothing_more(
    live: Any, client: Any, topic: str, group: str, acked: Finished, seconds: float
) -> None:
    """Nothing comes for so long, and then once more, but what a RocketMQ revives that stood still.

    It gives out again what it has not yet read to be finished (docs/real-cluster.md), and then its books have
    the acknowledgement.
    """
    books = RocketMQBooks(live.cluster.name_server)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for message in await client.receive(topic, group, wait_ms=2_000):
            attempt, by = acked[message.system_properties.message_id]
            assert message.system_properties.delivery_attempt == attempt + 1, message
            assert await books.will_have(topic, group, by), f"{message} is not in the books by {by}"
            assert await client.settle([message], topic, group) == [Code.OK]
            acked |= finished([message])


# 1. a handle outlives the process that gave it


async def test_scenario_01_before_a_cluster_another_process_finishes_what_a_killed_one_gave_or_renewed(
    live: Any, handle: Any
) -> None:
    for hidden_s in TIMES_S:
        topic, group = await live.topic(), await live.group()
        gateway, other = await live.process(), await live.survivor()
        client, next_one = live.client(gateway), live.client(other)
        await sent(client, topic, 4)
        messages = await client.gather(topic, group, 4, invisible_duration=Duration(seconds=hidden_s))
        renewed = [
            (await client.change(handle(one), hidden_s + 5, topic, group)).receipt_handle
            for one in messages[:2]
        ]
        await live.killed(gateway)
        acked = await next_one.ack(*renewed, *map(handle, messages[2:]), topic=topic, group=group)
        if not over(messages):
            break
    assert [entry.status.code for entry in acked.entries] == [Code.OK] * 4
    acknowledged = finished(messages)
    for one, by in zip(messages, renewed, strict=False):
        acknowledged[one.system_properties.message_id] = (1, by)
    await nothing_more(live, next_one, topic, group, acknowledged, hidden_s + 10)


async def test_scenario_01_before_a_cluster_a_push_consumer_has_the_whole_consume_timeout(
    live: Any, handle: Any
) -> None:
    """Nothing is renewed that need not be, so that the first handle stays the only one."""
    other = live.client(await live.survivor())
    for minutes in (1, 4, 16):
        topic, group = await live.topic(), await live.group(consume_timeout_ms=minutes * 60_000)
        gateway = await live.gateway()
        client = live.client(gateway)
        await client.introduce(client.subscribing(PUSH_CONSUMER, topic, group))
        await sent(client, topic, 1)
        messages = await client.gather(topic, group, 1, auto_renew=True)
        assert parse_receipt(handle(messages[0])).invisible_ms == minutes * 60_000
        await gateway.stop()
        came = await other.receive(topic, group, wait_ms=20_000)
        codes = await other.settle(messages, topic, group)
        if not over(messages):
            break  # else the machine stood still for so long
    assert (came, codes) == ([], [Code.OK])


# 2. an ordered queue heals after a lost answer


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_scenario_02_before_a_cluster_the_same_attempt_gets_what_was_lost(
    live: Any, where: str
) -> None:
    topic, group = await live.topic("FIFO"), await live.group(ordered=True)
    gateway = await live.gateway("seed=2;drop=ReceiveMessage:times=1")
    client, other = live.client(gateway), live.client(await live.survivor())
    await sent(client, topic, 3, message_group="a")
    await live.written_down(other, topic, 3)
    asked = {"attempt_id": "one", "batch_size": 2, "wait_ms": WAIT_MS, "invisible_duration": LONG}
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
    await live.written_down(other, topic, 5)
    request = client.receive_request(topic, group, wait_ms=WAIT_MS, invisible_duration=LONG)
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
            await client.receive(topic, group, wait_ms=WAIT_MS, invisible_duration=LONG)
        assert failed.value.code() is grpc.StatusCode.CANCELLED
    assert bodies(await client.gather(topic, group, 1)) == [b"0"]


async def test_scenario_03_before_a_cluster_what_was_not_delivered_keeps_its_order(
    live: Any, arrived: Any
) -> None:
    topic, group = await live.topic("FIFO"), await live.group(ordered=True)
    client = live.client(await live.gateway("seed=3;break=ReceiveMessage:messages=1:times=1"))
    other = live.client(await live.survivor())
    everything = await sent(client, topic, 4, message_group="a")
    asked = {"wait_ms": WAIT_MS, "attempt_id": "one", "invisible_duration": LONG}
    request = client.receive_request(topic, group, **asked)
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
    # A machine that stands still does not end the attempts.
    gateway = await live.gateway(limits=Limits(ack_retry_s=60))
    client = live.client(gateway)
    gateway.watch()
    for hidden_s in TIMES_S:
        topic, group = await live.topic(), await live.group()
        await sent(client, topic, 1)
        messages = await client.gather(topic, group, 1, invisible_duration=Duration(seconds=hidden_s))
        gateway.refuse(*ACKS, times=2)
        codes = await client.settle(messages, topic, group)
        if not over(messages):
            break
    assert codes == [Code.OK]
    assert gateway.observer.failures["ack_try", Fault.BROKER_UNAVAILABLE] > 0
    assert gateway.observer.failures["ack", Fault.BROKER_UNAVAILABLE] == 0
    await nothing_more(live, client, topic, group, finished(messages), hidden_s + 8)


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


async def test_scenario_04_before_a_cluster_ids_of_other_messages_are_refused(live: Any, handle: Any) -> None:
    """By a replica that did not deliver them, and not sent; also of redeliveries, and after a change."""
    topic, group = await live.topic(), await live.group()
    first, gateway = live.client(await live.survivor()), await live.gateway()
    client = live.client(gateway)
    await sent(first, topic, 2)
    messages = await first.gather(topic, group, 2)
    gateway.watch()
    for redelivered in (False, True):
        ids = [message.system_properties.message_id for message in messages]
        for message, other in zip(messages, reversed(ids), strict=True):
            refused = await client.ack(handle(message), topic=topic, group=group, message_id=other)
            assert refused.status.code == Code.INVALID_RECEIPT_HANDLE
            assert f"its message id is not '{other}'" in refused.status.message
        assert not any(gateway.asked[code] for code in ACKS)
        if not redelivered:
            for message in messages:
                assert (await first.change(handle(message), 0, topic, group)).status.code == Code.OK
            messages = await first.gather(topic, group, 2)
            assert attempts(messages) == {2}
    changed = await client.change(handle(messages[0]), 700, topic, group)
    handles = [changed.receipt_handle, handle(messages[1])]
    refused = await client.ack(handles[0], topic=topic, group=group, message_id=ids[1])
    assert refused.status.code == Code.INVALID_RECEIPT_HANDLE
    for own, message_id in zip(handles, ids, strict=True):
        answer = await client.ack(own, topic=topic, group=group, message_id=message_id)
        assert answer.status.code == Code.OK
    assert any(gateway.asked[code] for code in ACKS)


# 8. retries lose nothing and double nothing


async def test_scenario_08_before_a_cluster_of_a_partly_acknowledged_batch_the_rest_comes_again_once(
    live: Any,
) -> None:
    client = live.client(await live.survivor())
    for hidden_s in TIMES_S:
        topic, group = await live.topic(queues=1), await live.group()
        await sent(client, topic, 6)
        batch = await client.gather(topic, group, 6, invisible_duration=Duration(seconds=hidden_s))
        kept = [one for one in batch if one.body in (b"0", b"3", b"4")]
        rest = [one for one in batch if one not in kept]
        codes = await client.settle(kept, topic, group)
        if not over(batch):
            break
    assert codes == [Code.OK] * 3
    again = await client.gather(topic, group, 3)
    assert (sorted(bodies(again)), attempts(again)) == ([b"1", b"2", b"5"], {2})
    assert await client.settle(rest, topic, group) == [Code.INVALID_RECEIPT_HANDLE] * 3  # of the first time
    assert await client.settle(again, topic, group) == [Code.OK] * 3
    await nothing_more(live, client, topic, group, finished([*kept, *again]), 5)


async def test_scenario_08_before_a_cluster_the_last_attempt_becomes_one_dead_letter(live: Any) -> None:
    topic, group, undertaker = await live.topic(), await live.group(max_attempts=1), await live.group()
    client, looker = live.client(await live.survivor()), await live.group()
    wanted = await sent(client, topic, 3)
    assert len(await client.gather(topic, group, 3, invisible_duration=SHORT)) == 3
    dead: list[Any] = []

    async def buried() -> bool:
        """Each is buried when its group receives next."""
        assert await client.receive(topic, group, wait_ms=1_000) == []
        # The topic is there with the first of them.
        if await client.receive_status(f"%DLQ%{group}", looker) in (Code.OK, Code.MESSAGE_NOT_FOUND):
            dead.extend(await client.receive(f"%DLQ%{group}", undertaker, wait_ms=1_000))
        return len(dead) >= 3

    await live.until(buried)
    assert sorted(bodies(dead)) == wanted
    assert await client.settle(dead, f"%DLQ%{group}", undertaker) == [Code.OK] * 3
    await nothing_more(live, client, f"%DLQ%{group}", undertaker, finished(dead), 3)


async def test_scenario_08_before_a_cluster_nothing_is_lost_or_doubled_through_failures_and_restarts(
    live: Any, handle: Any, arrived: Any
) -> None:
    """Answers are lost and streams break by seed, and the gateway is another one twice."""
    chance = random.Random(8)
    faults = "seed=8;drop=AckMessage:0.2;break=ReceiveMessage:0.3:messages=1"
    topic, group = await live.topic(queues=2), await live.group(max_attempts=1_000)
    gateway = await live.gateway(faults)
    client = live.client(gateway)
    stored, done, maybe, happened = set[bytes](), dict[bytes, str](), set[bytes](), 0
    books = RocketMQBooks(live.cluster.name_server)

    async def look_at(message: Any) -> None:
        """What was finished comes again only where its broker stood still, as in `nothing_more`."""
        assert message.body in stored
        if message.body in done:
            by = done[message.body]
            assert await books.will_have(topic, group, by), f"finished, and yet it came again: {message}"

    async def consume() -> None:
        request = client.receive_request(topic, group, batch_size=4, invisible_duration=SHORT, wait_ms=500)
        for message in await arrived(client.stream(request)):
            await look_at(message)
            if chance.random() < 0.6:
                try:
                    [code] = await client.settle([message], topic, group)
                except grpc.aio.AioRpcError:
                    maybe.add(message.body)
                    continue
                if code == Code.OK:
                    done[message.body] = handle(message)

    # A broker that is late has nothing for a receive, and then nothing can happen to its answer.
    for step in range(_MOST_STEPS):
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
            if step > 40 and happened > 3:
                break
    assert happened > 3
    client = live.client(await live.survivor())
    left = set[bytes]()

    async def everything_came() -> bool:
        messages = await client.receive(topic, group, wait_ms=2_000)
        for message in messages:
            await look_at(message)
        left.update(bodies(messages))
        if messages:
            assert set(await client.settle(messages, topic, group)) == {Code.OK}
            done.update({message.body: handle(message) for message in messages})
        return stored <= done.keys() | maybe | left

    await live.until(everything_came)
