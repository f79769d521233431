"""Scenarios 11, 15 and 24 to 28 before a real RocketMQ: batches, bounds, polls, links, delays."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from typing import Any

import grpc
import pytest

from brokers.remote.consume.arrival_watch import LONGEST_S
from popgate.pb.definition_pb2 import Code
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.wire.frames.codes import RequestCode
from processors.limits import Limits

pytestmark = pytest.mark.timeout(1800)  # the first waits until all of them have begun

IDLE_S = 125.0
"""A broker cuts a link on which nothing happens after 120 s (protocol facts 5.11)."""
STOOD_STILL_S = 15.0
"""A machine on which nothing ran for so long may have kept a sign of life back, which is due every 30 s."""
POLL_S = 600.0
"""For how long polls wait that must all wait at the same time, however long it takes to begin them."""
DAY_MS = 86_400_000


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def codes(frames: list[Any]) -> list[int]:
    return [frame.status.code for frame in frames if frame.WhichOneof("content") == "status"]


def waiting(gateway: Any) -> int:
    return int(gateway.processor.figures()["waiting_receives"])


async def longest_pause(seconds: float) -> float:
    """Let so much time pass; for how long at most nothing ran here meanwhile."""
    end = last = time.monotonic()
    end += seconds
    longest = 0.0
    while last < end:
        await asyncio.sleep(min(1.0, end - last))
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


# 11. one dead broker or name server stops nothing else


async def test_scenario_11_before_a_cluster_a_name_server_that_is_not_there_stops_nothing(live: Any) -> None:
    topic, group = await live.topic(), await live.group()
    with socket.socket() as held:  # and not listened at
        held.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{held.getsockname()[1]}"
        client = live.client(await live.gateway(name_servers=(nobody, live.cluster.name_server)))
        await client.send_one(topic)
        messages = await client.gather(topic, group, 1)
        assert await client.settle(messages, topic, group) == [Code.OK]


# 13. the gateway's commands work before a cluster, too


async def test_topics_and_groups_are_made_and_told_by_the_command_line(live: Any) -> None:
    admin = (await live.survivor()).admin

    async def command(*words: str) -> str:
        asked = [sys.executable, "-m", "popgate", *words, "--admin", admin]
        done = await asyncio.to_thread(subprocess.run, asked, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    topic, group = live.fresh(), live.fresh()
    await command("topic", "create", topic, "--type", "FIFO", "--queues", "2")
    await command("group", "create", group, "--ordered", "--max-attempts", "3")
    client = live.client(await live.gateway())
    for number in range(3):
        await client.send_one(topic, b"%d" % number, message_group="a")
    await live.written_down(client, topic, 3)
    assert bodies(await client.gather(topic, group, 3)) == [b"0", b"1", b"2"]
    assert re.search(r"\b2\b", await command("topic", "show", topic))
    assert re.search(r"\b3\b", await command("group", "show", group))


# 15. a batch of N messages has N results


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY"])
async def test_scenario_15_before_a_cluster_a_batch_has_a_result_for_each(live: Any, kind: str) -> None:
    topic, group = await live.topic(kind), await live.group(ordered=kind == "FIFO")
    client = live.client(await live.gateway())
    system: dict[str, Any] = {"FIFO": {"message_group": "a"}}.get(kind, {})
    if kind == "DELAY":
        system["delivery_timestamp"] = Timestamp(seconds=int(time.time()) + 2)
    batch = [client.message(topic, b"%d" % number, **system) for number in range(10)]
    answer = await client.send(*batch)
    assert [entry.status.code for entry in answer.entries] == [Code.OK] * 10
    ids = [entry.message_id for entry in answer.entries]
    assert ids == [message.system_properties.message_id for message in batch]
    await live.written_down(client, topic, 10)
    came = await client.gather(topic, group, 10)
    found = {one.system_properties.message_id: one.body for one in came}
    assert [found[one] for one in ids] == [message.body for message in batch]
    if kind == "FIFO":
        assert bodies(came) == [message.body for message in batch]


# 24. memory stays flat


async def test_scenario_24_before_a_cluster_polls_that_come_and_go_leave_nothing(live: Any) -> None:
    topics = [await live.topic(queues=2) for _ in range(3)]
    groups = [await live.group() for _ in range(4)]
    gateway = await live.gateway()
    names = ("waiting_receives", "bytes_under_way", "held_deliveries")

    async def ask(number: int) -> None:
        client = live.client(gateway, client_id=f"come-and-go-{number}")
        where = topics[number % 3], groups[number % 4]
        poll = asyncio.ensure_future(client.frames(*where, wait_ms=30_000, expression=f"A || B{number}"))
        await live.until(lambda: waiting(gateway) > 0)
        await asyncio.sleep(0.2)
        poll.cancel()
        await client.channel.close(None)

    for first in range(0, 60, 20):
        await asyncio.gather(*(ask(first + number) for number in range(20)))
        await live.until(lambda: not any(gateway.processor.figures()[name] for name in names))
        await live.until(lambda: len(gateway.processor.budgets) == 0)
    await live.until(lambda: gateway.broker.figures()["requests_in_flight"] == 0)


async def test_scenario_24_before_a_cluster_polls_that_wait_hold_nothing_and_lose_nothing(live: Any) -> None:
    room = {"connection_bytes": 1 << 20, "group_bytes": 1 << 20, "process_bytes": 8 << 20}
    limits = Limits(**room, max_wait_s=60.0)
    topic, group = await live.topic(queues=1), await live.group()
    gateway = await live.gateway(limits=limits)
    client, sender = live.client(gateway), live.client(gateway)
    polls = [asyncio.ensure_future(client.frames(topic, group, wait_ms=60_000)) for _ in range(6)]
    await live.until(lambda: waiting(gateway) == 6)
    assert gateway.processor.budgets.used == 0
    for number in range(6):
        await sender.send_one(topic, b"%d" % number * (800 << 10))
    came = [
        frame.message for frames in await asyncio.gather(*polls) for frame in frames if frame.message.body
    ]
    await live.until(lambda: gateway.processor.budgets.used == 0)
    while len(came) < 6:  # whoever was refused asks again, and nothing was lost
        came += await client.gather(topic, group, 1)
    assert sorted(body[:1] for body in bodies(came)) == [b"%d" % number for number in range(6)]


# 25. an empty poll is a normal answer


async def test_scenario_25_before_a_cluster_a_poll_without_time_or_deadline_waits_the_default(
    live: Any,
) -> None:
    topic, group = await live.topic(), await live.group()
    client = live.client(await live.gateway(limits=Limits(default_wait_s=3.0)))
    assert codes(await client.frames(topic, group, wait_ms=None, timeout=None)) == [Code.MESSAGE_NOT_FOUND]


@pytest.mark.parametrize("version", ["5.0.0", "5.2.0", "odd"])
async def test_scenario_25_before_a_cluster_a_short_poll_is_answered_empty_and_never_refused(
    live: Any, version: str
) -> None:
    topic, group = await live.topic(), await live.group()
    client = live.client(await live.survivor(), client_version=version)
    for asked_ms in (0, 400, 4_000):
        assert codes(await client.frames(topic, group, wait_ms=asked_ms)) == [Code.MESSAGE_NOT_FOUND]


async def test_scenario_25_before_a_cluster_the_answer_comes_before_the_deadline_of_the_client(
    live: Any,
) -> None:
    topic, group = await live.topic(), await live.group()
    # A margin that a busy machine keeps, too.
    client = live.client(await live.gateway(limits=Limits(poll_margin_s=10.0)))
    assert codes(await client.frames(topic, group)) == [Code.MESSAGE_NOT_FOUND]  # the connection is there
    frames = await client.frames(topic, group, wait_ms=60_000, timeout=50.0)
    assert codes(frames) == [Code.MESSAGE_NOT_FOUND]


# 26. one arrival wakes one waiter


async def test_scenario_26_before_a_cluster_one_message_is_looked_for_once_however_many_wait(
    live: Any,
) -> None:
    topic, group = await live.topic(queues=1), await live.group()
    gateway = await live.gateway(limits=Limits(max_wait_s=POLL_S))
    client, sender = live.client(gateway), live.client(gateway)
    await client.receive(topic, group)  # the route is known
    await sender.send_one(topic, b"before")
    await client.settle(await client.gather(topic, group, 1), topic, group)
    how = {"wait_ms": int(POLL_S * 1000), "timeout": 2 * POLL_S}
    polls = [asyncio.ensure_future(client.receive(topic, group, **how)) for _ in range(20)]
    await live.until(lambda: waiting(gateway) == 20)
    gateway.watch()
    began = time.monotonic()
    await asyncio.sleep(2)  # nothing comes: what is looked for in this time is looked for in vain
    idle = gateway.asked[RequestCode.POP_MESSAGE]
    for number in range(3):
        await sender.send_one(topic, b"%d" % number)
        await live.until(lambda: waiting(gateway) <= 19 - number)  # noqa: B023
    await live.until(lambda: sum(poll.done() for poll in polls) == 3)
    looked, asked = gateway.asked[RequestCode.POP_MESSAGE], gateway.asked[RequestCode.NOTIFICATION]
    cycles = (time.monotonic() - began) / LONGEST_S  # a question is asked anew after so long
    came = [body for poll in polls if poll.done() for body in bodies(poll.result())]
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    assert sorted(came) == [b"0", b"1", b"2"]
    assert idle <= 2, "polls that wait ask again and again"
    assert looked - idle <= 12, f"{looked - idle} looks for three messages, with twenty waiting"
    assert asked <= 16 + cycles, "not one question for all who wait"


async def test_scenario_26_before_a_cluster_who_gives_up_after_being_woken_passes_the_message_on(
    live: Any,
) -> None:
    """An arrival wakes one question at the broker; the gateway that asked it may have nobody left."""
    topic, group = await live.topic(queues=1), await live.group()
    woken, other = await live.gateway("seed=26;cancel=ReceiveMessage"), await live.gateway()
    first, second, sender = live.client(woken), live.client(other), live.client(await live.survivor())
    vanishing = asyncio.ensure_future(first.receive(topic, group, wait_ms=50_000))
    await live.until(lambda: waiting(woken) == 1)
    staying = asyncio.ensure_future(second.receive(topic, group, wait_ms=50_000))
    await live.until(lambda: waiting(other) == 1)
    vanishing.cancel()
    await sender.send_one(topic, b"one")
    assert bodies(await staying) == [b"one"]
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await vanishing


# 27. the first request after a quiet hour is as quick as any


async def test_scenario_27_before_a_cluster_links_outlive_the_time_after_which_a_broker_cuts_them(
    live: Any,
) -> None:
    topic, group = await live.topic(), await live.group()
    gateway = await live.gateway()
    client = live.client(gateway)
    await client.send_one(topic)
    await client.settle(await client.gather(topic, group, 1), topic, group)
    gateway.watch()
    for _ in range(3):
        before = gateway.broker.figures()["connections_lost_total"]
        gateway.asked.clear()
        pause_s = await longest_pause(IDLE_S)  # to be idle is what is tried here
        await client.send_one(topic, b"after")
        came = bodies(await client.gather(topic, group, 1))
        lost = gateway.broker.figures()["connections_lost_total"] - before
        if pause_s < STOOD_STILL_S:
            break  # else it says nothing of links that are kept
    assert came == [b"after"]
    assert lost == 0
    assert gateway.asked[RequestCode.SEND_MESSAGE_V2] == 1


# 28. one limit for delays, told clearly


@pytest.mark.parametrize(("wanted_ms", "limit_ms"), [(DAY_MS, DAY_MS), (30 * DAY_MS, 3 * DAY_MS)])
async def test_scenario_28_before_a_cluster_the_longest_delay_is_the_lower_of_the_setting_and_the_broker(
    live: Any, wanted_ms: int, limit_ms: int
) -> None:
    topic = await live.topic("DELAY")
    client = live.client(await live.gateway(limits=Limits(max_delay_ms=wanted_ms)))

    async def after_ms(delay_ms: int) -> Any:
        due_ms = time.time_ns() // 1_000_000 + delay_ms
        when = Timestamp(seconds=due_ms // 1000, nanos=due_ms % 1000 * 1_000_000)
        answer = await client.send(client.message(topic, delivery_timestamp=when))
        return answer.status

    assert (await after_ms(limit_ms - 60_000)).code == Code.OK
    refused = await after_ms(limit_ms + 60_000)
    assert refused.code == Code.ILLEGAL_DELIVERY_TIME
    assert str(limit_ms) in refused.message
