"""What the remoting door costs before a cluster, from the bytes of a request to those of its answer.

    python benchmarks/classic_door.py               # about ten seconds
    python benchmarks/classic_door.py --beside DIR  # in turn with another checkout, or a compiled copy
    python benchmarks/classic_door.py --quick       # a moment; proves only that it runs

CPU time for a frame in microseconds: a send of 100 bytes, a batch of 32 and a true pull of 32, as
`benchmarks/remoting_door.py` makes them and of mixed lengths and times, without sockets and with a scripted
broker that costs the same each time (some 10 µs, of a pull some 20, are its own and are in all figures). Told
is the least of many short slices. With `--beside` one process for each of the two takes a slice in turn, so
that a machine that is slow for a while is so for both: the ratio is the median of those of all pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

sys.path.insert(0, os.environ.get("CLASSIC_DOOR_TREE") or str(Path(__file__).resolve().parent.parent))

import uvloop

from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.wire.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRoute
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command, encode_command
from popgate.wire.messages.batches import BatchItem, encode_batch
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.records import encode_record
from processors.messaging import MessagingProcessor
from protocols.remoting.connections.server import RemotingServer
from protocols.remoting.door import Door
from protocols.remoting.requests import DoorContext
from proxy.metrics.counters import MetricsObserver

TREE = "CLASSIC_DOOR_TREE"
"""The variable that names another checkout to be measured."""
TOPIC, GROUP, BROKER, ADDRESS = "orders", "readers", "broker-a", "10.0.0.1:10911"
BODY, COUNT, FIRST_OFFSET = bytes(100), 32, 1000
PROPERTIES = "UNIQ_KEY\x0101020304050607080910111213141516\x02TAGS\x01a\x02"
BIRTH = "__BORNHOST\x01127.0.0.1:40000\x02BORN_TIMESTAMP\x01{}\x02CLUSTER\x01DefaultCluster\x02"
SLICES = {
    "send": (200, 8),
    "batch": (100, 2),
    "mixed_batch": (100, 2),
    "pull": (100, 2),
    "mixed_pull": (100, 2),
}
"""Frames of a slice, and of one read of the socket; of mixed messages none is as long as the next."""

_LENGTHS = Struct(">iI")
_opaque = re.compile(rb'"opaque":(\d+)').search
_code = re.compile(rb'"code":(\d+)').search

_MADE = {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion", "queueId": "3", "queueOffset": "17"}
_PULLED = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1032", "minOffset": "0", "maxOffset": "200000"}
_GROUP_CONFIG = {"groupName": GROUP, "consumeEnable": True, "retryMaxTimes": 16, "brokerId": 0}


def answer(fields: dict[str, str], body: bytes = b"", code: int = 0) -> tuple[bytes, bytes]:
    """The header of an answer as Java writes it, with a place for its opaque, and the body."""
    header = {"code": code, "extFields": fields, "flag": 1, "language": "JAVA", "opaque": "?", "version": 495}
    return json.dumps(header, separators=(",", ":")).encode().replace(b'"?"', b"%d"), body


def bodies(*, mixed: bool) -> list[bytes]:
    return [bytes(len(BODY) + mixed * (at * 7 % 31)) for at in range(COUNT)]


def records(*, mixed: bool) -> bytes:
    """As a broker has stored them; of those that are mixed none is as old as the next."""
    topic, host, store = TOPIC.encode(), pack_host("127.0.0.1:5000"), pack_host(ADDRESS)
    named = [(PROPERTIES + BIRTH.format(1_700_000_000_000 + mixed * at)).encode() for at in range(COUNT)]
    return b"".join(
        encode_record(topic, 0, FIRST_OFFSET + at, 300 * at, body, named[at], 0, 0, 7, host, 8, store)
        for at, body in enumerate(bodies(mixed=mixed))
    )


def answers(*, mixed: bool) -> dict[int, tuple[bytes, bytes]]:
    """Those of the cluster, by request code."""
    broker = BrokerData("DefaultCluster", BROKER, {0: ADDRESS})
    route = TopicRoute((QueueData(BROKER, 8, 8, 6),), (broker,))
    ids = [f"0A00000100002A9F{at:016X}" for at in range(COUNT)]
    return {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: answer({}, route.encode()),
        RequestCode.GET_BROKER_CLUSTER_INFO: answer(
            {}, ClusterInfo({BROKER: broker}, {"DefaultCluster": (BROKER,)}).encode()
        ),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: answer({}, json.dumps(_GROUP_CONFIG).encode()),
        RequestCode.SEND_MESSAGE_V2: answer({**_MADE, "msgId": ids[0]}),
        RequestCode.SEND_BATCH_MESSAGE: answer({**_MADE, "msgId": ",".join(ids)}),
        RequestCode.PULL_MESSAGE: answer(_PULLED, records(mixed=mixed)),
    }


def frames_in(data: bytes) -> Iterable[tuple[int, int]]:
    """Where each of some whole frames begins and ends."""
    at = 0
    while at < len(data):
        end = at + 4 + _LENGTHS.unpack_from(data, at)[0]
        yield at, end
        at = end


class Pipe(asyncio.Transport):
    """What is written to it goes to a function."""

    def __init__(self, written: Callable[[bytes], None]) -> None:
        super().__init__({"peername": ("10.1.2.3", 40000), "sockname": ("10.0.0.9", 8080)})
        self._written = written

    def writelines(self, parts: Iterable[Any]) -> None:
        self._written(b"".join(parts))

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


def feed(protocol: Any, data: bytes) -> None:
    """As the loop gives a connection what it has read."""
    buffer = protocol.get_buffer(-1)
    for at in range(0, len(data), len(buffer)):
        part = data[at : at + len(buffer)]
        buffer[: len(part)] = part
        protocol.buffer_updated(len(part))


class ScriptedLoop(uvloop.Loop):
    """Whoever connects is answered by the script, in the next turn."""

    mixed = False

    async def create_connection(self, factory: Any, *args: Any, **more: Any) -> Any:  # type: ignore[override]
        protocol, script = factory(), answers(mixed=self.mixed)
        unknown = answer({}, code=3)

        def written(data: bytes) -> None:
            told = []
            for at, _ in frames_in(data):
                code, opaque = _code(data, at), _opaque(data, at)
                assert code is not None
                assert opaque is not None
                header, body = script.get(int(code[1]), unknown)
                header %= int(opaque[1])
                told += (_LENGTHS.pack(4 + len(header) + len(body), len(header)), header, body)
            self.call_soon(feed, protocol, b"".join(told))

        transport = Pipe(written)
        protocol.connection_made(transport)
        return transport, protocol


def loop_for(work: str) -> ScriptedLoop:
    loop = ScriptedLoop()
    loop.mixed = work.startswith("mixed")
    return loop


def request(work: str) -> tuple[int, dict[str, str], bytes]:
    """Code, fields and body."""
    if work.endswith("pull"):
        asked = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "3", "queueOffset": str(FIRST_OFFSET)}
        asked |= {"maxMsgNums": str(COUNT), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
        asked |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG", "bname": BROKER}
        return RequestCode.PULL_MESSAGE, asked, b""
    many = work.endswith("batch")
    head = {"a": "makers", "b": TOPIC, "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000"}
    head |= {"h": "0", "i": "" if many else PROPERTIES, "j": "0", "k": "false", "m": str(many).lower()}
    head["n"] = BROKER
    if many:
        named = PROPERTIES.encode()
        items = [BatchItem(0, body, named) for body in bodies(mixed=work.startswith("mixed"))]
        return RequestCode.SEND_BATCH_MESSAGE, head, encode_batch(items)
    return RequestCode.SEND_MESSAGE_V2, head, BODY


class Client:
    """A connection to the door, over which one request is made again and again."""

    def __init__(self, server: RemotingServer, work: str) -> None:
        code, fields, body = request(work)
        self._slice, self._together = SLICES[work]
        commands = [Command(code, at, 0, dict(fields), body, "", "JAVA", 403) for at in range(self._together)]
        self._data = b"".join(map(encode_command, commands))
        self._left = 0
        self._done = asyncio.Event()
        self._connection = server._connect()
        self._connection.connection_made(Pipe(self._answered))

    async def time_slice(self) -> float:
        """Microseconds for a frame."""
        began = time.thread_time()
        for _ in range(self._slice // self._together):
            self._left = self._together
            self._done.clear()
            feed(self._connection, self._data)
            await self._done.wait()
        return (time.thread_time() - began) / self._slice * 1e6

    def _answered(self, data: bytes) -> None:
        for at, _ in frames_in(data):
            code = _code(data, at)
            if code is None or code[1] != b"0":
                raise SystemExit(f"it was refused: {data[at : at + 300]!r}")
            self._left -= 1
        if not self._left:
            self._done.set()


async def opened() -> RemotingServer:
    """The door before the scripted cluster, as a gateway makes it."""
    clock = SystemClock()
    broker = RemoteBroker(RemoteSettings(name_servers=("10.0.0.1:9876",)), clock=clock)
    await broker.start()
    metrics = MetricsObserver(max_topics=100, max_groups=100, forget_s=900.0, now=clock.monotonic)
    processor = MessagingProcessor(broker, clock=clock, observer=metrics)
    await processor.start()
    door = Door(DoorContext(processor, clock, lambda context: context.local))
    door.calls, door.authenticator = metrics, None
    server = RemotingServer(door, processor.budgets, "127.0.0.1", 0)
    server._loop = asyncio.get_running_loop()
    return server


async def measure(work: str, slices: int) -> list[float]:
    client = Client(await opened(), work)
    for _ in range(slices // 5):
        await client.time_slice()
    return [await client.time_slice() for _ in range(slices)]


async def take_turns(work: str) -> None:
    """A slice for each line that comes in, until there is none."""
    client = Client(await opened(), work)
    for _ in range(10):
        await client.time_slice()
    for _ in sys.stdin:
        print(await client.time_slice(), flush=True)


def in_turn(work: str, slices: int, trees: Iterable[str]) -> list[list[float]]:
    """The slices of each of two checkouts."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--turns", work],
            env={**os.environ, TREE: tree},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for tree in trees
    ]
    took: list[list[float]] = [[] for _ in processes]
    for number in range(slices):
        for place in (0, 1) if number % 2 else (1, 0):
            process = processes[place]
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            took[place].append(float(process.stdout.readline()))
    for process in processes:
        process.communicate()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--slices", type=int, default=100)
    parser.add_argument("--beside", metavar="DIR", help="another checkout, which is told first")
    parser.add_argument("--turns", choices=SLICES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    slices = 5 if given.quick else given.slices
    if given.turns:
        with asyncio.Runner(loop_factory=partial(loop_for, given.turns)) as runner:
            runner.run(take_turns(given.turns))
        return
    for work in SLICES:
        if given.beside:
            here = str(Path(__file__).resolve().parent.parent)
            before, after = in_turn(work, slices, (given.beside, here))
            ratio = statistics.median(new / old for old, new in zip(before, after, strict=True))
            figures = f"{min(after):.2f} us/frame beside {min(before):.2f} ratio {ratio:.3f}"
            print(f"classic_door.{work} {figures}", flush=True)
            continue
        with asyncio.Runner(loop_factory=partial(loop_for, work)) as runner:
            took = runner.run(measure(work, slices))
        print(f"classic_door.{work} {min(took):.2f} us/frame", flush=True)


if __name__ == "__main__":
    main()
