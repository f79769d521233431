"""A gateway under half of what it can take for a long time, while clients come and go, some of them badly.

    python benchmarks/soak.py                # half an hour, the embedded broker
    python benchmarks/soak.py --minutes 15 --broker rocketmq://127.0.0.1:9876
    python benchmarks/soak.py --broker rocketmq --workers 0    # RocketMQ is started, too; workers as shipped
    python benchmarks/soak.py --compiled DIR # as `deploy/compile.py tree DIR` made it
    python benchmarks/soak.py --quick        # seconds; checks what is left behind, not the memory

Held constant are: the rate of messages (half of what the gateway does at most, which is measured first, or
`--rate`), one per call sent and as many received, 32 per call and acknowledged; the length of a client's life
(10 s, then others come, with new ids and new connections); and some twenty peers a second that send half a
greeting, half of a request, nonsense, resets, floods, or vanish with receives that wait. The gateway is one
process, unless `--workers` says otherwise, with its default settings (`--set embedded.cache_bytes=1MiB`
changes one) but for the ids that it remembers, which would take longer to fill.

Not constant is what it remembers up to a bound: message ids, and what RocksDB has in its buffers, which rises
until they are written to the disk, and falls. Both are filled before the time begins, and told with every
sample, so that a change of memory can be compared with theirs; the time must be long beside their rise and
fall, which takes minutes.

Told are its memory (PSS) in the last third of the time beside that in the second, which may differ by 5 %,
and what is left when all have gone: no connection, call, waiting receive, socket or task. Exit code 1 when it
is otherwise, or a client got an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.driving import Load, build
from benchmarks.beside.machine import facts
from benchmarks.beside.sides import compiled_copy, environment_of, make_at
from benchmarks.soaking.figures import HELD, LEFT, LIKE_BEFORE, Figures
from benchmarks.soaking.rude import TOPIC as RUDE
from benchmarks.soaking.rude import Rude
from popgate.testing import CREATE_ON_USE, GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.rocketmq import shared_rocketmq

MISSING = 3
MOST_GROWTH = 0.05
GONE_WITHIN_S = 60.0
FILLING = 400_000
"""Messages, more than the ids that the embedded broker may know here: from then on memory must not grow."""
KNOWN_SENDS = ("--set", "embedded.dedup_max_ids=262144")
LIFE_S = 10.0
SAMPLED_EVERY_S = 2.0


class Soak:
    def __init__(self, gateway: GatewayProcess, load: Load, seconds: float, life_s: float) -> None:
        self._gateway = gateway
        self._load = load
        self._seconds = seconds
        self._life_s = life_s
        self._over = threading.Event()
        self._wrong: list[str] = []
        self._done = {"send": 0, "receive": 0}
        self.figures = Figures(gateway)
        self.told: dict[str, Any] = {}
        """What is written at the end."""

    def run(self, *, memory: bool, rate: float | None) -> bool:
        before = self._settled()
        if memory:
            self._fill()
        if rate is None:
            rate = self._half()
        self._say("rate", round(rate), "messages/s, sent and received")
        rude = Rude(self._gateway.endpoint)
        works: list[Callable[[], None]] = [
            lambda: self._go("send", rate=rate, messages=1 << 40, calls=8),
            lambda: self._go("receive", per_call=32, messages=1 << 40, calls=2, wait=1),
            rude.turn,
        ]
        threads = [threading.Thread(target=self._repeat, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        samples = self._watch()
        self._over.set()
        for thread in threads:
            thread.join()
        rude.end()
        for work, count in self._done.items():
            self._say(work, count, "messages")
        self._say("rude", rude.count, "peers")
        if memory:
            self._compare(samples)
        self._look_behind(before)
        for line in self._wrong:
            print("WRONG:", line)
        self.told |= {"wrong": self._wrong, "samples": samples}
        return not self._wrong

    # -- before -----------------------------------------------------------------------------------

    def _settled(self) -> dict[str, float]:
        """When the gateway has done what it does at its start."""
        before = self.figures.told()
        while True:
            time.sleep(1.0)
            now = self.figures.told()
            if all(now[name] == before[name] for name in (*LEFT, *LIKE_BEFORE)):
                return now
            before = now

    def _fill(self) -> None:
        """What the broker remembers up to a bound, ids above all, it remembers before it is measured."""
        for work, options in (("send", {}), ("receive", {"wait": 1, "seconds": 60})):
            self._load.run(
                self._gateway.endpoint,
                work,
                topic="soak",
                group="soak",
                messages=FILLING,
                per_call=32,
                **options,
            )

    def _half(self) -> float:
        most = self._load.run(
            self._gateway.endpoint, "send", topic="soak", seconds=self._life_s, messages=1 << 40
        )
        # A quarter to be sent, and as much to be received.
        return float(most["rate"]) / 4

    # -- meanwhile --------------------------------------------------------------------------------

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                work()
            except Exception as error:
                self._wrong.append(f"{type(error).__name__}: {error}")
                return

    def _go(self, work: str, **options: Any) -> None:
        told = self._load.run(
            self._gateway.endpoint, work, topic="soak", group="soak", seconds=self._life_s, **options
        )
        self._done[work] += told["messages"]
        if told["errors"]:
            self._wrong.append(f"{work}: {told['said']}")

    def _watch(self) -> list[dict[str, float]]:
        samples = []
        begun = time.monotonic()
        while time.monotonic() < begun + self._seconds and not self._wrong:
            samples.append(self.figures.sample(begun))
            time.sleep(SAMPLED_EVERY_S)
        return samples

    # -- after ------------------------------------------------------------------------------------

    def _compare(self, samples: list[dict[str, float]]) -> None:
        third = len(samples) // 3
        parts = [samples[at * third : (at + 1) * third] for at in range(3)]

        def means(name: str) -> list[float]:
            return [statistics.mean(sample[name] for sample in part) for part in parts]

        memory = means("pss_mb")
        change = memory[2] / memory[1] - 1
        self._say("memory", *(round(one, 1) for one in memory), "MB in the thirds of the time")
        self._say("change", round(change * 100, 2), "% from the second third to the last")
        for name in HELD:
            self._say(name, *(round(one, 2) for one in means(name)), "in the thirds")
        if abs(change) > MOST_GROWTH:
            self._wrong.append("the memory is not flat")

    def _look_behind(self, before: dict[str, float]) -> None:
        end = time.monotonic() + GONE_WITHIN_S
        while True:
            now = self.figures.told()
            left = {name: now[name] for name in LEFT if now[name]}
            left |= {name: now[name] - before[name] for name in LIKE_BEFORE if now[name] > before[name]}
            if not left:
                break
            if time.monotonic() > end:
                self._wrong.append(f"left behind: {left}")
                break
            time.sleep(0.5)
        self._say("left", sum(left.values()), "connections, calls, waiting receives, sockets and tasks")
        self._say("violations", int(now["popgate_grpc_violations_total"]))

    def _say(self, name: str, *told: float | str) -> None:
        print(f"soak.{name}", *told, flush=True)
        self.told[name] = [one for one in told if not isinstance(one, str)]


def _setting(words: str) -> tuple[str, str]:
    name, equals, value = words.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{words}: not NAME=VALUE")
    return "POPGATE_" + name.replace(".", "__").upper(), value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, help="messages per second; default half of what it can take")
    parser.add_argument(
        "--broker", help="URL of a RocketMQ, in the place of the embedded broker; rocketmq: the tests' own"
    )
    parser.add_argument("--workers", type=int, default=1, help="0: as many as it has by itself")
    parser.add_argument(
        "--compiled", type=compiled_copy, metavar="DIR", help="as `deploy/compile.py tree DIR` made it"
    )
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--quick", action="store_true", help="seconds, without a look at the memory")
    chosen = parser.parse_args()
    seconds = 5.0 if chosen.quick else chosen.minutes * 60
    options = list(KNOWN_SENDS)
    if chosen.workers:
        options += ["--workers", str(chosen.workers)]
    machine = facts()
    with contextlib.ExitStack() as closing:
        broker = chosen.broker
        try:
            load = Load(build())
            if broker == "rocketmq":
                broker = closing.enter_context(shared_rocketmq()).url
        except Missing as missing:
            print(missing, file=sys.stderr)
            sys.exit(MISSING)
        if broker:
            options += ["--broker", broker, *CREATE_ON_USE]
            make_at(broker, ("soak", RUDE), ("soak", RUDE))
        gateway = closing.enter_context(
            GatewayProcess(
                options=options, environment={**environment_of(chosen.compiled), **dict(chosen.set)}
            )
        )
        soak = Soak(gateway, load, seconds, 2.0 if chosen.quick else LIFE_S)
        fine = soak.run(memory=not chosen.quick, rate=chosen.rate)
    if chosen.out is not None:
        settings = {
            "minutes": chosen.minutes,
            "broker": "RocketMQ" if chosen.broker else "embedded",
            "workers": chosen.workers or "default",
            "set": dict(chosen.set),
            "compiled": chosen.compiled is not None,
        }
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps({"machine": machine, "settings": settings, **soak.told}) + "\n")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
