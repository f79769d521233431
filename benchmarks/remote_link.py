"""What a request to a broker costs on one link, against a scripted broker in a process of its own.

    python benchmarks/remote_link.py            # about fifteen seconds
    python benchmarks/remote_link.py --quick    # a moment; proves only that it runs

Each figure is for so many requests in flight at a time: requests a second, and the processor time that
this side spends on one (header made, written, answer read and parsed, its caller woken). Requests are
sends of 100 bytes with the fields of a real one; `_signed` adds the signature of an account.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import Credentials, RemoteSettings
from popgate.clock import SystemClock
from popgate.testing.peers import ScriptedPeer
from popgate.wire.frames.codes import RequestCode

BODY = bytes(100)
FIELDS = {
    "a": "producers",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x0101020304050607080910111213141516\x02TAGS\x01a\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
ANSWER = {"msgId": "7F00000100002A9F0000000000000001", "queueId": "3", "queueOffset": "17"}
ACCOUNT = Credentials("gateway", "a secret of some length")


async def serve() -> None:
    async with ScriptedPeer() as peer:
        peer.on(RequestCode.SEND_MESSAGE_V2, lambda request: request.answer(0, fields=ANSWER))
        print(peer.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def measure(address: str, in_flight: int, seconds: float, account: Credentials | None) -> str:
    links = ConnectionPool(RemoteSettings(credentials=account), SystemClock())
    code = int(RequestCode.SEND_MESSAGE_V2)
    done = 0
    stopping = False

    async def one() -> None:
        nonlocal done
        while not stopping:
            await links.call(address, code, FIELDS, BODY, timeout_s=60.0)
            done += 1

    async def run(length: float) -> tuple[int, float, float]:
        nonlocal stopping
        stopping, before = False, done
        began, used = time.perf_counter(), time.process_time()
        asking = [asyncio.create_task(one()) for _ in range(in_flight)]
        await asyncio.sleep(length)
        stopping = True
        await asyncio.gather(*asking)
        return done - before, time.perf_counter() - began, time.process_time() - used

    await run(seconds / 5)
    count, took, used = await run(seconds)
    await links.close()
    name = f"remote_link.{in_flight}_in_flight{'_signed' if account else ''}"
    return f"{name} {count / took:.0f} requests/s {used / count * 1e6:.1f} us/request"


async def run(quick: bool) -> None:
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdout is not None
        assert peer.stdin is not None
        address = peer.stdout.readline().strip()
        seconds = 0.05 if quick else 3.0
        for in_flight, account in ((1, None), (32, None), (512, None), (512, ACCOUNT)):
            print(await measure(address, in_flight, seconds, account), flush=True)
        peer.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve() if given.serve else run(given.quick))


if __name__ == "__main__":
    main()
