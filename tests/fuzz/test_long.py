"""The long form runs, reaches every target, and tells what is wrong; a bounded piece of it in every run."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.shared.codec.calls import CALLS
from brokers.shared.codec.kinds import Sink
from popgate.context import Context
from popgate.errors import BadRequest
from popgate.testing import MovableClock
from popgate.wire.frames.codes import PortCode
from processors.messaging import MessagingProcessor
from tests.fuzz import classic, long, rpcs, shared, sites

SCRIPT = Path(long.__file__)


@pytest.mark.timeout(1560)
def test_every_target_gets_its_inputs() -> None:
    # Seconds of work: no target runs out of its part of an hour.
    command = [sys.executable, SCRIPT, "--inputs", "200", "--complete", "--processes", "2"]
    done = subprocess.run([*command, "--seconds", "3600"], capture_output=True, text=True, timeout=1500)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told = {line.split(":")[0]: int(line.split(": ")[1].split()[0]) for line in done.stdout.splitlines()}
    wires = {f"wire {target[0]}" for target in long.WIRES}
    assert told.keys() >= {*rpcs.RPCS, *classic.served(), *shared.TARGETS, shared.CONNECTION, *wires}
    assert min(told.values()) >= 200


def test_a_run_that_has_no_time_for_all_inputs_fails_when_it_must_be_complete() -> None:
    command = [sys.executable, SCRIPT, "--only", "http2", "hpack", "--complete", "--processes", "1"]
    done = subprocess.run([*command, "--seconds", "0"], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    assert done.stdout.splitlines() == [
        "wire hpack: 1 inputs",
        "wire http2: 1 inputs",
        "wire http2_frames: 1 inputs",
        "least of a target: 1 inputs",
        "WRONG: the time was too short for 1000000 inputs of each",
    ]


@pytest.mark.parametrize(("complete", "slow_inputs"), [(False, 5), (True, 8)])
def test_in_a_complete_run_a_slow_target_has_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch, complete: bool, slow_inputs: int
) -> None:
    """Each of its inputs takes 2 of 16 s, of which an equal part is 8."""
    clock = MovableClock()
    by_hand = SimpleNamespace(monotonic=clock.monotonic, process_time=clock.monotonic)
    monkeypatch.setattr(long, "time", by_hand)
    wires = [("slow", b"data", lambda data: clock.advance(2)), ("quick", b"data", lambda data: None)]
    monkeypatch.setattr(long, "WIRES", wires)
    counts, wrongs = long.work(1, 8, 16.0, ["wires"], complete=complete)
    assert (counts, wrongs) == ({"wire slow": slow_inputs, "wire quick": 8}, [])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("door", ["rpcs", "shared"])
def test_every_target_behind_a_door_does_what_it_is_asked_for_now_and_then(door: str) -> None:
    """Health, reflection and the calls between gateways, too; a run in which one never does would fail."""
    command = [sys.executable, SCRIPT, "--only", door, "--inputs", str(sites.ENOUGH), "--processes", "1"]
    done = subprocess.run([*command, "--seconds", "3600"], capture_output=True, text=True, timeout=800)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    targets = rpcs.RPCS if door == "rpcs" else shared.TARGETS
    lines = {line.split(":")[0]: line for line in done.stdout.splitlines()}
    assert all(f" {sites.SUCCEEDED} " in lines[target] for target in targets)


async def test_an_rpc_that_never_succeeds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: object) -> None:
        raise BadRequest("not today")

    monkeypatch.setattr(MessagingProcessor, "recall", refuses)
    told = Counter[str]()
    await rpcs.fuzz_rpcs("seed", sites.ENOUGH, time.monotonic() + 600, told)
    assert sites.hopeless(told, rpcs.RPCS) == ["RecallMessage"]


def test_few_inputs_may_all_be_refused() -> None:
    told = {"SendMessage": sites.ENOUGH - 1, "QueryRoute": sites.ENOUGH, f"QueryRoute {sites.SUCCEEDED}": 1}
    assert sites.hopeless(told, ("SendMessage", "QueryRoute", "Heartbeat")) == []
    told["SendMessage"] += 1
    assert sites.hopeless(told, ("SendMessage", "QueryRoute", "Heartbeat")) == ["SendMessage"]


def test_a_run_ends_badly_with_the_name_of_what_never_succeeded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = dict.fromkeys(rpcs.RPCS, sites.ENOUGH)
    counts |= {f"{name} {sites.SUCCEEDED}": 5 for name in rpcs.RPCS if name != "RecallMessage"}

    class Part:
        def __init__(self, *_: object, **__: object) -> None:
            """Its work is done."""

        def communicate(self) -> tuple[str, None]:
            return json.dumps([counts, []]), None

    monkeypatch.setattr(long.subprocess, "Popen", Part)
    monkeypatch.setattr(sys, "argv", ["long.py", "--only", "rpcs", "--processes", "1"])
    with pytest.raises(SystemExit) as ended:
        long.main()
    assert ended.value.code == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG")]
    assert wrong == [
        f"WRONG: RecallMessage: none of {sites.ENOUGH} inputs that were changed did what it asked for"
    ]


async def test_a_bug_behind_a_call_between_gateways_is_told_with_its_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("foreign")

    monkeypatch.setattr(EmbeddedBroker, "route", broken)
    with pytest.raises(long.Wrong, match=r"shared ROUTE went wrong: .*; input [0-9a-f]+"):
        await shared.fuzz_shared("seed", 40, time.monotonic() + 60, Counter())


def test_an_exception_of_a_wire_is_told_with_its_input() -> None:
    def read(data: bytes) -> None:
        if random.Random(data).random() < 0.1:
            raise KeyError("foreign")

    with pytest.raises(long.Wrong, match=r"KeyError: 'foreign'; input [0-9a-f]+"):
        long.fuzz_wire(b"some data", read, "seed", 1_000, time.monotonic() + 60)


async def test_an_internal_error_of_a_call_is_told_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("foreign")

    monkeypatch.setattr(MessagingProcessor, "route", broken)
    with pytest.raises(long.Wrong, match=r"QueryRoute was answered INTERNAL_\w*ERROR.*input \['[0-9a-f]*'\]"):
        await rpcs.fuzz_rpcs("seed", 40, time.monotonic() + 60, Counter())


async def test_a_bug_at_the_remoting_door_is_told_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise KeyError("foreign")

    monkeypatch.setattr(MessagingProcessor, "send", broken)
    with pytest.raises(long.Wrong, match=r"(?s)remoting SEND_\w+: .*its log tells more.*input [0-9a-f]+"):
        await classic.fuzz_classic("seed", 40, time.monotonic() + 60, Counter())


async def test_a_guest_reads_what_changed_limits_bring(tmp_path: Path) -> None:
    """More than a host here takes in one frame: else the guest ends its connection, and all calls fail."""
    site, odd = shared.SharedSite(tmp_path / "store"), shared.Guesses("seed")
    await site.start()
    messages = [replace(odd._message(site.clock.now_ms()), body=bytes(100_000)) for _ in range(32)]
    await site.broker.send(Context(), messages)
    channel, now = await site.guest(odd), site.clock.monotonic()
    sink, most = Sink(now), {"begin_ms": 0, "end_ms": 1 << 50, "limit": 1_000}
    CALLS[PortCode.FIND_BY_KEY].write(sink, Context(deadline=now + 60), shared.TOPIC, "key", **most)
    asked = channel.ask(PortCode.FIND_BY_KEY, {}, sink.data(), now, 60.0)
    answered = asyncio.create_task(asyncio.wait_for(asked.future, None), name="it is answered")
    await site.all_done([answered])
    assert len((await answered).body) > 1 << 20
    await site.stop()


async def test_an_error_in_the_log_is_told() -> None:
    async def batch(_: sites.Site, __: int) -> None:
        logging.getLogger("somewhere").error("something is wrong behind an answer")

    with pytest.raises(long.Wrong, match="something is wrong behind an answer"):
        await sites.each_batch(sites.Site, batch, 4, time.monotonic() + 60)


async def test_a_budget_that_nobody_gives_back_is_told() -> None:
    async def batch(site: classic.ClassicSite, _: int) -> None:
        site.processor.budgets.add("connection", "", 5)
        await site.quiet()

    with pytest.raises(long.Wrong, match="5 of the budgets are held by nobody"):
        await sites.each_batch(classic.ClassicSite, batch, 4, time.monotonic() + 60)


def test_a_process_that_grows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    growth = sites.Growth()
    for resident in (100.0, 150.0, 160.0, 200.0):
        monkeypatch.setattr(sites, "resident_mb", lambda now=resident: now)
        growth.sample()
    monkeypatch.setattr(sites, "resident_mb", lambda: 230.0)
    with pytest.raises(long.Wrong, match="grew by 70 MB"):
        growth.sample()
