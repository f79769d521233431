"""Runs the scenarios of `scenarios.toml` with official clients, each in its own process, against a gateway.

The gateway stands in front of its embedded broker, or of a real RocketMQ. Only when the variable
TEST_OLDEST_EVERYWHERE is `true` do the oldest clients run there, too, and those scenarios of which the table
does not speak for each of them.

A test module asks for a `Stage`: a gateway, and every scenario that the selected tests of the module need,
started at once and run side by side (most of them wait most of the time). Each test then waits for the facts
of its scenario.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from popgate.testing.client_programs import Facts
from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.rocketmq import SharedRocketMQ, shared_rocketmq
from tests.conformance.drivers import BROKERS, CLIENTS, CLUSTER, EMBEDDED, LANGUAGES, TABLE, goes
from tests.conformance.gateways import (
    CHECK_SOON,
    CREATE_NOTHING,
    START_S,
    TRANSPORT,
    call_admin,
    check_log,
    listen_by,
    options_of,
)
from tests.conformance.stages import Stage, ended_well
from tests.support.evidence import add_evidence, failed_on_facts
from tests.support.needed import missing
from tests.support.versions import lacks, needs

OLDEST_EVERYWHERE = os.environ.get("TEST_OLDEST_EVERYWHERE") == "true"
_OLDEST = {client.partition("-")[0] for client in CLIENTS if client not in LANGUAGES}


def scenario_of(function: str) -> str:
    return function.removeprefix("test_")


def wanted(client: str, broker: str, row: Mapping[str, Any]) -> bool:
    """Whether the tests of this run have the client in front of the broker, with a scenario of the table."""
    if client in LANGUAGES or OLDEST_EVERYWHERE:
        return True
    return broker == EMBEDDED and row.get("oldest", {}).keys() == _OLDEST


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `client` runs for each whose API has its scenario, with each broker that has it."""
    if "client" in metafunc.fixturenames:
        row = TABLE[scenario_of(metafunc.function.__name__)]
        pairs = [
            pytest.param(client, broker, id=client if broker == EMBEDDED else f"{client}-before-{broker}")
            for broker in BROKERS
            for client in CLIENTS
            if goes(row, client, broker) is True and wanted(client, broker, row)
        ]
        metafunc.parametrize(("client", "broker"), pairs)


def is_there(scenario: str, there: SharedRocketMQ | None) -> bool:
    """Whether the broker has all that a scenario needs of it; the embedded one always has."""
    newer = TABLE[scenario].get("rocketmq")
    return newer is None or there is None or not lacks(there.version, newer)


def selected(request: pytest.FixtureRequest) -> list[tuple[str, str, str]]:
    """(broker, client, scenario) of every selected test of the module that asks."""
    return [
        (
            str(item.callspec.params["broker"]),
            str(item.callspec.params["client"]),
            scenario_of(item.originalname),
        )
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and "client" in getattr(getattr(item, "callspec", None), "params", {})
    ]


@pytest.fixture(scope="session")
def admin() -> Callable[[str, str, object], Any]:
    """Posts a body to a path of a gateway's admin address; the answer."""
    return call_admin


@pytest.fixture(scope="session")
def table() -> dict[str, dict[str, Any]]:
    """The scenarios, as `scenarios.toml` has them."""
    return TABLE


@pytest.fixture(scope="session")
def cluster() -> Iterator[Callable[[], SharedRocketMQ]]:
    """The RocketMQ that all tests share, started when it is asked for; then it raises Missing or the like."""
    lock = threading.Lock()
    with contextlib.ExitStack() as closing:
        found: list[SharedRocketMQ] = []

        def ask() -> SharedRocketMQ:
            with lock:
                if not found:
                    found.append(closing.enter_context(shared_rocketmq()))
                return found[0]

        yield ask


Stages = dict[tuple[str, bool], Stage | Missing]


@pytest.fixture(scope="module")
def stages(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    cluster: Callable[[], SharedRocketMQ],
) -> Iterator[Stages]:
    """By broker, the stages where topics and groups are made on first use (True), and where they are not."""
    everything = selected(request)
    with contextlib.ExitStack() as closing:
        stages: Stages = {}
        for place in itertools.product(BROKERS, (True, False)):
            broker, creation = place
            mine = [
                (client, scenario)
                for at, client, scenario in everything
                if at == broker and TABLE[scenario].get("creation", True) is creation
            ]
            if not mine:
                continue
            try:
                there = cluster() if broker == CLUSTER else None
            except Missing as what:
                stages[place] = what
                continue
            folder = tmp_path_factory.mktemp("stage")
            options = options_of(broker, CHECK_SOON[broker] if creation else CREATE_NOTHING, there)
            gateway = closing.enter_context(
                GatewayProcess(folder / "data", listen=listen_by(TRANSPORT), options=options).start(START_S)
            )
            stage = stages[place] = Stage(gateway, folder, f"{uuid.uuid4().hex[:6]}-" if there else "")
            closing.callback(stage.close)
            for client, scenario in mine:
                if is_there(scenario, there):
                    stage.launch(client, scenario)
        yield stages
        built = [stage for stage in stages.values() if isinstance(stage, Stage)]
        for stage in built:
            stage.close()
        for stage in built:
            check_log(stage.gateway)


@pytest.fixture(scope="session")
def before(
    cluster: Callable[[], SharedRocketMQ], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., contextlib.AbstractContextManager[GatewayProcess]]:
    """A gateway before a broker, `embedded` or `cluster`, with settings; skips where that is missing."""

    @contextlib.contextmanager
    def started(broker: str, *settings: str) -> Iterator[GatewayProcess]:
        try:
            there = cluster() if broker == CLUSTER else None
        except Missing as what:
            missing(what)
        options = options_of(broker, settings, there)
        data = tmp_path_factory.mktemp(broker) / "data"
        with GatewayProcess(data, listen=listen_by(TRANSPORT), options=options).start(START_S) as made:
            yield made

    return started


@pytest.fixture
def facts(
    request: pytest.FixtureRequest,
    stages: Stages,
    client: str,
    broker: str,
    cluster: Callable[[], SharedRocketMQ],
) -> Facts:
    """What the driver of `client` told about the scenario that the test is named after."""
    scenario = scenario_of(request.function.__name__)
    stage = stages[broker, TABLE[scenario].get("creation", True)]
    if not isinstance(stage, Stage):
        missing(stage)
    newer = TABLE[scenario].get("rocketmq")
    if newer is not None and broker == CLUSTER:
        needs(cluster().version, newer)
    return stage.facts(client, scenario)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell what was seen around a test that failed on the facts of a stage."""
    report = yield
    if (given := failed_on_facts(item, report)) is not None:
        assert isinstance(item, pytest.Function)
        scenario, broker, client = scenario_of(item.originalname), given["broker"], given["client"]
        stage = given["stages"][broker, TABLE[scenario].get("creation", True)]
        names = stage.names_of(client, scenario)
        add_evidence(report, given["facts"], stage.gateway, names, before_cluster=broker == CLUSTER)
    return report


@pytest.fixture(scope="module")
def selected_clients(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """The (client, broker) of the selected tests of this module."""
    return list(dict.fromkeys((client, broker) for broker, client, _ in selected(request)))


@pytest.fixture(scope="module")
def judged() -> Callable[..., Facts]:
    """The facts of a run that came to its end, as `told` finds them; skips or fails where there are none."""

    def wait(future: Future[Any], told: Callable[[Future[Any]], tuple[Facts, str]] = Future.result) -> Facts:
        return ended_well(lambda: told(future))

    return wait
