"""Kill and drain replicas before one broker while clients work, and see whether any message felt it.

    python tests/replicas/run.py --broker embedded            # twenty ends, two minutes or so
    python tests/replicas/run.py --broker rocketmq --seed 7 --kills 40
    python tests/replicas/run.py --broker rocketmq --kills 20 --masters 3    # and its master dies three times

Three gateways stand before an embedded broker in a host process, or before a real RocketMQ. Raw clients and
official Python clients, each of those in a process of its own behind a load balancer, send, receive and
acknowledge through any of them. Afterwards nothing that was answered may be lost, nothing that was
acknowledged may have come again, each message that came twice must have a cause with a name, and message
groups must have kept their order. Exit code 1 when that is not so.

The seed decides what the clients do, and which replica ends how and when; how that falls together is a
matter of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from popgate.errors import WireError
from tests.replicas.books import Took
from tests.replicas.clients import (
    AUDITORS,
    PATIENT_INVISIBLE_S,
    Client,
    Consumer,
    Official,
    OrderedConsumer,
    OrderedProducer,
    PlainProducer,
    PushConsumer,
    Reader,
    Stage,
    TransactionProducer,
)
from tests.replicas.ledger import Ledger
from tests.replicas.masters import cluster_of, lose_masters
from tests.replicas.town import BROKERS, CONSUME_TIMEOUT_MS, HOLD_S, ROCKETMQ, Town, town_before
from tests.support.folders import short_folder
from tests.support.waiting import PATIENCE_S, NotInTimeError, until

TOPICS = {"plain": "NORMAL", "ordered": "FIFO", "transactions": "TRANSACTION"}
READERS = {
    "simple": "plain",
    "push": "plain",
    "in-order": "ordered",
    "decided": "transactions",
}
"""The topic of each consumer group."""
LOST = "ReceiveMessage lost"
HAPPENED = (LOST, "checks", "official push acked", "official simple acked")
"""A run with ends by chance in which one of these did not happen would be no test."""
_BROKEN = "seed=1;break=ReceiveMessage:after=5:times=8"
"""Receives that break in every life of a replica: an end alone seldom meets one. So many in a row are not
all of official clients, whose breaks nobody counts."""


@dataclass
class Report:
    """What came of a run."""

    complaints: list[str]
    ledger: Ledger
    town: Town
    took_s: float
    failures: list[str] = field(default_factory=list)
    """What the users of official clients saw fail."""

    def lines(self) -> list[str]:
        sends = self.ledger.sends.values()
        kinds = {name: sum(s.topic == self.town.named(name) for s in sends) for name in TOPICS}
        seen = Counter(" ".join(failure.split())[:240] for failure in self.failures)
        told = [
            f"ends: {dict(Counter(self.town.ends))}, in {self.took_s:.0f} s",
            f"answered sends: {kinds}, given up {len(self.ledger.unsure)}, stored {len(self.ledger.stored)}",
            f"deliveries: {len(self.ledger.deliveries)}",
            *(f"came again {count} times: {cause}" for cause, count in self.ledger.causes().most_common()),
            f"acknowledgements without a good answer that the broker has: {len(self.ledger.proven)}",
            f"counts: {dict(sorted(self.ledger.counts.items()))}",
            *(
                f"a master died at {fault.at:.1f}, the next was there {fault.lasting_s:.1f} s later"
                for fault in self.ledger.faults
            ),
            *self.town.summaries,
            *(f"a user saw {count} times: {failure}" for failure, count in seen.most_common()),
        ]
        return [*told, *(f"WRONG: {complaint}" for complaint in self.complaints)]


async def run(
    kind: str,
    folder: Path,
    seed: int,
    *,
    kills: int = 0,
    longest: float = 0.0,
    rolling: bool = False,
    masters: int = 0,
) -> Report:
    """A whole run. `longest`: seconds that the replicas live between two ends. Raises Missing.

    `rolling`: instead of ends by chance each replica is drained once, after the other, as for an upgrade.
    `masters`: how often the master of the RocketMQ, which is one of this run's own then, dies meanwhile.
    """
    began = time.monotonic()
    # A rolling restart is to be felt by nobody.
    options = () if rolling else ("--set", f"faults={_BROKEN}")
    async with (
        cluster_of(masters) as cluster,
        town_before(kind, folder, options=options, cluster=cluster) as town,
    ):
        for name, type_of in TOPICS.items():
            await town.make_topic(name, type_of)
        for name in (*READERS, AUDITORS):
            await town.make_group(name, ordered=name == "in-order")
        ledger = Ledger(rocketmq=kind == ROCKETMQ)
        ledger.readers = {town.named(group): town.named(topic) for group, topic in READERS.items()}
        ledger.ordered = {town.named("in-order")}
        stage = Stage(ledger, town.endpoints, town.balancer.address, town.prefix, seed)
        stage.hold_s = HOLD_S[kind]
        if rolling:
            stage.official_hold_s = PATIENT_INVISIBLE_S
        stage.consume_timeout_s = CONSUME_TIMEOUT_MS[kind] / 1000
        clients = crowd(stage)
        officials = [
            Official(stage, "producer", "plain", "official"),
            Official(stage, "simple", "plain", "simple"),
            Official(stage, "push", "plain", "push"),
        ]
        working = [asyncio.create_task(client.run()) for client in clients]
        outside = [asyncio.create_task(official.run()) for official in officials]
        dice = random.Random(f"{seed}/ends")
        dying = asyncio.create_task(lose_masters(cluster, ledger, masters, seed))
        try:
            # Official clients take their time to start, and a test without them would be none.
            await until_or_late(
                lambda: ledger.counts["official producer sent"] and ledger.counts["official push got"]
            )
            if rolling:
                await until_or_late(lambda: ledger.counts["official simple acked"])
                await roll(town, ledger)
            # An end may find nobody who waits there for messages: then there are more of them.
            while (
                len(town.ends) < kills
                or (not ledger.counts[LOST] and len(town.ends) < 5 * kills)
                or not (dying.done() or rolling)
            ):
                await town.end_some(dice, longest)
                if len(town.ends) * 2 >= kills and not officials[1].killed:
                    officials[1].kill()
                    officials.append(Official(stage, "simple", "plain", "simple"))
                    outside.append(asyncio.create_task(officials[-1].run()))
            await dying
            if kills:
                await until_or_late(lambda: all(ledger.counts[fact] for fact in HAPPENED))
            stage.sending = False
            stage.diligent = True
            await asyncio.gather(outside[0])
            await all_finished(ledger, town.books.took, stage.consume_timeout_s)
            for group in {group for group, _ in ledger.missing()}:
                ledger.odd.append(f"{group} is stuck: {await town.ask(f'/api/groups/{group}/stuck')}")
            # Whatever is to come again comes within an invisible time.
            await asyncio.sleep(stage.hold_s + 2)
        finally:
            dying.cancel()
            stage.sending = stage.receiving = False
            stage.over.set()
            await asyncio.gather(*working, *outside)
            for client in clients:
                await client.close()
        await read_all(stage)
        for delivery in ledger.undone():
            if await town.books.took(ledger.readers[delivery.group], delivery):
                ledger.dropped.add(delivery)
        for delivery in ledger.unexplained():
            if await town.books.was_ended(ledger.readers[delivery.group], delivery):
                ledger.revived.add(delivery)
        for (group, body), mates in ledger.mates().items():
            ledger.revivals[group, body] = await town.books.revivals(ledger.readers[group], mates)
        complaints = ledger.complaints()
        await town.close()
        complaints += [f"a gateway logged an error: {line}" for line in town.errors]
        failures = [failure for official in officials for failure in official.failures]
        return Report(complaints, ledger, town, time.monotonic() - began, failures)


async def all_finished(ledger: Ledger, took: Took | None, consume_timeout_s: float) -> None:
    """Wait until nothing is missing, by what clients were told or what the broker's books say (`took`).

    Or until nothing more was finished for so long that nothing more will be.
    """
    left, since = ledger.missing(), time.monotonic()
    while left and time.monotonic() < since + PATIENCE_S + consume_timeout_s:
        await asyncio.sleep(1.0)
        if took is not None:
            await prove(ledger, took)
        before, left = len(left), ledger.missing()
        if len(left) < before:
            since = time.monotonic()


async def prove(ledger: Ledger, took: Took) -> None:
    """Look up in the broker's books what may be finished though no answer said so."""
    for delivery in ledger.unproven():
        with contextlib.suppress(OSError, WireError):  # a busy machine: it is asked again
            if await took(ledger.readers[delivery.group], delivery):
                ledger.proven.add(delivery)


async def roll(town: Town, ledger: Ledger) -> None:
    """Drain one replica after the other; each time all official clients go on before the next one goes."""
    for at in range(len(town.replicas)):
        await town.replace(at, "drained")
        before = Counter(ledger.counts)
        facts = ("official producer sent", "official simple acked", "official push acked")
        await until_or_late(
            lambda before=before, facts=facts: all(ledger.counts[one] > before[one] + 3 for one in facts)
        )


def crowd(stage: Stage) -> list[Client]:
    """All raw clients of a run."""
    kinds: list[tuple[int, Callable[[str], Client]]] = [
        (2, lambda name: PlainProducer(stage, f"plain-{name}")),
        (2, lambda name: OrderedProducer(stage, f"ordered-{name}")),
        (2, lambda name: TransactionProducer(stage, f"transactions-{name}")),
        (2, lambda name: Consumer(stage, f"simple-{name}", "plain", "simple")),
        (2, lambda name: PushConsumer(stage, f"push-{name}", "plain", "push")),
        (2, lambda name: OrderedConsumer(stage, f"in-order-{name}", "ordered", "in-order")),
        (1, lambda name: Consumer(stage, f"decided-{name}", "transactions", "decided")),
    ]
    return [make(str(number)) for count, make in kinds for number in range(count)]


async def read_all(stage: Stage) -> None:
    """Note what lies in the topics, taking nothing."""
    reader = Reader(stage, "reader")
    for name in TOPICS:
        stage.ledger.stored += await reader.read(stage.named(name))
    await reader.close()


async def until_or_late(condition: Callable[[], object], more_s: float = 0.0) -> None:
    """As `until`, but go on when it is late: the verdict says what is missing then."""
    with contextlib.suppress(NotInTimeError):
        await until(condition, PATIENCE_S + more_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="End replicas while clients work, and judge.")
    parser.add_argument("--broker", choices=BROKERS, default=BROKERS[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20, help="how many replicas end, killed or drained")
    parser.add_argument("--rolling", action="store_true", help="drain one after the other instead")
    parser.add_argument("--masters", type=int, default=0, help="how often the master of a RocketMQ dies")
    parser.add_argument("--longest", type=float, default=3.0, help="seconds between two ends, at most")
    chosen = parser.parse_args()
    if chosen.masters and chosen.broker != ROCKETMQ:
        parser.error("--masters: only a RocketMQ has masters (--broker rocketmq)")
    with short_folder() as folder:
        report = asyncio.run(
            run(
                chosen.broker,
                folder,
                chosen.seed,
                kills=0 if chosen.rolling else chosen.kills,
                longest=chosen.longest,
                rolling=chosen.rolling,
                masters=chosen.masters,
            )
        )
    print(f"{chosen.broker}, seed {chosen.seed}", *report.lines(), sep="\n")
    sys.exit(1 if report.complaints else 0)


if __name__ == "__main__":
    main()
