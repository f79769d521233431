"""Which functions a call enters on its way through the gateway: the hops that ARCHITECTURE.md counts.

    python benchmarks/hops.py                # with the embedded broker, and before a RocketMQ of its own
    python benchmarks/hops.py --functions    # each of them, in order
    python benchmarks/hops.py --quick        # with the embedded broker only

A send, a receive of one message, and its acknowledgement over gRPC, from the bytes of the request at the door
to those of its answer, when everything is warm. A function counts once, however often it is entered, and so
does the module it is in. What calls of one turn of the event loop share, such as a batch or a write, counts
for each of them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from benchmarks.door import GROUP, RPCS, Called, ack_request, receive_request, send_request
from brokers.open_broker import open_broker
from brokers.port import Broker
from popgate.clock import Clock, SystemClock
from popgate.model import GroupConfig, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.testing.rocketmq.cluster import RocketMQ
from processors.messaging import MessagingProcessor
from protocols.grpc.rpcs.dispatcher import SERVICE, RpcDispatcher
from protocols.grpc.rpcs.health import Health
from protocols.grpc.service.service import MessagingService

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "hops"
WARM_UPS = 5
COUNTED = 5
"""How often each call is followed; the shortest trail counts, on which nothing happened to run beside it."""
FLOORS = tuple(f"{ROOT}/{floor}/" for floor in ("protocols", "processors", "brokers", "popgate"))
OTHERS = f"{ROOT}/popgate/pb/", f"{ROOT}/popgate/testing/"
"""What is generated, and the other ends of connections in tests."""

Result = TypeVar("Result")


class Trail:
    """The functions that were entered while it was followed, as `module:name`, in order."""

    def __init__(self) -> None:
        self._functions: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(FLOORS) and not code.co_filename.startswith(OTHERS)
        # Comprehensions and lambdas belong to the function that they are in.
        if event == "call" and ours and not code.co_name.startswith("<"):
            self._functions.setdefault(f"{code.co_filename[len(str(ROOT)) + 1 :]}:{code.co_qualname}")

    @property
    def functions(self) -> Sequence[str]:
        return list(self._functions)

    @property
    def modules(self) -> Sequence[str]:
        return list(dict.fromkeys(name.partition(":")[0] for name in self._functions))


async def followed(call: Callable[[], Awaitable[Result]]) -> tuple[Trail, Result]:
    """Run it, and return what it entered with what it returned."""
    trail = Trail()
    sys.setprofile(trail)
    try:
        result = await call()
    finally:
        sys.setprofile(None)
    return trail, result


class Ways:
    """A door before one broker."""

    def __init__(self, door: RpcDispatcher) -> None:
        self._door = door

    async def follow(self) -> dict[str, Trail]:
        """Send, receive and acknowledge once, and return the trail of each.

        Raises RuntimeError where the message does not come.
        """
        request = send_request(TOPIC, 1)
        sent, answer = await followed(lambda: self._unary("SendMessage", request))
        if answer.status.code != pb.OK:
            raise RuntimeError(f"the send failed: {answer}")
        received, answers = await followed(self._receive)
        acked = ack_request(TOPIC, answers)
        if acked is None:
            raise RuntimeError("what was sent did not come within the time of a poll")
        acknowledged, _ = await followed(lambda: self._unary("AckMessage", acked[0]))
        return {"send": sent, "receive": received, "acknowledge": acknowledged}

    async def _unary(self, name: str, data: bytes) -> object:
        what, read = RPCS[name]
        answer = await self._door.unary(what, read(data), Called(), len(data))
        answer.SerializeToString()
        return answer

    async def _receive(self) -> list[bytes]:
        what, read = RPCS["ReceiveMessage"]
        call = Called()
        await self._door.streamed(what, read(receive_request(TOPIC, 1)), call, call)
        return call.answers


async def trails_of(broker: Broker, clock: Clock) -> dict[str, Trail]:
    """Those of a warm gateway before a broker that has the topic and the group."""
    processor = MessagingProcessor(broker, clock=clock)
    await processor.start()
    try:
        ways = Ways(RpcDispatcher(MessagingService(processor, clock), Health([SERVICE]), clock, None))
        for _ in range(WARM_UPS):
            await ways.follow()
        counted = [await ways.follow() for _ in range(COUNTED)]
        return {
            call: min((trails[call] for trails in counted), key=lambda trail: len(trail.functions))
            for call in counted[0]
        }
    finally:
        await processor.stop()


async def trails_before(url: str) -> dict[str, Trail]:
    """As `trails_of`, of the broker with this URL."""
    with tempfile.TemporaryDirectory() as folder:
        clock = SystemClock()
        broker = open_broker(url, data=Path(folder), clock=clock)
        await broker.start()
        try:
            await broker.create_topic(TopicConfig(TOPIC, read_queues=1, write_queues=1))
            await broker.create_group(GroupConfig(GROUP.name))
            return await trails_of(broker, clock)
        finally:
            await broker.stop()


@contextlib.contextmanager
def brokers(quick: bool) -> Iterator[dict[str, str]]:
    """Names and URLs."""
    if quick:
        yield {"embedded": "embedded:"}
        return
    with RocketMQ() as cluster:
        yield {"embedded": "embedded:", "cluster": cluster.url}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="without a RocketMQ")
    parser.add_argument("--functions", action="store_true", help="print each of them")
    chosen = parser.parse_args()
    with brokers(chosen.quick) as urls:
        for name, url in urls.items():
            for call, trail in uvloop.run(trails_before(url)).items():
                print(f"hops.{name}.{call} {len(trail.functions)} functions in {len(trail.modules)} modules")
                if chosen.functions:
                    print(*(f"    {function}" for function in trail.functions), sep="\n")


if __name__ == "__main__":
    main()
