"""The way of a message stays short: modules that a call enters, by the count of `benchmarks/hops.py`."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.hops import GROUP, TOPIC, Trail, trails_of
from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.testing.peers import ScriptedPeer, scripted_cluster
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import encode_record
from tests.support.memory_network import MemoryNetwork

MARKS = {"send": 35, "receive": 40, "acknowledge": 30}
"""The most modules that each may enter before a cluster."""
LATEST = 513
"""The version that brokers of RocketMQ 5.5.0 tell."""

HOST = pack_host("10.0.0.1:1")
PROPERTIES = encode_properties({"UNIQ_KEY": "01" + "A" * 32, "TAGS": "TagA", "KEYS": "key-1", "shard": "7"})


class StandingClock(SystemClock):
    """Nothing that is kept for a while grows old, however slow the machine is."""

    @staticmethod
    def monotonic() -> float:
        return 1_000.0


def serve(master: ScriptedPeer, clock: SystemClock) -> None:
    """Let it answer as a broker with an endless queue."""
    offsets = iter(range(1_000_000))

    def pop(request: Command) -> Command:
        offset, now_ms = next(offsets), clock.now_ms()
        told = {"popTime": str(now_ms), "invisibleTime": "60000", "reviveQid": "0", "restNum": "0"}
        told["startOffsetInfo"] = told["msgOffsetInfo"] = f"0 0 {offset}"
        record = encode_record(
            TOPIC.encode(),
            0,
            offset,
            offset,
            bytes(1024),
            PROPERTIES,
            sys_flag=0,
            flag=0,
            born_ms=now_ms,
            born_host=HOST,
            store_ms=now_ms,
            store_host=HOST,
            reconsume_times=0,
        )
        answer = request.answer(0, fields=told, body=record)
        answer.version = LATEST
        return answer

    def config(request: Command) -> Command:
        return request.answer(0, body=json.dumps({"groupName": GROUP.name, "retryMaxTimes": 16}).encode())

    def stored(request: Command) -> Command:
        return request.answer(0, fields={"msgId": "1", "queueId": "0", "queueOffset": "0"})

    master.on(RequestCode.POP_MESSAGE, pop)
    there = {"hasMsg": "true", "pollingFull": "false"}
    master.on(RequestCode.NOTIFICATION, lambda request: request.answer(0, fields=there))
    master.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, config)
    master.on(RequestCode.SEND_MESSAGE_V2, stored)
    master.on(RequestCode.ACK_MESSAGE, lambda request: request.answer(0))


@pytest.fixture
async def trails() -> dict[str, Trail]:
    """Of a send, a receive and an acknowledgement through the gRPC listener, before a scripted broker."""
    MemoryNetwork().serve(asyncio.get_running_loop())
    clock = StandingClock()
    async with scripted_cluster("broker-a", topics=[TOPIC]) as (servers, masters):
        serve(masters["broker-a"], clock)
        broker = RemoteBroker(RemoteSettings(name_servers=(servers.address,)), clock=clock)
        await broker.start()
        try:
            return await trails_of(broker, clock)
        finally:
            await broker.stop()


async def test_few_modules_are_entered_before_a_cluster(trails: dict[str, Trail]) -> None:
    assert list(trails) == list(MARKS)
    entered = {call: trail.modules for call, trail in trails.items()}
    assert "brokers/channel.py" in entered["acknowledge"]
    for call, most in MARKS.items():
        assert len(entered[call]) <= most, (call, entered[call])
