"""A static topic whose queues go to another broker: its numbers stay, and reading goes on behind the gap."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from typing import Any

import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.queue_client import QueuePlace
from popgate.spark.options.source_options import read_source_options
from popgate.spark.read.partition_reader import whole
from popgate.spark.read.read_plan import Range
from popgate.testing import CREATE_ON_USE, GatewayProcess, running_gateway
from popgate.testing.rocketmq import RocketMQ
from popgate.testing.rocketmq.requests import ask
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.records import decode_records
from tests.cluster.load import PACE_S, PATIENT, Client, Code, until
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

    async def more() -> bool:
        nonlocal offset
        request = rpc.PullMessageRequest(
            group=pb.Resource(name="readers"), message_queue=queue, offset=offset, batch_size=32
        )
        async for frame in client.frames("PullMessage", request):
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


def read_by_spark(endpoint: str, queue: pb.MessageQueue, begin: int, end: int) -> list[tuple[int, str]]:
    """As `read`, by what a task of Spark does, to which a gap that retention left is an error."""
    place = QueuePlace(queue.topic.name, queue.broker.name, queue.id)
    options = read_source_options({"endpoints": endpoint, "topic": place.topic}, streaming=False)
    warnings: list[str] = []
    found = [
        (record.offset, record.body.decode())
        for body, _ in whole(Range(place, begin, end), options, warnings.append)
        for record in decode_records(body)
    ]
    assert not warnings
    return found


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
        listen=("grpc://127.0.0.1:0", "remoting://127.0.0.1:0"),
        options=("--broker", pair_cluster.url, *CREATE_ON_USE),
        environment=quick,
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
        read_queues = await until(all_read)
        remoting = gateway.addresses[1].partition("://")[2]
        for queue, (begin, end, found) in zip(queues, read_queues, strict=True):
            assert await asyncio.to_thread(read_by_spark, remoting, queue, begin, end) == found
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


class Sending:
    """One producer that sends numbered messages one after the other, each until it is answered."""

    def __init__(self, gateway: GatewayProcess, topic: str) -> None:
        self._client = Client(gateway.endpoint, "producer")
        self._topic = topic
        self._stop = asyncio.Event()
        self.tries: Counter[int] = Counter()
        self.answered = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stop.is_set():
            number = self.answered

            async def sent(number: int = number) -> bool:
                self.tries[number] += 1
                return bool((await self._client.send(self._topic, str(number))).status.code == Code.OK)

            await until(sent)
            self.answered += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), PACE_S)

    async def goes_on(self, more: int = 60) -> None:
        wanted = self.answered + more
        await until(lambda: self.answered >= wanted or self._task.done())
        assert not self._task.done()

    async def stop(self) -> None:
        self._stop.set()
        await self._task
        await self._client.close()


class Following:
    """Pulls a queue from its beginning on, each time from where the last answer says."""

    def __init__(self, gateway: GatewayProcess, queue: pb.MessageQueue) -> None:
        self._client = Client(gateway.endpoint, f"reader-{queue.id}")
        self._queue = queue
        self.found: list[tuple[int, int]] = []
        """Offsets with the numbers of the messages there, in the order in which they came."""
        self.stored_ms: dict[int, int] = {}
        """When the message at an offset was stored."""
        self.failures: Counter[str] = Counter()
        self.offset = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        request = rpc.PullMessageRequest(
            group=pb.Resource(name="readers"), message_queue=self._queue, batch_size=32
        )
        request.long_polling_timeout.FromMilliseconds(200)
        while True:
            request.offset = self.offset
            async for frame in self._client.frames("PullMessage", request):
                match frame.WhichOneof("content"):
                    case "message":
                        at = frame.message.system_properties.queue_offset
                        self.found.append((at, int(frame.message.body)))
                        stored = frame.message.system_properties.store_timestamp
                        self.stored_ms[at] = stored.ToMilliseconds()
                    case "next_offset":
                        self.offset = frame.next_offset
                    case "status" if frame.status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
                        self.failures[pb.Code.Name(frame.status.code)] += 1

    async def comes_to(self, end: int) -> None:
        await until(lambda: self.offset >= end or self._task.done())
        assert not self._task.done(), self._task.exception()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()


async def commit(client: Client, queue: pb.MessageQueue, group: str, offset: int) -> None:
    request = rpc.UpdateOffsetRequest(message_queue=queue, group=pb.Resource(name=group), offset=offset)
    answer = await client.call("UpdateOffset", request)
    assert answer.status.code == Code.OK, answer


async def committed(client: Client, queue: pb.MessageQueue, group: str) -> int:
    request = rpc.GetOffsetRequest(message_queue=queue, group=pb.Resource(name=group))
    answer = await client.call("GetOffset", request)
    assert answer.status.code == Code.OK, answer
    return int(answer.offset)


async def offset_at(client: Client, queue: pb.MessageQueue, time_ms: int) -> int:
    request = rpc.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.TIMESTAMP)
    request.timestamp.FromMilliseconds(time_ms)
    answer = await client.call("QueryOffset", request)
    assert answer.status.code == Code.OK, answer
    return int(answer.offset)


async def test_a_remap_under_load_loses_nothing_and_keeps_order_and_offsets(pair_cluster: RocketMQ) -> None:
    """While a producer sends and each queue is pulled, the queues go to the other broker."""
    topic, group = f"static-{uuid.uuid4().hex[:8]}", f"readers-{uuid.uuid4().hex[:8]}"
    await lead(pair_cluster, "broker-a", topic, "updateStaticTopic", "-qn", str(QUEUES))
    quick = {"POPGATE_REMOTE__ROUTE_REFRESH_S": "1", **PATIENT}
    async with running_gateway(
        options=("--broker", pair_cluster.url, *CREATE_ON_USE), environment=quick
    ) as gateway:
        client = Client(gateway.endpoint, "looker")
        queues = list((await client.route(topic)).message_queues)
        assert {queue.id for queue in queues} == set(range(QUEUES))
        sending = Sending(gateway, topic)
        following = [Following(gateway, queue) for queue in queues]
        await sending.goes_on()
        before = {queue.id: (await ends(client, queue))[1] for queue in queues}
        for queue in queues:
            await commit(client, queue, group, before[queue.id] - 1)
        await lead(pair_cluster, "broker-b", topic, "remappingStaticTopic")
        await sending.goes_on()
        for queue in queues:
            assert await committed(client, queue, group) == before[queue.id] - 1
        await sending.goes_on()
        await sending.stop()
        stored: Counter[int] = Counter()
        for queue, reader in zip(queues, following, strict=True):

            async def settled(queue: pb.MessageQueue = queue) -> tuple[int, int] | None:
                """The bounds, when they stay: what was answered is seen a moment later."""
                first, second = await ends(client, queue), await ends(client, queue)
                return first if first == second and first[1] > before[queue.id] else None

            begin, end = await until(settled)
            await reader.comes_to(end)
            await reader.stop()
            offsets = [offset for offset, _ in reader.found]
            numbers = [number for _, number in reader.found]
            assert offsets == sorted(set(offsets)), f"queue {queue.id} was not read in order, or twice"
            assert numbers == sorted(numbers), f"the order of queue {queue.id} is broken"
            assert (begin, end) == (offsets[0], offsets[-1] + 1)
            stored.update(numbers)
            print(
                f"queue {queue.id}: {len(numbers)} messages in {begin}..{end}, failed pulls {reader.failures}"
            )
            # Of the messages before the remap, and of those behind it, one in the middle; and all of them.
            moved = [[at for at in offsets if (at < before[queue.id]) is older] for older in (True, False)]
            for time_ms in (0, *(reader.stored_ms[some[len(some) // 2]] for some in moved)):
                first = min(at for at, stored_ms in reader.stored_ms.items() if stored_ms >= time_ms)
                assert await offset_at(client, queue, time_ms) == first, f"queue {queue.id} at {time_ms}"
            assert await offset_at(client, queue, time.time_ns() // 1_000_000 + 60_000) == end
            await commit(client, queue, group, end)
            assert await committed(client, queue, group) == end
        print(f"sent {sending.answered} in {sending.tries.total()} tries, stored {stored.total()}")
        assert stored.keys() == set(range(sending.answered))
        assert stored <= sending.tries
        await client.close()
