"""Troubles of the store as clients see them: what goes on, what is told, and that it ends by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from popgate.context import Context
from popgate.model import TopicConfig
from popgate.pb.definition_pb2 import Code
from popgate.pb.duration_pb2 import Duration
from popgate.testing import GatewayDidNotStart, GatewayProcess

HOUR_MS = 3_600_000


async def test_consumers_go_on_while_the_disk_is_nearly_full(world: Any, handle: Any) -> None:
    gateway = await world.gateway("seed=1;full=disk:after=1000000:for=20s:times=1")
    client = world.client(gateway)
    for n in range(3):
        await client.send_one(body=b"%d" % n)
    gateway.arm("disk")
    await gateway.pass_s(2)
    answer = await client.send(client.message())
    assert answer.status.code == Code.HA_NOT_AVAILABLE
    assert "is nearly full" in answer.status.message
    assert "embedded.min_free_disk_bytes" in answer.status.message
    assert gateway.broker.figures()["disk_nearly_full"] == 1
    messages = await client.receive()
    assert len(messages) == 3
    renewed = await client.change(handle(messages[0]), 60)
    assert renewed.status.code == Code.OK
    assert (await client.ack(*(handle(m) for m in messages))).status.code == Code.OK
    await gateway.pass_s(20)
    assert (await client.send(client.message())).status.code == Code.OK
    assert gateway.broker.figures()["disk_nearly_full"] == 0


async def test_a_full_disk_fails_aloud_and_everything_goes_on_when_it_is_over(
    world: Any, handle: Any
) -> None:
    gateway = await world.gateway("seed=1;full=commit:after=1000000:for=10s:times=1")
    client = world.client(gateway)
    await client.send_one(body=b"before")
    gateway.arm("commit")
    answer = await client.send(client.message(body=b"during"))
    assert answer.status.code == Code.HA_NOT_AVAILABLE
    assert "No space left on device" in answer.status.message
    assert gateway.broker.figures()["store_failing"] == 1
    await gateway.pass_s(16)
    assert gateway.broker.figures()["store_failing"] == 0
    await client.send_one(body=b"after")
    messages = await client.receive()
    assert sorted(m.body for m in messages) == [b"after", b"before"]
    assert (await client.ack(*(handle(m) for m in messages))).status.code == Code.OK


@pytest.mark.parametrize(
    ("trouble", "words"),
    [("full", "No space left on device"), ("readonly", "Read-only file system")],
    ids=["full", "read-only"],
)
async def test_positions_are_read_on_while_nothing_can_be_written(
    world: Any, handle: Any, trouble: str, words: str
) -> None:
    """What must be written is refused: such a delivery would come again when its client has done the work."""
    gateway = await world.gateway(f"seed=1;{trouble}=commit:after=1000000:for=60s:times=1")
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    client = world.client(gateway)
    for n in range(3):
        await client.send_one(body=b"%d" % n)
    (held,) = await client.receive(batch_size=1, invisible_duration=Duration(seconds=3600))
    gateway.arm("commit")
    lost = await client.send(client.message(body=b"lost"))
    assert lost.status.code == Code.HA_NOT_AVAILABLE
    assert words in lost.status.message
    for _ in range(3):
        await gateway.pass_s(12)
        assert gateway.broker.figures()["store_failing"] == 1
        frames = await client.pull(wait_ms=0)
        assert [f.message.body for f in frames if f.WhichOneof("content") == "message"] == [b"0", b"1", b"2"]
        found = await gateway.broker.find_by_id(
            Context(client_id="c"), "t", held.system_properties.message_id
        )
        assert [message.body for message in found] == [held.body]
        (status,) = [f.status for f in await client.frames() if f.WhichOneof("content") == "status"]
        assert status.code == Code.HA_NOT_AVAILABLE
        assert words in status.message
    await gateway.pass_s(60)
    assert gateway.broker.figures()["store_failing"] == 0
    messages = [held, *await client.receive()]
    assert sorted(m.body for m in messages) == [b"0", b"1", b"2"]
    assert (await client.ack(*(handle(m) for m in messages))).status.code == Code.OK


@pytest.mark.parametrize("hours", [-100, -1, 1, 100])
async def test_a_clock_that_jumps_keeps_what_is_held_delayed_and_young(
    world: Any, handle: Any, hours: int
) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    await client.send_one(body=b"held")
    (held,) = await client.receive()
    await client.send_one(body=b"young")
    gateway.clock.set_wall(gateway.clock.now_ms() + hours * HOUR_MS)
    await gateway.pass_s(10)
    (young,) = await client.receive()  # neither deleted by age, nor the held one given to another
    assert young.body == b"young"
    await client.send_one(body=b"new")
    (new,) = await client.receive()
    assert (await client.ack(handle(held), handle(young), handle(new))).status.code == Code.OK
    gateway.clock.set_wall(gateway.clock.now_ms() - hours * HOUR_MS)
    await gateway.pass_s(60)
    assert await client.receive() == []


async def test_a_clock_put_right_after_a_restart_loses_nothing(world: Any, handle: Any) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    await client.send_one(body=b"held")
    await client.receive()
    world.clock.set_wall(world.clock.now_ms() + 10 * HOUR_MS)
    after = await world.crashed(gateway)
    client = world.client(after)
    await after.pass_s(31)
    (again,) = await client.receive()
    assert (again.body, again.system_properties.delivery_attempt) == (b"held", 2)
    assert (await client.ack(handle(again))).status.code == Code.OK


def test_a_store_in_use_keeps_a_second_process_from_starting_and_says_so(tmp_path: Path) -> None:
    with (
        GatewayProcess(tmp_path),
        pytest.raises(GatewayDidNotStart, match="in use by another process") as refused,
    ):
        GatewayProcess(tmp_path).start()
    assert "ended with 5" in str(refused.value)


def test_a_damaged_store_keeps_a_process_from_starting_and_says_what_to_do(tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    for _ in range(2):  # what the first one logged is in tables when the second one ends
        with GatewayProcess(sound):
            pass
    for which in ("MANIFEST-*", "CURRENT", "*.sst"):
        damaged = tmp_path / which.strip("*-.")
        shutil.copytree(sound, damaged)
        [file, *_] = sorted((damaged / "store").glob(which))
        file.write_bytes(b"garbage" * 40)
        with pytest.raises(GatewayDidNotStart, match=r"is damaged.*restore the folder from a copy") as told:
            GatewayProcess(damaged).start()
        assert "ended with 5" in str(told.value)
