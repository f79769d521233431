"""A static topic whose queues go to another broker: its numbers stay, and reading goes on behind the gap."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest

from popgate.testing import CREATE_ON_USE, running_gateway
from popgate.testing.rocketmq import RocketMQ
from popgate.testing.rocketmq.asking import ask
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb import service_pb2 as rpc
from tests.cluster.load import PATIENT, SERVICE, Client, Code, until
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(1800)]

QUEUES = 2


async def send(client: Client, topic: str, count: int, word: str) -> Counter[str]:
    """Send messages, and again what was refused, as by a broker that leads no longer; how often each body."""
    tries: Counter[str] = Counter()
    for number in range(count):

        async def sent(body: str = f"{word}-{number}") -> bool:
            tries[body] += 1
            return bool((await client.send(topic, body)).status.code == Code.OK)

        await until(sent)
    return tries


async def read(client: Client, queue: pb.MessageQueue, end: int) -> list[tuple[int, str]]:
    """The messages of a queue below an offset, with theirs; each pull says where the next begins."""
    found: list[tuple[int, str]] = []
    offset = 0
    method = client.channel.unary_stream(
        SERVICE + "PullMessage",
        request_serializer=rpc.PullMessageRequest.SerializeToString,
        response_deserializer=rpc.PullMessageResponse.FromString,
    )

    async def more() -> bool:
        nonlocal offset
        request = rpc.PullMessageRequest(
            group=pb.Resource(name="readers"), message_queue=queue, offset=offset, batch_size=32
        )
        async for frame in method(request, metadata=client.metadata, timeout=100):
            match frame.WhichOneof("content"):
                case "message":
                    at = frame.message.system_properties.queue_offset
                    found.append((at, frame.message.body.decode()))
                case "next_offset":
                    offset = frame.next_offset
                case "status":
                    assert frame.status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), frame.status
        return offset >= end

    await until(more)
    return [one for one in found if one[0] < end]


async def ends(client: Client, queue: pb.MessageQueue) -> tuple[int, int]:
    answers: list[Any] = [
        await client.call("QueryOffset", rpc.QueryOffsetRequest(message_queue=queue, query_offset_policy=one))
        for one in (pb.BEGINNING, pb.END)
    ]
    assert [answer.status.code for answer in answers] == [Code.OK, Code.OK], answers
    return answers[0].offset, answers[1].offset


async def lead(cluster: RocketMQ, broker: str, topic: str, *command: str) -> None:
    """Have a broker lead all queues; mqadmin ends well also when it could not, as while one is not known."""

    async def led() -> bool:
        print(await asyncio.to_thread(cluster.admin, *command, "-t", topic, "-b", broker))
        end = asyncio.get_running_loop().time() + 10
        while asyncio.get_running_loop().time() < end:
            answer = await asyncio.to_thread(
                ask, cluster.addresses[0], RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, timeout_s=30
            )
            if answer.code == ResponseCode.SUCCESS:
                mapping = TopicRoute.decode(answer.body).mappings.get(broker)
                if mapping is not None and set(mapping.current) == set(range(QUEUES)):
                    return True
            await asyncio.sleep(0.05)
        return False

    # Each try starts a Java, and whatever it missed the next one finds.
    await until(led, within=5 * PATIENCE_S)


async def test_sends_pulls_and_offsets_follow_the_queues_of_a_static_topic_to_another_broker(
    pair_cluster: RocketMQ,
) -> None:
    topic = f"static-{uuid.uuid4().hex[:8]}"
    await lead(pair_cluster, "broker-a", topic, "updateStaticTopic", "-qn", str(QUEUES))
    quick = {"POPGATE_REMOTE__ROUTE_REFRESH_S": "1", **PATIENT}
    async with running_gateway(
        options=("--broker", pair_cluster.url, *CREATE_ON_USE), environment=quick
    ) as gateway:
        client = Client(gateway.endpoint, "reader")
        before = await send(client, topic, 6, "before")
        queues = list((await client.route(topic)).message_queues)
        assert {queue.id for queue in queues} == set(range(QUEUES))
        await lead(pair_cluster, "broker-b", topic, "remappingStaticTopic")
        after = await send(client, topic, 6, "after")

        async def all_read() -> list[tuple[int, int, list[tuple[int, str]]]]:
            """Of each queue its bounds and what is between them, when that is all; readers see it a moment
            after it was answered."""
            told = []
            for queue in queues:
                begin, end = await ends(client, queue)
                told.append((begin, end, await read(client, queue, end)))
            bodies = {body for _, _, found in told for _, body in found}
            return told if bodies == {*before, *after} else []

        copies: Counter[str] = Counter()
        # What was stored is read where it was stored, by the queues as they were told first.
        for begin, end, found in await until(all_read):
            offsets = [offset for offset, _ in found]
            assert offsets == sorted(set(offsets))
            assert (begin, end) == (offsets[0], offsets[-1] + 1)
            # A new leader counts on from where the old one cannot come to.
            assert end - begin > len(found)
            copies.update(body for _, body in found)
        # One that was sent again because its answer was lost may be there twice.
        print(f"sent {before + after}, stored {copies}")
        assert copies <= before + after
        await client.close()
