"""What hurt users of such gateways, as promises of the gRPC door. Numbers: docs/scenarios.md."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio
import pytest

from popgate.context import Context
from popgate.model import GroupConfig, StartFrom
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.sockets.servers import close_server
from processors.limits import Limits

DAY_MS = 86_400_000


class Balancer:
    """What stands between clients and a gateway: it passes bytes on and counts connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[Any]] = set()
        self.connections = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
        finally:
            for end in (writer, back):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def stop(self) -> None:
        await close_server(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def town_behind_a_balancer(town: Any) -> Any:
    gateway = await town.gateway(
        real_time=True, limits=town.for_long, connection_age_s=0.3, connection_grace_s=600.0
    )
    balancer = Balancer(gateway.port)
    port = await balancer.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
    client = town.client(gateway)
    client.channel = channel
    yield balancer, client
    await channel.close()
    await balancer.stop()


async def test_scenario_10_connections_are_made_anew_now_and_then_and_no_call_notices(
    town: Any, town_behind_a_balancer: Any
) -> None:
    balancer, client = town_behind_a_balancer
    sent = []

    async def send() -> bool:
        sent.append((await client.send_one()).message_id)
        return bool(balancer.connections >= 4)

    await town.until(send, pause_s=0.02)
    received = []
    while messages := await client.receive():
        received += [message.system_properties.message_id for message in messages]
    assert sorted(received) == sorted(sent)


async def test_scenario_10_a_long_poll_outlives_the_age_of_its_connection(
    town: Any, town_behind_a_balancer: Any
) -> None:
    balancer, client = town_behind_a_balancer
    await client.send_one("other")
    waiting = asyncio.ensure_future(client.receive(wait_ms=town.long_ms, timeout=None))

    async def moved() -> bool:
        await client.route("other")
        return bool(balancer.connections >= 3)

    await town.until(moved, pause_s=0.02)
    assert not waiting.done()
    await client.send_one("t", b"at last")
    assert [message.body for message in await waiting] == [b"at last"]


async def test_scenario_10_connections_stay_unless_an_operator_sets_an_age(town: Any) -> None:
    gateway = await town.gateway(real_time=True)
    stream = await town.client(gateway).introduce(town.client(gateway).producing())
    assert gateway.adapter._adapter_context.connection_age_s == 0
    assert not stream.done()


async def test_scenario_15_a_batch_of_messages_has_a_receipt_for_each(town: Any) -> None:
    client = town.client(await town.gateway())
    messages = [client.message("t", b"%d" % n) for n in range(20)]
    answer = await client.send(*messages)
    assert answer.status.code == pb.Code.OK
    assert [entry.status.code for entry in answer.entries] == [pb.Code.OK] * 20
    assert [entry.message_id for entry in answer.entries] == [
        message.system_properties.message_id for message in messages
    ]
    received = await client.receive()
    assert sorted(int(message.body) for message in received) == list(range(20))
    assert len({message.system_properties.receipt_handle for message in received}) == 20


async def test_scenario_20_every_client_of_a_broadcast_group_gets_every_message(town: Any) -> None:
    gateway = await town.gateway()
    await gateway.processor.metadata.create_group(
        Context(), GroupConfig("screens", broadcast=True, start_from=StartFrom.LAST)
    )
    hall, stairs = (town.client(gateway, client_id=name) for name in ("hall@1", "stairs@2"))
    for client in (hall, stairs):
        assert await client.receive("news", "screens") == []
    for body in (b"rain", b"sun"):
        await hall.send_one("news", body)
    for client in (hall, stairs):
        messages = await client.receive("news", "screens")
        assert sorted(message.body for message in messages) == [b"rain", b"sun"]
        handles = [message.system_properties.receipt_handle for message in messages]
        answer = await client.ack(*handles, topic="news", group="screens")
        assert answer.status.code == pb.Code.OK, answer
        assert await client.receive("news", "screens") == []


async def test_scenario_20_a_cursor_outlives_its_replica_and_is_forgotten_after_long_silence(
    town: Any,
) -> None:
    limits = Limits(broadcast_expiry_s=3_600)
    gateway = await town.gateway(limits=limits)
    await gateway.processor.metadata.create_group(
        Context(), GroupConfig("screens", broadcast=True, start_from=StartFrom.LAST)
    )
    hall = town.client(gateway, client_id="hall@1")
    assert await hall.receive("news", "screens") == []
    await hall.send_one("news", b"rain")
    beside = await town.gateway(beside=gateway, limits=limits)
    await gateway.stop()
    moved = town.client(beside, client_id="hall@1")
    [message] = await moved.receive("news", "screens")
    answer = await moved.ack(message.system_properties.receipt_handle, topic="news", group="screens")
    assert answer.status.code == pb.Code.OK
    assert len(await beside.processor.metadata.members(Context(), "screens")) == 1
    await beside.pass_s(5_000)
    assert await town.until(lambda: _no_members(beside), turn=lambda: beside.pass_s(600))


async def _no_members(gateway: Any) -> bool:
    return not await gateway.processor.metadata.members(Context(), "screens")


async def test_scenario_28_a_delay_that_is_too_long_is_told_the_limit(town: Any) -> None:
    gateway = await town.gateway()
    client = town.client(gateway)
    now_ms = gateway.clock.now_ms()
    too_far = client.message("t", delivery_timestamp=_at(now_ms + DAY_MS + 60_000))
    answer = await client.send(too_far)
    assert answer.status.code == pb.Code.ILLEGAL_DELIVERY_TIME
    assert "the longest delay is 86400000 ms (86400 s)" in answer.status.message
    at_the_limit = await client.send(client.message("t", delivery_timestamp=_at(now_ms + DAY_MS)))
    assert at_the_limit.status.code == pb.Code.OK
    recalled = await client.call(
        "RecallMessage",
        rpc.RecallMessageRequest(
            topic=pb.Resource(name="t"), recall_handle=at_the_limit.entries[0].recall_handle
        ),
    )
    assert recalled.status.code == pb.Code.OK


async def test_scenario_28_a_time_beyond_all_numbers_is_refused_and_one_that_is_over_means_at_once(
    town: Any,
) -> None:
    gateway = await town.gateway()
    client = town.client(gateway)
    beyond = await client.send(client.message("t", delivery_timestamp=Timestamp(seconds=(1 << 62))))
    assert beyond.status.code == pb.Code.ILLEGAL_DELIVERY_TIME
    await client.send_one("t", b"late", delivery_timestamp=_at(gateway.clock.now_ms() - 5_000))
    assert [message.body for message in await client.receive()] == [b"late"]


def _at(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
