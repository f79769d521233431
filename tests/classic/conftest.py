"""Runs the scenarios of `scenarios.toml` with RocketMQ's classic Java client, several versions of it.

A client is a version, with a process of its own, in which its scenarios run side by side. What it connects to
is a gateway in front of the embedded broker, or in front of a real RocketMQ; where TEST_CLASSIC_STRAIGHT is
`true` also a real RocketMQ without a gateway, which shows that the scenarios are right. With some versions
only the scenarios called `core` are played, and before a cluster these by some versions; where
TEST_CLASSIC_ALL is `true` all are played by all.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
import time
import tomllib
import urllib.error
import urllib.request
import uuid
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.client_programs import LONGEST_RUN_S, Driver, Facts
from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import FETCH_TRIES, Missing, ToolFailed, digest, locked, made_once, run_tool
from popgate.testing.rocketmq import SharedRocketMQ, shared_rocketmq
from popgate.testing.rocketmq.requests import ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from tests.support.evidence import add_evidence, failed_on_facts
from tests.support.needed import missing

HERE = Path(__file__).parent
TABLE: dict[str, dict[str, Any]] = tomllib.loads((HERE / "scenarios.toml").read_text())
VERSIONS: dict[str, dict[str, bool]] = tomllib.loads((HERE / "clients.toml").read_text())
EMBEDDED, CLUSTER, STRAIGHT, MAPPED, MAPPED_CLUSTER = PLACES = (
    "embedded",
    "cluster",
    "straight",
    "mapped",
    "mapped_cluster",
)
BEHIND = {MAPPED: EMBEDDED, MAPPED_CLUSTER: CLUSTER}
"""Places where the gateway maps all groups onto pop that it can, and what is otherwise the same."""
QUEUES = 4
SIDE_BY_SIDE = 7
"""Scenarios of one client at a time; most of them wait most of the time."""
AT_ONCE = threading.BoundedSemaphore(14)
"""Of all clients together."""
STARTING = threading.Lock()
"""One client starts after the other: they give up what takes longer than 3 s."""
START_S = 240.0
SENT_ANEW = re.compile(r"sendMessageBack Exception|Failed to send message back")
"""What clients log when they get no answer for 5 s. Source: `DefaultMQPushConsumerImpl.sendMessageBack`."""
ROUTE_WITHIN_S = 100.0
ALL = os.environ.get("TEST_CLASSIC_ALL") == "true"
WITH_STRAIGHT = os.environ.get("TEST_CLASSIC_STRAIGHT") == "true"
CREATE_NOTHING = ("topics.auto_create=false", "groups.auto_create=false")
CHECK_SOON = {
    # Producers do not wait until it is known how a transaction ended: on a busy machine that takes seconds.
    EMBEDDED: ("transactions.first_check_s=20", "transactions.check_interval_s=3"),
    CLUSTER: ("remote.transaction_check_s=20",),  # of the one time; the other one is the cluster's
}
PATIENT = {
    EMBEDDED: (),
    CLUSTER: ("remote.request_timeout_s=30", "remote.connect_timeout_s=30", "remote.probe_s=30"),
}
"""A cluster that shares two cores with many clients is slow, and clients here wait for longer than 3 s."""


# the drivers


@functools.cache
def jars(version: str) -> Path:
    """The folder with a version of the client and all that it needs. Raises Missing."""
    pom = HERE / "java" / "pom.xml"

    def fetch(made: Path) -> None:
        (made / "pom.xml").write_bytes(pom.read_bytes())
        with locked("maven"):  # processes that fill Maven's own cache at once spoil it
            command = ["mvn", "-q", "-B", "-U", f"-Dclient.version={version}"]
            run_tool([*command, "dependency:copy-dependencies"], made, tries=FETCH_TRIES)

    key = f"{version}-{digest(version, [pom], HERE)}"
    return made_once("classic", key, fetch, using=("java",), making=("mvn",)) / "target" / "dependency"


@functools.cache
def classes() -> Path:
    """The folder with the compiled driver. Raises Missing."""
    [version] = [one for one, row in VERSIONS.items() if row.get("compiled")]
    sources = sorted((HERE / "java").rglob("*.java"))
    needed = jars(version)

    def compile_it(made: Path) -> None:
        options = ["--release", "17", "-Xlint:all", "-Werror", "-d", str(made), "-cp", f"{needed}/*"]
        try:
            run_tool(["javac", *options, *map(str, sources)], made)
        except ToolFailed as failed:
            raise AssertionError(f"the driver does not compile: {failed}") from None

    return made_once("classic-driver", digest(version, sources, HERE), compile_it, making=("javac",))


def command_of(version: str) -> list[str]:
    """How to start the driver with a version of the client. Raises Missing."""
    path = os.pathsep.join([str(classes()), str(jars(version) / "*")])
    # Netty of 4.3 asks for more than a Java of today gives without being told so.
    opened = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.home=.", opened)
    return ["java", *options, "-cp", path, "popgate.classic.Driver"]


# where they connect to


def call_admin(gateway: GatewayProcess, path: str, body: object) -> None:
    request = urllib.request.Request(
        f"{gateway.admin}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except urllib.error.HTTPError as refused:
        with refused:
            raise AssertionError(f"{path}: {refused.code} {refused.read().decode()}") from None


def set_popped(address: str, topic: str, group: str) -> None:
    """Consumers of the group that leave it to the broker are to pop the topic."""
    body = json.dumps({"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}).encode()
    answer = ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body, timeout_s=60)
    assert answer.code == ResponseCode.SUCCESS, f"{answer.code} {answer.remark}"


class Gateway:
    """What clients connect to is ours; `creating` is another one, which makes what is not there."""

    def __init__(
        self, process: GatewayProcess, creating: GatewayProcess | None, told: Mapping[str, str]
    ) -> None:
        self.told = dict(told)
        self.process = process
        self._all = [process, *([creating] if creating is not None else [])]
        self.endpoint = process.endpoint
        self.creating = self._all[-1].endpoint

    def make_topic(self, name: str) -> None:
        call_admin(self.process, "/api/topics", {"name": name, "types": [], "queues": QUEUES})

    def make_group(self, name: str) -> None:
        call_admin(self.process, "/api/groups", {"name": name})

    def set_popped(self, topic: str, group: str) -> None:
        set_popped(self.endpoint, topic, group)

    def check(self) -> None:
        """Nothing that clients do may look like an error of the gateway."""
        lines = [line for one in self._all for line in one.log.splitlines()]
        errors = [line for line in lines if '"level": "error"' in line or "Traceback" in line]
        assert not errors, "\n".join(errors[:5])


class Straight:
    """What clients connect to is a RocketMQ's name server."""

    def __init__(self, cluster: SharedRocketMQ) -> None:
        self._cluster = cluster
        self.told: dict[str, str] = {}
        self.endpoint = self.creating = cluster.name_server

    def make_topic(self, name: str) -> None:
        settings = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
        others = {
            "defaultTopic": "TBW102",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        self._done(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": name, **settings, **others})
        end = time.monotonic() + ROUTE_WITHIN_S
        while time.monotonic() < end:
            answer = ask(self.endpoint, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}, timeout_s=30)
            if answer.code == ResponseCode.SUCCESS:
                return
            time.sleep(0.05)
        raise AssertionError(f"the name server does not know {name}")

    def make_group(self, name: str) -> None:
        settings = {"consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True}
        tries = {"retryQueueNums": 1, "retryMaxTimes": 16, "notifyConsumerIdsChangedEnable": True}
        body = json.dumps({"groupName": name, **settings, **tries}).encode()
        self._done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    def set_popped(self, topic: str, group: str) -> None:
        set_popped(self._cluster.broker, topic, group)

    def _done(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        answer = ask(self._cluster.broker, code, fields, body, timeout_s=60)
        assert answer.code == ResponseCode.SUCCESS, f"{code}: {answer.code} {answer.remark}"

    def check(self) -> None:
        """It is not ours to judge."""


Place = Gateway | Straight


class Stage:
    """Plays scenarios side by side at one place; a test asks for the facts of one."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        self._folder = folder
        self._mark = uuid.uuid4().hex[:6]
        self._pools = {version: ThreadPoolExecutor(SIDE_BY_SIDE, version) for version in VERSIONS}
        self._runs: dict[tuple[str, str], Future[Driver]] = {}
        self._drivers: dict[str, Driver] = {}
        self._lock = threading.Lock()
        self._closed = False

    def launch(self, version: str, scenario: str) -> None:
        self._runs[version, scenario] = self._pools[version].submit(self._perform, version, scenario)

    def facts(self, version: str, scenario: str) -> Facts:
        """Wait for a run and its facts. Fails the test when the run did not come to its end."""
        try:
            driver = self._runs[version, scenario].result()
        except Missing as what:
            missing(what)
        facts = driver.wait(scenario, lambda facts: False)
        if not facts.ended_well:
            told = "\n".join(map(str, facts[-20:]))
            pytest.fail(
                f"the run did not end well; its last facts:\n{told}\nand words:\n{driver.last_words()}"
            )
        return Facts([*facts, *self._sent_anew(version, scenario)])

    def _sent_anew(self, version: str, scenario: str) -> list[dict[str, Any]]:
        """A fact for each time that the client, by its log, sent a copy of what it could not send back."""
        log = self.log_of(version)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        prefix = self.names_of(version, scenario)
        mine = [line for line in lines if SENT_ANEW.search(line) and prefix in line]
        return [{"run": scenario, "fact": "sent anew", "line": line[:300]} for line in mine]

    def names_of(self, version: str, scenario: str) -> str:
        """What all names of a run begin with."""
        return f"{self._mark}-{version.replace('.', '_')}-{scenario}"

    def log_of(self, version: str) -> Path:
        """What a client wrote for its operator."""
        return self._folder / version / "logs/rocketmqlogs/rocketmq_client.log"

    def _perform(self, version: str, scenario: str) -> Driver:
        needs = TABLE[scenario]
        prefix = self.names_of(version, scenario)
        named = ["producers", *needs.get("names", ()), *needs.get("topics", ()), *needs.get("groups", ())]
        params = {name: f"{prefix}-{name}" for name in named}
        if needs.get("creation"):
            params["name_server"] = self.place.creating
        params.update(self.place.told)
        for name in needs.get("topics", ()):
            self.place.make_topic(params[name])
        for name in needs.get("groups", ()):
            self.place.make_group(params[name])
        for name in needs.get("pops", ()):
            self.place.set_popped(params["topic"], params[name])
        driver = self._driver(version)
        with AT_ONCE:
            driver.run(scenario, scenario, params)
            driver.wait(scenario, lambda facts: bool(facts.of("finished")), LONGEST_RUN_S)
        return driver

    def _driver(self, version: str) -> Driver:
        with self._lock:
            if self._closed:
                raise RuntimeError("the stage is closed")
            if version not in self._drivers:
                folder = self._folder / version
                with STARTING:
                    driver = Driver(command_of(version), self.place.endpoint, folder)
                    self._drivers[version] = driver
                    driver.wait("driver", lambda facts: bool(facts.of("ready")))
            return self._drivers[version]

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for driver in self._drivers.values():
            driver.close()
        for pool in self._pools.values():
            pool.shutdown(wait=True)


# what is played


def plays(version: str, scenario: str, place: str) -> bool:
    """Whether the tests have a scenario with a version at a place."""
    row = TABLE[scenario]
    if version in row.get("not", {}) or place not in row.get("places", PLACES):
        return False
    if place in BEHIND:
        if not row.get("mapped") or (row["mapped"] == "all" and not ALL):
            return False
        place = BEHIND[place]
    if place == STRAIGHT and not WITH_STRAIGHT:
        return False
    if ALL or place == STRAIGHT:
        return True
    if place == CLUSTER:
        return row.get("core", False) and VERSIONS[version].get("cluster", False)
    return row.get("core", False) or not VERSIONS[version].get("core", False)


def scenario_of(function: str) -> str:
    return function.removeprefix("test_")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `version` runs with each that plays its scenario, at each place."""
    if "version" in metafunc.fixturenames:
        scenario = scenario_of(metafunc.function.__name__)
        pairs = [
            pytest.param(version, place, id=f"{version}-{place}")
            for place in PLACES
            for version in VERSIONS
            if plays(version, scenario, place)
        ]
        metafunc.parametrize(("version", "place"), pairs)


@contextlib.contextmanager
def opened(place: str, folder: Path) -> Iterator[Place]:
    """A place for clients to connect to. Raises Missing."""
    with contextlib.ExitStack() as closing:
        mapped, place = place in BEHIND, BEHIND.get(place, place)
        there = None if place == EMBEDDED else closing.enter_context(shared_rocketmq())
        if place == STRAIGHT:
            assert there is not None
            yield Straight(there)
            return
        broker: list[str] = [] if there is None else ["--broker", there.url]

        def gateway(name: str, *settings: str) -> GatewayProcess:
            options = [word for setting in settings for word in ("--set", setting)]
            listen = ("remoting://127.0.0.1:0",)
            made = GatewayProcess(folder / name, listen=listen, options=[*options, *broker])
            return closing.enter_context(made.start(START_S))

        named = ("remoting.mapped_groups=*",) if mapped else ()
        process = gateway("data", *CHECK_SOON[place], *PATIENT[place], *CREATE_NOTHING, *named)
        told = {"mapped": process.admin} if mapped else {}
        if mapped and there is not None:
            told["straight"] = there.name_server
        creates = place == EMBEDDED and not mapped
        yield Gateway(process, gateway("creating", *CHECK_SOON[place]) if creates else None, told)


@pytest.fixture(scope="module")
def stages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Stage | Missing]]:
    """By place, with everything started that the selected tests of the module need."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == request.path:
            chosen = getattr(getattr(item, "callspec", None), "params", {})
            if "version" in chosen:
                runs = wanted.setdefault(str(chosen["place"]), [])
                runs.append((str(chosen["version"]), scenario_of(item.originalname)))
    with contextlib.ExitStack() as closing:
        stages: dict[str, Stage | Missing] = {}
        for place, runs in wanted.items():
            try:
                for version in dict(runs):
                    command_of(version)
                folder = tmp_path_factory.mktemp(place)
                there = closing.enter_context(opened(place, folder))
            except Missing as what:
                stages[place] = what
                continue
            stage = stages[place] = Stage(there, folder)
            closing.callback(stage.close)
            for version, scenario in runs:
                stage.launch(version, scenario)
        yield stages
        for made in stages.values():
            if isinstance(made, Stage):
                made.close()
                made.place.check()


@pytest.fixture
def facts(
    request: pytest.FixtureRequest, stages: Mapping[str, Stage | Missing], version: str, place: str
) -> Facts:
    """What the driver told about the scenario that the test is named after."""
    stage = stages[place]
    if isinstance(stage, Missing):
        missing(stage)
    facts = stage.facts(version, scenario_of(request.function.__name__))
    if place in BEHIND:
        was_mapped(facts, TABLE[scenario_of(request.function.__name__)])
    return facts


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell what was seen around a test that failed on the facts of a stage."""
    report = yield
    if (given := failed_on_facts(item, report)) is not None:
        assert isinstance(item, pytest.Function)
        scenario, version, place = scenario_of(item.originalname), given["version"], given["place"]
        stage = given["stages"][place]
        add_evidence(
            report,
            given["facts"],
            stage.place.process if isinstance(stage.place, Gateway) else None,
            stage.names_of(version, scenario),
            before_cluster=place not in (EMBEDDED, MAPPED),
            logs=(stage.log_of(version),),
        )
    return report


def was_mapped(facts: Facts, row: Mapping[str, Any]) -> None:
    """The gateway said so of each group."""
    told = facts.of("mapped")
    assert all(one["so"] for one in told), told
    groups = [name for name in row["groups"] if name != "letters"]
    assert len({one["group"] for one in told}) == len(groups), told


@pytest.fixture(scope="session")
def table() -> Mapping[str, Mapping[str, Any]]:
    """The scenarios, as `scenarios.toml` has them."""
    return TABLE
