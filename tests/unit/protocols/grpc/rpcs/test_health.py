"""gRPC's health check, asked by a plain client and by the client of gRPC's own package."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2 as theirs
from grpc_health.v1 import health_pb2_grpc

from popgate.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from protocols.grpc.rpcs.health import Health
from protocols.grpc.transport import BrokenStream, CallFailed, CallStatus

MESSAGING = "apache.rocketmq.v2.MessagingService"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"

Status = HealthCheckResponse.ServingStatus


def asking(channel: grpc.aio.Channel, service: str = "", name: str = CHECK) -> Any:
    """One call with our own messages, and with no header at all."""
    kind = channel.unary_stream if name == WATCH else channel.unary_unary
    method = kind(
        name,
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return method(HealthCheckRequest(service=service), timeout=60)


@pytest.fixture
async def probe(gateway: Any) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    """The client of the package grpcio-health-checking, on a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(gateway.address, options=options) as channel:
        yield health_pb2_grpc.HealthStub(channel)


# -- over the wire ------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["", MESSAGING])
async def test_a_started_door_is_serving(client: Any, probe: Any, service: str) -> None:
    assert (await asking(client.channel, service)).status == Status.SERVING
    answer = await probe.Check(theirs.HealthCheckRequest(service=service), timeout=60)
    assert answer.status == theirs.HealthCheckResponse.SERVING


@pytest.mark.parametrize("service", ["nobody", MESSAGING + " ", "x" * 10_000, "名字"])
async def test_a_check_of_an_unknown_service_is_not_found(client: Any, probe: Any, service: str) -> None:
    for call in (
        asking(client.channel, service),
        probe.Check(theirs.HealthCheckRequest(service=service), timeout=60),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "there is no service" in caught.value.details()


async def test_bytes_that_are_no_request_are_told_as_that(client: Any) -> None:
    for name in (CHECK, WATCH):
        call = client.channel.stream_stream(name)(iter([b"\x0a\xff"]), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no HealthCheckRequest" in caught.value.details()


async def test_nobody_has_to_say_who_asks(town: Any) -> None:
    class Nobody:
        def authenticate(self, *_: Any) -> Any:
            raise AssertionError("the health check asked who calls")

    gateway = await town.gateway(authenticator=Nobody())
    assert (await asking(town.client(gateway).channel)).status == Status.SERVING


@pytest.mark.parametrize("service", ["", MESSAGING])
async def test_who_watches_is_told_when_the_door_closes(town: Any, service: str) -> None:
    gateway = await town.gateway(real_time=True)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(gateway.address, options=options) as channel:
        probe = health_pb2_grpc.HealthStub(channel)
        watch = probe.Watch(theirs.HealthCheckRequest(service=service), timeout=100)
        assert (await watch.read()).status == theirs.HealthCheckResponse.SERVING
        draining = asyncio.ensure_future(gateway.adapter.drain(time.monotonic() + 60))
        assert (await watch.read()).status == theirs.HealthCheckResponse.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        assert await watch.code() is grpc.StatusCode.OK
        await draining


async def test_who_watches_is_told_that_the_door_is_about_to_close_and_watches_on(town: Any) -> None:
    gateway = await town.gateway(real_time=True)
    channel = town.client(gateway).channel
    watch = asking(channel, "", WATCH)
    assert (await watch.read()).status == Status.SERVING
    gateway.adapter.leave()
    assert (await watch.read()).status == Status.NOT_SERVING
    assert (await asking(channel)).status == Status.NOT_SERVING
    assert not watch.done()
    await gateway.adapter.drain(time.monotonic() + 60)
    assert await watch.read() is grpc.aio.EOF


async def test_a_watch_of_an_unknown_service_goes_on_and_ends_with_the_door(town: Any) -> None:
    gateway = await town.gateway(real_time=True)
    watch = asking(town.client(gateway).channel, "nobody", WATCH)
    assert (await watch.read()).status == Status.SERVICE_UNKNOWN
    assert not watch.done()
    await gateway.adapter.drain(time.monotonic() + 60)
    assert await watch.read() is grpc.aio.EOF


async def test_a_connection_with_a_watch_closes_cleanly(town: Any, gateway: Any) -> None:
    assert (await asking(town.client(gateway).channel)).status == Status.SERVING
    before = len(asyncio.all_tasks())
    for ending in ("cancel", "close"):
        client = town.client(gateway)
        watch = asking(client.channel, "", WATCH)
        assert (await watch.read()).status == Status.SERVING
        if ending == "cancel":
            watch.cancel()
        else:
            await client.channel.close(None)
    health = gateway.adapter._health
    await town.until(lambda: repr(health) == "<Health serving watches 0>")
    await town.until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_stopped_door_leaves_no_watch(town: Any, gateway: Any) -> None:
    watch = asking(town.client(gateway).channel, "", WATCH)
    await watch.read()
    await gateway.stop()
    with pytest.raises(grpc.aio.AioRpcError):
        await watch.read()
    await town.until(lambda: "watches 0" in repr(gateway.adapter._health))


# -- without a transport ------------------------------------------------------------------------


class Answers:
    def __init__(self) -> None:
        self.taken: list[int] = []
        self.room = asyncio.Event()
        self.room.set()

    async def write(self, answer: HealthCheckResponse) -> None:
        await self.room.wait()
        self.taken.append(answer.status)


async def test_the_state_follows_the_door() -> None:
    health = Health([MESSAGING])
    ask = HealthCheckRequest(service=MESSAGING)
    assert health.check(ask).status == Status.NOT_SERVING
    health.start()
    assert health.check(ask).status == Status.SERVING
    assert health.check(HealthCheckRequest()).status == Status.SERVING
    health.drain()
    assert health.check(ask).status == Status.NOT_SERVING
    answers = Answers()
    await health.watch(ask, answers)
    assert answers.taken == [Status.NOT_SERVING]


async def test_a_watch_tells_each_change_once_and_the_last_one_also_to_the_slow(town: Any) -> None:
    health = Health([MESSAGING])
    quick, slow = Answers(), Answers()
    watches = [asyncio.ensure_future(health.watch(HealthCheckRequest(), to)) for to in (quick, slow)]
    await town.until(lambda: len(slow.taken) == len(quick.taken) == 1)
    health.start()
    slow.room.clear()
    await town.until(lambda: len(quick.taken) == 2)
    health.drain()
    slow.room.set()
    await asyncio.gather(*watches)
    assert quick.taken == [Status.NOT_SERVING, Status.SERVING, Status.NOT_SERVING]
    assert slow.taken[0] == slow.taken[-1] == Status.NOT_SERVING


async def test_watches_are_bounded_and_one_that_ended_makes_room(town: Any) -> None:
    health = Health([MESSAGING], most_watches=2)
    health.start()
    answers = Answers()
    watches = [asyncio.ensure_future(health.watch(HealthCheckRequest(), answers)) for _ in range(2)]
    await town.until(lambda: len(answers.taken) == 2)
    with pytest.raises(CallFailed, match="the limit of 2 watches") as caught:
        await health.watch(HealthCheckRequest(), answers)
    assert caught.value.status is CallStatus.RESOURCE_EXHAUSTED
    watches[0].cancel()
    await asyncio.wait(watches[:1])
    again = asyncio.ensure_future(health.watch(HealthCheckRequest(), answers))
    await town.until(lambda: len(answers.taken) == 3)
    health.drain()
    await asyncio.gather(watches[1], again)


async def test_a_watch_of_a_client_that_is_gone_makes_room() -> None:
    class Gone:
        async def write(self, _: Any) -> None:
            raise BrokenStream("gone")

    health = Health([], most_watches=1)
    for _ in range(2):
        with pytest.raises(BrokenStream):
            await health.watch(HealthCheckRequest(), Gone())


async def test_too_many_watches_are_told_by_grpcs_own_status(town: Any, gateway: Any) -> None:
    gateway.adapter._health._most_watches = 1
    client = town.client(gateway)
    first = asking(client.channel, "", WATCH)
    await first.read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asking(client.channel, "", WATCH).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    first.cancel()


async def test_a_broker_that_cannot_write_is_not_serving_until_it_can(town: Any) -> None:
    """As /ready tells it, to those who ask and to those who watch."""
    failing = False
    gateway = await town.gateway(healthy=lambda: not failing)
    client = town.client(gateway)
    stream = asking(client.channel, name=WATCH)
    assert (await stream.read()).status == Status.SERVING
    failing = True
    assert (await asking(client.channel)).status == Status.NOT_SERVING
    await gateway.pass_s(2)
    assert (await stream.read()).status == Status.NOT_SERVING
    failing = False
    await gateway.pass_s(2)
    assert (await stream.read()).status == Status.SERVING
    assert (await asking(client.channel)).status == Status.SERVING
    stream.cancel()
