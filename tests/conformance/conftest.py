"""Runs the scenarios of `scenarios.toml` with official clients, each in its own process, against a gateway.

The gateway stands in front of its embedded broker, or of a real RocketMQ. There the oldest clients run only
when the variable TEST_OLDEST_BEFORE_CLUSTER is `true`.

A test module asks for a `Stage`: a gateway, and every scenario that the selected tests of the module need,
started at once and run side by side (most of them wait most of the time). A Python scenario has a process of
its own; those of another client share one, and when it dies those that had not ended run again, each alone,
so that one crash hides no other result. Each test then waits for the facts of its scenario.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from popgate.testing.driving import Driver, Facts
from popgate.testing.gateway import CREATE_ON_USE, GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.papers import Papers
from popgate.testing.rocketmq import SharedRocketMQ, shared_rocketmq
from tests.support import proxies
from tests.support.needed import missing
from tests.support.waiting import PATIENCE_S

HERE = Path(__file__).parent


def _sibling(name: str) -> Any:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"conformance_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


drivers = _sibling("drivers")
front = _sibling("front")
command_of, goes = drivers.command_of, drivers.goes
EMBEDDED: str = drivers.EMBEDDED
CLUSTER: str = drivers.CLUSTER
BROKERS: tuple[str, ...] = drivers.BROKERS
TABLE: dict[str, dict[str, Any]] = drivers.TABLE
CLIENTS: tuple[str, ...] = drivers.CLIENTS

START_S = 240.0
"""For a gateway, on a machine that starts many other things."""
SIDE_BY_SIDE = 6
"""Scenarios of one client at a time; most of them wait most of the time."""
AT_ONCE = threading.BoundedSemaphore(16)
"""Of all clients together: with more, clients on two busy cores run into their time-outs."""
TLS_ONLY = ("java-oldest",)
"""Clients that always speak TLS, to whatever certificate: something before the gateway ends it for them."""
ALONE = ("python", "python-oldest")
"""Clients of which every scenario has a process of its own; those of the others share one."""
NOTHING: Mapping[str, str] = MappingProxyType({})
OLDEST_BEFORE_CLUSTER = os.environ.get("TEST_OLDEST_BEFORE_CLUSTER") == "true"


# the gateway


def check_log(gateway: GatewayProcess) -> None:
    """Nothing that clients do may look like an error of the gateway."""
    errors = [line for line in gateway.log.splitlines() if '"level": "error"' in line or "Traceback" in line]
    assert not errors, "\n".join(errors[:5])


def call_admin(address: str, path: str, body: object) -> Any:
    request = urllib.request.Request(
        f"{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            raise AssertionError(f"{path}: {refused.code} {refused.read().decode()}") from None


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


HOSTS = ("127.0.0.1", "127.0.0.2", *(["[::1]"] if _has_ipv6() else []))
TRANSPORT = os.environ.get("TEST_GRPC_TRANSPORT", "http2")
"""What carries gRPC: `http2`, the gateway's own, or `grpcio`."""


def listen_by(transport: str) -> tuple[str, ...]:
    """Doors of the gateway: several, so that a client can be told the wrong one."""
    return tuple(f"grpc://{host}:0?transport={transport}" for host in HOSTS)


def dialled(addresses: Sequence[str], host: str) -> str:
    """The endpoint for a client that dials a host. Raises Missing where the machine has no such address."""
    ports = {
        at.rpartition(":")[0]: at.rpartition(":")[2] for at in (a.partition("://")[2] for a in addresses)
    }
    port = ports["127.0.0.1"] if host == "localhost" else ports.get(host)
    if port is None:
        raise Missing(f"this machine has no address {host}")
    return f"{host}:{port}"


@contextlib.contextmanager
def endpoint_for(client: str, gateway: GatewayProcess, folder: Path) -> Iterator[str]:
    """Where a client connects to. Raises Missing."""
    if client in TLS_ONLY:
        with front.TlsFront(gateway.endpoint, folder) as made:
            yield made.endpoint
    else:
        yield gateway.endpoint


def prepare(gateway: GatewayProcess, scenario: str, prefix: str) -> dict[str, str]:
    """Make the topics and groups that a scenario needs; its parameters. Raises Missing."""
    address = gateway.admin
    needs = TABLE[scenario]
    params = {name: f"{prefix}-{scenario}-{name}" for name in needs.get("names", ())}
    if needs.get("admin"):
        params["admin"] = address
    if "dial" in needs:
        params["dial"] = dialled(gateway.addresses, needs["dial"])
    for name, types in needs.get("topics", {}).items():
        params[name] = f"{prefix}-{scenario}-{name}"
        call_admin(address, "/api/topics", {"name": params[name], "types": types})
    for name, settings in needs.get("groups", {}).items():
        params[name] = f"{prefix}-{scenario}-{name}"
        call_admin(address, "/api/groups", {"name": params[name], **settings})
    return params


def ended_well(wait: Callable[[], tuple[Facts, str]]) -> Facts:
    """The facts of a run. Fails the test when it did not end well, skips it where its client is missing."""
    try:
        facts, words = wait()
    except Missing as what:
        missing(what)
    if not facts.ended_well:
        told = "\n".join(map(str, facts[-20:]))
        pytest.fail(f"the run did not end well; its last facts:\n{told}\nand words:\n{words}")
    return facts


class Stage:
    """Runs scenarios side by side against one gateway; a test asks for the facts of one."""

    def __init__(
        self, gateway: GatewayProcess, folder: Path, mark: str = "", environment: Mapping[str, str] = NOTHING
    ) -> None:
        """`mark` begins the names of all topics and groups: others may use the broker, too.

        `environment`: what the clients' processes have beside ours.
        """
        self.gateway = gateway
        self._mark = mark
        self._folder = folder
        self._pools = {client: ThreadPoolExecutor(SIDE_BY_SIDE, client) for client in CLIENTS}
        self._environment = environment
        self._runs: dict[tuple[str, str, str], Future[Driver]] = {}
        self._drivers: list[Driver] = []
        self._shared: dict[str, Driver] = {}
        self._lock = threading.Lock()
        self._closing = contextlib.ExitStack()
        self._closed = False

    def launch(self, client: str, scenario: str, way: str = "", params: Mapping[str, str] = NOTHING) -> None:
        """`way` tells runs of one scenario apart; `params` are more of them: `at` is the address to dial,
        `tls` that it is dialled with TLS.
        """
        self._runs[client, scenario, way] = self._pools[client].submit(
            self._perform, client, scenario, way, params
        )

    def facts(self, client: str, scenario: str, way: str = "") -> Facts:
        """Wait for a run and its facts. Fails the test when the run did not come to its end."""
        try:
            driver = self._runs[client, scenario, way].result()
        except Missing as what:
            missing(what)
        facts = driver.wait(f"{scenario}{way}", lambda facts: False)
        if not facts.ended_well:
            told = "\n".join(map(str, facts[-20:]))
            pytest.fail(
                f"the run did not end well; its last facts:\n{told}\nand words:\n{driver.last_words()}"
            )
        return facts

    def _perform(self, client: str, scenario: str, way: str, more: Mapping[str, str]) -> Driver:
        """Run a scenario up to the closing of its clients, which may take long (Java) and needs nobody."""
        command = command_of(client)
        with AT_ONCE:
            return self._play(client, command, scenario, way, more)

    def _play(
        self, client: str, command: Sequence[str], scenario: str, way: str, more: Mapping[str, str]
    ) -> Driver:
        run = f"{scenario}{way}"
        params = {**prepare(self.gateway, scenario, f"{self._mark}{client}{way}"), **more}
        before = TABLE[scenario].get("after")
        if before:
            self._run(self._started(client, command, f"{client}-{before}{way}"), before, before, params)
        if client in ALONE:
            return self._run(self._started(client, command, f"{client}-{run}"), run, scenario, params)
        driver = self._run(self._shared_driver(client, command), run, scenario, params)
        if driver.dead and not driver.ended(run):
            again = {**prepare(self.gateway, scenario, f"{self._mark}{client}{way}-alone"), **more}
            return self._run(self._started(client, command, f"{client}-{run}"), run, scenario, again)
        return driver

    def _run(self, driver: Driver, run: str, scenario: str, params: Mapping[str, str]) -> Driver:
        driver.run(run, scenario, params)
        driver.wait(run, lambda facts: bool(facts.of("finished")))
        return driver

    def _shared_driver(self, client: str, command: Sequence[str]) -> Driver:
        with self._lock:
            if client not in self._shared:
                self._shared[client] = self._started(client, command, client)
            return self._shared[client]

    def _started(self, client: str, command: Sequence[str], name: str) -> Driver:
        if self._closed:
            raise RuntimeError("the stage is closed")
        endpoint = self._closing.enter_context(endpoint_for(client, self.gateway, self._folder))
        driver = Driver(command, endpoint, self._folder / name, self._environment)
        self._drivers.append(driver)
        return driver

    def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for driver in self._drivers:
            driver.close()
        for pool in self._pools.values():
            pool.shutdown(wait=True)
        self._closing.close()


CHECK_SOON = {
    EMBEDDED: ("transactions.first_check_s=3", "transactions.check_interval_s=3"),
    CLUSTER: ("remote.transaction_check_s=10",),  # of the one time; the other one is the cluster's
}
CREATE_NOTHING = ("topics.auto_create=false", "groups.auto_create=false")
PATIENT = ("remote.request_timeout_s=30", "remote.connect_timeout_s=30", "remote.probe_s=30")
"""A cluster that shares two cores with many clients is slow, and clients here wait for longer than 3 s."""


def options_of(broker: str, settings: Sequence[str], cluster: SharedRocketMQ | None) -> list[str]:
    """The flags of a gateway in front of a broker."""
    patience = PATIENT if broker == CLUSTER else ()
    options = [word for setting in (*settings, *patience) for word in ("--set", setting)]
    if broker == CLUSTER:
        assert cluster is not None
        creation = () if set(CREATE_NOTHING) <= set(settings) else CREATE_ON_USE
        options += ["--broker", cluster.url, *creation]
    return options


def scenario_of(function: str) -> str:
    return function.removeprefix("test_")


def wanted(client: str, broker: str) -> bool:
    """Whether the tests of this run have the client in front of the broker."""
    return broker == EMBEDDED or client in drivers.LANGUAGES or OLDEST_BEFORE_CLUSTER


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `client` runs for each whose API has its scenario, with each broker that has it."""
    if "client" in metafunc.fixturenames:
        row = TABLE[scenario_of(metafunc.function.__name__)]
        pairs = [
            pytest.param(client, broker, id=client if broker == EMBEDDED else f"{client}-before-{broker}")
            for broker in BROKERS
            for client in CLIENTS
            if goes(row, client, broker) is True and wanted(client, broker)
        ]
        metafunc.parametrize(("client", "broker"), pairs)


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
                stage.launch(client, scenario)
        yield stages
        built = [stage for stage in stages.values() if isinstance(stage, Stage)]
        for stage in built:
            stage.close()
        for stage in built:
            check_log(stage.gateway)


@pytest.fixture(scope="session")
def by_transport(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Sequence[tuple[str, str]]], contextlib.AbstractContextManager[Stage]]:
    """A stage for runs of (client, scenario) before the embedded broker, with a transport of gRPC."""

    @contextlib.contextmanager
    def started(transport: str, runs: Sequence[tuple[str, str]]) -> Iterator[Stage]:
        folder = tmp_path_factory.mktemp(transport)
        options = options_of(EMBEDDED, CHECK_SOON[EMBEDDED], None)
        gateway = GatewayProcess(folder / "data", listen=listen_by(transport), options=options)
        with gateway.start(START_S):
            stage = Stage(gateway, folder)
            try:
                for client, scenario in runs:
                    stage.launch(client, scenario)
                yield stage
            finally:
                stage.close()
            check_log(gateway)

    return started


@pytest.fixture(scope="session")
def behind_proxies(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., contextlib.AbstractContextManager[Stage]]:
    """A stage for runs of (client, scenario, way) before the embedded broker, with a proxy for each way.

    A way is a proxy's name and `plain` or `tls`, with which both sides of it speak TLS. Skips where a
    proxy is missing. Unless `creation`, nothing is made on first use.
    """

    @contextlib.contextmanager
    def started(runs: Sequence[tuple[str, str, str]], creation: bool = True) -> Iterator[Stage]:
        folder = tmp_path_factory.mktemp("proxies")
        papers = Papers(folder)
        certificate, key = papers.pair("gateway")
        papers.pair("proxy")
        secured = (f"tls.certificate={certificate}", f"tls.key={key}")
        settings = CHECK_SOON[EMBEDDED] if creation else CREATE_NOTHING
        options = options_of(EMBEDDED, (*secured, *settings), None)
        listen = ("grpc://127.0.0.1:0", "grpc://127.0.0.1:0?tls=true")
        with contextlib.ExitStack() as closing:
            gateway = GatewayProcess(folder / "data", listen=listen, options=options)
            closing.enter_context(gateway.start(START_S))
            doors: dict[str, Mapping[str, str]] = {}
            for way in dict.fromkeys(way for _, _, way in runs):
                name, _, kind = way.partition("-")
                door = gateway.addresses[int(kind == "tls")].partition("://")[2]
                place = tmp_path_factory.mktemp(way)
                try:
                    proxy = proxies.proxy(name, place, door, papers if kind == "tls" else None)
                    at = closing.enter_context(proxy)
                except Missing as what:
                    missing(what)
                doors[way] = {"at": at, **({"tls": "true"} if kind == "tls" else {})}
            trusted = str(papers.authority)
            # Of gRPC's library and its form for Node.js; and of OpenSSL, which Rust's libraries read, too.
            roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": trusted, "SSL_CERT_FILE": trusted}
            stage = Stage(gateway, folder, environment=roots)
            closing.callback(stage.close)
            for client, scenario, way in runs:
                params = dict(doors[way])
                if "dial" in TABLE[scenario]:
                    params["dial"] = f"{TABLE[scenario]['dial']}:{params['at'].rpartition(':')[2]}"
                stage.launch(client, scenario, f"-{way}", params)
            yield stage
            stage.close()
            check_log(gateway)

    return started


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
def facts(request: pytest.FixtureRequest, stages: Stages, client: str, broker: str) -> Facts:
    """What the driver of `client` told about the scenario that the test is named after."""
    scenario = scenario_of(request.function.__name__)
    stage = stages[broker, TABLE[scenario].get("creation", True)]
    if not isinstance(stage, Stage):
        missing(stage)
    return stage.facts(client, scenario)


@pytest.fixture(scope="module")
def selected_clients(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """The (client, broker) of the selected tests of this module."""
    return list(dict.fromkeys((client, broker) for broker, client, _ in selected(request)))


ALONE_DRAIN = "stopping.drain_s=1"
"""For a gateway that is alone: before a cluster it leaves Telemetry streams open while it drains, and until
that is over nobody serves. What consumers hold (for five minutes here) must outlast it, and the start of the
next one, which on a busy machine took more than one."""


@pytest.fixture(scope="module")
def interrupt(cluster: Callable[[], SharedRocketMQ]) -> Callable[[str, str, Path], tuple[Facts, str]]:
    """Runs `interrupted` with a client and a broker: SIGTERM at its first `ready`, SIGKILL at its second."""

    def run(client: str, broker: str, folder: Path) -> tuple[Facts, str]:
        command = command_of(client)
        settings = (*CHECK_SOON[broker], ALONE_DRAIN)
        options = options_of(broker, settings, cluster() if broker == CLUSTER else None)
        with contextlib.ExitStack() as closing:
            gateway = GatewayProcess(folder / "data", options=options, holds_ports=True)
            closing.enter_context(gateway.start(START_S))
            params = prepare(gateway, "interrupted", f"{uuid.uuid4().hex[:6]}-{client}")
            endpoint = closing.enter_context(endpoint_for(client, gateway, folder))
            driver = Driver(command, endpoint, folder / "driver")
            closing.callback(driver.close)
            driver.run("it", "interrupted", params)
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

    return run


LONG_DRAIN_S = 240
"""Longer than any client takes to end: what ends before was not ended by the drain's own time."""


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


@pytest.fixture(scope="module")
def drain(
    cluster: Callable[[], SharedRocketMQ],
) -> Callable[[str, str, str, int, Path], tuple[tuple[Facts, Drained], str]]:
    """Runs `drained` with a client, a broker and a transport: SIGTERM at its `ready`, the next one at `go`.

    Before a cluster the next one is started while the first one drains, at the same addresses. `stay`: so
    many streams should be open then.
    """

    def run(
        client: str, broker: str, transport: str, stay: int, folder: Path
    ) -> tuple[tuple[Facts, Drained], str]:
        command = command_of(client)
        settings = (f"stopping.drain_s={LONG_DRAIN_S}",)
        options = options_of(broker, settings, cluster() if broker == CLUSTER else None)
        with contextlib.ExitStack() as closing:
            first = GatewayProcess(
                folder / "data", listen=listen_by(transport), options=options, holds_ports=True
            )
            closing.enter_context(first.start(START_S))
            params = prepare(first, "drained", f"{uuid.uuid4().hex[:6]}-{client}")
            endpoint = closing.enter_context(endpoint_for(client, first, folder))
            driver = Driver(command, endpoint, folder / "driver")
            closing.callback(driver.close)
            driver.run("it", "drained", params)
            if not driver.wait("it", lambda facts: bool(facts.of("ready"))).of("ready"):
                return (driver.wait("it", lambda facts: False), Drained(0, 0, {})), driver.last_words()
            before = connected(first, 2)
            # On a busy machine a receive may have failed before.
            failed = len(driver.wait("it", lambda facts: True).of("unanswered"))
            first.signal(signal.SIGTERM)
            if broker == EMBEDDED:
                first.wait(LONG_DRAIN_S / 2)
                next_one, during = first.successor(), 0
            else:
                # It was told to go, and nobody serves it elsewhere yet.
                driver.wait("it", lambda facts: len(facts.of("unanswered")) > failed)
                during = connected(first, stay)
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
            return (facts, Drained(before, during, summary)), driver.last_words()

    return run


def connected(gateway: GatewayProcess, wanted: int) -> int:
    """How many clients have their Telemetry stream open, as the gateway's admin page tells; 0: it ended.

    Asked until there are as many as wanted: a worker that does not answer another one in time, because the
    machine is busy, is missing in what that one tells. No client comes while a gateway drains: who was let go
    does not count again.
    """
    told, end = 0, time.monotonic() + PATIENCE_S
    while told < wanted and time.monotonic() < end and "stopped " not in gateway.output:
        try:
            with urllib.request.urlopen(f"{gateway.admin}/api/clients", timeout=PATIENCE_S) as answer:
                told = sum(one["connected"] for one in json.load(answer)["clients"])
        except (OSError, http.client.HTTPException):
            # A worker that has nobody to drain ends at once, with the connection that it was just handed.
            told = 0
        if told < wanted:
            time.sleep(0.1)
    return told


@pytest.fixture(scope="module")
def judged() -> Callable[..., Facts]:
    """The facts of a run that came to its end, as `told` finds them; skips or fails where there are none."""

    def wait(future: Future[Any], told: Callable[[Future[Any]], tuple[Facts, str]] = Future.result) -> Facts:
        return ended_well(lambda: told(future))

    return wait
