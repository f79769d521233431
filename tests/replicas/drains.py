"""Drain replicas behind a balancer while clients without any retry work, and count what they see fail.

    python tests/replicas/drains.py --drains 30                  # a quarter of an hour or so, twice
    python tests/replicas/drains.py --drains 30 --transport grpcio

Three gateways stand before an embedded broker in a host process, behind a balancer for TCP that only knows
what `/ready` answers, and learns it up to two seconds late. Raw clients make each call once, over a channel
whose own retries are off, as they are in the official Python clients that work beside them. Nothing at all
may fail, but calls that a client began in the very moment of the GOAWAY (`GOAWAY_MET`; of grpcio also
docs/operations.md): these are printed, and may be met at a quarter of the drains, or one call in all. Exit
code 1 when something does.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from tests.replicas.clients import PATIENT_INVISIBLE_S, SERVICE, Official, Stage
from tests.replicas.ledger import Ledger
from tests.replicas.town import CONSUME_TIMEOUT_MS, EMBEDDED, READY_WITHIN_S, Town, town_before
from tests.rolls.excuses import GOAWAY_MET, Drain, Stamped, drain_at, too_many
from tests.support.folders import short_folder
from tests.support.waiting import PATIENCE_S, until

TRANSPORTS = ("http2", "grpcio")
_TIMEOUT_S = 60.0
"""Of a call: on a machine that stands still it is the machine that fails."""
_TOPIC, _GROUP = "plain", "raw"


class Watch:
    """Asks each replica now and then whether it is ready, as a balancer does."""

    def __init__(self, town: Town, every_s: float) -> None:
        self._town = town
        self._admins = [one.admin for one in town.replicas]
        """Successors have the same."""
        self._every_s = every_s
        self.ready: set[int] = set()

    async def run(self) -> None:
        while True:
            for at, admin in enumerate(self._admins):
                found = await asyncio.to_thread(_is_ready, admin)
                (self.ready.add if found else self.ready.discard)(at)
            await asyncio.sleep(self._every_s)

    def open(self) -> list[str]:
        return [self._town.endpoints[at] for at in sorted(self.ready)]


def _is_ready(admin: str) -> bool:
    try:
        with urllib.request.urlopen(f"{admin}/ready", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


class Raw:
    """Makes every call once, over one channel to the balancer; what fails is noted, and it goes on."""

    def __init__(self, town: Town, name: str, report: Report, *, exact: bool) -> None:
        self._topic, self._group = town.named(_TOPIC), town.named(_GROUP)
        self._failures, self._counts = report.failures, report.counts
        self._crossed, self._exact = report.crossed, exact
        self._name = name
        self._metadata = (("x-mq-client-id", f"{town.prefix}-{name}"), ("x-mq-language", "GOLANG"))
        options = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
        self.channel = grpc.aio.insecure_channel(town.balancer.address, options=options)
        self.working = True

    async def _noted(self, what: str, call: Any) -> Any:
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            cancelled = error.code() is grpc.StatusCode.CANCELLED and not self._exact
            told = f"{self._name} {what}: {error.code().name} {error.details()}"
            if cancelled or GOAWAY_MET in told:
                self._crossed.append((time.monotonic(), told))
            else:
                self._failures.append(told)
            return None
        self._counts[what] += 1
        return answer

    def _unary(self, name: str, request: Any) -> Any:
        method = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        return method(request, metadata=self._metadata, timeout=_TIMEOUT_S)

    async def _receive(self) -> list[Any]:
        method = self.channel.unary_stream(
            f"{SERVICE}ReceiveMessage",
            request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=self._group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self._topic), id=-1),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=4,
            invisible_duration=Duration(seconds=PATIENT_INVISIBLE_S),
            long_polling_timeout=Duration(seconds=1),
        )
        return [frame async for frame in method(request, metadata=self._metadata, timeout=_TIMEOUT_S)]

    async def produce(self) -> None:
        for number in itertools.count():
            if not self.working:
                return
            message = pb.Message(topic=pb.Resource(name=self._topic), body=f"{self._name}/{number}".encode())
            message.system_properties.message_id = f"{self._name}-{number}"
            answer = await self._noted(
                "send", self._unary("SendMessage", rpc.SendMessageRequest(messages=[message]))
            )
            self._judge("send", answer.status if answer is not None else None)
            # A rest of its own: some calls come while their client has no other one under way.
            await asyncio.sleep((number % 5) * 0.04)

    async def consume(self) -> None:
        while self.working:
            frames = await self._noted("receive", self._receive())
            for frame in frames or ():
                if frame.HasField("status"):
                    self._judge("receive", frame.status, pb.MESSAGE_NOT_FOUND)
            messages = [frame.message for frame in frames or () if frame.HasField("message")]
            if not messages:
                continue
            request = rpc.AckMessageRequest(
                group=pb.Resource(name=self._group),
                topic=pb.Resource(name=self._topic),
                entries=[
                    rpc.AckMessageEntry(
                        message_id=one.system_properties.message_id,
                        receipt_handle=one.system_properties.receipt_handle,
                    )
                    for one in messages
                ],
            )
            answer = await self._noted("ack", self._unary("AckMessage", request))
            self._judge("ack", answer.status if answer is not None else None)

    def _judge(self, what: str, status: Any, other: int = pb.OK) -> None:
        if status is not None and status.code not in (pb.OK, other):
            self._failures.append(f"{self._name} {what}: {pb.Code.Name(status.code)} {status.message}")


class Watched(Official):
    """Of whose calls each one counts, also those that the client makes again without a word."""

    def _note(self, fact: dict[str, Any]) -> None:
        super()._note(fact)
        # One that ends breaks off what it does.
        if fact["fact"] in ("attempt lost", "ack lost") and self.stage.sending:
            self.failures.append(f"official {self.role}: {fact['fact']}: {fact['why']}")


@dataclass
class Report:
    """What came of a run."""

    failures: list[str] = field(default_factory=list)
    """What clients saw fail, raw ones and users of official ones."""
    crossed: list[tuple[float, str]] = field(default_factory=list)
    """Calls that met the GOAWAY, with the moments in which they failed: a client of gRPC's core without
    retries makes them on no other connection, and grpcio's server cancels some."""
    drains: list[Drain] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    summaries: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [
            f"counts: {dict(sorted(self.counts.items()))}",
            *self.summaries,
            *(f"a gateway logged an error: {line}" for line in self.errors),
            f"met the GOAWAY of {len(self._met())} of {len(self.drains)} drains: {len(self.crossed)} calls",
            *(f"met the GOAWAY: {failure}" for _, failure in self.crossed),
            *(f"WRONG: {failure}" for failure in self.failures),
        ]

    def _met(self) -> set[Drain]:
        return {drain for at, _ in self.crossed if (drain := drain_at(at, self.drains, inf)) is not None}

    def note(self, failures: Stamped) -> None:
        """What the user of an official client saw."""
        for why, at in zip(failures, failures.moments, strict=True):
            if GOAWAY_MET in why:
                self.crossed.append((at, why))
            else:
                self.failures.append(why)

    def judge_crossed(self) -> None:
        """A call meets a GOAWAY while a replica drains, and seldom; else it is a failure as others are."""
        for at, failure in self.crossed:
            if drain_at(at, self.drains, inf) is None:
                self.failures.append(f"while nothing drained: {failure}")
        if len(self.crossed) > 1 and too_many(len(self._met()), len(self.drains)):
            self.failures.append(f"calls failed at {len(self._met())} of {len(self.drains)} drains")


async def run(
    folder: Path,
    drains: int,
    *,
    transport: str = TRANSPORTS[0],
    learns_s: float = 2.0,
    options: tuple[str, ...] = (),
    officials: bool = True,
) -> Report:
    """A whole run. `learns_s`: how much later the balancer may learn what `/ready` answers."""
    report = Report()
    # What is the default elsewhere; processes of tests have none.
    options = ("--set", "stopping.lame_duck_s=5", *options)
    async with town_before(EMBEDDED, folder, options=options, transport=transport) as town:
        await town.make_topic(_TOPIC, "NORMAL")
        for name in (_GROUP, "simple", "push"):
            await town.make_group(name)
        watch = Watch(town, learns_s)
        town.balancer.serve(watch.open)
        town.balancer.tries_others = False
        watching = asyncio.create_task(watch.run())
        await until(lambda: len(watch.ready) == len(town.replicas))
        ledger = Ledger(rocketmq=False)
        stage = Stage(ledger, town.endpoints, town.balancer.address, town.prefix, 1)
        stage.official_hold_s = PATIENT_INVISIBLE_S
        stage.consume_timeout_s = CONSUME_TIMEOUT_MS[EMBEDDED] / 1000
        raw = [Raw(town, f"raw-{at}", report, exact=transport == TRANSPORTS[0]) for at in range(4)]
        roles = [("producer", "official"), ("simple", "simple"), ("push", "push")] if officials else []
        official = [Watched(stage, role, _TOPIC, name) for role, name in roles]
        working = [asyncio.create_task(one.produce()) for one in raw]
        working += [asyncio.create_task(one.consume()) for one in raw]
        outside = [asyncio.create_task(one.run()) for one in official]
        facts = [f"official {role} {what}" for role, what in _DONE if official]
        try:
            await until(lambda: all(ledger.counts[one] for one in facts) and report.counts["ack"])
            for at in range(drains):
                report.drains.append(await _drain(town, watch, at % len(town.replicas)))
                before, seen = Counter(ledger.counts), Counter(report.counts)
                await until(
                    lambda before=before, seen=seen: (
                        all(ledger.counts[one] > before[one] for one in facts)
                        and all(report.counts[one] > seen[one] for one in ("send", "receive", "ack"))
                    )
                )
        finally:
            stage.sending = stage.receiving = False
            stage.over.set()
            for one in raw:
                one.working = False
            await asyncio.gather(*working, *outside)
            watching.cancel()
            for one in raw:
                await one.channel.close()
        for one in official:
            report.note(one.failures)
        report.counts.update(ledger.counts)
        report.judge_crossed()
        await town.close()
        report.summaries, report.errors = town.summaries, town.errors
    return report


_DONE = (("producer", "sent"), ("simple", "acked"), ("push", "acked"))


async def _drain(town: Town, watch: Watch, at: int) -> Drain:
    """One replica goes as an orchestrator has it go, and its successor comes; nobody tells the balancer."""
    began = time.monotonic()
    await town.drain(at)
    drained = Drain(began, time.monotonic())
    await until(lambda: at not in watch.ready)
    await town.begin_anew(at)
    await until(lambda: at in watch.ready, READY_WITHIN_S)
    return drained


def main() -> None:
    parser = argparse.ArgumentParser(description="Drain replicas behind a balancer, and count what fails.")
    parser.add_argument("--drains", type=int, default=30)
    parser.add_argument(
        "--transport", choices=TRANSPORTS, help="of the gateways; one after the other if none"
    )
    parser.add_argument("--set", action="append", default=[], help="a setting of the gateways")
    chosen = parser.parse_args()
    options = tuple(part for one in chosen.set for part in ("--set", one))
    wrong = False
    for transport in [chosen.transport] if chosen.transport else TRANSPORTS:
        with short_folder() as folder:
            report = asyncio.run(run(folder, chosen.drains, transport=transport, options=options))
        print(f"{chosen.drains} drains, {transport}", *report.lines(), sep="\n")
        wrong = wrong or bool(report.failures or report.errors)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
