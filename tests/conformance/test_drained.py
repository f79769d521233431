"""A gateway drains while official clients work with it, and another one goes on at its addresses.

Before a cluster another gateway can serve while the first one drains: that one leaves Telemetry streams alone
until their clients close them. With an embedded broker nobody else can, and it ends at once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.client_programs import Facts
from popgate.testing.gateway import GatewayProcess
from popgate.testing.rocketmq import SharedRocketMQ
from tests.conformance.drivers import CLUSTER, EMBEDDED
from tests.conformance.gateways import START_S, check_log, listen_by, options_of
from tests.conformance.stages import playing
from tests.support.waiting import PATIENCE_S, NotInTimeError, wait_until

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

TRANSPORTS = ("http2", "grpcio")
CLOSE_WHEN_TOLD = ("node",)
"""Told to connect anew, such a client closes its stream at once and opens another one, elsewhere."""
LONG_DRAIN_S = 240
"""Longer than any client takes to end: what ends before was not ended by the drain's own time."""


ENDED_WHEN_TOLD = ("rust",)
"""Such a client does not notice that it has to connect anew while its stream is open."""


WAITS = ("go",)
"""Calls of such a client wait until there is a gateway again: none fails. But the first one that finds none
closes its connection, and with that its stream (`handleGrpcError` in its client_manager.go): 0.3 s after the
beginning of the drain, or later."""


class Looks:
    """What was seen at which time, without what was seen just before."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._last = ""
        self._begun = time.monotonic()

    def note(self, what: str) -> None:
        if what != self._last:
            self.seen.append(f"{time.monotonic() - self._begun:.2f} s: {what}")
            self._last = what


def _drains(gateway: GatewayProcess, looks: Looks) -> bool:
    try:
        urllib.request.urlopen(f"{gateway.admin}/ready", timeout=PATIENCE_S).close()
    except urllib.error.HTTPError as refused:
        refused.close()
        looks.note(f"ready is answered with {refused.code}")
        return True
    except (OSError, http.client.HTTPException) as error:
        looks.note(repr(error))
        return "stopped " in gateway.output
    looks.note("is ready")
    return False


def listening(addresses: Sequence[str]) -> set[int]:
    """Which ports of these addresses take connections: their successor could not have them.

    The transport grpcio closes them only when what was under way has been answered.
    """
    ports = {int(re.search(r":(\d+)(?:\?|$)", address)[1]) for address in addresses}
    taken = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A":  # LISTEN
                taken.add(int(local.rpartition(":")[2], 16))
    return ports & taken


def stay(client: str, broker: str) -> int:
    """How many streams outlast the beginning of a drain."""
    gone = client in (*CLOSE_WHEN_TOLD, *ENDED_WHEN_TOLD, *WAITS)
    return 2 if broker == CLUSTER and not gone else 0


@dataclass(slots=True)
class Drained:
    """What was seen of a gateway that drained under a client."""

    before: int
    """Clients with an open Telemetry stream before the drain,"""
    during: int
    """and, before a cluster, when the client was told to go elsewhere; 0 when the gateway had ended, and of a
    client that closes them by itself, for which nobody asks."""
    summary: dict[str, int]
    """What it told at its end."""
    looks: list[str] = field(default_factory=list)
    """What was seen of it from the signal on, with the seconds since then: for who reads a failure."""


def drain(
    client: str, broker: str, transport: str, cluster: Callable[[], SharedRocketMQ], folder: Path
) -> tuple[tuple[Facts, Drained], str]:
    """Run `drained` with a client, a broker and a transport: SIGTERM at its `ready`, the next one at `go`.

    Before a cluster the next one is started while the first one drains, at the same addresses.
    """
    settings = (f"stopping.drain_s={LONG_DRAIN_S}",)
    options = options_of(broker, settings, cluster() if broker == CLUSTER else None)
    with contextlib.ExitStack() as closing:
        first = GatewayProcess(
            folder / "data", listen=listen_by(transport), options=options, holds_ports=True
        )
        closing.enter_context(first.start(START_S))
        driver = closing.enter_context(playing(client, "drained", first, folder))
        if not driver.wait("it", lambda facts: bool(facts.of("ready"))).of("ready"):
            return (driver.wait("it", lambda facts: False), Drained(0, 0, {})), driver.last_words()
        before = connected(first, 2)
        # On a busy machine a receive may have failed before.
        failed = len(driver.wait("it", lambda facts: True).of("unanswered"))
        looks = Looks()
        first.signal(signal.SIGTERM)
        if broker == EMBEDDED:
            first.wait(LONG_DRAIN_S / 2)
            next_one, during = first.successor(), 0
        else:
            # It was told to go, and nobody serves it elsewhere yet.
            if client in WAITS:
                wait_until(lambda: _drains(first, looks))
            else:
                driver.wait("it", lambda facts: len(facts.of("unanswered")) > failed)
            during = connected(first, stay(client, broker), looks)
            wait_until(lambda: not listening(first.addresses))
            next_one = GatewayProcess(folder / "next", listen=first.addresses, options=options)
        closing.enter_context(next_one.start(START_S))
        driver.go("it")
        facts = driver.wait("it", lambda facts: False)
        driver.close()
        first.wait(LONG_DRAIN_S / 2)
        for one in (first, next_one):
            check_log(one)
        told = next(line for line in first.output.splitlines() if line.startswith("stopped "))
        summary = {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", told)}
        return (facts, Drained(before, during, summary, looks.seen)), driver.last_words()


def connected(gateway: GatewayProcess, wanted: int, looks: Looks | None = None) -> int:
    """How many clients have their Telemetry stream open, as the gateway's admin page tells; 0: it ended.

    Asked until there are as many as wanted: a worker that does not answer another one in time, because the
    machine is busy, is missing in what that one tells. No client comes while a gateway drains: who was let go
    does not count again.
    """
    told, looks = 0, looks or Looks()

    def enough() -> bool:
        nonlocal told
        if told >= wanted or "stopped " in gateway.output:
            looks.note(gateway.output.rpartition("\nready")[2] or "goes on")
            return True
        try:
            with urllib.request.urlopen(f"{gateway.admin}/api/clients", timeout=PATIENCE_S) as answer:
                told = sum(one["connected"] for one in json.load(answer)["clients"])
            looks.note(f"{told} are connected")
        except (OSError, http.client.HTTPException) as error:
            # A worker that has nobody to drain ends at once, with the connection that it was just handed.
            told = 0
            looks.note(repr(error))
        return told >= wanted

    with contextlib.suppress(NotInTimeError):  # fewer are a finding, which the test tells
        wait_until(enough)
    return told


@pytest.fixture(scope="module")
def runs(
    selected_clients: list[tuple[str, str]],
    cluster: Callable[[], SharedRocketMQ],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, str, str], Future[Any]]]:
    with ThreadPoolExecutor(4) as pool:
        yield {
            (client, broker, transport): pool.submit(
                drain, client, broker, transport, cluster, tmp_path_factory.mktemp(client)
            )
            for client, broker in selected_clients
            for transport in TRANSPORTS
        }


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_drained(
    client: str,
    broker: str,
    transport: str,
    runs: dict[tuple[str, str, str], Future[Any]],
    judged: Callable[[Future[Any]], Any],
) -> None:
    seen: list[Any] = []

    def facts_of(run: Future[Any]) -> Any:
        (facts, drained), words = run.result()
        seen.append(drained)
        return facts, words

    facts = judged(runs[client, broker, transport], facts_of)
    [drained] = seen
    answered = {one["id"] for one in facts.of("sent")}
    assert len(answered) >= 20
    assert answered <= {one["id"] for one in facts.received()}, "a message that was answered is lost"
    assert drained.before == 2, "a producer and a consumer"
    assert drained.during == stay(client, broker), (
        f"a Telemetry stream was ended by the drain: {drained.looks}"
    )
    assert drained.summary["clients_told_to_move"] == 2
    assert drained.summary["streams_ended"] == 2
    assert drained.summary["requests_cut_off"] == 0
