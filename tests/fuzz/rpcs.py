"""Mutated requests of every RPC, called in this process without sockets: see `long`.

The bytes go through the same reader, door, processor and broker.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from popgate.pb.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from protocols.grpc.codec.request_reader import Unreadable, reader_of
from protocols.grpc.rpcs.dispatcher import SERVICE, STREAMED, UNARY, RpcDispatcher
from protocols.grpc.rpcs.health import Health
from protocols.grpc.rpcs.reflection import METHOD, SERVICES, Reflection
from protocols.grpc.servers.grpcio_server import MAX_RECEIVE_BYTES
from protocols.grpc.service.service import MessagingService
from protocols.grpc.transport import BrokenStream, CallFailed, CallStatus
from tests.fuzz.sites import SUCCEEDED, Site, Wrong, each_batch
from tests.fuzz.test_grpc_fuzz import Odd, right

CHECK, WATCH, REFLECTION = "health Check", "health Watch", "ServerReflectionInfo"
RPCS = (
    *(what.name for what in UNARY),
    *(what.name for what in STREAMED),
    *("Telemetry", CHECK, WATCH, REFLECTION),
)
_MANY_PARTS = frozenset({"Telemetry", REFLECTION})
"""RPCs whose requests are streams."""
_AT_ONCE = (64, 4, 64, 16)
"""Calls of each RPC at the same time, in turn; mostly many, which share turns of the loop and commits."""
_DELAY_S = 3_600
_CODES = frozenset(pb.Code.values())
_UNARY = {what.name: what for what in UNARY}
_STREAMED = {what.name: what for what in STREAMED}


class Smaller(Odd):
    """Makes requests wrong, mostly without making them large: making those is what takes the time.

    `ids`: what was given out of each kind, for the requests that want that kind.
    """

    def __init__(self, seed: str) -> None:
        super().__init__(0)
        self.random = random.Random(seed)
        self.ids: dict[str, list[str]] = {"transaction_id": [], "recall_handle": []}

    def right(self, name: str, now_ms: int) -> Any:
        """As clients make it; so that every RPC is asked for something that it can do, too."""
        if name in (CHECK, WATCH):
            return HealthCheckRequest(service=self.random.choice(("", SERVICE)))
        if name == REFLECTION:
            return self._question()
        request = right(name, self)
        if name == "SendMessage" and self.random.random() < 0.2:
            for one in request.messages:
                one.system_properties.message_type = pb.DELAY
                one.system_properties.delivery_timestamp.FromMilliseconds(now_ms + _DELAY_S * 1_000)
        for kind, ids in self.ids.items():
            if ids and hasattr(request, kind) and self.random.random() < 0.5:
                # Each ends one thing, once: mostly one that was not tried.
                setattr(request, kind, ids.pop())
        return request

    def _question(self) -> ServerReflectionRequest:
        match self.random.randrange(5):
            case 0:
                return ServerReflectionRequest(list_services="")
            case 1:
                return ServerReflectionRequest(file_by_filename=rpc.DESCRIPTOR.name)
            case 2:
                return ServerReflectionRequest(file_containing_symbol=SERVICE)
            case 3:
                return ServerReflectionRequest(all_extension_numbers_of_type=pb.Message.DESCRIPTOR.full_name)
            case _:
                return ServerReflectionRequest(host="here", file_containing_symbol=f"{SERVICES[1]}.{METHOD}")

    def learn(self, answered: list[Any]) -> None:
        """Keep the handles that were given out: later requests use them."""
        for message in answered:
            for entry in getattr(message, "entries", ()):
                for kind, ids in self.ids.items():
                    if told := getattr(entry, kind, ""):
                        ids.append(told)
                        self.seen.append(told)
            stored = getattr(message, "message", None)
            if stored is not None and not isinstance(stored, str):
                handle = stored.system_properties.receipt_handle
                self.seen += [handle] if handle else []
        for ids in (self.seen, *self.ids.values()):
            del ids[:-50]

    def text(self) -> str:
        text = super().text()
        return (
            text if len(text) < 2_000 or self.random.random() < 0.02 else text[: self.random.randrange(300)]
        )

    def change_list(self, items: Any, field: Any, depth: int) -> None:
        self.longest = 2_000 if self.random.random() < 0.02 else 5
        if self.longest > 5 and sum(item.ByteSize() for item in items if hasattr(item, "ByteSize")) > 2_000:
            self.longest = 5
        super().change_list(items, field, depth)

    def data(self, request: Any) -> bytes:
        """What is longer than the transport takes never reaches the door."""
        return super().data(request)[:MAX_RECEIVE_BYTES]


class Call:
    """The circumstances of one call in this process."""

    def __init__(self, metadata: list[tuple[str, str]]) -> None:
        self._headers = dict(metadata)
        self.peer = "10.0.0.9:40000"
        self.local = "127.0.0.1:8081"
        self.names = ()

    def header(self, name: str) -> str | bytes:
        return self._headers.get(name, "")

    def time_remaining(self) -> float | None:
        return 2.0


class Elements:
    """Takes the elements of a streamed answer, or the commands of a Telemetry stream."""

    def __init__(self, commands: Iterator[Any] | None = None) -> None:
        self.written: list[Any] = []
        self._commands = commands if commands is not None else iter(())

    async def write(self, element: Any) -> None:
        self.written.append(element)

    async def write_bytes(self, element: bytes) -> None:
        self.written.append(rpc.ReceiveMessageResponse.FromString(element))

    def write_at_once(self, elements: Sequence[bytes]) -> int:
        self.written += map(rpc.ReceiveMessageResponse.FromString, elements)
        return len(elements)

    async def read(self) -> Any:
        command = next(self._commands, None)
        if isinstance(command, Unreadable):
            raise CallFailed(CallStatus.INVALID_ARGUMENT, command.sentence)
        return command


class Watcher:
    """Takes what a watch of the health tells first, and is gone then."""

    def __init__(self) -> None:
        self.written: list[HealthCheckResponse] = []

    async def write(self, answer: HealthCheckResponse) -> None:
        self.written.append(answer)
        raise BrokenStream

    async def write_bytes(self, answer: bytes) -> None:
        raise AssertionError("no watch writes bytes")

    def write_at_once(self, answers: Sequence[bytes]) -> int:
        return 0


class Questions:
    """A stream of bytes to the reflection, and of its answers."""

    def __init__(self, data: Sequence[bytes]) -> None:
        self.written: list[ServerReflectionResponse] = []
        self._data = iter(data)

    async def read(self) -> bytes | None:
        return next(self._data, None)

    async def write(self, answer: bytes) -> None:
        self.written.append(ServerReflectionResponse.FromString(answer))


class GrpcSite(Site):
    """With the gRPC door."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        service = MessagingService(self.processor, self.clock)
        self.health = Health((SERVICE,), clock=self.clock)
        self.reflection = Reflection((SERVICE,), most_streams=2 * max(_AT_ONCE))
        self.door = RpcDispatcher(service, self.health, self.clock, None)

    async def start(self) -> None:
        await super().start()
        self.health.start()

    async def call_beside(self, name: str, data: list[bytes]) -> list[Any]:
        """What the health or the reflection answered. Raises Wrong."""
        watcher, questions = Watcher(), Questions(data)
        try:
            if name == CHECK:
                return [await self.door.check_health(reader_of(HealthCheckRequest)(data[0]))]
            if name == WATCH:
                await self.door.watch_health(reader_of(HealthCheckRequest)(data[0]), watcher)
                return watcher.written
            await self.reflection.serve(questions)
        except CallFailed as failed:
            if failed.status not in _FAILS_WITH[name]:
                raise Wrong(f"{name} ended with {failed.status.name}: {failed.sentence}") from failed
        return questions.written

    async def call(self, name: str, data: list[bytes], metadata: list[tuple[str, str]]) -> list[Any]:
        """The messages that were answered; those that have a status are checked. Raises Wrong."""
        if name in _FAILS_WITH:
            return await self.call_beside(name, data)
        call = Call(metadata)
        if name == "Telemetry":
            commands = Elements(map(reader_of(rpc.TelemetryCommand), data))
            try:
                await self.door.telemetry(commands, call)
            except CallFailed as failed:
                if failed.status is not CallStatus.INVALID_ARGUMENT:
                    raise Wrong(f"Telemetry ended with {failed.status.name}") from failed
            return commands.written
        if (what := _UNARY.get(name)) is not None:
            # Every other send as the compiled form reads ordinary ones.
            request = reader_of(what.request, plain=len(data[0]) % 2 == 0)(data[0])
            answer = await self.door.unary(what, request, call)
            return [what.answer.FromString(answer.SerializeToString())]
        what_streams = _STREAMED[name]
        answers = Elements()
        await self.door.streamed(what_streams, reader_of(what_streams.request)(data[0]), call, answers)
        if sum(part.HasField("status") for part in answers.written) != 1:
            raise Wrong(f"{name} was answered without its one status")
        return answers.written


_FAILS_WITH = {
    CHECK: {CallStatus.INVALID_ARGUMENT, CallStatus.NOT_FOUND},
    WATCH: {CallStatus.INVALID_ARGUMENT},
    REFLECTION: {CallStatus.INVALID_ARGUMENT, CallStatus.RESOURCE_EXHAUSTED},
}
"""What is beside the service, with the statuses that its calls may end with."""


def succeeded(name: str, answered: list[Any]) -> bool:
    """Whether what a request asked for was done: messages came, or something was found."""
    match name:
        case _ if name in (CHECK, WATCH):
            return any(one.status == HealthCheckResponse.SERVING for one in answered)
        case _ if name == REFLECTION:
            return any(not one.HasField("error_response") for one in answered)
        case "ReceiveMessage" | "PullMessage":
            return any(one.HasField("message") for one in answered)
        case _:
            parts = [part for one in answered for part in (one, *getattr(one, "entries", ()))]
            return any(part.status.code == pb.OK for part in parts)


def check(name: str, answered: list[Any]) -> None:
    """Raises Wrong for an answer that no request may get."""
    for message in () if name in _FAILS_WITH else answered:
        for part in (message, *getattr(message, "entries", ())):
            status = part.status
            if status.code in (pb.INTERNAL_ERROR, pb.INTERNAL_SERVER_ERROR):
                raise Wrong(f"{name} was answered {pb.Code.Name(status.code)}: {status.message}")
            if status.code not in _CODES:
                raise Wrong(f"{name} was answered with the code {status.code}")


async def fuzz_rpcs(seed: str, inputs: int, end: float, told: Counter[str]) -> None:
    """Count in `told` how many inputs each RPC got, and what was answered. Raises Wrong."""
    odd = Smaller(seed)
    await each_batch(
        GrpcSite, lambda site, many: fuzz_batch(site, odd, told, many), inputs, end, sizes=_AT_ONCE
    )


async def fuzz_batch(site: GrpcSite, odd: Smaller, told: Counter[str], many: int) -> None:
    """So many calls of every RPC at the same time."""
    asked: list[tuple[str, list[bytes], bool, asyncio.Task[Any]]] = []
    for name in RPCS:
        for _ in range(many):
            data, changed = [], True
            for _ in range(2 if name in _MANY_PARTS else 1):
                request = odd.right(name, site.clock.now_ms())
                before = request.SerializeToString(deterministic=True)
                odd.change(request, odd.random.choice((0, 1, 1, 2, 4)))
                data.append(odd.data(request))
                changed = changed and data[-1] != before
            task = asyncio.create_task(site.call(name, data, odd.metadata()), name=name)
            asked.append((name, data, changed, task))
    await site.all_done([task for _, _, _, task in asked])
    for name, data, changed, task in asked:
        told[name] += 1
        try:
            answered = task.result()
            check(name, answered)
        except Wrong as wrong:
            raise Wrong(f"{wrong}; input {[part.hex() for part in data]}") from wrong
        except Exception as error:
            raise Wrong(
                f"{name}: {type(error).__name__}: {error}; input {[d.hex() for d in data]}"
            ) from error
        told[f"{name} {SUCCEEDED}"] += changed and succeeded(name, answered)
        if name in _FAILS_WITH:
            continue
        for message in answered:
            if message.status.code:
                told[f"{name} {pb.Code.Name(message.status.code)}"] += 1
        odd.learn(answered)
