"""Scenarios 5 and 6 before a real RocketMQ: transactions end through any process, and producers are asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb.definition_pb2 import Code
from popgate.pb.duration_pb2 import Duration
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.timeout(1800)  # the first waits until all of them have begun

FROM_CHECK = 2


async def half(client: Any, topic: str, body: bytes = b"half", **system: Any) -> Any:
    return await client.send_one(topic, body, message_type=pb.MessageType.TRANSACTION, **system)


async def open_half(client: Any, topic: str, body: bytes = b"half") -> Any:
    """One that may be ended for longer than a machine stands still; as shipped it is 30 s."""
    return await half(client, topic, body, orphaned_transaction_recovery_duration=Duration(seconds=300))


async def bodies(client: Any, topic: str, group: str, wait_ms: int = 3_000) -> list[bytes]:
    return [message.body for message in await client.receive(topic, group, wait_ms=wait_ms)]


async def arrived(client: Any, topic: str, group: str) -> list[bytes]:
    """What came first, and with it: a broker delivers a moment after it was told of an end."""
    return [message.body for message in await client.gather(topic, group, 1)]


async def question(stream: Any) -> Any:
    """The next question that comes; other commands are not what is waited for."""
    while True:
        command = await asyncio.wait_for(stream.read(), PATIENCE_S)
        if command.WhichOneof("command") == "recover_orphaned_transaction_command":
            return command.recover_orphaned_transaction_command


async def test_scenario_05_before_a_cluster_transactions_end_through_another_process_after_a_kill(
    live: Any,
) -> None:
    topic, group = await live.topic("TRANSACTION"), await live.group()
    gateway, client = await live.process(), live.client(await live.survivor())
    producer = live.client(gateway)
    kept, dropped = await open_half(producer, topic, b"kept"), await open_half(producer, topic, b"dropped")
    assert await bodies(client, topic, group, 1_000) == []
    await live.killed(gateway)
    assert await client.end(kept, pb.COMMIT, topic=topic) == Code.OK
    assert await client.end(dropped, pb.ROLLBACK, topic=topic) == Code.OK
    assert await arrived(client, topic, group) == [b"kept"]
    assert await bodies(client, topic, group) == []


async def test_scenario_05_before_a_cluster_a_commit_whose_answer_was_lost_is_repeated_without_harm(
    live: Any,
) -> None:
    topic, group = await live.topic("TRANSACTION"), await live.group()
    client = live.client(await live.gateway("seed=5;drop=EndTransaction:times=1"))
    entry = await open_half(client, topic)
    with pytest.raises(grpc.aio.AioRpcError, match="lost on purpose"):
        await client.end(entry, topic=topic)
    assert await client.end(entry, topic=topic) == Code.OK
    assert await client.end(entry, topic=topic) == Code.OK
    assert await arrived(client, topic, group) == [b"half"]
    assert await bodies(client, topic, group) == []


async def test_scenario_05_before_a_cluster_who_ends_it_the_other_way_is_told_what_really_happened(
    live: Any,
) -> None:
    topic, group = await live.topic("TRANSACTION"), await live.group()
    client = live.client(await live.survivor())
    kept, dropped = await open_half(client, topic, b"kept"), await open_half(client, topic, b"dropped")
    assert await client.end(kept, pb.COMMIT, topic=topic) == Code.OK
    assert await client.end(dropped, pb.ROLLBACK, topic=topic) == Code.OK
    assert await client.end(kept, pb.ROLLBACK, topic=topic) == Code.INVALID_TRANSACTION_ID
    assert await client.end(dropped, pb.COMMIT, topic=topic) == Code.INVALID_TRANSACTION_ID
    assert await arrived(client, topic, group) == [b"kept"]
    assert await bodies(client, topic, group, 1_000) == []


async def test_scenario_06_before_a_cluster_another_process_asks_a_producer_that_comes_after_a_kill(
    live: Any,
) -> None:
    """Its answer counts, by the id that it was asked with."""
    topic, group = await live.topic("TRANSACTION"), await live.group()
    gateway = await live.process("remote.transaction_check_s=3")
    await half(live.client(gateway), topic)
    await live.killed(gateway)
    heir = live.client(await live.survivor())
    stream = await heir.introduce(heir.producing(topic))
    asked = await question(stream)
    assert asked.message.body == b"half"
    entry = SimpleNamespace(
        message_id=asked.message.system_properties.message_id, transaction_id=asked.transaction_id
    )
    assert await heir.end(entry, pb.COMMIT, source=FROM_CHECK, topic=topic) == Code.OK
    assert await arrived(heir, topic, group) == [b"half"]


async def test_scenario_06_before_a_cluster_only_who_produces_to_the_topic_is_asked_again_and_again(
    live: Any,
) -> None:
    mine, theirs = await live.topic("TRANSACTION"), await live.topic("TRANSACTION")
    gateway = await live.gateway(transaction_check_after_s=3)
    client, stranger = live.client(gateway), live.client(gateway)
    streams = {
        topic: await who.introduce(who.producing(topic))
        for topic, who in ((mine, client), (theirs, stranger))
    }
    for topic, who in ((mine, client), (theirs, stranger)):
        await half(who, topic, topic.encode())
    for _ in range(2):  # nobody answers
        for topic, stream in streams.items():
            assert (await question(stream)).message.body == topic.encode()
