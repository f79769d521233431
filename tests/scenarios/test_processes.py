"""Scenarios 1, 5 and 7 with real processes: killed by themselves at a named call, and restarted in order."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.definition_pb2 import PUSH_CONSUMER, Code
from popgate.testing import GatewayDidNotStart, GatewayProcess, running_gateway


def client_of(world: Any, gateway: GatewayProcess, **headers: str) -> Any:
    return world.dial(gateway.endpoint, int(gateway.endpoint.rpartition(":")[2]), **headers)


def faulty(data: Path, faults: str) -> GatewayProcess:
    return GatewayProcess(data, environment={"POPGATE_FAULTS": faults})


async def gone(gateway: GatewayProcess) -> None:
    assert await asyncio.to_thread(gateway.wait) == -signal.SIGKILL


async def test_scenario_01_a_process_killed_between_a_renewal_and_its_answer_costs_no_duplicate(
    world: Any, handle: Any, tmp_path: Path
) -> None:
    gateway = faulty(tmp_path, "seed=1;kill=ChangeInvisibleDuration:after=1")
    await asyncio.to_thread(gateway.start)
    with gateway:
        client = client_of(world, gateway)
        for n in range(2):
            await client.send_one(body=b"%d" % n)
        first, second = await client.receive()
        renewed = await client.change(handle(first), 600)
        assert renewed.status.code == Code.OK
        with pytest.raises(grpc.aio.AioRpcError):
            await client.change(handle(second), 600)
        await gone(gateway)
    assert "FAULTS ARE ON" in gateway.log
    async with running_gateway(tmp_path) as successor:
        client = client_of(world, successor)
        assert await client.receive() == []
        answer = await client.ack(renewed.receipt_handle, handle(second))
        assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.OK]
        assert await client.receive(wait_ms=200) == []


@pytest.mark.parametrize("step", ["EndTransaction", "commit", "committed"])
async def test_scenario_05_a_process_killed_in_the_middle_of_a_commit_leaves_one_message(
    world: Any, tmp_path: Path, step: str
) -> None:
    """Killed before the write, behind it, or before the answer: the producer's second commit is right."""
    after = 0 if step == "EndTransaction" else await writes_before_the_commit(world)
    gateway = faulty(tmp_path / "killed", f"seed=5;kill={step}:after={after}")
    await asyncio.to_thread(gateway.start)
    with gateway:
        client = client_of(world, gateway)
        entry = await client.send_one(body=b"once", message_type=pb.MessageType.TRANSACTION)
        with pytest.raises(grpc.aio.AioRpcError):
            await client.end(entry)
        await gone(gateway)
    async with running_gateway(tmp_path / "killed") as successor:
        client = client_of(world, successor)
        found = [message.body for message in await client.receive(group="before")]
        assert found == ([] if step == "commit" else [b"once"])
        assert await client.end(entry) == Code.OK
        assert await client.end(entry) == Code.OK
        assert [message.body for message in await client.receive()] == [b"once"]


async def writes_before_the_commit(world: Any) -> int:
    """How many batches a gateway writes for the same calls: faults are a function of the calls."""
    gateway = await world.gateway("seed=5;fail=commit:after=1000000")
    await world.client(gateway).send_one(body=b"once", message_type=pb.MessageType.TRANSACTION)
    return int(gateway.faults.calls["commit"])


async def told(gateway: GatewayProcess) -> Any:
    """What the gateway says of its faults."""

    def read() -> Any:
        with urllib.request.urlopen(f"{gateway.admin}/api/faults", timeout=60) as answer:
            return json.load(answer)

    return await asyncio.to_thread(read)


async def waiting(gateway: GatewayProcess) -> bool:
    """Whether a receive waits there."""

    def read() -> str:
        with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    return "\npopgate_waiting_receives 1.0\n" in await asyncio.to_thread(read)


class Producer:
    """Sends one message after the other as official clients do: a call that fails is repeated, with its id.

    grpc.aio cancels calls that arrive in the very moment in which its server is told to stop.
    """

    def __init__(self, world: Any, gateway: GatewayProcess, name: str) -> None:
        self.client = client_of(world, gateway, client_id=name)
        self.name = name
        self.sent: list[bytes] = []
        self.failures: list[str] = []
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            body = f"{self.name}-{len(self.sent)}".encode()
            message = self.client.message("t", body, message_id=make_message_id())
            failures: list[str] = []
            while len(failures) < 3 and not await self._stored(message, failures):
                pass
            if len(failures) < 3:
                self.sent.append(body)
            else:
                self.failures += failures

    async def _stored(self, message: Any, failures: list[str]) -> bool:
        send = self.client.channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=rpc.SendMessageRequest.SerializeToString,
            response_deserializer=rpc.SendMessageResponse.FromString,
        )
        request = rpc.SendMessageRequest(messages=[message])
        try:
            answer = await send(request, metadata=self.client.metadata, timeout=60, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            failures.append(str(error.details()))
            return False
        if answer.status.code != Code.OK:
            failures.append(answer.status.message)
        return bool(answer.status.code == Code.OK)


async def test_scenario_07_producers_that_try_again_see_no_error_in_a_restart_and_nothing_twice(
    world: Any, tmp_path: Path
) -> None:
    gateway = GatewayProcess(tmp_path)
    await asyncio.to_thread(gateway.start)
    with gateway:
        producers = [Producer(world, gateway, f"p{n}") for n in range(3)]
        tasks = [asyncio.ensure_future(producer.run()) for producer in producers]

        async def sent(more: int) -> None:
            wanted = [len(producer.sent) + more for producer in producers]
            await world.until(
                lambda: all(len(p.sent) >= count for p, count in zip(producers, wanted, strict=True))
            )

        await sent(20)
        assert await asyncio.to_thread(gateway.terminate) == 0
        with gateway.successor() as successor:
            await sent(20)
            for producer in producers:
                producer.stopping = True
            await asyncio.gather(*tasks)
            assert [producer.failures for producer in producers] == [[], [], []]
            expected = sorted(body for producer in producers for body in producer.sent)
            client = client_of(world, successor)
            found: list[bytes] = []
            while messages := await client.receive():
                found += [message.body for message in messages]
            assert sorted(found) == expected


async def test_scenario_07_consumers_go_on_at_the_successor_without_settings(
    world: Any, handle: Any, tmp_path: Path
) -> None:
    """What is held stays held, polls end well, and nobody must introduce himself again."""
    gateway = GatewayProcess(tmp_path)
    await asyncio.to_thread(gateway.start)
    with gateway:
        client = client_of(world, gateway)
        stream = await client.introduce(client.subscribing(PUSH_CONSUMER))
        await client.send_one(body=b"held")
        (held,) = await client.receive(auto_renew=True)
        poll = asyncio.ensure_future(client.frames(wait_ms=50_000))
        await world.until(lambda: waiting(gateway))
        stopping = asyncio.ensure_future(asyncio.to_thread(gateway.terminate))
        frames = await poll
        assert frames[0].status.code == Code.MESSAGE_NOT_FOUND
        while (command := await asyncio.wait_for(stream.read(), 60)) is not grpc.aio.EOF:
            assert command.WhichOneof("command") != "settings"
        assert await stopping == 0
        with gateway.successor() as successor:
            client = client_of(world, successor)
            heartbeat = rpc.HeartbeatRequest(client_type=PUSH_CONSUMER, group=pb.Resource(name="g"))
            assert (await client.call("Heartbeat", heartbeat)).status.code == Code.OK
            assert await client.receive(auto_renew=True) == []  # it is still held
            assert (await client.ack(handle(held))).status.code == Code.OK
            await client.send_one(body=b"next")
            (message,) = await client.receive(auto_renew=True)
            assert message.body == b"next"


async def test_faults_of_a_process_can_be_asked_for_by_number(
    world: Any, handle: Any, tmp_path: Path
) -> None:
    with faulty(tmp_path, "seed=3;drop=AckMessage:after=1:times=1") as gateway:
        client = client_of(world, gateway)
        for _ in range(2):
            await client.send_one()
        first, second = await client.receive()
        assert (await client.ack(handle(first))).status.code == Code.OK
        with pytest.raises(grpc.aio.AioRpcError, match="lost on purpose"):
            await client.ack(handle(second))
        faults = await told(gateway)
    assert (faults["count"], faults["calls"]["AckMessage"]) == (1, 2)
    assert faults["happened"] == [
        {"number": 1, "rule": "drop=AckMessage:after=1:times=1", "step": "AckMessage", "call": 2}
    ]


def test_faults_that_are_not_spelled_exactly_keep_a_gateway_from_starting(tmp_path: Path) -> None:
    for text, sentence in (
        ("drop=AckMessage", "no seed"),
        ("seed=1;drop=Ack", "nothing here can drop at Ack"),
        ("seed=1;drop=AckMessage:messages=3", "drop takes no messages="),
    ):
        with pytest.raises(GatewayDidNotStart, match=sentence):
            faulty(tmp_path, text).start()


def test_without_the_setting_there_is_no_page_about_faults(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path) as gateway, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{gateway.admin}/api/faults", timeout=60)
    assert refused.value.code == 404
    refused.value.close()
