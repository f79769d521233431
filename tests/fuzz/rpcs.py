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

from protocols.grpc.grpcio_transport import MAX_RECEIVE_BYTES
from protocols.grpc.health import Health
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb import service_pb2 as rpc
from protocols.grpc.reading import Unreadable, reader_of
from protocols.grpc.rpcs import STREAMED, UNARY, Door
from protocols.grpc.service import MessagingService
from protocols.grpc.transport import CallFailed, CallStatus
from tests.fuzz.sites import Site, Wrong, each_batch
from tests.fuzz.test_grpc_fuzz import Odd, right

RPCS = (*(what.name for what in UNARY), *(what.name for what in STREAMED), "Telemetry")
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
        request = right(name, self)
        if name == "SendMessage" and self.random.random() < 0.1:
            for one in request.messages:
                one.system_properties.message_type = pb.DELAY
                one.system_properties.delivery_timestamp.FromMilliseconds(now_ms + _DELAY_S * 1_000)
        for kind, ids in self.ids.items():
            if ids and hasattr(request, kind) and self.random.random() < 0.5:
                setattr(request, kind, self.random.choice(ids))
        return request

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


class GrpcSite(Site):
    """With the gRPC door."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        service = MessagingService(self.processor, self.clock)
        self.door = Door(service, Health((), clock=self.clock), self.clock, None)

    async def call(self, name: str, data: list[bytes], metadata: list[tuple[str, str]]) -> list[Any]:
        """The messages that were answered; those that have a status are checked. Raises Wrong."""
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
            return [await self.door.unary(what, reader_of(what.request)(data[0]), call)]
        what_streams = _STREAMED[name]
        answers = Elements()
        await self.door.streamed(what_streams, reader_of(what_streams.request)(data[0]), call, answers)
        if sum(part.HasField("status") for part in answers.written) != 1:
            raise Wrong(f"{name} was answered without its one status")
        return answers.written


def check(name: str, answered: list[Any]) -> None:
    """Raises Wrong for an answer that no request may get."""
    for message in answered:
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
    asked: list[tuple[str, list[bytes], asyncio.Task[Any]]] = []
    for name in RPCS:
        for _ in range(many):
            data = []
            for _ in range(2 if name == "Telemetry" else 1):
                request = odd.right(name, site.clock.now_ms())
                odd.change(request, odd.random.choice((0, 1, 1, 2, 4)))
                data.append(odd.data(request))
            task = asyncio.create_task(site.call(name, data, odd.metadata()), name=name)
            asked.append((name, data, task))
    await site.all_done([task for _, _, task in asked])
    for name, data, task in asked:
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
        for message in answered:
            if message.status.code:
                told[f"{name} {pb.Code.Name(message.status.code)}"] += 1
        odd.learn(answered)
