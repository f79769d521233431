"""Scenario 7: gateways are restarted in order, one after the other, in the middle of their clients' work."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import grpc
import pytest

from popgate.model import GroupConfig, TopicConfig
from popgate.pb.definition_pb2 import PUSH_CONSUMER, Code

SEEDS = range(int(os.environ.get("TEST_RESTART_SEEDS", "4")))
RESTARTS = 4
HANDLERS_S = 3600
"""Longer than handlers may take: whatever was held is free again."""


class Shift:
    """Clients at work, by chance, at whichever gateway is there; what was answered is written down."""

    def __init__(self, world: Any, handle: Any, arrived: Any, seed: int) -> None:
        self.world, self.handle, self.arrived = world, handle, arrived
        self.chance = random.Random(seed)
        self.number = 0
        self.sent: set[bytes] = set()
        self.held: dict[bytes, str] = {}
        self.done: set[bytes] = set()
        self.maybe: set[bytes] = set()

    async def step(self, client: Any) -> None:
        await self.chance.choice([self._send, self._send, self._take, self._finish])(client)

    async def _send(self, client: Any) -> None:
        self.number += 1
        body = b"%d" % self.number
        await client.send_one(body=body)
        self.sent.add(body)

    async def _take(self, client: Any) -> None:
        request = client.receive_request(batch_size=self.chance.randint(1, 4), auto_renew=True)
        for message in await self.arrived(client.stream(request)):
            assert message.body in self.sent
            assert message.body not in self.done, "finished, and yet it came again"
            assert message.body not in self.maybe, "finished without an answer, and yet it came again"
            assert message.body not in self.held, "held, and yet it came again"
            self.held[message.body] = self.handle(message)

    async def _finish(self, client: Any) -> None:
        if not self.held:
            return
        body = self.chance.choice(sorted(self.held))
        handle = self.held.pop(body)
        try:
            answer = await client.ack(handle)
        except grpc.aio.AioRpcError:
            self.maybe.add(body)
            return
        assert answer.status.code == Code.OK
        self.done.add(body)


@pytest.mark.parametrize("seed", SEEDS)
async def test_scenario_07_restarts_in_the_middle_of_work_cost_nothing(
    world: Any, handle: Any, arrived: Any, seed: int
) -> None:
    """What is held stays held, its handles go on, and who waits is answered; faults are by seed as well."""
    shift = Shift(world, handle, arrived, seed)
    chance = shift.chance

    def faults() -> str:
        return f"seed={chance.getrandbits(32)};drop=AckMessage:0.2;break=ReceiveMessage:0.3:messages=1"

    gateway = await world.gateway(faults())
    for topic in ("t", "quiet"):
        await gateway.broker.create_topic(TopicConfig(topic, read_queues=2, write_queues=2))
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1_000))
    happened = restarts = 0
    # By chance nothing may have gone wrong yet: then one more time.
    while restarts < RESTARTS or not happened:
        client = world.client(gateway)
        # Some introduce themselves, as they should; others were known to the gateway that is gone.
        stream = await client.introduce(client.subscribing(PUSH_CONSUMER)) if chance.random() < 0.5 else None
        for _ in range(chance.randint(5, 25)):
            await shift.step(client)
        others = [world.client(gateway, client_id=f"other-{n}") for n in range(chance.randint(0, 3))]
        polls = [
            asyncio.ensure_future(other.receive_status("quiet", "sleepers", wait_ms=50_000))
            for other in others
        ]
        await world.until(lambda gateway=gateway, polls=polls: waits(gateway) == len(polls))
        draining = asyncio.ensure_future(gateway.drain(100))
        # Under faults an answer may break; what is no message ends all the same.
        assert await asyncio.gather(*polls) == [Code.MESSAGE_NOT_FOUND] * len(polls)
        if stream is not None:
            while await stream.read() is not grpc.aio.EOF:
                pass
            assert await stream.code() is grpc.StatusCode.OK
        await draining
        happened += gateway.faults.count
        gateway = await world.restarted(gateway, faults())
        restarts += 1
    last = await world.restarted(gateway)
    client = world.client(last)
    await last.pass_s(HANDLERS_S)
    left: list[bytes] = []
    while messages := await client.receive():
        left += [message.body for message in messages]
        assert (await client.ack(*map(handle, messages))).status.code == Code.OK
    assert len(left) == len(set(left))
    assert set(left) == shift.sent - shift.done - shift.maybe


def waits(gateway: Any) -> int:
    return int(gateway.broker.figures()["waiting_pops"])
