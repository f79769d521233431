"""The raw clients of a run before several replicas: spread over them, and gone to another when one is gone.

A send whose answer was lost is repeated with its message id, an acknowledgement with its handle, a receive of
an ordered group with its attempt id, each through another replica. The end of a transaction is not repeated:
what becomes of it is left to the check, as official clients do.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from tests.crash.records import Send, Stored
from tests.replicas.ledger import NEVER, Delivery, End, Fate, Ledger
from tests.rolls.excuses import Stamped

SERVICE = "/apache.rocketmq.v2.MessagingService/"
OFFICIAL = Path(__file__).with_name("official.py")
OFFICIAL_INVISIBLE_S = 10
PATIENT_INVISIBLE_S = 60
"""Where its user is to see nothing fail: on a machine that stood still it says too late that it is done."""
TIMEOUT_S = 3.0
"""Of a request, as official clients have it."""
RECEIVED_WITHIN_S = 20.0
"""Of a receive that waits for a second: a client that gives up an answer which is already written to it holds
what it never sees for as long as it lives (any-replica, section 1)."""
LONGEST_HANDLED_S = 0.05
REST_S = 0.05
AUDITORS = "auditors"
"""The group that reads by position."""
Code = pb.Code
UNKNOWN = frozenset(
    {Code.INTERNAL_SERVER_ERROR, Code.PROXY_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT, Code.HA_NOT_AVAILABLE}
)
"""Nobody knows whether it was done: as good as no answer."""
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 300),
)
_READ_WITHIN_S = 120.0
_answers = itertools.count()


class Stage:
    """What all clients of a run share."""

    def __init__(
        self, ledger: Ledger, replicas: Sequence[str], balanced: str, prefix: str, seed: int
    ) -> None:
        self.ledger = ledger
        self.replicas = tuple(replicas)
        """Addresses; a successor has that of the one before it."""
        self.balanced = balanced
        """The address of the balancer before them."""
        self.prefix = prefix
        self.seed = seed
        self.hold_s = 0
        self.consume_timeout_s = 0.0
        self.official_hold_s = OFFICIAL_INVISIBLE_S
        """The invisible time of official simple consumers."""
        self.sending = True
        self.receiving = True
        self.over = asyncio.Event()
        """Set when `receiving` ends."""
        self.diligent = False
        """Whether consumers acknowledge everything, at once."""
        self.fates: dict[str, bool] = {}
        """By body: whether the transaction is to be committed."""

    def dice(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def named(self, name: str) -> str:
        return f"{self.prefix}-{name}"


class Client:
    """A client with connections of its own: one replica is its home, until that fails it."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.ledger = stage.ledger
        self.name = name
        self.dice = stage.dice(name)
        self.metadata: tuple[tuple[str, str], ...] = ()
        self.channels: list[grpc.aio.Channel] = []
        self.home = self.dice.randrange(len(stage.replicas))
        self._lives = itertools.count(1)
        self.client_id = ""
        self.connect()

    def connect(self) -> None:
        """New connections, under a new name."""
        self.client_id = f"{self.stage.prefix}-{self.name}@{next(self._lives)}"
        self.metadata = (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
        )
        self.channels = [grpc.aio.insecure_channel(at, options=_OPTIONS) for at in self.stage.replicas]

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close(None)

    def move(self) -> None:
        """To another replica."""
        self.home = (self.home + self.dice.randrange(1, len(self.channels))) % len(self.channels)

    def any(self) -> grpc.aio.Channel:
        """Of any replica: who began a thing need not be who ends it."""
        return self.channels[self.dice.randrange(len(self.channels))]

    async def ask(self, name: str, request: Any, channel: grpc.aio.Channel | None = None) -> Any:
        """Ask once. Raises AioRpcError."""
        method = (channel or self.channels[self.home]).unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        return await method(request, metadata=self.metadata, timeout=TIMEOUT_S)

    async def call(
        self, name: str, request: Any, *, anywhere: bool = False, lost: Callable[[], None] | None = None
    ) -> Any:
        """Ask until there is an answer; `lost` is told of each one that says nothing."""
        counts = self.ledger.counts
        while True:
            try:
                answer = await self.ask(name, request, self.any() if anywhere else None)
            except grpc.aio.AioRpcError:
                counts[f"{name} lost"] += 1
                anywhere = False
            else:
                if answer.status.code not in UNKNOWN and answer.status.code != Code.TOO_MANY_REQUESTS:
                    counts[name] += 1
                    return answer
                counts[f"{name} {Code.Name(answer.status.code)}"] += 1
            if lost is not None:
                lost()
            self.move()
            await asyncio.sleep(REST_S)

    async def frames(self, request: Any, timeout: float) -> list[Any]:
        """The elements of one receive or pull. Raises AioRpcError."""
        name = type(request).__name__.removesuffix("Request")
        method = self.channels[self.home].unary_stream(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        return [frame async for frame in method(request, metadata=self.metadata, timeout=timeout)]

    async def send(self, send: Send, **system: Any) -> rpc.SendResultEntry | None:
        """Send a message until that is answered; it must be taken."""
        ledger = self.ledger
        ledger.tried.add(send.body)
        message = pb.Message(topic=pb.Resource(name=send.topic), body=send.body.encode())
        message.system_properties.CopyFrom(pb.SystemProperties(message_id=send.message_id, **system))
        message.system_properties.born_timestamp.GetCurrentTime()

        def lost() -> None:
            ledger.lost_answers[send.body] += 1

        answer = await self.call("SendMessage", rpc.SendMessageRequest(messages=[message]), lost=lost)
        if answer.status.code != Code.OK or len(answer.entries) != 1:
            ledger.odd.append(f"{send.body} was refused: {answer.status}")
            return None
        ledger.sends[send.body] = send
        return answer.entries[0]

    def listen(
        self, settings: pb.Settings, on_check: Callable[[Any], Any] | None = None
    ) -> asyncio.Task[None]:
        """Keep a telemetry stream to the home replica, as official clients do."""

        async def keep() -> None:
            while True:
                method = self.channels[self.home].stream_stream(
                    SERVICE + "Telemetry",
                    request_serializer=rpc.TelemetryCommand.SerializeToString,
                    response_deserializer=rpc.TelemetryCommand.FromString,
                )
                try:
                    stream = method(metadata=self.metadata)
                    await stream.write(rpc.TelemetryCommand(settings=settings))
                    async for command in stream:
                        if command.HasField("reconnect_endpoints_command"):
                            self.ledger.counts["told to move"] += 1
                            self.move()
                            break
                        if on_check is not None and command.HasField("recover_orphaned_transaction_command"):
                            await on_check(command.recover_orphaned_transaction_command)
                    else:
                        self.move()
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    self.move()
                await asyncio.sleep(REST_S)

        return asyncio.create_task(keep())

    async def run(self) -> None:
        raise AssertionError("each kind of client does something of its own")

    async def pause(self, longest: float) -> None:
        await asyncio.sleep(self.dice.uniform(0, longest))


class PlainProducer(Client):
    """One message after the other."""

    async def run(self) -> None:
        for number in itertools.count():
            if not self.stage.sending:
                return
            await self.send(Send(self.stage.named("plain"), f"{self.name}/{number}", make_message_id()))
            await self.pause(0.1)


class OrderedProducer(Client):
    """To message groups of its own; the next one only when the last one was answered."""

    async def run(self) -> None:
        numbers = [itertools.count() for _ in range(3)]
        while self.stage.sending:
            which = self.dice.randrange(3)
            lane, number = f"{self.name}-{which}", next(numbers[which])
            topic = self.stage.named("ordered")
            send = Send(topic, f"{lane}/{number}", make_message_id(), lane=lane, number=number)
            await self.send(send, message_group=lane, message_type=pb.FIFO)
            await self.pause(0.15)


class TransactionProducer(Client):
    """Sends through one replica and ends through any; says nothing about some until it is asked."""

    async def run(self) -> None:
        topic = self.stage.named("transactions")
        settings = pb.Settings(
            client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name=topic)])
        )
        listening = self.listen(settings, self._asked)
        try:
            for number in itertools.count():
                if not self.stage.sending:
                    break
                body = f"{self.name}/{number}"
                commit = self.stage.fates[body] = self.dice.random() < 0.6
                send = Send(topic, body, make_message_id(), delivered=commit)
                entry = await self.send(
                    send,
                    message_type=pb.TRANSACTION,
                    orphaned_transaction_recovery_duration=Duration(seconds=2),
                )
                # The first one is always left to the check: a run without one would be no test.
                if entry is not None and number > 0 and self.dice.random() < 0.8:
                    await self._end(body, entry.message_id, entry.transaction_id, pb.SOURCE_CLIENT)
                await self.pause(0.25)
            await self.stage.over.wait()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _end(self, body: str, message_id: str, transaction_id: str, source: int) -> None:
        commit = self.stage.fates[body]
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name=self.stage.named("transactions")),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=pb.COMMIT if commit else pb.ROLLBACK,
            source=source,
        )
        ends = self.ledger.ends.setdefault(body, [])
        who = "its producer" if source == pb.SOURCE_CLIENT else "a check"
        began = time.monotonic()
        try:
            answer = await self.ask("EndTransaction", request, self.any())
        except grpc.aio.AioRpcError:
            code = "lost"
        else:
            code = Code.Name(answer.status.code)
            if answer.status.code in UNKNOWN:
                code = "lost"
        self.ledger.counts[f"EndTransaction {code}"] += 1
        ends.append(End(who, code, began, time.monotonic()))

    async def _asked(self, asked: Any) -> None:
        self.ledger.counts["checks"] += 1
        message_id = asked.message.system_properties.message_id
        await self._end(asked.message.body.decode(), message_id, asked.transaction_id, pb.SOURCE_SERVER_CHECK)


class Consumer(Client):
    """Receives, and acknowledges most of it through any replica; gives some back, forgets some, vanishes."""

    def __init__(self, stage: Stage, name: str, topic: str, group: str) -> None:
        super().__init__(stage, name)
        self.topic, self.group = stage.named(topic), stage.named(group)
        self.hold_s: float = stage.hold_s

    anywhere = True
    """Whether it gives back through any replica: the one that renews must know of it."""
    renewed = False
    """Whether it leaves renewing to the gateway."""

    def request(self) -> rpc.ReceiveMessageRequest:
        return rpc.ReceiveMessageRequest(
            group=pb.Resource(name=self.group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self.topic), id=-1),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=self.dice.choice((1, 4, 8)),
            invisible_duration=Duration(seconds=self.stage.hold_s),
            long_polling_timeout=Duration(seconds=1),
        )

    async def run(self) -> None:
        while self.stage.receiving:
            deliveries = await self.receive(self.request())
            for at, (delivery, message) in enumerate(deliveries):
                if self.vanishes():
                    for left, _ in deliveries[at:]:
                        left.fate = Fate.CUT
                    self.ledger.counts["vanished"] += 1
                    await self.close()
                    self.connect()
                    break
                await self.pause(LONGEST_HANDLED_S)
                await self.handle(delivery, message)

    def vanishes(self) -> bool:
        return not self.stage.diligent and self.dice.random() < 0.005

    async def receive(self, request: rpc.ReceiveMessageRequest) -> list[tuple[Delivery, Any]]:
        """Empty also when the answer was lost."""
        asked = time.monotonic()
        try:
            frames = await self.frames(request, RECEIVED_WITHIN_S)
        except grpc.aio.AioRpcError as error:
            self.ledger.counts["ReceiveMessage lost"] += 1
            self.ledger.counts[f"ReceiveMessage {error.code().name}"] += 1
            self.move()
            await asyncio.sleep(REST_S)
            return []
        arrived, answer = time.monotonic(), next(_answers)
        found = []
        for frame in frames:
            if frame.HasField("message"):
                message, place = frame.message, len(found)
                delivery = Delivery(
                    *(self.group, message.body.decode(), message.system_properties.delivery_attempt),
                    *(self.client_id, asked, arrived, answer, place, self.hold_s),
                    handle=message.system_properties.receipt_handle,
                    renewed=self.renewed,
                )
                self.ledger.deliveries.append(delivery)
                found.append((delivery, message))
        return found

    async def handle(self, delivery: Delivery, message: Any) -> None:
        chance = self.dice.random()
        if self.stage.diligent or chance < 0.93:
            await self.ack(delivery, message)
        elif chance < 0.97:
            await self.give_back(delivery, message)
        else:
            delivery.fate = Fate.LEFT

    async def ack(self, delivery: Delivery, message: Any, *, anywhere: bool = True) -> None:
        entry = rpc.AckMessageEntry(
            message_id=message.system_properties.message_id,
            receipt_handle=message.system_properties.receipt_handle,
        )
        request = rpc.AckMessageRequest(
            group=pb.Resource(name=self.group), topic=pb.Resource(name=self.topic), entries=[entry]
        )
        delivery.acking = time.monotonic()

        def lost() -> None:
            self.ledger.doubted.add(delivery)

        answer = await self.call("AckMessage", request, anywhere=anywhere, lost=lost)
        delivery.settled = time.monotonic()
        if answer.status.code == Code.OK:
            delivery.fate = Fate.DONE
        elif answer.status.code == Code.INVALID_RECEIPT_HANDLE:
            delivery.fate = Fate.REFUSED
            self.ledger.counts["acknowledged too late"] += 1
        else:
            self.ledger.odd.append(f"the acknowledgement of {delivery.body} was refused: {answer.status}")

    async def give_back(self, delivery: Delivery, message: Any) -> None:
        """Until it is answered, as official clients do: the gateway renews what a living client holds."""
        request = rpc.ChangeInvisibleDurationRequest(
            topic=pb.Resource(name=self.topic),
            group=pb.Resource(name=self.group),
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration=Duration(seconds=1),
        )
        delivery.fate = Fate.FREED

        def lost() -> None:
            # Done twice at a RocketMQ it brings the message back twice.
            self.ledger.freed_again[delivery.group, delivery.body] += self.ledger.rocketmq

        answer = await self.call("ChangeInvisibleDuration", request, anywhere=self.anywhere, lost=lost)
        delivery.settled = time.monotonic()
        if answer.status.code == Code.OK:
            self.ledger.freed(delivery)


class PushConsumer(Consumer):
    """Leaves renewing to the gateway, as push consumers do, keeps a telemetry stream, and stays at home."""

    def __init__(self, stage: Stage, name: str, topic: str, group: str) -> None:
        super().__init__(stage, name, topic, group)
        self.hold_s = stage.consume_timeout_s

    def request(self) -> rpc.ReceiveMessageRequest:
        request = super().request()
        request.ClearField("invisible_duration")
        request.auto_renew = True
        return request

    async def run(self) -> None:
        entry = pb.SubscriptionEntry(
            topic=pb.Resource(name=self.topic),
            expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        subscription = pb.Subscription(group=pb.Resource(name=self.group), subscriptions=[entry])
        listening = self.listen(pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription))
        try:
            await super().run()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    anywhere = False
    renewed = True

    def vanishes(self) -> bool:
        return False

    async def handle(self, delivery: Delivery, message: Any) -> None:
        if self.stage.diligent or self.dice.random() < 0.97:
            await self.ack(delivery, message, anywhere=self.dice.random() < 0.3)
        else:
            await self.give_back(delivery, message)


class OrderedConsumer(Consumer):
    """Asks again under the same attempt id when an answer was lost; what fails stops what comes behind it."""

    async def run(self) -> None:
        while self.stage.receiving:
            request = self.request()
            request.attempt_id = make_message_id()
            lost = self.ledger.counts["ReceiveMessage lost"]
            while not (deliveries := await self.receive(request)):
                if self.ledger.counts["ReceiveMessage lost"] == lost or not self.stage.receiving:
                    break
                lost = self.ledger.counts["ReceiveMessage lost"]
            for at, (delivery, message) in enumerate(deliveries):
                await self.pause(LONGEST_HANDLED_S)
                await self.handle(delivery, message)
                if delivery.fate is not Fate.DONE:
                    for left, _ in deliveries[at + 1 :]:
                        left.fate = Fate.LEFT
                    break


class Reader(Client):
    """Reads what lies in the topics, taking nothing."""

    async def run(self) -> None:
        """It is asked: `read`."""

    async def read(self, topic: str) -> list[Stored]:
        """Everything."""
        place = pb.Resource(name=topic)
        host, _, port = self.stage.replicas[0].rpartition(":")
        endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])
        route = await self.call("QueryRoute", rpc.QueryRouteRequest(topic=place, endpoints=endpoints))
        found: list[Stored] = []
        for queue in route.message_queues:
            offset, end = 0, False
            while not end:
                request = rpc.PullMessageRequest(
                    group=pb.Resource(name=self.stage.named(AUDITORS)),
                    message_queue=queue,
                    offset=offset,
                    batch_size=1_000,
                )
                frames = await self.pulled(request)
                messages = [frame.message for frame in frames if frame.HasField("message")]
                offset = next(frame.next_offset for frame in frames if frame.HasField("next_offset"))
                end = not messages
                found += [
                    Stored(
                        topic,
                        queue.id,
                        m.system_properties.queue_offset,
                        m.system_properties.message_id,
                        m.body.decode(),
                    )
                    for m in messages
                ]
        return found

    async def pulled(self, request: rpc.PullMessageRequest) -> list[Any]:
        """The answer to a pull, asked again where a machine that stands still lets none come in time."""
        end = time.monotonic() + _READ_WITHIN_S
        while True:
            try:
                frames = await self.frames(request, 30.0)
            except grpc.aio.AioRpcError:
                frames = []
            if any(frame.HasField("next_offset") for frame in frames):
                return frames
            assert time.monotonic() < end, f"a pull is not answered: {frames}"
            self.move()
            await asyncio.sleep(REST_S)


class Official:
    """An official client in a process of its own."""

    def __init__(self, stage: Stage, role: str, topic: str, name: str) -> None:
        self.stage = stage
        self.ledger = stage.ledger
        self.role, self.topic, self.name = role, stage.named(topic), name
        self.group = stage.named(name) if role != "producer" else ""
        self.hold_s = stage.official_hold_s if role == "simple" else stage.consume_timeout_s
        self.process: asyncio.subprocess.Process | None = None
        self.held: dict[str, Delivery] = {}
        self.killed = False
        self.failures = Stamped()
        """What its user saw fail."""

    async def run(self) -> None:
        process = self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                str(OFFICIAL),
                self.stage.balanced,
                self.role,
                self.topic,
                self.group or self.name,
                str(int(self.hold_s)),
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stopping = asyncio.create_task(self._stop_in_time())
        async for line in process.stdout:
            self._note(json.loads(line))
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        if await process.wait() and not self.killed:
            self.ledger.odd.append(f"the process of official {self.role} ended with {process.returncode}")
        for delivery in self.held.values():
            if delivery.fate in (Fate.HELD, Fate.DOUBTFUL):
                delivery.fate = Fate.CUT
                if delivery.acking < NEVER:
                    self.ledger.doubted.add(delivery)

    def kill(self) -> None:
        """As a crash of its process would."""
        if self.process is not None and self.process.returncode is None:
            self.killed = True
            self.process.kill()

    async def _stop_in_time(self) -> None:
        while self.stage.sending if self.role == "producer" else self.stage.receiving:
            await asyncio.sleep(0.05)
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _note(self, fact: dict[str, Any]) -> None:
        ledger, kind = self.ledger, fact["fact"]
        ledger.counts[f"official {self.role} {kind}"] += 1
        if kind == "trying":
            ledger.tried.add(fact["body"])
        elif kind == "sent":
            ledger.sends[fact["body"]] = Send(self.topic, fact["body"], fact["id"])
        elif kind == "failed":
            ledger.unsure.add(fact["body"])
            self.failures.append(fact["why"])
        elif kind in ("attempt lost", "attempt refused"):
            ledger.lost_answers.update(fact["bodies"])
        elif kind in ("receive failed", "ack failed", "not started"):
            self.failures.append(f"{kind}: {fact['why']}")
        elif kind == "got":
            delivery = self.held[fact["handle"]] = Delivery(
                *(self.group, fact["body"], fact["attempt"], f"official {self.role}"),
                *(fact["asked"], fact["at"], fact["answer"], fact["place"], self.hold_s),
                handle=fact["handle"],
                renewed=self.role == "push",
            )
            ledger.deliveries.append(delivery)
        else:
            self._note_settled(kind, fact)

    def _note_settled(self, kind: str, fact: dict[str, Any]) -> None:
        for handle in fact.get("handles") or [fact.get("handle", "")]:
            delivery = self.held.get(handle)
            if delivery is None:
                continue
            match kind:
                case "acking":
                    delivery.acking = min(delivery.acking, fact["at"])
                case "ack lost":
                    self.ledger.doubted.add(delivery)
                    if delivery.fate is Fate.HELD:
                        delivery.fate = Fate.DOUBTFUL
                case "acked" | "refused":
                    delivery.settled = fact["at"]
                    delivery.fate = Fate.DONE if kind == "acked" else Fate.REFUSED
