"""What classic clients cost: the remoting door beside the Java proxy's remoting port, and beside the broker.

    python benchmarks/remoting_door.py                     # before a real RocketMQ, about four minutes
    python benchmarks/remoting_door.py --out docs/performance/remoting.json
    python benchmarks/remoting_door.py --quick             # a moment, without Java; proves only that it runs

Every work is done in turn at all of them, several times, in one run: sends of 100 bytes, sends of batches of
32, and true pulls of 32. Told are the processor time of the gateway for a message, that of the broker behind
it, and messages a second (of which the load itself, in Python, takes its part: compare processor times).
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

from benchmarks.beside import machine
from benchmarks.beside.processes import cpu_s
from benchmarks.beside.sides import BROKER_OPTIONS, BROKER_SETTINGS, SHIPPED, make_at
from brokers.remote.links import Links
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.testing import CREATE_ON_USE, GatewayProcess
from popgate.testing.rocketmq import BrokerPlan, RocketMQ
from popgate.wire.batches import BatchItem, encode_batch
from popgate.wire.codes import RequestCode, ResponseCode
from popgate.wire.remoting import Command
from popgate.wire.routes import decode_route

TOPIC, GROUP = "remoting_door", "remoting_door_readers"
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


class Load:
    """Requests as a classic client makes them, `in_flight` of them at a time over four connections."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._links = Links(RemoteSettings(), SystemClock())
        self._turn = 0

    async def close(self) -> None:
        await self._links.close()

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        self._turn += 1
        link = self._turn % LINKS
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
            "b": TOPIC,
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


WORKS: dict[str, Callable[[Load, int], Coroutine[Any, Any, int]]] = {
    "send": Load.send,
    "batch": Load.batch,
    "pull": Load.pull,
}


async def measure(target: Target, work: str, messages: int) -> dict[str, float]:
    load = Load(target)
    try:
        await WORKS[work](load, max(messages // 10, PER_CALL))
        pids = {"gateway": target.gateway, "broker": target.broker}
        before = {name: cpu_s(pid) for name, pid in pids.items() if pid is not None}
        began = time.perf_counter()
        done = await WORKS[work](load, messages)
        took = time.perf_counter() - began
        used = {name: (cpu_s(pid) - before[name]) / done * 1e6 for name, pid in pids.items() if pid}
    finally:
        await load.close()
    return {"per_s": done / took, **{f"{name}_us": us for name, us in used.items()}}


@contextlib.contextmanager
def beside_java(options: Sequence[str]) -> Iterator[list[Target]]:
    """A RocketMQ, the Java proxy as it is shipped, and ours, before the same broker."""
    with contextlib.ExitStack() as open_:
        cluster = RocketMQ(brokers=(BrokerPlan(),), settings=BROKER_SETTINGS, options=BROKER_OPTIONS).start()
        open_.callback(cluster.stop)
        make_at(cluster.url, [TOPIC], [GROUP])
        broker = cluster.master()
        proxy = cluster.start_proxy(options=SHIPPED)
        gateway = GatewayProcess(
            options=[*options, "--broker", cluster.url, *CREATE_ON_USE], listen=("remoting://127.0.0.1:0",)
        ).start()
        open_.callback(gateway.close)
        yield [
            Target("direct", broker.address, None, broker.pid),
            # Its remoting port is the one behind that of gRPC.
            Target("java", f"127.0.0.1:{proxy.port + 1}", proxy.pid, broker.pid),
            Target("ours", gateway.endpoint, gateway.pid, broker.pid),
        ]


@contextlib.contextmanager
def alone(options: Sequence[str]) -> Iterator[list[Target]]:
    """Ours on its embedded broker, which is in the same process."""
    with GatewayProcess(options=options, listen=("remoting://127.0.0.1:0",)).start() as gateway:
        make_at(f"remoting://{gateway.endpoint}", [TOPIC], [GROUP])  # the door is a name server, too
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


def compared(targets: list[Target], rounds: int, messages: int) -> dict[str, dict[str, dict[str, float]]]:
    """The middle of all rounds, by work and target; in each round all take their turn."""
    seen: dict[tuple[str, str], list[dict[str, float]]] = {}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for number in range(rounds):
            for work in WORKS:
                amount = messages * (1 if work == "send" else 4)
                for target in targets if number % 2 == 0 else reversed(targets):
                    told = runner.run(measure(target, work, amount))
                    seen.setdefault((work, target.name), []).append(told)
    return {
        work: {
            target.name: {
                figure: statistics.median(told[figure] for told in seen[work, target.name])
                for figure in seen[work, target.name][0]
            }
            for target in targets
        }
        for work in WORKS
    }


def lines(results: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    for work, by_target in results.items():
        for name, told in by_target.items():
            figures = " ".join(f"{figure} {value:.1f}" for figure, value in told.items())
            yield f"remoting_door.{work}.{name} {figures}"
        if "java" in by_target:
            ratio = by_target["ours"]["gateway_us"] / by_target["java"]["gateway_us"]
            yield f"remoting_door.{work}.ratio {ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--embedded", action="store_true", help="the embedded broker, without Java")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--messages", type=int, default=30_000, help="sends of one round; others are four times"
    )
    parser.add_argument("--serve-options", default="--workers 1", help="of `popgate serve`")
    parser.add_argument("--out", type=Path, help="a file for the results and the machine")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.messages, given.embedded = 1, 200, True
    options = given.serve_options.split()
    with alone(options) if given.embedded else beside_java(options) as targets:
        results = compared(targets, given.rounds, given.messages)
    for line in lines(results):
        print(line, flush=True)
    if given.out is not None:
        told = {"machine": machine.facts(), "rounds": given.rounds, "results": results}
        given.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
