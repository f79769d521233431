"""Kill the gateway again and again while clients work, and see whether anything was lost or came twice.

    python tests/crash/run.py                        # twenty kills, about a minute
    python tests/crash/run.py --seed 7 --kills 100 --seconds 300

Producers send normal, ordered, delayed and transactional messages and repeat what was not answered;
consumers acknowledge, set free, change invisible times and forget; one more producer is the official
Python client in a process of its own. Afterwards every answered message must be stored exactly once
and have been consumed, no acknowledged one may have come again, message groups must have kept their
order, delayed and half messages their times, and transactions their ends: none came too early, nor was due
for longer than a bound while a gateway was ready. Exit code 1 when that is not so.

The seed decides what the clients do and how and when the gateway ends; how that falls together is a
matter of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.crash.clients import INVISIBLE_S, Reader, Stage, crowd
from tests.crash.lives import Lives
from tests.crash.records import OVERDUE_S, Records, Send
from tests.support.waiting import NotInTimeError, until

TOPICS = {"plain": "NORMAL", "ordered": "FIFO", "delayed": "DELAY", "transactions": "TRANSACTION"}
FACTS = ("SendMessage lost", "AckMessage lost", "redeliveries", "checks")
"""A run in which one of these did not happen would be no test."""
OFFICIAL = Path(__file__).with_name("official.py")


@dataclass
class Report:
    """What came of a run."""

    complaints: list[str]
    records: Records
    ends: list[str]
    opening: list[float] = field(default_factory=list)

    def lines(self) -> list[str]:
        sends, counts = self.records.sends.values(), self.records.counts
        kinds = {topic: sum(send.topic == topic for send in sends) for topic in (*TOPICS, "official")}
        messages, checks = self.records.overdue_deliveries(), self.records.overdue_checks()
        overdue = f"delayed messages {_most(messages)}, questions about half messages {_most(checks)}"
        told = [
            f"kills: {len(self.ends)} ({', '.join(sorted(set(self.ends)))})",
            f"ready after at most {max(self.opening, default=0):.2f} s",
            f"answered sends: {kinds}, in doubt {len(self.records.unsure)}",
            f"stored {len(self.records.stored)}, acknowledged {len(self.records.acked)}",
            f"left open {len(self.records.left_open)}, asked about {len(self.records.checks)} times",
            f"due for so long in one life before it came, at most; {OVERDUE_S:g} s are allowed: {overdue}",
            f"counts: {dict(sorted(counts.items()))}",
        ]
        return [*told, *(f"WRONG: {complaint}" for complaint in self.complaints)]


async def run(
    data: Path,
    seed: int,
    *,
    kills: int,
    seconds: float,
    official: bool = False,
    options: tuple[str, ...] = (),
) -> Report:
    """A whole run. `seconds` is about how long the gateway lives in all, starts not counted."""
    lives = Lives(data, seed, options=options)
    await lives.begin()
    try:
        for topic, kind in TOPICS.items():
            await lives.ask_admin("/api/topics", {"name": topic, "types": [kind], "queues": 4})
            group = {"name": f"{topic}-readers", "ordered": topic == "ordered", "max_attempts": 1_000}
            await lives.ask_admin("/api/groups", group)
        stage = Stage(lives.endpoint, seed)
        stage.records.lives = lives.lives
        clients = crowd(stage)
        working = [asyncio.create_task(client.run()) for client in clients]
        outsider = asyncio.create_task(watch_official(stage)) if official else None
        while len(lives.ends) < kills:
            await lives.end_one(2 * seconds / kills)
        await until_or_late(lambda: all(stage.records.counts[fact] for fact in FACTS))
        stage.sending = False
        stage.diligent = True
        await until_or_late(lambda: not stage.records.missing() and not stage.records.unasked())
        if outsider is not None:
            await outsider
        # Whatever is to come again comes within an invisible time.
        await asyncio.sleep(INVISIBLE_S + 1)
        stage.receiving = False
        stage.over.set()
        await asyncio.gather(*working)
        reader = Reader(stage, "reader")
        for topic in (*TOPICS, *(["official"] if official else [])):
            stage.records.stored += await reader.read(topic)
        known = {one["name"] for one in (await lives.ask_admin("/api/topics"))["topics"]}
        complaints = stage.records.complaints()
        complaints += [
            f"there are dead letters in {name}" for name in sorted(known - TOPICS.keys() - {"official"})
        ]
        for client in (*clients, reader):
            await client.channel.close(None)
        code = await lives.close()
        if code:
            complaints.append(f"the gateway ended with {code}")
        complaints += [f"the gateway logged an error: {line}" for line in lives.errors]
        return Report(complaints, stage.records, lives.ends, lives.opening)
    finally:
        await asyncio.to_thread(lives.gateway.close)


def _most(overdue: Mapping[str, float]) -> str:
    return f"{max(overdue.values(), default=0.0):.2f} s"


async def until_or_late(condition: Callable[[], object]) -> None:
    """As `until`, but go on when it is late: the verdict says what is missing then."""
    with contextlib.suppress(NotInTimeError):
        await until(condition)


async def watch_official(stage: Stage) -> None:
    """Run the official client's producer until no more is to be sent, and write down what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(OFFICIAL), stage.endpoint),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def stop_in_time() -> None:
        while stage.sending:
            await asyncio.sleep(0.05)
        process.stdin.close()

    stopping = asyncio.create_task(stop_in_time())
    records = stage.records
    async for line in process.stdout:
        fact = json.loads(line)
        body = fact["body"]
        match fact["fact"]:
            case "trying":
                records.tried.add(body)
            case "sent":
                records.sends[body] = Send("official", body, fact["id"], delivered=None)
                records.counts["official sent"] += 1
            case "failed":
                records.unsure.add(body)
                records.counts["official failed"] += 1
    await stopping
    if await process.wait():
        records.odd.append("the official client's process failed")


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the gateway while clients work, and judge.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long the gateway lives in all, about"
    )
    parser.add_argument("--data", type=Path, help="a folder to keep afterwards")
    parser.add_argument("--no-official", action="store_true", help="without the official client")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="popgate-crash-") as folder:
        report = asyncio.run(
            run(
                chosen.data or Path(folder),
                chosen.seed,
                kills=chosen.kills,
                seconds=chosen.seconds,
                official=not chosen.no_official,
            )
        )
    print(f"seed {chosen.seed}", *report.lines(), sep="\n")
    sys.exit(1 if report.complaints else 0)


if __name__ == "__main__":
    main()
