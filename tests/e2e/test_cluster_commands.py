"""Every command of an operator in front of a real cluster: it works, or says why not and what to use."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing import CREATE_ON_USE, GatewayProcess
from popgate.testing.rocketmq import PATIENT, SharedRocketMQ
from tests.e2e.clients import SERVICE, metadata
from tests.e2e.commands import run_command
from tests.support.needed import needed_rocketmq
from tests.support.versions import lacks
from tests.support.waiting import PATIENCE_S, wait_until

OK, FAILED, NOTHING = 0, 1, 4
LATE = ("no answer in time", "PROXY_TIMEOUT", "DEADLINE_EXCEEDED", "did not answer within")
"""What is told of a machine that stands still, and of nothing else here."""
SHOWN_S = 2 * PATIENCE_S
"""Each look is a process of its own, which starts beside a cluster's servers."""
SOON = "100s"
"""For what is there, or will be in a moment."""


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[SharedRocketMQ]:
    with needed_rocketmq() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gateway(rocketmq: SharedRocketMQ) -> Iterator[GatewayProcess]:
    with GatewayProcess(options=["--broker", rocketmq.url, *PATIENT]) as gateway:
        yield gateway


Popgate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def popgate(gateway: GatewayProcess) -> Popgate:
    def run(*arguments: str) -> tuple[int, str, str]:
        ended = run_command(*arguments, "--admin", gateway.admin)
        return ended.code, ended.out, ended.err

    return run


@pytest.fixture
def told(popgate: Popgate) -> Callable[..., Any]:
    """What a command that works says, as JSON."""

    def ask(*arguments: str) -> Any:
        code, out, err = popgate(*arguments, "-o", "json")
        assert (code, err) == (OK, ""), (arguments, out)
        return json.loads(out)

    return ask


@pytest.fixture
def names(popgate: Popgate) -> Iterator[tuple[str, str]]:
    """A topic and a group, gone in the end."""
    tail = uuid.uuid4().hex[:12]
    topic, group = f"commands-{tail}", f"commands-g-{tail}"
    assert popgate("topic", "create", topic, "--queues", "2")[0] == OK
    assert popgate("group", "create", group, "--max-attempts", "1")[0] == OK
    yield topic, group
    assert popgate("topic", "delete", topic, "--yes")[0] == OK
    assert popgate("group", "delete", group, "--yes")[0] == OK


def test_group_create_makes_what_apply_can(
    told: Callable[..., Any], popgate: Popgate, names: tuple[str, str], rocketmq: SharedRocketMQ
) -> None:
    topic, other = names
    group = f"{other}-lite"
    lite, attributes = ["--lite", topic], {"lite.bind.topic": topic}
    if lacks(rocketmq.version, "lite topics"):
        code, _, err = popgate("group", "create", group, *lite)
        assert code == FAILED
        assert "the attribute 'lite.bind.topic', which broker" in err
        lite, attributes = [], {}
    made = popgate(
        *("group", "create", group, *lite, "--no-consume", "--ordered", "--consume-timeout", "2m"),
        *("--retry", "1s,5s,1m", "--retry-from", "1"),
    )
    assert made[0] == OK, made
    try:
        shown = told("group", "show", group)
        assert shown["attributes"] == attributes
        assert (shown["consume_enabled"], shown["ordered"]) == (False, True)
        assert shown["consume_timeout_ms"] == 120_000
        retry = shown["retry"]
        assert retry["delays_ms"][retry["first_step"] :] == [5_000, 60_000]
    finally:
        assert popgate("group", "delete", group, "--yes")[0] == OK
    code, _, err = popgate("group", "create", group, "--attribute", "owner=me")
    assert code == FAILED
    assert "the attribute 'owner', which broker" in err


def test_messages_topics_and_groups_are_shown_as_they_are(
    told: Callable[..., Any], popgate: Popgate, names: tuple[str, str]
) -> None:
    topic, group = names
    sent = told("send", topic, "hello", "--key", "k1")
    code, out, _ = popgate("receive", topic, "--group", group, "--wait", SOON, "-o", "json")
    assert (code, json.loads(out)["body"]) == (OK, "hello")

    shown = told("topic", "show", topic)
    assert {place["broker"] for place in shown["places"]} == {sent["broker"]}
    assert sum(place["maximum"] - place["minimum"] for place in shown["places"]) == 1
    assert topic in {one["name"] for one in told("topic", "list")}
    assert group in {one["name"] for one in told("group", "list")}

    def of_topic() -> Any:
        """A broker writes down what was popped a moment later."""
        found = [one for one in told("group", "show", group)["progress"] if one["topic"] == topic]
        return found if found and found[0]["lag"] == 0 else None

    (progress,) = wait_until(of_topic, SHOWN_S)
    assert (progress["in_flight"], progress["waiting"]) == (None, None)
    assert {(one["in_flight"], one["waiting"]) for one in progress["queues"]} == {(None, None)}
    assert (
        f"topic {topic}\t0 to do, 0 of them for another attempt; what is held is not told"
        in popgate("group", "show", group)[1].splitlines()
    )

    (found,) = wait_until(lambda: told("message", "find", topic, "--key", "k1"), SHOWN_S)
    assert found["message_id"] == sent["message_id"]
    (shown,) = told("message", "show", topic, sent["message_id"])
    assert shown["body"] == "hello"
    assert told("group", "reset", group, "--to", "first", "--yes")["topics"] == [topic]
    declared = popgate("export")[1]
    assert f"[topics.{topic}]" in declared
    assert f"[groups.{group}]" in declared
    assert "%DLQ%" not in declared


@pytest.mark.parametrize("created", [False, True])
def test_a_topic_comes_into_being_on_first_use_only_where_that_is_asked_for(
    rocketmq: SharedRocketMQ, gateway: GatewayProcess, popgate: Popgate, created: bool
) -> None:
    """A mistyped name would leave a topic in a cluster that others use, too."""
    topic = f"mistyped-{uuid.uuid4().hex[:12]}"
    with contextlib.ExitStack() as closing:
        asked = gateway
        if created:
            creating = GatewayProcess(options=["--broker", rocketmq.url, *PATIENT, *CREATE_ON_USE])
            asked = closing.enter_context(creating)
        channel = closing.enter_context(grpc.insecure_channel(asked.endpoint))
        endpoints = pb.Endpoints(
            scheme=pb.AddressScheme.IPv4,
            addresses=[pb.Address(host="127.0.0.1", port=int(asked.endpoint.rpartition(":")[2]))],
        )
        request = rpc.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints)
        query = channel.unary_unary(
            SERVICE + "QueryRoute",
            request_serializer=rpc.QueryRouteRequest.SerializeToString,
            response_deserializer=rpc.QueryRouteResponse.FromString,
        )
        answer = query(request, metadata=metadata("somebody"), timeout=PATIENCE_S)
    assert answer.status.code == (pb.Code.OK if created else pb.Code.TOPIC_NOT_FOUND)
    assert popgate("topic", "show", topic)[0] == (OK if created else NOTHING)
    if created:
        assert popgate("topic", "delete", topic, "--yes")[0] == OK


def test_a_file_is_applied(
    told: Callable[..., Any], popgate: Popgate, names: tuple[str, str], tmp_path: Path
) -> None:
    topic, group = names
    file = tmp_path / "wanted.toml"
    file.write_text(f"[topics.{topic}]\nqueues = 3\n[groups.{group}]\nmax_attempts = 4\n")
    code, _, err = popgate("apply", str(file))
    assert (code, err) == (OK, "2 changed, 0 as they should be\n")
    assert told("topic", "show", topic)["queues"] == 3
    assert told("group", "show", group)["max_attempts"] == 4


def test_dead_letters_are_shown_and_not_redriven(
    told: Callable[..., Any], popgate: Popgate, names: tuple[str, str]
) -> None:
    topic, group = names
    assert told("dead-letter", "list", group)["count"] == 0
    sent = told("send", topic, "poison")
    assert (
        popgate("receive", topic, "--group", group, "--wait", SOON, "--keep", "--invisible", "10s")[0] == OK
    )

    def letters() -> Any:
        # The second delivery would be one too many: who asks for it makes it a dead letter.
        assert popgate("receive", topic, "--group", group, "--wait", "3s")[0] == NOTHING
        return told("dead-letter", "list", group)["topics"]

    found = wait_until(letters, SHOWN_S)
    assert [(one["topic"], one["count"]) for one in found] == [(topic, 1)]
    assert told("dead-letter", "show", group)["message_id"] == sent["message_id"]
    code, _, err = popgate("dead-letter", "redrive", group)
    assert code == FAILED
    assert f"consume %DLQ%{group} like any topic" in err
    assert popgate("receive", f"%DLQ%{group}", "--group", group, "--wait", SOON)[0] == OK


def test_why_a_group_is_stuck_is_told_as_far_as_it_is_known(popgate: Popgate, names: tuple[str, str]) -> None:
    topic, group = names
    assert popgate("send", topic, "one")[0] == OK
    assert popgate("receive", topic, "--group", group, "--wait", SOON, "--keep")[0] == OK
    code, out, err = popgate("stuck", group)
    assert (code, err) == (OK, "")
    assert "a RocketMQ cluster tells nobody" in out
    assert "done with everything" not in out
    code, _, err = popgate("stuck", group, "--free")
    assert code == FAILED
    assert "comes back by itself" in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["backup"], "back up where they are"),
        (["topic", "create", "commands-never", "--retention", "1d"], "fileReservedTime"),
        (["group", "create", "commands-never", "--broadcast"], "a group of its own"),
    ],
)
def test_what_a_cluster_cannot_do_says_what_to_use(popgate: Popgate, command: list[str], words: str) -> None:
    code, _, err = popgate(*command)
    assert code == FAILED
    assert words in err


def test_the_cluster_is_shown(told: Callable[..., Any], popgate: Popgate, rocketmq: SharedRocketMQ) -> None:
    view = told("cluster")
    assert [one["address"] for one in view["name_servers"]] == [rocketmq.name_server]
    (broker,) = view["brokers"]
    assert (broker["role"], broker["trouble"]) == ("master", "")
    assert broker["version"] == rocketmq.version
    low, high = broker["clock_ahead_ms"]
    assert low <= 0 <= high
    lines = [line.split("\t") for line in popgate("cluster")[1].splitlines()]
    assert [line[0] for line in lines] == ["name-server", "broker"]


def test_the_doctor_looks_at_the_cluster_too(gateway: GatewayProcess, popgate: Popgate) -> None:
    for kind in ("topic", "group"):
        popgate(kind, "create", "popgate-doctor")  # another test of this cluster may have made it
    end = time.monotonic() + SHOWN_S
    while True:
        code, out, _ = popgate("doctor", gateway.endpoint, "--timeout", "60s", "-o", "json")
        found = {one["check"]: one for one in json.loads(out)}
        problems = [one for one in found.values() if one["level"] == "problem"]
        late = [one for one in problems if any(words in one["what"] for words in LATE)]
        if not late or time.monotonic() > end:
            break
    assert (code, problems) == (OK, []), f"{problems}"  # as a whole: pytest shortens what it compares
    for check in ("round-trip", "name-server", "broker", "version", "broker-clock", "sql-filter", "clients"):
        assert check in found
    assert all(one["advice"] for one in found.values() if one["level"] == "warning")
    assert found["transactions"]["level"] == "warning"
    assert "store" not in found["ready"]["what"]


def test_metrics_have_no_zero_where_nothing_is_known(gateway: GatewayProcess, names: tuple[str, str]) -> None:
    with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert "popgate_group_in_flight{" not in text
    assert "popgate_broker_links_open" in text
