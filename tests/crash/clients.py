"""The clients of a crash run: they do as official clients do, and write down what they are told.

An official client repeats a request whose answer was lost: the same message id, the same handle, the
same attempt id. These go on until they are answered, so that at the end nothing is in doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from tests.crash.records import Check, Delivery, Records, Send, Stored

SERVICE = "/apache.rocketmq.v2.MessagingService/"
TIMEOUT_S = 3.0
"""Of a request, as official clients have it."""
INVISIBLE_S = 2
FIRST_CHECK_S = 1
"""After so long a half message may be asked about."""
REST_S = 0.05
Code = pb.Code
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 300),
)
_answers = itertools.count()


class Stage:
    """What all clients of a run share: where the gateway is, what is written down, whether to go on."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.endpoint = endpoint
        self.seed = seed
        self.records = Records()
        self.sending = True
        """Whether producers begin anything new."""
        self.receiving = True
        self.over = asyncio.Event()
        """Set when `receiving` ends."""
        self.diligent = False
        """Whether consumers acknowledge everything, at once."""
        self.fates: dict[str, bool] = {}
        """By body: whether the transaction is to be committed."""

    def dice(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")


class Client:
    """One client with a connection of its own."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.records = stage.records
        self.name = name
        self.dice = stage.dice(name)
        self.channel = grpc.aio.insecure_channel(stage.endpoint, options=_OPTIONS)
        self.metadata = (
            ("x-mq-client-id", name),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
        )

    async def call(self, name: str, request: Any) -> Any:
        """Ask until there is an answer."""
        method = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        while True:
            try:
                answer = await method(request, metadata=self.metadata, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError:
                self.records.counts[f"{name} lost"] += 1
                await self.connected()
                continue
            # Told that nothing is known, or nothing could be done: as good as no answer.
            if answer.status.code in (
                *(Code.INTERNAL_SERVER_ERROR, Code.PROXY_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT),
                *(Code.HA_NOT_AVAILABLE, Code.TOO_MANY_REQUESTS),
            ):
                self.records.counts[f"{name} {Code.Name(answer.status.code)}"] += 1
                await asyncio.sleep(REST_S)
                continue
            self.records.counts[name] += 1
            return answer

    async def connected(self) -> None:
        """Wait for a connection, for as long as a request may take."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.channel.channel_ready(), TIMEOUT_S)

    async def frames(self, request: Any, timeout: float) -> list[Any]:
        """The elements of one receive or pull. Raises AioRpcError."""
        name = type(request).__name__.removesuffix("Request")
        method = self.channel.unary_stream(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        return [frame async for frame in method(request, metadata=self.metadata, timeout=timeout)]

    async def send(self, *sends: Send, **system: Any) -> list[rpc.SendResultEntry]:
        """Send messages in one request until it is answered; all of them must be taken."""
        request = rpc.SendMessageRequest()
        for send in sends:
            self.records.tried.add(send.body)
            message = request.messages.add(topic=pb.Resource(name=send.topic), body=send.body.encode())
            message.system_properties.CopyFrom(pb.SystemProperties(message_id=send.message_id, **system))
            message.system_properties.born_timestamp.GetCurrentTime()
        answer = await self.call("SendMessage", request)
        if answer.status.code != Code.OK or len(answer.entries) != len(sends):
            self.records.odd.append(f"{sends[0].body} was refused: {answer.status}")
            return []
        for send, entry in zip(sends, answer.entries, strict=True):
            send.answered_ms = time.time_ns() // 1_000_000
            if entry.message_id != send.message_id:
                self.records.odd.append(f"{send.body} was answered as {entry.message_id}")
            self.records.sends[send.body] = send
        return list(answer.entries)

    async def run(self) -> None:
        raise AssertionError("each kind of client does something of its own")

    async def pause(self, longest: float) -> None:
        await asyncio.sleep(self.dice.uniform(0, longest))


class PlainProducer(Client):
    """Sends one message or some at a time."""

    async def run(self) -> None:
        for number in itertools.count():
            if not self.stage.sending:
                return
            sends = [
                Send("plain", f"{self.name}/{number}.{part}", make_message_id())
                for part in range(self.dice.choice((1, 1, 1, 2, 5)))
            ]
            for send, entry in zip(sends, await self.send(*sends), strict=False):
                send.offset = entry.offset
            await self.pause(0.02)


class OrderedProducer(Client):
    """Sends to message groups of its own; the next one only when the last one was answered."""

    async def run(self) -> None:
        for number in itertools.count():
            if not self.stage.sending:
                return
            lane = f"{self.name}-{self.dice.randrange(3)}"
            send = Send("ordered", f"{lane}/{number}", make_message_id(), lane=lane, number=number)
            for entry in await self.send(send, message_group=lane, message_type=pb.FIFO):
                send.offset = entry.offset
            await self.pause(0.03)


class DelayedProducer(Client):
    """Sends for later, and takes some of it back."""

    async def run(self) -> None:
        for number in itertools.count():
            if not self.stage.sending:
                return
            due_ms = time.time_ns() // 1_000_000 + self.dice.randrange(200, 4_000)
            send = Send("delayed", f"{self.name}/{number}", make_message_id(), due_ms=due_ms)
            when = {"seconds": due_ms // 1000, "nanos": due_ms % 1000 * 1_000_000}
            entries = await self.send(send, delivery_timestamp=when, message_type=pb.DELAY)
            if entries and self.dice.random() < 0.2:
                await self._recall(send, entries[0].recall_handle)
            await self.pause(0.05)

    async def _recall(self, send: Send, handle: str) -> None:
        lost = self.records.counts["RecallMessage lost"]
        request = rpc.RecallMessageRequest(topic=pb.Resource(name="delayed"), recall_handle=handle)
        answer = await self.call("RecallMessage", request)
        if answer.status.code == Code.OK:
            send.delivered = False
        elif self.records.counts["RecallMessage lost"] != lost:
            send.delivered = None  # taken back by the call whose answer was lost, or delivered


class TransactionProducer(Client):
    """Commits, rolls back, or says nothing until it is asked."""

    async def run(self) -> None:
        answering = asyncio.create_task(self._answer_checks())
        try:
            for number in itertools.count():
                if not self.stage.sending:
                    break
                body = f"{self.name}/{number}"
                commit = self.stage.fates[body] = self.dice.random() < 0.6
                send = Send("transactions", body, make_message_id(), delivered=commit)
                # Stored by the first attempt, or by a later one.
                self.records.checkable_ms[body] = time.time_ns() // 1_000_000 + FIRST_CHECK_S * 1_000
                entries = await self.send(
                    send,
                    message_type=pb.TRANSACTION,
                    orphaned_transaction_recovery_duration=Duration(seconds=FIRST_CHECK_S),
                )
                # The first one is always left to the check: a run without one would be no test.
                if entries and number > 0 and self.dice.random() < 0.75:
                    await self._end(body, entries[0].message_id, entries[0].transaction_id, pb.SOURCE_CLIENT)
                elif entries:
                    self.records.left_open.add(body)
                await self.pause(0.05)
            await self.stage.over.wait()
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def _end(self, body: str, message_id: str, transaction_id: str, source: int) -> None:
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name="transactions"),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=pb.COMMIT if self.stage.fates[body] else pb.ROLLBACK,
            source=source,
        )
        answer = await self.call("EndTransaction", request)
        if answer.status.code != Code.OK:
            self.records.odd.append(f"the transaction of {body} could not be ended: {answer.status}")

    async def _answer_checks(self) -> None:
        settings = pb.Settings(
            client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name="transactions")])
        )
        method = self.channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )
        while True:
            try:
                stream = method(metadata=self.metadata)
                await stream.write(rpc.TelemetryCommand(settings=settings))
                async for command in stream:
                    if command.HasField("recover_orphaned_transaction_command"):
                        asked = command.recover_orphaned_transaction_command
                        self.records.counts["checks"] += 1
                        body = asked.message.body.decode()
                        self.records.checks.append(Check(body, time.time_ns() // 1_000_000))
                        message_id = asked.message.system_properties.message_id
                        await self._end(body, message_id, asked.transaction_id, pb.SOURCE_SERVER_CHECK)
            except grpc.aio.AioRpcError:
                self.records.counts["Telemetry lost"] += 1
            await self.connected()


class Consumer(Client):
    """Receives, and acknowledges most of it; sets some free, changes times, forgets some."""

    def __init__(self, stage: Stage, name: str, topic: str, *, ordered: bool = False) -> None:
        super().__init__(stage, name)
        self.topic, self.ordered = topic, ordered
        self.group = f"{topic}-readers"
        self._forgot = ordered
        """The first message is always forgotten, so that it comes again; an ordered one forgets none."""

    async def run(self) -> None:
        attempt_id = ""
        while self.stage.receiving:
            if not attempt_id:
                attempt_id = make_message_id() if self.ordered else ""
            request = rpc.ReceiveMessageRequest(
                group=pb.Resource(name=self.group),
                message_queue=pb.MessageQueue(topic=pb.Resource(name=self.topic), id=-1),
                filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
                batch_size=self.dice.choice((1, 4, 16)),
                invisible_duration=Duration(seconds=INVISIBLE_S),
                long_polling_timeout=Duration(nanos=500_000_000),
                attempt_id=attempt_id,
            )
            asked = time.monotonic()
            try:
                frames = await self.frames(request, TIMEOUT_S)
            except grpc.aio.AioRpcError:
                # An ordered one asks again under the same name, as official clients do.
                self.records.counts["ReceiveMessage lost"] += 1
                await self.connected()
                continue
            attempt_id = ""
            messages = [frame.message for frame in frames if frame.HasField("message")]
            self._note(messages, asked)
            for message in messages:
                await self._handle(message)

    def _note(self, messages: list[Any], asked: float) -> None:
        arrived, arrived_ms, answer = time.monotonic(), time.time_ns() // 1_000_000, next(_answers)
        self.records.counts["deliveries"] += len(messages)
        for place, message in enumerate(messages):
            attempt = message.system_properties.delivery_attempt
            if attempt > 1:
                self.records.counts["redeliveries"] += 1
            body = message.body.decode()
            self.records.deliveries.append(
                Delivery(self.topic, body, attempt, asked, arrived, arrived_ms, answer, place)
            )

    async def _handle(self, message: Any) -> None:
        dice, handle = self.dice.random(), message.system_properties.receipt_handle
        if self.stage.diligent:
            await self._ack(message, handle)
        elif not self._forgot:
            self._forgot = True
            self.records.counts["forgotten"] += 1
        elif dice < 0.85:
            await self._ack(message, handle)
        elif dice < 0.9:
            await self._change(handle, 0.0)
        elif dice < 0.95:
            # Longer, and then finished by the handle that came with it.
            changed = await self._change(handle, 4.0)
            if changed:
                await self._ack(message, changed)
        elif not self.ordered:
            self.records.counts["forgotten"] += 1

    async def _ack(self, message: Any, handle: str) -> None:
        body = message.body.decode()
        entry = rpc.AckMessageEntry(message_id=message.system_properties.message_id, receipt_handle=handle)
        request = rpc.AckMessageRequest(
            group=pb.Resource(name=self.group), topic=pb.Resource(name=self.topic), entries=[entry]
        )
        self.records.acking.setdefault(body, time.monotonic())
        answer = await self.call("AckMessage", request)
        if answer.status.code == Code.OK:
            self.records.acked.setdefault(body, time.monotonic())
        elif answer.status.code == Code.INVALID_RECEIPT_HANDLE:
            self.records.counts["acknowledged too late"] += 1
        else:
            self.records.odd.append(f"the acknowledgement of {body} was refused: {answer.status}")

    async def _change(self, handle: str, seconds: float) -> str:
        request = rpc.ChangeInvisibleDurationRequest(
            topic=pb.Resource(name=self.topic),
            group=pb.Resource(name=self.group),
            receipt_handle=handle,
            invisible_duration=Duration(seconds=int(seconds)),
        )
        answer = await self.call("ChangeInvisibleDuration", request)
        if answer.status.code not in (Code.OK, Code.INVALID_RECEIPT_HANDLE):
            self.records.odd.append(f"a change of invisible time was refused: {answer.status}")
        return str(answer.receipt_handle) if answer.status.code == Code.OK else ""


class Reader(Client):
    """Reads what lies in the topics, taking nothing."""

    async def read(self, topic: str) -> list[Stored]:
        place = pb.Resource(name=topic)
        route = await self.call("QueryRoute", rpc.QueryRouteRequest(topic=place))
        found: list[Stored] = []
        for queue in route.message_queues:
            offset, end = 0, False
            while not end:
                request = rpc.PullMessageRequest(
                    group=pb.Resource(name="auditors"), message_queue=queue, offset=offset, batch_size=1_000
                )
                frames = await self.frames(request, 30.0)
                messages = [frame.message for frame in frames if frame.HasField("message")]
                offset = next(frame.next_offset for frame in frames if frame.HasField("next_offset"))
                end = not messages
                found += [
                    Stored(
                        topic,
                        queue.id,
                        message.system_properties.queue_offset,
                        message.system_properties.message_id,
                        message.body.decode(),
                    )
                    for message in messages
                ]
        return found


def crowd(stage: Stage) -> list[Client]:
    """All clients of a run."""
    kinds: list[tuple[int, Callable[[str], Client]]] = [
        (3, lambda name: PlainProducer(stage, f"plain-{name}")),
        (2, lambda name: OrderedProducer(stage, f"ordered-{name}")),
        (2, lambda name: DelayedProducer(stage, f"delayed-{name}")),
        (2, lambda name: TransactionProducer(stage, f"transactions-{name}")),
        (3, lambda name: Consumer(stage, f"plain-consumer-{name}", "plain")),
        (3, lambda name: Consumer(stage, f"ordered-consumer-{name}", "ordered", ordered=True)),
        (2, lambda name: Consumer(stage, f"delayed-consumer-{name}", "delayed")),
        (2, lambda name: Consumer(stage, f"transactions-consumer-{name}", "transactions")),
    ]
    return [make(str(number)) for count, make in kinds for number in range(count)]
