"""What classic clients cost: the remoting door beside the Java proxy's remoting port, and beside the broker.

    python benchmarks/remoting_door.py                     # before a real RocketMQ, about six minutes
    python benchmarks/remoting_door.py --out docs/performance/remoting.json
    python benchmarks/remoting_door.py --quick             # a moment, without Java; proves only that it runs

Every work is done in turn at all of them, several times, in one run: sends of 100 bytes, sends of batches of
32, and true pulls of 32. Told are the processor time of the gateway for a message, that of the broker behind
it, and messages a second (of which the load itself, in Python, takes its part: compare processor times).

A push consumer of a group that is mapped onto pop (`mapped`: pulls of 32 that bring the position along) is
there at ours alone. It stands beside the Java proxy's receive and acknowledge over gRPC, 32 per call (`grpc`,
by the load generator in `benchmarks/load`, which needs Go), and beside our own true pull.

A virtual machine that has just started costs several times as much as later, so every work is done at every
target before anything counts: `--warm` times, in messages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from benchmarks.beside import driving, machine
from benchmarks.beside.processes import cpu_s
from benchmarks.beside.sides import (
    BROKER_OPTIONS,
    BROKER_SETTINGS,
    SHIPPED,
    compiled_copy,
    environment_of,
    make_at,
)
from benchmarks.beside.working import AHEAD
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.testing import CREATE_ON_USE, GatewayProcess
from popgate.testing.rocketmq import BrokerPlan, RocketMQ
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.bodies.routes import decode_route
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.batches import BatchItem, encode_batch
from protocols.remoting.mapped.offsets import is_virtual

TOPIC, GROUP = "remoting_door", "remoting_door_readers"
MAPPED_TOPIC, MAPPED_GROUP = "remoting_door_mapped", "remoting_door_members"
GRPC_TOPIC, GRPC_GROUP = "remoting_door_grpc", "remoting_door_receivers"
WARM = 200_000
"""Messages of each work before anything counts; of single sends a quarter of it."""
BODY, QUEUES, LINKS, PER_CALL = bytes(100), 8, 4, 32
TIMEOUT_S = 30.0


@dataclass(slots=True)
class Target:
    """Where requests go. `gateway` and `broker`: processes whose time is told; None: there is none."""

    name: str
    address: str
    gateway: int | None
    broker: int | None
    broker_name: str = "broker-a"
    grpc: str = ""
    """Where it listens for gRPC, if that is measured."""


class Load:
    """Requests as a classic client makes them, `in_flight` of them at a time over four connections."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._links = ConnectionPool(RemoteSettings(), SystemClock())
        self._turn = 0
        self._topic = TOPIC
        self._places: dict[int, int] = {}
        """Of a member of a mapped group, by queue: where it goes on."""

    async def close(self) -> None:
        await self._links.close()

    async def ask(
        self, code: int, fields: dict[str, str], body: bytes = b"", link: int | None = None
    ) -> Command:
        self._turn += 1
        link = self._turn % LINKS if link is None else link
        return await self._links.call(
            self._target.address, code, fields, body, timeout_s=TIMEOUT_S, link=link
        )

    async def send(self, messages: int) -> int:
        block = "UNIQ_KEY\x0101020304050607080910111213141516\x02TAGS\x01a\x02"

        async def one() -> int:
            await self._done(RequestCode.SEND_MESSAGE_V2, self._head(block), BODY)
            return 1

        return await self._repeat(one, messages, 64)

    async def batch(self, messages: int) -> int:
        properties = b"UNIQ_KEY\x0101020304050607080910111213141516\x02TAGS\x01a\x02"
        body = encode_batch([BatchItem(0, BODY, properties)] * PER_CALL)

        async def one() -> int:
            await self._done(RequestCode.SEND_BATCH_MESSAGE, self._head("", batch=True), body)
            return PER_CALL

        return await self._repeat(one, messages, 8)

    async def pull(self, messages: int) -> int:
        """All queues at a time from their beginnings, again and again."""
        taken = 0

        async def read(queue_id: int) -> None:
            nonlocal taken
            offset = 0
            while taken < messages:
                before = offset
                answer = await self.ask(RequestCode.PULL_MESSAGE, self._pull(queue_id, offset))
                offset = int(answer.fields["nextBeginOffset"])
                if answer.code == ResponseCode.SUCCESS:
                    # Counted by the offsets: what is in it is this side's work, which is not measured.
                    taken += offset - before
                elif answer.code == ResponseCode.PULL_NOT_FOUND:
                    offset = 0
                else:
                    raise SystemExit(f"{self._target.name} refused a pull: {answer.code} {answer.remark}")

        await asyncio.gather(*(read(queue_id) for queue_id in range(QUEUES)))
        return taken

    async def stock(self, messages: int) -> None:
        """Have so many messages wait for the mapped group, and some more, and be its only member."""
        self._topic = MAPPED_TOPIC
        await self.batch(messages + AHEAD)
        consumer = ConsumerData(MAPPED_GROUP, (SubscriptionData(MAPPED_TOPIC),))
        beat = HeartbeatData("member@1", (), (consumer,)).encode()
        answer = await self.ask(RequestCode.HEART_BEAT, {}, beat, link=0)
        if answer.code != ResponseCode.SUCCESS:
            raise SystemExit(f"{self._target.name} refused a heartbeat: {answer.code} {answer.remark}")
        for queue_id in range(QUEUES):
            fields = {"consumerGroup": MAPPED_GROUP, "topic": MAPPED_TOPIC, "queueId": str(queue_id)}
            fields["bname"] = self._target.broker_name
            answer = await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields, link=0)
            self._places[queue_id] = int(answer.fields.get("offset", 0))

    async def mapped(self, messages: int) -> int:
        """All queues at a time, as a push consumer asks: each pull tells how far it has consumed."""
        taken = 0

        async def consume(queue_id: int) -> None:
            nonlocal taken
            while taken < messages:
                at = self._places[queue_id]
                fields = self._pull(queue_id, at) | _AS_A_MEMBER | {"commitOffset": str(at)}
                answer = await self.ask(RequestCode.PULL_MESSAGE, fields, link=0)
                reached = self._places[queue_id] = int(answer.fields["nextBeginOffset"])
                # What comes before its group is mapped is pulled, and no part of this.
                if answer.code == ResponseCode.SUCCESS and is_virtual(at):
                    taken += reached - at

        await asyncio.gather(*(consume(queue_id) for queue_id in range(QUEUES)))
        return taken

    async def _repeat(
        self, one: Callable[[], Coroutine[Any, Any, int]], messages: int, in_flight: int
    ) -> int:
        done = 0

        async def again() -> None:
            nonlocal done
            while done < messages:
                # Not in one line: others go on while this one waits.
                count = await one()
                done += count

        await asyncio.gather(*(again() for _ in range(in_flight)))
        return done

    async def _done(self, code: int, fields: dict[str, str], body: bytes) -> None:
        answer = await self.ask(code, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            raise SystemExit(f"{self._target.name} refused a send: {answer.code} {answer.remark}")

    def _head(self, block: str, *, batch: bool = False) -> dict[str, str]:
        return {
            "a": "producers",
            "b": self._topic,
            "c": "TBW102",
            "d": "4",
            "e": str(self._turn % QUEUES),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": block,
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
            "n": self._target.broker_name,
        }

    def _pull(self, queue_id: int, offset: int) -> dict[str, str]:
        return {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(PER_CALL),
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
            "bname": self._target.broker_name,
        }


_AS_A_MEMBER = {
    "consumerGroup": MAPPED_GROUP,
    "topic": MAPPED_TOPIC,
    "sysFlag": "7",  # with its position, its filter, and patience
    "suspendTimeoutMillis": "1000",
}
WORKS: dict[str, Callable[[Load, int], Coroutine[Any, Any, int]]] = {
    "send": Load.send,
    "batch": Load.batch,
    "pull": Load.pull,
    "mapped": Load.mapped,
}
GRPC = "grpc"


def works_of(target: Target) -> list[str]:
    works = [work for work in WORKS if work != "mapped" or target.name == "ours"]
    return [*works, GRPC] if target.grpc else works


async def measure(target: Target, work: str, messages: int) -> dict[str, float]:
    if work == GRPC:
        return receive(target, messages)
    load = Load(target)
    try:
        warming = max(messages // 10, PER_CALL)
        if work == "mapped":
            await load.stock(messages + warming)
        await WORKS[work](load, warming)
        with counting(target) as told:
            told["done"] = await WORKS[work](load, messages)
    finally:
        await load.close()
    return per_message(told)


def receive(target: Target, messages: int) -> dict[str, float]:
    """Receive and acknowledge over gRPC, 32 per call."""
    load = driving.Load(driving.build())
    options = {"topic": GRPC_TOPIC, "group": GRPC_GROUP, "per_call": PER_CALL, "calls": 8}
    load.until_routed(target.grpc, GRPC_TOPIC, group=GRPC_GROUP)
    load.run(target.grpc, "send", messages=messages + AHEAD, **options)
    with counting(target) as told:
        done = load.run(target.grpc, "receive", messages=messages, **options)
        told["done"] = done["messages"]
    if done["errors"]:
        raise SystemExit(f"{target.name} failed {done['errors']} calls: {done['said']}")
    return per_message(told)


@contextlib.contextmanager
def counting(target: Target) -> Iterator[dict[str, float]]:
    """Seconds of the block, and those of processor time of the target's processes."""
    told: dict[str, float] = {}
    pids = {"gateway": target.gateway, "broker": target.broker}
    before = {name: cpu_s(pid) for name, pid in pids.items() if pid is not None}
    began = time.perf_counter()
    yield told
    told["took"] = time.perf_counter() - began
    told |= {name: cpu_s(pid) - before[name] for name, pid in pids.items() if pid is not None}


def per_message(told: dict[str, float]) -> dict[str, float]:
    done, took = told.pop("done"), told.pop("took")
    return {"per_s": done / took, **{f"{name}_us": used / done * 1e6 for name, used in told.items()}}


@contextlib.contextmanager
def beside_java(options: Sequence[str], tree: Path | None) -> Iterator[list[Target]]:
    """A RocketMQ, the Java proxy as it is shipped, and ours, before the same broker."""
    with contextlib.ExitStack() as open_:
        cluster = RocketMQ(brokers=(BrokerPlan(),), settings=BROKER_SETTINGS, options=BROKER_OPTIONS).start()
        open_.callback(cluster.stop)
        make_at(cluster.url, [TOPIC, MAPPED_TOPIC, GRPC_TOPIC], [GROUP, MAPPED_GROUP, GRPC_GROUP])
        broker = cluster.master()
        proxy = cluster.start_proxy(options=SHIPPED)
        gateway = GatewayProcess(
            options=[*options, "--broker", cluster.url, *CREATE_ON_USE],
            listen=("remoting://127.0.0.1:0",),
            environment=environment_of(tree),
        ).start()
        open_.callback(gateway.close)
        yield [
            Target("direct", broker.address, None, broker.pid),
            # Its remoting port is the one behind that of gRPC.
            Target(
                "java",
                f"127.0.0.1:{proxy.port + 1}",
                proxy.pid,
                broker.pid,
                grpc=f"127.0.0.1:{proxy.port}",
            ),
            Target("ours", gateway.endpoint, gateway.pid, broker.pid),
        ]


@contextlib.contextmanager
def alone(options: Sequence[str], tree: Path | None) -> Iterator[list[Target]]:
    """Ours on its embedded broker, which is in the same process."""
    with GatewayProcess(
        options=options, listen=("remoting://127.0.0.1:0",), environment=environment_of(tree)
    ).start() as gateway:
        # The door is a name server, too.
        make_at(f"remoting://{gateway.endpoint}", [TOPIC, MAPPED_TOPIC], [GROUP, MAPPED_GROUP])
        target = Target("ours", gateway.endpoint, gateway.pid, None)

        async def route() -> str:
            load = Load(target)
            fields = {"topic": TOPIC, "acceptStandardJsonOnly": "true"}
            try:
                answer = await load.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            finally:
                await load.close()
            return decode_route(answer.body).brokers[0].name

        target.broker_name = asyncio.run(route())
        yield [target]


def compared(
    targets: list[Target], rounds: int, messages: int, warm: int
) -> dict[str, dict[str, dict[str, float]]]:
    """The middle of all rounds, by work and target; in each round all take their turn."""
    seen: dict[tuple[str, str], list[dict[str, float]]] = {}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for target in targets:
            for work in works_of(target):
                if warm and work != "mapped":  # what it runs through the others and its own beginning warm up
                    runner.run(measure(target, work, warm // (4 if work == "send" else 1)))
        for number in range(rounds):
            for work in (*WORKS, GRPC):
                amount = messages * (1 if work == "send" else 4)
                for target in targets if number % 2 == 0 else reversed(targets):
                    if work in works_of(target):
                        told = runner.run(measure(target, work, amount))
                        seen.setdefault((work, target.name), []).append(told)
    return {
        work: {
            target.name: {
                figure: statistics.median(told[figure] for told in seen[work, target.name])
                for figure in seen[work, target.name][0]
            }
            for target in targets
            if (work, target.name) in seen
        }
        for work in (*WORKS, GRPC)
    }


def lines(results: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    for work, by_target in results.items():
        for name, told in by_target.items():
            figures = " ".join(f"{figure} {value:.1f}" for figure, value in told.items())
            yield f"remoting_door.{work}.{name} {figures}"
    for work, beside in (("send", "send"), ("batch", "batch"), ("pull", "pull"), ("mapped", GRPC)):
        if "java" in results[beside]:
            ratio = ratio_of(results[work]["ours"], results[beside]["java"])
            yield f"remoting_door.{work}.ratio {ratio}"
    ratio = ratio_of(results["mapped"]["ours"], results["pull"]["ours"])
    yield f"remoting_door.balancing {ratio} of a true pull"


def ratio_of(one: dict[str, float], other: dict[str, float]) -> str:
    """Of the gateways' processor time; "unknown" where the other took less than that clock sees (10 ms)."""
    return f"{one['gateway_us'] / other['gateway_us']:.2f}" if other["gateway_us"] else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--embedded", action="store_true", help="the embedded broker, without Java")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--messages", type=int, default=30_000, help="sends of one round; others are four times"
    )
    parser.add_argument("--warm", type=int, default=WARM, help="messages before anything counts")
    parser.add_argument(
        "--compiled", type=compiled_copy, metavar="DIR", help="ours as `deploy/compile.py tree DIR` made it"
    )
    parser.add_argument("--serve-options", default="--workers 1", help="of `popgate serve`")
    parser.add_argument("--out", type=Path, help="a file for the results and the machine")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.messages, given.warm, given.embedded = 1, 200, 0, True
    options = [*given.serve_options.split(), "--set", f"remoting.mapped_groups={MAPPED_GROUP}"]
    start = alone if given.embedded else beside_java
    with start(options, given.compiled) as targets:
        results = compared(targets, given.rounds, given.messages, given.warm)
    for line in lines(results):
        print(line, flush=True)
    if given.out is not None:
        told = {
            "machine": machine.facts(),
            "compiled": given.compiled is not None,
            "rounds": given.rounds,
            "results": results,
        }
        given.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
