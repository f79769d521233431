"""A restart and a `kill -9` of the gateway while official clients work with it.

Each client has a gateway of its own and all of them run side by side. The driver says `ready` when it holds
messages and has delayed ones and transactions outstanding, and sends all the time; `go` tells it that the
gateway is back. It uses the clients it had before throughout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.client_programs import Facts
from popgate.testing.gateway import GatewayProcess
from popgate.testing.rocketmq import SharedRocketMQ
from tests.conformance.drivers import CLUSTER
from tests.conformance.gateways import CHECK_SOON, START_S, check_log, options_of
from tests.conformance.stages import playing

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

ALONE_DRAIN = "stopping.drain_s=1"
"""For a gateway that is alone: before a cluster it leaves Telemetry streams open while it drains, and until
that is over nobody serves. What consumers hold (for five minutes here) must outlast it, and the start of the
next one, which on a busy machine took more than one."""


def interrupt(
    client: str, broker: str, cluster: Callable[[], SharedRocketMQ], folder: Path
) -> tuple[Facts, str]:
    """Run `interrupted` with a client and a broker: SIGTERM at its first `ready`, SIGKILL at its second."""
    settings = (*CHECK_SOON[broker], ALONE_DRAIN)
    options = options_of(broker, settings, cluster() if broker == CLUSTER else None)
    with contextlib.ExitStack() as closing:
        gateway = GatewayProcess(folder / "data", options=options, holds_ports=True)
        closing.enter_context(gateway.start(START_S))
        driver = closing.enter_context(playing(client, "interrupted", gateway, folder))
        ends = (lambda it: it.terminate(START_S), GatewayProcess.kill)
        for number, end in enumerate(ends, 1):
            told = driver.wait("it", lambda facts, number=number: len(facts.of("ready")) >= number)
            if len(told.of("ready")) < number:
                break
            end(gateway)
            check_log(gateway)
            gateway = closing.enter_context(gateway.successor().start(START_S))
            driver.go("it")
        facts = driver.wait("it", lambda facts: False)
        check_log(gateway)
        return facts, driver.last_words()


@pytest.fixture(scope="module")
def runs(
    selected_clients: list[tuple[str, str]],
    cluster: Callable[[], SharedRocketMQ],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, str], Future[Any]]]:
    with ThreadPoolExecutor() as pool:
        yield {
            (client, broker): pool.submit(interrupt, client, broker, cluster, tmp_path_factory.mktemp(client))
            for client, broker in selected_clients
        }


def test_interrupted(
    client: str,
    broker: str,
    runs: dict[tuple[str, str], Future[Any]],
    judged: Callable[[Future[Any]], Any],
) -> None:
    facts = judged(runs[client, broker])
    answered = {one["id"] for one in facts.of("sent", by="steady")}
    assert len(answered) >= 40
    # Go's calls wait until there is a gateway again, and its driver gives them the time.
    assert facts.of("unanswered") or client == "go", "nobody noticed the interruptions"
    assert answered <= {one["id"] for one in facts.received("background")}, (
        "a message that was answered is lost"
    )
    dues = {one["id"]: one["due"] for one in facts.of("sent") if "due" in one}
    for name in ("one", "two"):
        held = [one["id"] for one in facts.received(name)]
        assert len(set(held)) == 6
        assert {one["attempt"] for one in facts.received(name)} == {1}
        acked = {one["id"] for one in facts.of("acked", attempt=1)} & set(held)
        assert len(acked) == 3, "two before the interruption, one after it by its old handle"
        again = facts.received(f"{name} again")
        assert sorted({one["id"] for one in again}) == sorted(set(held) - acked)
        assert min(one["attempt"] for one in again) == 2
        delayed = facts.received(f"{name} delayed")
        assert {one["body"] for one in delayed} == {f"{name} delayed"}
        assert all(one["at"] >= dues[one["id"]] for one in delayed), "a delayed message came early"
        assert {one["body"] for one in facts.received(f"{name} half")} == {f"{name} half"}
        assert facts.of("checked", body=f"{name} half")
    assert not facts.received("quiet"), "what was acknowledged came again"
