"""End replicas at random while classic clients work, and see whether any message felt it.

    python tests/replicas/run_classic.py                       # on true pull, twenty ends
    python tests/replicas/run_classic.py --mapped --seed 7 --kills 40

As `run.py`, with RocketMQ's classic Java client behind a balancer: producers, concurrent push consumers
(some messages fail once) and orderly ones. Afterwards nothing that was answered may be lost, what came twice
must have a cause with a name, and orderly consumers must have kept the order of their queues. Exit code 1
when that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.classic.conftest import command_of
from tests.replicas.classic import BACK_WITHIN_S, ClassicClients, ClassicLedger
from tests.replicas.clients import AUDITORS, Reader, Stage
from tests.replicas.run import until_or_late
from tests.replicas.town import BROKERS, Town, town_before
from tests.support.folders import short_folder

TOPICS = {"plain": "NORMAL", "ordered": "NORMAL"}
READERS = {"concurrent": "plain", "orderly": "ordered"}
VERSION = "5.5.0"
LANES = 4


@dataclass
class Report:
    """What came of a run."""

    complaints: list[str]
    ledger: ClassicLedger
    town: Town
    took_s: float
    failures: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        ledger = self.ledger
        kinds = {
            name: sum(s.topic == self.town.named(name) for s in ledger.sends.values()) for name in TOPICS
        }
        lost = Counter(why[:120] for why in self.failures)
        told = [
            f"ends: {dict(Counter(self.town.ends))}, in {self.took_s:.0f} s",
            f"answered sends: {kinds}, stored {len(ledger.stored)}",
            f"deliveries: {len(ledger.deliveries)}",
            *(f"came again {count} times: {cause}" for cause, count in ledger.causes().most_common()),
            f"counts: {dict(sorted(ledger.counts.items()))}",
            *self.town.summaries,
            *(f"a send failed {count} times: {why}" for why, count in lost.items()),
        ]
        return [*told, *(f"WRONG: {complaint}" for complaint in self.complaints)]


async def run(
    kind: str, folder: Path, seed: int, *, kills: int, longest: float, mapped: bool = False
) -> Report:
    """A whole run. `longest`: seconds that the replicas live between two ends. Raises Missing."""
    began = time.monotonic()
    java = command_of(VERSION)[:-1]
    options = ("--set", "remoting.mapped_groups=*") if mapped else ()
    async with town_before(kind, folder, options=options, classic=True) as town:
        for name, type_of in TOPICS.items():
            await town.make_topic(name, type_of)
        for name in (*READERS, AUDITORS):
            await town.make_group(name)
        # What was sent again may be stored twice, at every broker: a classic client means it.
        ledger = ClassicLedger(rocketmq=True)
        ledger.readers = {town.named(group): town.named(topic) for group, topic in READERS.items()}
        ledger.ordered = {town.named("orderly")}
        crowd = [
            _producers(ledger, town, java, folder),
            *(_consumers(ledger, town, java, folder, group) for group in READERS),
        ]
        sent, over = asyncio.Event(), asyncio.Event()
        working = [asyncio.create_task(one.run(sent if one.role == "producer" else over)) for one in crowd]
        dice = random.Random(f"{seed}/ends")
        try:
            await until_or_late(lambda: all(ledger.counts[f"{group} done"] > 20 for group in READERS))
            while len(town.ends) < kills:
                first = time.monotonic()
                await town.end_some(dice, longest)
                ledger.ended.append((first, time.monotonic()))
            sent.set()
            await asyncio.gather(working[0])
            await until_or_late(lambda: not ledger.missing(), BACK_WITHIN_S if mapped else 0.0)
            for group in {group for group, _ in ledger.missing()}:
                ledger.odd.append(f"{group} is stuck: {await town.ask(f'/api/groups/{group}/stuck')}")
        finally:
            sent.set()
            over.set()
            await asyncio.gather(*working)
        stage = Stage(ledger, town.endpoints, town.balancer.address, town.prefix, seed)
        await _read_all(stage)
        complaints = ledger.complaints()
        await town.close()
        complaints += [f"a gateway logged an error: {line}" for line in town.errors]
        failures = [failure for one in crowd for failure in one.failures]
        return Report(complaints, ledger, town, time.monotonic() - began, failures)


async def _read_all(stage: Stage) -> None:
    """Note what lies in the topics, taking nothing."""
    reader = Reader(stage, "reader")
    for name in TOPICS:
        stage.ledger.stored += await reader.read(stage.named(name))
    await reader.close()


def _command(town: Town, java: list[str], role: str, **params: object) -> list[str]:
    assert town.classic is not None
    pairs = [f"{key}={value}" for key, value in params.items()]
    return [*java, "popgate.classic.Worker", role, *pairs, town.classic.address]


def _producers(ledger: ClassicLedger, town: Town, java: list[str], folder: Path) -> ClassicClients:
    more = {"topic": town.named("plain"), "ordered": town.named("ordered"), "timeout_ms": 3_000}
    command = _command(town, java, "producer", names="good,bad", lanes=LANES, rest_ms=20, **more)
    return ClassicClients(ledger, command, folder, "producer")


def _consumers(
    ledger: ClassicLedger, town: Town, java: list[str], folder: Path, group: str
) -> ClassicClients:
    params = {"topic": town.named(READERS[group]), "group": town.named(group), "instance": group}
    command = _command(town, java, group, **params, clients=2, fails=1)
    return ClassicClients(ledger, command, folder, group, town.named(group))


def main() -> None:
    parser = argparse.ArgumentParser(description="End replicas while classic clients work, and judge.")
    parser.add_argument("--broker", choices=BROKERS, default=BROKERS[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20, help="how many replicas end, killed or drained")
    parser.add_argument("--mapped", action="store_true", help="map groups onto pop; else true pull")
    parser.add_argument("--longest", type=float, default=3.0, help="seconds between two ends, at most")
    chosen = parser.parse_args()
    with short_folder() as folder:
        report = asyncio.run(
            run(
                chosen.broker,
                folder,
                chosen.seed,
                kills=chosen.kills,
                longest=chosen.longest,
                mapped=chosen.mapped,
            )
        )
    mode = "mapped" if chosen.mapped else "true pull"
    print(f"{chosen.broker}, {mode}, seed {chosen.seed}", *report.lines(), sep="\n")
    sys.exit(1 if report.complaints else 0)


if __name__ == "__main__":
    main()
