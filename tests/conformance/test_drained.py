"""A gateway drains while official clients work with it, and another one goes on at its addresses.

Before a cluster another gateway can serve while the first one drains: that one leaves Telemetry streams alone
until their clients close them. With an embedded broker nobody else can, and it ends at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

TRANSPORTS = ("http2", "grpcio")
CLOSE_WHEN_TOLD = ("node",)
"""Told to connect anew, such a client closes its stream at once and opens another one, elsewhere."""


def stay(client: str, broker: str) -> int:
    """How many streams outlast the beginning of a drain."""
    return 2 if broker == "cluster" and client not in CLOSE_WHEN_TOLD else 0


@pytest.fixture(scope="module")
def runs(
    selected_clients: list[tuple[str, str]],
    drain: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, str, str], Future[Any]]]:
    with ThreadPoolExecutor(4) as pool:
        yield {
            (client, broker, transport): pool.submit(
                drain, client, broker, transport, stay(client, broker), tmp_path_factory.mktemp(client)
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
    assert drained.during == stay(client, broker), "a Telemetry stream was ended by the drain"
    assert drained.summary["clients_told_to_move"] == 2
    assert drained.summary["streams_ended"] == 2
    assert drained.summary["requests_cut_off"] == 0
