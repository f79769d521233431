"""Clients while things happen to a cluster: they try nothing again, and write down what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import AsyncIterable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from popgate.errors import PeerWireError
from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing.rocketmq import RocketMQ
from tests.cluster.records import INVISIBLE_S, LATEST_ERROR_S, Records
from tests.cluster.witness import Witness
from tests.replicas.books import RocketMQBooks
from tests.support import waiting
from tests.support.waiting import PATIENCE_S

SERVICE = "/apache.rocketmq.v2.MessagingService/"
until = functools.partial(waiting.until, within=1.5 * PATIENCE_S)
"""Longer than elsewhere: masters, slaves, name servers and the load share the machine."""
CALL_S = 60.0
WAIT_S = 3
PATIENT = {
    "POPGATE_REMOTE__REQUEST_TIMEOUT_S": "40",
    "POPGATE_REMOTE__CONNECT_TIMEOUT_S": "20",
    "POPGATE_REMOTE__PROBE_S": "20",
}
"""For a gateway whose clients must be told of no error at all: on a machine of two cores a cluster's servers
stand still for longer than the shipped 3 s, and that is no broker that went."""
PACE_S = 0.02
"""Between two sends of a producer: load enough, and time for everything else on the machine."""
Code = pb.Code
_FINE = (Code.OK, Code.MESSAGE_NOT_FOUND)
_load_numbers = itertools.count()


class Client:
    """Asks a gateway over a connection of its own."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.channel = grpc.aio.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
        self.metadata = (
            ("x-mq-client-id", name),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
        )

    async def call(self, name: str, request: Any) -> Any:
        method = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        return await method(request, metadata=self.metadata, timeout=CALL_S)

    def frames(self, name: str, request: Any) -> AsyncIterable[Any]:
        """What is answered to a ReceiveMessage or PullMessage, one after the other."""
        method = self.channel.unary_stream(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        answer: AsyncIterable[Any] = method(request, metadata=self.metadata, timeout=CALL_S)
        return answer

    async def stream(self, name: str, request: Any) -> tuple[list[pb.Message], pb.Status]:
        """The messages of a ReceiveMessage or PullMessage, and the status of it all."""
        messages, status = [], pb.Status()
        async for frame in self.frames(name, request):
            kind = frame.WhichOneof("content")
            if kind == "message":
                messages.append(frame.message)
            elif kind == "status":
                status = frame.status
        return messages, status

    async def send(self, topic: str, body: str, *, open_s: int = 0, **system: Any) -> Any:
        """`open_s`: how long a transaction may be ended."""
        if open_s:
            system["orphaned_transaction_recovery_duration"] = Duration(seconds=open_s)
        message = pb.Message(
            topic=pb.Resource(name=topic),
            body=body.encode(),
            system_properties=pb.SystemProperties(message_id=make_message_id(), **system),
        )
        return await self.call("SendMessage", rpc.SendMessageRequest(messages=[message]))

    async def route(self, topic: str) -> Any:
        return await self.call("QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name=topic)))

    async def pull(self, topic: str, group: str, broker: str, queue_id: int) -> dict[str, str]:
        """The bodies of all messages of a queue, with the names of the broker. Fails when one pull does."""
        queue = pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id, broker=pb.Broker(name=broker))
        found: dict[str, str] = {}
        offset = 0
        while True:
            request = rpc.PullMessageRequest(
                group=pb.Resource(name=group), message_queue=queue, offset=offset, batch_size=256
            )
            messages, status = await self.stream("PullMessage", request)
            if not messages:
                assert status.code in _FINE, status
                return found
            for message in messages:
                found[message.body.decode()] = broker
            offset = messages[-1].system_properties.queue_offset + 1

    async def pull_all(self, topic: str, group: str, brokers: Sequence[str], queues: int) -> dict[str, str]:
        """As `pull`, of all queues of some brokers."""
        each = [self.pull(topic, group, broker, number) for broker in brokers for number in range(queues)]
        found: dict[str, str] = {}
        for some in await asyncio.gather(*each):
            found |= some
        return found

    async def close(self) -> None:
        await self.channel.close(None)


class Load:
    """Producers and consumers of one topic; `records` are written until the block ends."""

    def __init__(
        self,
        endpoint: str,
        cluster: RocketMQ,
        topic: str,
        group: str,
        *,
        producers: int = 3,
        consumers: int = 3,
        like: Load | None = None,
    ) -> None:
        """`like`: another one, to which the same things happen."""
        self._cluster = cluster
        self._witness = Witness() if like is None else like._witness
        self._witnessed = like is not None
        faults = like.records.faults if like is not None else []
        self.records: Records = Records(faults=faults, lateness=self._witness.lateness_s)
        self.topic = topic
        self.group = group
        self.name = f"load-{next(_load_numbers)}-{make_message_id()}"
        self._endpoint = endpoint
        self._producers = producers
        self._consumers = consumers
        self._clients: list[Client] = []
        self._sending: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []
        self._over = False

    async def __aenter__(self) -> Self:
        if not self._witnessed:
            self._witness.start()
        self.client = self._client("tools")
        for n in range(self._producers):
            self._sending.append(asyncio.ensure_future(self._produce(f"{self.name}-p{n}")))
        for n in range(self._consumers):
            self._receiving.append(asyncio.ensure_future(self._consume(f"{self.name}-c{n}")))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        for task in (*self._sending, *self._receiving):
            task.cancel()
        await asyncio.gather(*self._sending, *self._receiving, return_exceptions=True)
        for client in self._clients:
            await client.close()
        try:
            # The witness is asked for the lateness of the machine: before it stops.
            print(f"{self.name}:", *await asyncio.to_thread(self.records.lines), sep="\n")
        finally:
            if not self._witnessed:
                await asyncio.to_thread(self._witness.stop)

    def _client(self, name: str) -> Client:
        made = Client(self._endpoint, name)
        self._clients.append(made)
        return made

    # -- what the clients do ----------------------------------------------------------------------

    async def _produce(self, name: str) -> None:
        client = self._client(name)
        for number in itertools.count():
            body = f"{name}-{number}"
            began = time.monotonic()
            try:
                answer = await client.send(self.topic, body)
            except grpc.aio.AioRpcError as error:
                self.records.failed(began, "send", f"{error.code().name}: {error.details()}")
            else:
                if answer.status.code == Code.OK:
                    self.records.sent[body] = time.monotonic()
                else:
                    self.records.failed(began, "send", f"{answer.status.code}: {answer.status.message}")
            await asyncio.sleep(PACE_S)

    async def _consume(self, name: str) -> None:
        client = self._client(name)
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=self.group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self.topic), id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=16,
            invisible_duration=Duration(seconds=INVISIBLE_S),
            long_polling_timeout=Duration(seconds=WAIT_S),
        )
        while True:
            began = time.monotonic()
            try:
                messages, status = await client.stream("ReceiveMessage", request)
            except grpc.aio.AioRpcError as error:
                self.records.failed(began, "receive", f"{error.code().name}: {error.details()}")
                await asyncio.sleep(PACE_S)
                continue
            if status.code not in _FINE:
                self.records.failed(began, "receive", f"{status.code}: {status.message}")
                await asyncio.sleep(PACE_S)
            if messages:
                await self._finish(client, messages, began)

    async def _finish(self, client: Client, messages: list[pb.Message], asked: float) -> None:
        handles = [message.system_properties.receipt_handle for message in messages]
        taken = [
            self.records.delivered(message.body.decode(), handle, asked)
            for message, handle in zip(messages, handles, strict=True)
        ]
        began = time.monotonic()
        entries = [
            rpc.AckMessageEntry(message_id=message.system_properties.message_id, receipt_handle=handle)
            for message, handle in zip(messages, handles, strict=True)
        ]
        request = rpc.AckMessageRequest(
            topic=pb.Resource(name=self.topic), group=pb.Resource(name=self.group), entries=entries
        )
        try:
            answer = await client.call("AckMessage", request)
        except grpc.aio.AioRpcError as error:
            self.records.failed(began, "ack", f"{error.code().name}: {error.details()}")
            self.records.unsure += taken
            return
        if not answer.entries:
            self.records.failed(began, "ack", f"{answer.status.code}: {answer.status.message}")
            self.records.unsure += taken
        for delivery, entry in zip(taken, answer.entries, strict=False):
            if entry.status.code == Code.OK:
                self.records.acknowledged(delivery)
            else:
                self.records.failed(began, "ack", f"{entry.status.code}: {entry.status.message}")
                if entry.status.code != Code.INVALID_RECEIPT_HANDLE:  # of what came too late, and comes again
                    self.records.unsure.append(delivery)

    # -- what tests wait for ----------------------------------------------------------------------

    async def works(self, more: int = 60, *, brokers: tuple[str, ...] = ()) -> None:
        """Until so many more sends are answered and so many more messages finished, some of each broker."""
        records = self.records
        sent, acked, seen = len(records.sent) + more, len(records.acks) + more, len(records.deliveries)

        def worked() -> bool:
            names = {delivery.broker for delivery in records.deliveries[seen:]}
            return len(records.sent) >= sent and len(records.acks) >= acked and names.issuperset(brokers)

        await until(worked, what=f"the load goes on at {brokers}")

    async def outlasts(self, *, consumed: bool = True) -> None:
        """Until the time in which a fault may be felt is over, and work was done after that."""
        end = self.records.faults[-1].over + LATEST_ERROR_S
        await asyncio.sleep(max(end - time.monotonic(), 0.0))
        if consumed:
            await self.works()
        else:
            sent = len(self.records.sent) + 60
            await until(lambda: len(self.records.sent) >= sent)

    async def stops_sending(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def ends(self) -> None:
        """Send no more, consume all that was answered, and look at what was written down."""
        await self.stops_sending()
        with contextlib.suppress(AssertionError):  # what is missing is complained of below
            await until(self._all_finished)
        await self.looks_up()
        complaints = self.records.complaints()
        assert not complaints, "\n".join(complaints)

    async def _all_finished(self) -> bool:
        """By what clients were told; also by the books of brokers, where an acknowledgement failed: one that
        was killed may have taken it, and then nothing comes again."""
        missing = self.records.missing()
        for one in self.records.unsure if missing else ():
            with contextlib.suppress(KeyError, OSError, PeerWireError):  # its broker has gone
                if one.body in missing and await asyncio.to_thread(
                    self._books().has, self.topic, self.group, one.handle
                ):
                    self.records.acknowledged(one)
        return not self.records.missing()

    async def looks_up(self) -> None:
        """Find what was revived in the books of its broker; to be done before that one goes for ever."""
        for one in self.records.revived():
            with contextlib.suppress(KeyError):  # its broker has gone
                if await asyncio.to_thread(self._books().has, self.topic, self.group, one.handle):
                    self.records.dropped.add(one.handle)

    def _books(self) -> RocketMQBooks:
        return RocketMQBooks(next(one.address for one in self._cluster.name_servers if one.runs))
