"""A restart and a `kill -9` of the gateway while official clients work with it.

Each client has a gateway of its own and all of them run side by side. The driver says `ready` when it holds
messages and has delayed ones and transactions outstanding, and sends all the time; `go` tells it that the
gateway is back. It uses the clients it had before throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def runs(
    selected_clients: list[tuple[str, str]],
    interrupt: Callable[[str, str, Path], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, str], Future[Any]]]:
    with ThreadPoolExecutor() as pool:
        yield {
            (client, broker): pool.submit(interrupt, client, broker, tmp_path_factory.mktemp(client))
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
    assert facts.of("unanswered"), "nobody noticed the interruptions"
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
