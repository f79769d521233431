"""Scenarios 5 and 6: transactions end once, anywhere, truthfully; and their producers are asked."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb.definition_pb2 import Code

LATER = "after=1000000"
FROM_CHECK = 2


async def half(client: Any, body: bytes = b"half", topic: str = "t") -> Any:
    return await client.send_one(topic, body, message_type=pb.MessageType.TRANSACTION)


async def bodies(client: Any, topic: str = "t") -> list[bytes]:
    return [message.body for message in await client.receive(topic)]


async def question(stream: Any) -> Any:
    """The next question that comes; other commands are not what is waited for."""
    while True:
        command = await asyncio.wait_for(stream.read(), 60)
        if command.WhichOneof("command") == "recover_orphaned_transaction_command":
            return command.recover_orphaned_transaction_command


@pytest.mark.parametrize("resolution", [pb.COMMIT, pb.ROLLBACK])
async def test_scenario_05_a_transaction_ends_through_the_successor_of_a_crashed_process(
    world: Any, resolution: int
) -> None:
    gateway = await world.gateway()
    entry = await half(world.client(gateway))
    client = world.client(await world.crashed(gateway))
    assert await bodies(client) == []
    assert await client.end(entry, resolution) == Code.OK
    assert await bodies(client) == ([b"half"] if resolution == pb.COMMIT else [])


@pytest.mark.parametrize("verb", ["drop", "hang"])
async def test_scenario_05_a_commit_whose_answer_was_lost_is_repeated_without_harm(
    world: Any, verb: str
) -> None:
    gateway = await world.gateway(f"seed=5;{verb}=EndTransaction:times=1")
    client = world.client(gateway)
    entry = await half(client)
    ending = asyncio.ensure_future(client.end(entry))
    if verb == "drop":
        with pytest.raises(grpc.aio.AioRpcError, match="lost on purpose"):
            await ending
    else:
        await world.until(lambda: gateway.faults.count == 1)
        assert await bodies(client) == [b"half"]  # it is done, whatever the client knows
        ending.cancel()
    assert await client.end(entry) == Code.OK
    assert await client.end(entry) == Code.OK
    after = world.client(await world.crashed(gateway))
    assert await after.end(entry) == Code.OK
    assert len(await after.receive(group="other")) == 1


async def test_scenario_05_a_late_commit_after_checks_and_a_restart_delivers_once(world: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    entry = await half(client)
    stream = await client.introduce(client.producing("t"))
    await gateway.pass_s(7)
    assert (await question(stream)).transaction_id == entry.transaction_id
    await gateway.pass_s(100)
    after = await world.restarted(gateway)
    client = world.client(after)
    await after.pass_s(100)
    assert await client.end(entry) == Code.OK
    assert await client.end(entry) == Code.OK
    assert await bodies(client) == [b"half"]


async def test_scenario_05_who_ends_it_the_other_way_is_told_what_really_happened(world: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    kept, dropped = await half(client, b"kept"), await half(client, b"dropped")
    assert await client.end(kept, pb.COMMIT) == Code.OK
    assert await client.end(dropped, pb.ROLLBACK) == Code.OK
    client = world.client(await world.crashed(gateway))
    assert await client.end(kept, pb.ROLLBACK) == Code.INVALID_TRANSACTION_ID
    assert await client.end(dropped, pb.COMMIT) == Code.INVALID_TRANSACTION_ID
    assert await bodies(client) == [b"kept"]


async def test_scenario_05_a_commit_that_could_not_be_written_says_so(world: Any) -> None:
    gateway = await world.gateway(f"seed=5;fail=commit:{LATER}:times=1")
    client = world.client(gateway)
    entry = await half(client)
    gateway.arm("commit")
    assert await client.end(entry) == Code.HA_NOT_AVAILABLE
    await gateway.pass_s(1)
    assert await bodies(client) == []
    assert await client.end(entry) == Code.OK
    assert await bodies(client) == [b"half"]


async def test_scenario_05_a_commit_cut_off_half_way_is_done_or_not_done(world: Any) -> None:
    gateway = await world.gateway(f"seed=5;cancel=EndTransaction:times=1;delay=commit:100ms:{LATER}")
    client = world.client(gateway)
    entry = await half(client)
    gateway.arm("commit")
    with pytest.raises(grpc.aio.AioRpcError, match="cancelled on purpose"):
        await client.end(entry)
    await gateway.pass_s(1)
    gateway.arm("nothing")
    ending = asyncio.ensure_future(client.end(entry))
    await world.until(ending.done, turn=lambda: gateway.pass_s(0.2))
    assert await ending == Code.OK
    receiving = asyncio.ensure_future(bodies(client))
    await world.until(receiving.done, turn=lambda: gateway.pass_s(0.2))
    assert await receiving == [b"half"]


async def test_scenario_06_a_producer_that_comes_after_a_crash_is_asked(world: Any) -> None:
    gateway = await world.gateway()
    entry = await half(world.client(gateway))
    after = await world.crashed(gateway)
    heir = world.client(after, client_id="heir")
    stream = await heir.introduce(heir.producing("t"))
    await after.pass_s(7)
    asked = await question(stream)
    assert (asked.transaction_id, asked.message.body) == (entry.transaction_id, b"half")
    assert await heir.end(entry, pb.COMMIT, source=FROM_CHECK) == Code.OK
    assert await bodies(heir) == [b"half"]


async def test_scenario_06_checks_come_again_and_again_while_nobody_answers(world: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    entry = await half(client)
    stream = await client.introduce(client.producing("t"))
    await gateway.pass_s(7)
    for _ in range(5):
        assert (await question(stream)).transaction_id == entry.transaction_id
        assert await client.end(entry, 0, source=FROM_CHECK) == Code.OK  # it does not know yet
        await gateway.pass_s(30)


async def test_scenario_06_times_when_nobody_was_there_to_ask_do_not_count(world: Any) -> None:
    gateway = await world.gateway(transaction_max_checks=3)
    entry = await half(world.client(gateway))
    await gateway.pass_s(3600)  # a hundred checks that nobody could be asked
    client = world.client(gateway, client_id="late")
    stream = await client.introduce(client.producing("t"))
    await gateway.pass_s(31)
    assert (await question(stream)).transaction_id == entry.transaction_id


async def test_scenario_06_only_who_produces_to_the_topic_is_asked(world: Any) -> None:
    gateway = await world.gateway()
    client, stranger = world.client(gateway), world.client(gateway, client_id="stranger")
    await client.send_one("other")
    wrong = await stranger.introduce(stranger.producing("other"))
    right = await client.introduce(client.producing("t"))
    mine = await half(client)
    theirs = await half(stranger, topic="other")
    await gateway.pass_s(7)
    assert (await question(right)).transaction_id == mine.transaction_id
    assert (await question(wrong)).transaction_id == theirs.transaction_id


async def test_scenario_06_a_stream_that_breaks_at_the_question_hands_it_to_the_next_producer(
    world: Any,
) -> None:
    gateway = await world.gateway("seed=6;break=Telemetry:messages=1:times=1")
    first, second = world.client(gateway), world.client(gateway, client_id="client-2")
    broken = await first.introduce(first.producing("t"))
    entry = await half(first)
    await gateway.pass_s(7)
    with pytest.raises(grpc.aio.AioRpcError, match="on purpose"):
        await asyncio.wait_for(broken.read(), 60)
    stream = await second.introduce(second.producing("t"))
    await gateway.pass_s(31)
    assert (await question(stream)).transaction_id == entry.transaction_id


async def test_scenario_06_pending_checks_can_be_seen(world: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    assert gateway.broker.figures()["half_messages"] == 0
    entry = await half(client)
    assert gateway.broker.figures()["half_messages"] == 1
    assert await client.end(entry) == Code.OK
    assert gateway.broker.figures()["half_messages"] == 0
