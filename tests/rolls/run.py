"""Roll, scale, evict and kill the pods of the chart while official clients work, and count what they see.

    python tests/rolls/run.py              # all clients, minutes; `sh tests/run.sh --long rolls`
    python tests/rolls/run.py --clients Python "classic Java 5.5.0" --rolls 1 --kills 1

The chart is rendered by Helm. Its pods run as processes (`pods.py`), behind HAProxy in the place of the
Services (`service.py`), before a real RocketMQ. Of what is done with a drain (a roll-out, scaling, an
eviction) no client's user may see an error, nothing may be lost and nothing may come twice. Of a kill what
was under way may fail, and comes again. Exit code 1 when that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from popgate.testing.made import Missing
from popgate.testing.papers import Papers
from popgate.testing.rocketmq import shared_rocketmq
from tests.outside import charts
from tests.replicas.books import RocketMQBooks, Took
from tests.replicas.clients import AUDITORS, Reader, Stage
from tests.replicas.ledger import Delivery
from tests.replicas.run import all_finished, prove
from tests.rolls.deployment import Deployment, EvictionRefused
from tests.rolls.excuses import drain_at, drains_in, too_many
from tests.rolls.kits import PUSH_HOLD_S, ClassicKit, DrivenKit, Kit, PythonKit, new_prefix
from tests.rolls.manifests import rendered
from tests.rolls.pods import Pod
from tests.rolls.service import Service
from tests.support.folders import short_folder
from tests.support.waiting import PATIENCE_S, until

PYTHON = "Python"
CLASSIC = ("classic Java 4.9.4", "classic Java 5.5.0")
DRIVEN = ("java", "node", "rust", "go")
CLIENTS = (PYTHON, *DRIVEN, *CLASSIC)
MORE = 5
"""So much each of a kit's clients has to get done before what comes next begins."""
COLUMNS = ("client", "sent", "received", "acknowledged", "errors", "lost", "duplicates")
Row = tuple[str | int, ...]
"""As in `COLUMNS`."""
_SECRET = "popgate-tls"
_REVIVED_S = 5.0
"""A broker looks for what is hidden no longer every second."""
_PATIENT = {"request_timeout_s": 30, "connect_timeout_s": 30, "probe_s": 30}
"""Where machines are busy and small a broker stands still for longer than the shipped 3 s."""


@dataclass
class Report:
    """What came of a run. Empty `wrong`: all was as it has to be."""

    drained: list[Row] = field(default_factory=list)
    """The table of everything that was done with a drain."""
    killed: list[Row] = field(default_factory=list)
    """That of the kills: what came on top of the first one."""
    steps: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    """Why what came twice came twice."""
    connections: list[int] = field(default_factory=list)
    """How many each pod had when it was killed."""
    refused: list[str] = field(default_factory=list)
    """Evictions that the budget did not allow."""
    summaries: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [
            *self.steps,
            *_table("scaled, rolled and evicted", self.drained),
            *_table("killed", self.killed),
            *(f"came twice {count} times: {cause}" for cause, count in self.causes.most_common()),
            *(f"an eviction was refused: {why}" for why in self.refused),
            *self.summaries,
            *(f"WRONG: {one}" for one in self.wrong),
        ]


def _table(title: str, rows: Sequence[Row]) -> list[str]:
    texts = [COLUMNS, *([str(one) for one in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in texts
    ]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return [f"{title}:", lines[0], rule, *lines[1:]] if rows else []


class Run:
    """One run: its pods, its clients, and what was seen."""

    def __init__(self, folder: Path, service: Service, deployment: Deployment) -> None:
        self.folder, self.service, self.deployment = folder, service, deployment
        self.report = Report()
        self.kits: list[Kit] = []
        self._storms: list[tuple[float, float]] = []
        self._sent_first: list[set[str]] = []
        """By kit, what was sent before the first kill."""
        self._excused: Counter[str] = Counter()
        """By the name of a kit, how many failures were its client's own. What it could not acknowledge for
        that comes twice."""
        self._began = time.monotonic()

    def step(self, text: str, at: float | None = None) -> None:
        """Something happened now, or `at` a moment of the monotonic clock."""
        began = (time.monotonic() if at is None else at) - self._began
        self.report.steps.append(f"{began:6.1f} s  {text}")

    async def all_go_on(self) -> None:
        """Wait until every client got more done than before."""
        before = [kit.progress() for kit in self.kits]

        def more() -> bool:
            pairs = zip(self.kits, before, strict=True)
            return all(kit.progress()[name] >= old[name] + MORE for kit, old in pairs for name in old)

        await until(more, PATIENCE_S, seen=lambda: [(kit.name, kit.progress()) for kit in self.kits])

    async def do(self, text: str, doing: Any) -> None:
        """Something that nobody may feel; afterwards all clients go on."""
        await doing
        await self.all_go_on()
        self.step(text)

    async def evict(self) -> None:
        """Drain two nodes at once: the second eviction is allowed when the first pod has its successor."""
        await self.deployment.complete()
        first, second = self.deployment.ready[:2]
        self.deployment.evict(first)
        try:
            self.deployment.evict(second)
        except EvictionRefused as why:
            self.report.refused.append(str(why))
        else:
            self.report.wrong.append("two pods could be evicted at once")
        await self.deployment.complete()

    async def kill(self) -> None:
        """Kill the pod that most clients of each door use; what is under way may fail until all go on."""
        connections = await self.service.connections()

        def used(one: Pod) -> tuple[int, int]:
            at = [found[one.address] for found in connections.values()]
            return min(at), sum(at)

        pod = max(self.deployment.ready, key=used)
        address, count = pod.address, used(pod)[1]
        self.report.connections.append(count)
        began = time.monotonic()
        pod.kill()
        await until(lambda: address not in self.service.served)
        noticed = time.monotonic()
        for kit in self.kits:
            kit.killed(began, noticed)
        await self.all_go_on()
        self._storms.append((began, time.monotonic()))
        went_on = f"all clients went on {time.monotonic() - began:.1f} s later"
        await until(lambda: address in self.service.served)
        self.step(f"{pod.name} was killed, which had {count} connections, {went_on}; and started again")

    def keep_first_table(self) -> None:
        """What is lost is known at the end: while clients work some messages are on their way."""
        self.report.drained = self.rows()
        self._sent_first = [{*kit.ledger.sends} for kit in self.kits]

    def judge_tables(self) -> None:
        """Fill in what was lost, and take the first table off the second one."""
        report, both = self.report, zip(self.report.drained, self._sent_first, self.kits, strict=True)
        report.drained = [(*row[:5], len(kit.lost() & sent), row[6]) for row, sent, kit in both]
        for before, after in zip(report.drained, self.rows(), strict=True):
            more = [int(late) - int(early) for late, early in zip(after[1:], before[1:], strict=True)]
            report.killed.append((after[0], *more))
            if before[5] or int(before[6]) > self._excused[str(before[0])]:
                report.wrong.append(f"without any kill: {dict(zip(COLUMNS, before, strict=True))}")
            if more[4]:
                report.wrong.append(f"lost after a kill: {dict(zip(COLUMNS[1:], more, strict=True))}")

    def rows(self) -> list[Row]:
        return [(kit.name, *kit.row()) for kit in self.kits]

    def judge_failures(self) -> None:
        """What was under way when a pod was killed may fail; nothing else may."""
        drains = [drain for pod in self.deployment.past for drain in drains_in(pod.log)]
        for kit in self.kits:
            known = set()
            for why, at in zip(kit.failures, kit.failures.moments, strict=True):
                if any(began <= at and at - _took_s(why) <= ended for began, ended in self._storms):
                    continue
                text = f"a user of {kit.name} saw: {why[:300]}"
                itself = kit.fails_by_itself and re.search(kit.fails_by_itself, why)
                drain = drain_at(at - _took_s(why), drains, kit.fails_within_s) if itself else None
                if drain is None:
                    self.report.wrong.append(f"after {at - self._began:.1f} s {text}")
                else:
                    known.add(drain)
                    self._excused[kit.name] += 1
                    self.step(f"by itself: {text}", at)
            if too_many(len(known), len(drains)):
                self.report.wrong.append(f"{kit.name} failed itself at {len(known)} of {len(drains)} drains")

    def judge_pods(self, kills: int) -> None:
        """No pod may need more than its grace, fail a probe, end with an error, or log one."""
        wrong, restarts = self.report.wrong, 0
        for pod in self.deployment.past:
            restarts += pod.restarts
            errors = [
                line for line in pod.log.splitlines() if '"level": "error"' in line or "Traceback" in line
            ]
            wrong += [f"{pod.name} logged an error: {line[:300]}" for line in errors[:3]]
            wrong += [f"{pod.name} failed its {probe}" for probe in pod.unhealthy]
            if pod.out_of_grace:
                wrong.append(f"{pod.name} did not end within its grace period")
            if pod.ends[-1:] != [0]:
                wrong.append(f"{pod.name} ended with {pod.ends}")
            summary = next((one for one in pod.log.splitlines() if one.startswith("stopped ")), "")
            self.report.summaries.append(f"{pod.name}: {summary}")
            cut = re.search(r"requests_cut_off=(\d+)", summary)
            if cut is None or int(cut[1]):
                wrong.append(f"{pod.name} cut off requests: {summary or 'it said nothing'}")
        if restarts != kills:
            wrong.append(f"containers ended by themselves {restarts} times, {kills} were killed")


async def run(
    folder: Path,
    *,
    clients: Sequence[str],
    rolls: int = 1,
    kills: int = 1,
    stopping: Mapping[str, int] | None = None,
    thorough: bool = False,
) -> Report:
    """A whole run. `stopping`: values of the chart beside its own. Raises Missing.

    `thorough`: all kinds of consumers, and a wait for what may come again late.
    """
    async with _pods(folder, stopping or {}) as (running, name_server):
        deployment = running.deployment
        await deployment.scale(1)
        await until(lambda: len(running.service.served) == 1)
        running.kits = [_kit(name, running, folder, name_server, thorough=thorough) for name in clients]
        await asyncio.to_thread(_make, deployment.ready[0].at("admin"), running.kits)
        working = [asyncio.create_task(kit.run()) for kit in running.kits]
        try:
            await running.do("one pod serves", running.all_go_on())
            await running.do("scaled to three", deployment.scale(3))
            for _ in range(rolls):
                await running.do("rolled", deployment.roll())
            await running.do("evicted", running.evict())
            for kit in running.kits:
                if kit.took is not None:
                    await prove(kit.ledger, kit.took)
            running.keep_first_table()
            for _ in range(kills):
                await running.kill()
            await running.do("scaled to one", deployment.scale(1))
            for kit in running.kits:
                kit.stop()
            await asyncio.gather(*(kit.all_sent.wait() for kit in running.kits))
            for kit in running.kits:
                await all_finished(kit.ledger, kit.took, PUSH_HOLD_S)
            if thorough:
                # What is to come again comes within an invisible time.
                await asyncio.sleep(PUSH_HOLD_S + _REVIVED_S)
        finally:
            for kit in running.kits:
                kit.stop()
                kit.end()
            await asyncio.gather(*working)
        running.step("all clients have ended")
        await _judge(running)
    running.judge_pods(kills)
    return running.report


async def _judge(running: Run) -> None:
    report, addresses = running.report, [pod.at("grpc") for pod in running.deployment.ready]
    for kit in running.kits:
        kit.row()  # the last that its clients told
        if kit.took is not None:
            await prove(kit.ledger, kit.took)
        reader = Reader(Stage(kit.ledger, addresses, addresses[0], kit.prefix, 1), "reader")
        for topic in dict.fromkeys(kit.groups.values()):
            kit.ledger.stored += await reader.read(topic)
        await reader.close()
        if kit.took is not None:
            for delivery in kit.ledger.undone():
                if await kit.took(kit.ledger.readers[delivery.group], delivery):
                    kit.ledger.dropped.add(delivery)
        report.wrong += [f"{kit.name}: {one}" for one in kit.ledger.complaints()]
        report.causes.update(kit.ledger.causes())
    running.judge_failures()
    running.judge_tables()


def _took_s(why: str) -> float:
    """How long a classic client waited before it gave up. Before 5.0 it does so for an answer, to the end of
    its time, also when the connection that would bring it has been cut."""
    told = re.search(r"cost \[(\d+)\]ms|timeout, (\d+)\(ms\)", why)
    return int(told[1] or told[2]) / 1000 if told is not None else 0.0


@contextlib.asynccontextmanager
async def _pods(folder: Path, stopping: Mapping[str, int]) -> AsyncIterator[tuple[Run, str]]:
    """The Deployment of the chart, with no pod yet, its Services, and the name server behind it."""
    async with contextlib.AsyncExitStack() as stack:
        sharing = shared_rocketmq()
        cluster = await asyncio.to_thread(sharing.__enter__)
        stack.callback(sharing.__exit__, None, None, None)
        service = Service(folder, ("grpc", "remoting"))
        stack.push_async_callback(service.close)
        certificate, key = Papers(folder).pair("gateway")
        values = {
            "mode": "cluster",
            "cluster": {"nameServers": [cluster.name_server]},
            "doors": {"remoting": {"advertised": service.addresses["remoting"]}},
            "tls": {"existingSecret": _SECRET},
            "config": {"remote": _PATIENT},
            "stopping": dict(stopping),
        }
        helm = await asyncio.to_thread(charts.helm)
        manifests = await asyncio.to_thread(rendered, helm, values, folder)
        manifests.secrets[_SECRET] = {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}
        await service.start({name: manifests.port(name) for name in service.addresses})
        deployment = Deployment(manifests, folder, service)
        stack.push_async_callback(deployment.close)
        yield Run(folder, service, deployment), cluster.name_server
        await deployment.scale(0)


def _kit(name: str, running: Run, folder: Path, name_server: str, *, thorough: bool) -> Kit:
    """The clients of a program. Raises Missing."""
    doors, prefix = running.service.addresses, new_prefix()
    if name == PYTHON:
        addresses = [pod.at("grpc") for pod in running.deployment.ready]
        kit: Kit = PythonKit(prefix, doors["grpc"], addresses, push=thorough)
        kit.took = RocketMQBooks(name_server).took
    elif name in CLASSIC:
        version = name.rpartition(" ")[2]
        kit = ClassicKit(version, prefix, doors["remoting"], folder, orderly=thorough)
    else:
        kit = DrivenKit(name, prefix, doors["grpc"], folder)
        kit.took = _nothing_left(running)
    return kit


def _nothing_left(running: Run) -> Took:
    """Whether a message did not come again in the time that it is hidden, and its group has read all."""

    async def took(topic: str, delivery: Delivery) -> bool:
        if time.monotonic() < delivery.settled + PUSH_HOLD_S + _REVIVED_S:
            return False
        admin = running.deployment.ready[0].at("admin")
        path = f"/api/groups/{delivery.group}/stuck?topic={topic}"
        (standing,) = (await asyncio.to_thread(_call, admin, path, None))["topics"]
        return bool(standing["lag"] == 0)

    return took


def _make(admin: str, kits: Sequence[Kit]) -> None:
    """The topics and groups of kits."""
    for kit in kits:
        for topic in dict.fromkeys(kit.groups.values()):
            _call(admin, "/api/topics", {"name": topic, "types": ["NORMAL"], "queues": 4})
        for group in (*kit.groups, kit.named(AUDITORS)):
            told = {"name": group, "max_attempts": 1_000, "consume_timeout_ms": int(PUSH_HOLD_S * 1_000)}
            _call(admin, "/api/groups", told)


def _call(admin: str, path: str, told: Mapping[str, Any] | None) -> Any:
    data = None if told is None else json.dumps(told).encode()
    request = urllib.request.Request(f"http://{admin}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def main() -> None:
    parser = argparse.ArgumentParser(description="Roll the pods of the chart under clients, and judge.")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--rolls", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    chosen = parser.parse_args()
    with short_folder() as folder:
        try:
            report = asyncio.run(
                run(
                    folder,
                    clients=chosen.clients,
                    rolls=chosen.rolls,
                    kills=chosen.kills,
                    thorough=True,
                )
            )
        except Missing as what:
            sys.exit(f"not run: {what}")
    print(*report.lines(), sep="\n")
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
