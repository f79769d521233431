"""RocketMQ's classic client for Go, which is old at heart (version 317): it plays `tests/classic/go`.

Groups whose names begin with `mapped` are mapped onto pop, others are on true pull.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.rocketmq import shared_rocketmq
from tests.classic.conftest import ALL, CHECK_SOON, CLUSTER, EMBEDDED, PATIENT, call_admin, missing
from tests.outside.go_programs import go_program

SOURCES = Path(__file__).parent / "go"
RUN_S = 400.0
WAYS = ("pulled", "mapped")
Facts = list[dict[str, Any]]

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not ALL, reason="minutes of one client: sh tests/run.sh --long classic"),
]


@pytest.fixture(scope="module", params=[EMBEDDED, CLUSTER])
def gateway(request: pytest.FixtureRequest) -> Iterator[GatewayProcess]:
    place = request.param
    checked_soon = {
        EMBEDDED: ("transactions.first_check_s=3", "transactions.check_interval_s=3"),
        CLUSTER: CHECK_SOON[CLUSTER],
    }
    settings = ["remoting.mapped_groups=mapped-*", *PATIENT[place], *checked_soon[place]]
    options = [word for setting in settings for word in ("--set", setting)]
    try:
        if place == EMBEDDED:
            with GatewayProcess(listen=("remoting://127.0.0.1:0",), options=options) as made:
                yield made
            return
        with shared_rocketmq() as cluster:
            options += ["--broker", cluster.url]
            with GatewayProcess(listen=("remoting://127.0.0.1:0",), options=options) as made:
                yield made
    except Missing as what:
        missing(str(what))


@pytest.fixture
def played(gateway: GatewayProcess, tmp_path: Path) -> Callable[[str, str], Facts]:
    """Plays a scenario, and gives what the driver said; that it came to its end is looked at here."""

    def play(scenario: str, way: str) -> Facts:
        topic, group = f"go-{uuid.uuid4().hex[:8]}", f"{way}-{uuid.uuid4().hex[:8]}"
        kinds = ["TRANSACTION"] if scenario == "transactions" else []
        call_admin(gateway, "/api/topics", {"name": topic, "types": kinds, "queues": 4})
        for name in (group, f"{group}-sql"):
            call_admin(gateway, "/api/groups", {"name": name, "ordered": False})
        try:
            command = [str(go_program("classic-go", ".", SOURCES)), scenario, gateway.endpoint, topic, group]
        except Missing as what:
            missing(str(what))
        # It keeps positions of broadcasting consumers at home.
        env = {**os.environ, "HOME": str(tmp_path)}
        ended = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S, check=False
        )
        facts: Facts = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        assert facts[-1:] == [{"fact": "done"}], (facts[-3:], ended.stderr[-2000:])
        return facts

    return play


def of(facts: Facts, fact: str, by: str | None = None) -> Facts:
    return [each for each in facts if each["fact"] == fact and by in (None, each.get("by"))]


def bodies(facts: Facts, by: str) -> list[str]:
    return [each["body"] for each in of(facts, "received", by)]


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_sent_comes_once(played: Callable[[str, str], Facts], way: str) -> None:
    facts = played("concurrent", way)
    long = "long " * 2000
    assert sorted(bodies(facts, "one")) == sorted(
        ["plain", long, "late", "async", "one way", "batch 0", "batch 1", "batch 2"]
    )
    (plain,) = [each for each in of(facts, "received") if each["body"] == "plain"]
    assert (plain["tag"], plain["keys"], plain["color"]) == ("t", "k l", "red")
    # A batch has no id of its own.
    assert all(each["status"] == 0 and (each["id"] or len(each["bodies"]) > 1) for each in of(facts, "sent"))
    assert len({each["id"] for each in of(facts, "received")}) == 8


@pytest.mark.parametrize("way", WAYS)
def test_filters_by_tag_and_by_sql(played: Callable[[str, str], Facts], way: str) -> None:
    facts = played("filtered", way)
    assert sorted(bodies(facts, "tags")) == ["a red", "b blue"]
    assert sorted(bodies(facts, "sql")) == ["a red", "c red"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_to_come_later_comes_again(played: Callable[[str, str], Facts], way: str) -> None:
    facts = played("retried", way)
    assert sorted(bodies(facts, "first")) == sorted(bodies(facts, "again")) == ["one", "two"]
    assert {each["attempt"] for each in of(facts, "received", "again")} == {1}


def test_an_orderly_consumer_keeps_the_order(played: Callable[[str, str], Facts]) -> None:
    lanes = defaultdict(list)
    for body in bodies(played("ordered", "pulled"), "one"):
        lane, _, number = body.partition("-")
        lanes[lane].append(int(number))
    assert lanes == {lane: list(range(10)) for lane in "012"}


def test_transactions_end_as_they_are_told(played: Callable[[str, str], Facts]) -> None:
    facts = played("transactions", "pulled")
    assert sorted(bodies(facts, "one")) == ["asked yes", "yes"]
    assert {"asked no", "asked yes"} <= {*bodies(facts, "check")} <= {"asked no", "asked yes", "no"}


def test_pulls_from_every_queue(played: Callable[[str, str], Facts]) -> None:
    facts = played("pulled", "pulled")
    assert sorted(bodies(facts, "pulled")) == [str(number) for number in range(8)]
    sent = {each["bodies"][0]: (each["queue"], each["offset"]) for each in of(facts, "sent")}
    found = {each["body"]: (each["queue"], each["offset"]) for each in of(facts, "received")}
    assert found == sent


def test_each_broadcasting_consumer_gets_all(played: Callable[[str, str], Facts]) -> None:
    facts = played("broadcast", "pulled")
    assert sorted(bodies(facts, "one")) == sorted(bodies(facts, "two")) == ["a", "b"]


def test_a_request_is_answered(played: Callable[[str, str], Facts]) -> None:
    facts = played("requested", "pulled")
    assert bodies(facts, "asked") == ["question"]
    assert of(facts, "answered") == [{"fact": "answered", "body": "answer to question"}]
