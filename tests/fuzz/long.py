"""The long form of the fuzz tests: a million mutated inputs for each wire and for the messages of each RPC.

    python tests/fuzz/long.py                                  # all of it: hours of CPU time
    python tests/fuzz/long.py --inputs 50000 --seconds 300     # as much of it as five minutes allow

The inputs are made as in the tests beside this, by seed. The RPCs are called in this process, without
sockets: the bytes go through the same reader, door, processor and broker. Checked of every input: no
exception but the documented ones, no internal error, an answer in time; and of every process that it
does not grow. Prints one line per target and how many inputs it really got; exit code 1 when
something is wrong, with the input. Several processes share the work, each with seeds of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.store import Durability
from popgate.errors import IllegalFilter, IllegalReceipt, PeerWireError
from popgate.testing import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from protocols.grpc.grpcio_transport import MAX_RECEIVE_BYTES
from protocols.grpc.health import Health
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb import service_pb2 as rpc
from protocols.grpc.reading import Unreadable, reader_of
from protocols.grpc.rpcs import STREAMED, UNARY, Door
from protocols.grpc.service import MessagingService
from protocols.grpc.transport import CallFailed, CallStatus
from tests.fuzz.test_grpc_fuzz import Odd, right
from tests.fuzz.test_wire_fuzz import TARGETS, mutated

RPCS = (*(what.name for what in UNARY), *(what.name for what in STREAMED), "Telemetry")
_HOUSE_INPUTS = 20_000
"""After so many the house is made anew: what inputs store must not be what grows."""
_BATCH = 4
"""Calls of each RPC at the same time."""
_LONGEST_INPUT_S = 30.0
_MOST_GROWTH_MB = 64.0
_FINE = {PeerWireError, IllegalFilter, IllegalReceipt}
_MEMORY = Path("/dev/shm")


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


class Wrong(Exception):
    """An input that does what none may do."""


class Growth:
    """Whether the process grows: how much it holds now, next to what it held when it had warmed up."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    def sample(self) -> None:
        """Raises Wrong."""
        self.samples.append(resident_mb())
        grown = self.samples[-1] - self.samples[min(2, len(self.samples) - 1)]
        if grown > _MOST_GROWTH_MB:
            raise Wrong(f"the process grew by {grown:.0f} MB")


# -- wires ----------------------------------------------------------------------------------------


def fuzz_wire(data: bytes, read: Callable[[bytes], None], seed: str, inputs: int, end: float) -> int:
    """The number of inputs that were tried. Raises Wrong."""
    dice = random.Random(seed)
    growth = Growth()
    for number in range(inputs):
        case = mutated(dice, data)
        begin = time.monotonic()
        try:
            read(case)
        except tuple(_FINE):
            pass
        except Exception as error:
            raise Wrong(f"{type(error).__name__}: {error}; input {case.hex()}") from error
        now = time.monotonic()
        if now - begin > _LONGEST_INPUT_S:
            raise Wrong(f"it took {now - begin:.1f} s; input {case.hex()}")
        if number % 20_000 == 19_999:
            growth.sample()
        if now > end:
            return number + 1
    return inputs


# -- RPCs -----------------------------------------------------------------------------------------


class Smaller(Odd):
    """Makes requests wrong, mostly without making them large: making those is what takes the time."""

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
        self.metadata = metadata
        self.peer = "10.0.0.9:40000"
        self.local = "127.0.0.1:8081"

    def time_remaining(self) -> float | None:
        return 2.0


class Elements:
    """Takes the elements of a streamed answer, or the commands of a Telemetry stream."""

    def __init__(self, commands: Iterator[Any] | None = None) -> None:
        self.written: list[Any] = []
        self._commands = commands if commands is not None else iter(())

    async def write(self, element: Any) -> None:
        self.written.append(element)

    async def read(self) -> Any:
        command = next(self._commands, None)
        if isinstance(command, Unreadable):
            raise CallFailed(CallStatus.INVALID_ARGUMENT, command.sentence)
        return command


class Site:
    """A house without sockets, whose time passes only while calls wait."""

    def __init__(self, folder: Path) -> None:
        self.clock = MovableClock()
        self.broker = EmbeddedBroker(folder, clock=self.clock, durability=Durability.NONE)
        limits = Limits(max_body_bytes=65_536, max_auto_topics=500, max_auto_groups=500)
        self.processor = MessagingProcessor(self.broker, clock=self.clock, limits=limits)
        service = MessagingService(self.processor, self.clock)
        self.door = Door(service, Health((), clock=self.clock), self.clock, None)

    async def start(self) -> None:
        await self.broker.start()
        await self.processor.start()

    async def stop(self) -> None:
        await self.processor.stop()
        await self.broker.stop()

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
        for what in UNARY:
            if what.name == name:
                return [await self.door.unary(what, reader_of(what.request)(data[0]), call)]
        what_streams = next(what for what in STREAMED if what.name == name)
        answers = Elements()
        await self.door.streamed(what_streams, reader_of(what_streams.request)(data[0]), call, answers)
        if sum(part.HasField("status") for part in answers.written) != 1:
            raise Wrong(f"{name} was answered without its one status")
        return answers.written

    async def all_done(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Let time pass until the calls are answered. Raises Wrong when they never are."""
        begin = time.monotonic()
        while not all(task.done() for task in tasks):
            for _ in range(20):
                await asyncio.sleep(0)
            self.clock.advance(0.25)
            if time.monotonic() - begin > _LONGEST_INPUT_S:
                waiting = [task.get_name() for task in tasks if not task.done()]
                raise Wrong(f"these were not answered: {waiting}")


def check(name: str, answered: list[Any]) -> None:
    """Raises Wrong for an answer that no request may get."""
    for message in answered:
        for part in (message, *getattr(message, "entries", ())):
            status = part.status
            if status.code in (pb.INTERNAL_ERROR, pb.INTERNAL_SERVER_ERROR):
                raise Wrong(f"{name} was answered {pb.Code.Name(status.code)}: {status.message}")
            if status.code not in pb.Code.values():
                raise Wrong(f"{name} was answered with the code {status.code}")


def learn(odd: Odd, answered: list[Any]) -> None:
    """Keep the handles that were given out: later requests use them."""
    for message in answered:
        for entry in getattr(message, "entries", ()):
            odd.seen += filter(
                None, (getattr(entry, "transaction_id", ""), getattr(entry, "recall_handle", ""))
            )
        stored = getattr(message, "message", None)
        if stored is not None and not isinstance(stored, str):
            handle = stored.system_properties.receipt_handle
            odd.seen += [handle] if handle else []
    del odd.seen[:-50]


async def fuzz_rpcs(seed: str, inputs: int, end: float, told: Counter[str]) -> None:
    """Count in `told` how many inputs each RPC got, and what was answered. Raises Wrong."""
    odd = Smaller(0)
    odd.random = random.Random(seed)
    growth = Growth()
    trouble: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: trouble.append(str(what)))
    done = 0
    while done < inputs and time.monotonic() < end:
        memory = _MEMORY if _MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            site = Site(Path(folder) / "store")
            await site.start()
            for _ in range(min(inputs - done, _HOUSE_INPUTS) // _BATCH or 1):
                await fuzz_batch(site, odd, told)
                done += _BATCH
                if trouble:
                    raise Wrong(trouble[0])
                if time.monotonic() > end:
                    break
            await site.stop()
        growth.sample()


async def fuzz_batch(site: Site, odd: Odd, told: Counter[str]) -> None:
    """Some calls of every RPC at the same time."""
    asked: list[tuple[str, list[bytes], asyncio.Task[Any]]] = []
    for name in RPCS:
        for _ in range(_BATCH):
            data = []
            for _ in range(2 if name == "Telemetry" else 1):
                request = right(name, odd)
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
        learn(odd, answered)


# -- the work and its parts -------------------------------------------------------------------------


def work(seed: int, inputs: int, seconds: float) -> dict[str, int]:
    """One process's part: the wires first, then the RPCs. Raises Wrong."""
    logging.disable(logging.WARNING)
    begin, told = time.monotonic(), Counter[str]()
    for number, (name, data, read) in enumerate(TARGETS):
        # A third of the time is the wires', in equal parts; what one leaves over goes to the next.
        end = begin + seconds / 3 * (number + 1) / len(TARGETS)
        try:
            told[f"wire {name}"] = fuzz_wire(data, read, f"{seed}/{name}", inputs, end)
        except Wrong as wrong:
            raise Wrong(f"wire {name}: {wrong}") from wrong
    asyncio.run(fuzz_rpcs(f"{seed}/rpcs", inputs, begin + seconds, told))
    return dict(told)


def main() -> None:
    parser = argparse.ArgumentParser(description="The long form of the fuzz tests.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each wire and each RPC")
    parser.add_argument("--seconds", type=float, default=86_400.0, help="stop after so long")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        try:
            print(json.dumps(work(chosen.seed, chosen.inputs, chosen.seconds)))
        except Wrong as wrong:
            print(json.dumps({"wrong": str(wrong)}))
            sys.exit(1)
        return
    share = str(-(-chosen.inputs // chosen.processes))
    parts = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, "--part", "--inputs", share),
                *("--seconds", str(chosen.seconds), "--seed", f"{chosen.seed * 1_000 + number}"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(chosen.processes)
    ]
    told, failed = Counter[str](), False
    for part in parts:
        out, _ = part.communicate()
        found = json.loads(out or '{"wrong": "a process ended without a word"}')
        if "wrong" in found:
            failed = True
            print("WRONG:", found["wrong"])
        else:
            told.update(found)
    targets = [*(f"wire {target[0]}" for target in TARGETS), *RPCS]
    for target in targets:
        codes = {
            name.split()[1]: count for name, count in sorted(told.items()) if name.startswith(f"{target} ")
        }
        print(f"{target}: {told[target]} inputs", *(f"{code} {count}" for code, count in codes.items()))
    print(f"least of a target: {min(told[target] for target in targets)} inputs")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
