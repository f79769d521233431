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
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import threading
import urllib.error
import urllib.request
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.rocketmq import SharedRocketMQ, shared_rocketmq

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

LONGEST_RUN_S = 300.0
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
IN_CI = os.environ.get("CI") == "true"
OLDEST_BEFORE_CLUSTER = os.environ.get("TEST_OLDEST_BEFORE_CLUSTER") == "true"


class Facts(list[dict[str, Any]]):
    """What a driver told about one run, in order."""

    def of(self, fact: str, **fields: Any) -> list[dict[str, Any]]:
        """The facts of one kind with these values."""
        return [
            one
            for one in self
            if one["fact"] == fact and all(one.get(name) == value for name, value in fields.items())
        ]

    def received(self, by: str | None = None) -> list[dict[str, Any]]:
        return self.of("received") if by is None else self.of("received", by=by)

    def bodies(self, by: str | None = None) -> list[str]:
        return [one["body"] for one in self.received(by)]

    def step(self, step: str) -> dict[str, Any]:
        """How a step ended: its `done` or `refused`."""
        [found] = [one for one in self if one.get("step") == step]
        return found

    def refusal(self, step: str) -> str:
        """The name of the code a step was refused with; `client` when the client refused by itself."""
        found = self.step(step)
        assert found["fact"] == "refused", f"{step} was not refused"
        return found["error"]["code"] or "client"


class Driver:
    """A driver process; several runs may go on in it."""

    def __init__(self, command: Sequence[str], endpoint: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        home = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [*command, endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **home},
            cwd=folder,
        )
        # Not a file: the Rust client can write gigabytes.
        self._words: deque[bytes] = deque(maxlen=30)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._kept = folder / "facts.jsonl"
        self._news = threading.Condition()
        self._facts: dict[str, Facts] = {}
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                with self._kept.open("ab") as kept:  # for who looks into a failure
                    kept.write(line)
                fact = json.loads(line)
                with self._news:
                    self._facts.setdefault(fact["run"], Facts()).append(fact)
                    self._news.notify_all()
        self._process.wait()
        with self._news:
            self._over = True
            self._news.notify_all()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self._words.extend(self._process.stderr)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: the reader tells
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def run(self, run: str, scenario: str, params: Mapping[str, str]) -> None:
        pairs = " ".join(f"{name}={value}" for name, value in params.items())
        self._tell(f"run {run} {scenario} {pairs}")

    def go(self, run: str) -> None:
        self._tell(f"go {run}")

    def wait(self, run: str, arrived: Callable[[Facts], bool], seconds: float = LONGEST_RUN_S) -> Facts:
        """The facts of a run, once enough `arrived`, the run is over, or the process or the time ended."""
        with self._news:
            self._news.wait_for(
                lambda: self._over or self.ended(run) or arrived(self._facts.get(run, Facts())), seconds
            )
            return Facts(self._facts.get(run, ()))

    def ended(self, run: str) -> bool:
        facts = self._facts.get(run)
        return bool(facts) and facts[-1]["fact"] in ("end", "crash")

    @property
    def dead(self) -> bool:
        return self._over

    def last_words(self) -> str:
        return b"".join(self._words.copy())[-3000:].decode(errors="replace")

    def close(self) -> None:
        """End the process: at once, whatever goes on."""
        self._process.kill()
        self._reader.join()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


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
LISTEN = tuple(f"grpc://{host}:0" for host in HOSTS)
"""Doors of the gateway: several, so that a client can be told the wrong one."""


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


def missing(what: Exception) -> NoReturn:
    """Skip the test, or fail it where everything must be."""
    if IN_CI:
        pytest.fail(str(what))
    pytest.skip(str(what))


def ended_well(wait: Callable[[], tuple[Facts, str]]) -> Facts:
    """The facts of a run. Fails the test when it did not end well, skips it where its client is missing."""
    try:
        facts, words = wait()
    except Missing as what:
        missing(what)
    if not facts or facts[-1]["fact"] != "end":
        told = "\n".join(map(str, facts[-20:]))
        pytest.fail(f"the run did not end well; its last facts:\n{told}\nand words:\n{words}")
    return facts


class Stage:
    """Runs scenarios side by side against one gateway; a test asks for the facts of one."""

    def __init__(self, gateway: GatewayProcess, folder: Path, mark: str = "") -> None:
        """`mark` begins the names of all topics and groups: others may use the broker, too."""
        self.gateway = gateway
        self._mark = mark
        self._folder = folder
        self._pools = {client: ThreadPoolExecutor(SIDE_BY_SIDE, client) for client in CLIENTS}
        self._runs: dict[tuple[str, str], Future[Driver]] = {}
        self._drivers: list[Driver] = []
        self._shared: dict[str, Driver] = {}
        self._lock = threading.Lock()
        self._closing = contextlib.ExitStack()
        self._closed = False

    def launch(self, client: str, scenario: str) -> None:
        self._runs[client, scenario] = self._pools[client].submit(self._perform, client, scenario)

    def facts(self, client: str, scenario: str) -> Facts:
        """Wait for a run and its facts. Fails the test when the run did not come to its end."""
        try:
            driver = self._runs[client, scenario].result()
        except Missing as what:
            missing(what)
        facts = driver.wait(scenario, lambda facts: False)
        if not facts or facts[-1]["fact"] != "end":
            told = "\n".join(map(str, facts[-20:]))
            pytest.fail(
                f"the run did not end well; its last facts:\n{told}\nand words:\n{driver.last_words()}"
            )
        return facts

    def _perform(self, client: str, scenario: str) -> Driver:
        """Run a scenario up to the closing of its clients, which may take long (Java) and needs nobody."""
        command = command_of(client)
        with AT_ONCE:
            return self._play(client, command, scenario)

    def _play(self, client: str, command: Sequence[str], scenario: str) -> Driver:
        params = prepare(self.gateway, scenario, f"{self._mark}{client}")
        before = TABLE[scenario].get("after")
        if before:
            self._run(self._started(client, command, f"{client}-{before}"), before, params)
        if client in ALONE:
            return self._run(self._started(client, command, f"{client}-{scenario}"), scenario, params)
        driver = self._run(self._shared_driver(client, command), scenario, params)
        if driver.dead and not driver.ended(scenario):
            again = prepare(self.gateway, scenario, f"{self._mark}{client}-alone")
            return self._run(self._started(client, command, f"{client}-{scenario}"), scenario, again)
        return driver

    def _run(self, driver: Driver, scenario: str, params: Mapping[str, str]) -> Driver:
        driver.run(scenario, scenario, params)
        driver.wait(scenario, lambda facts: bool(facts.of("finished")))
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
        driver = Driver(command, endpoint, self._folder / name)
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


def options_of(broker: str, settings: Sequence[str], cluster: SharedRocketMQ | None) -> list[str]:
    """The flags of a gateway in front of a broker."""
    options = [word for setting in settings for word in ("--set", setting)]
    if broker == CLUSTER:
        assert cluster is not None
        options += ["--broker", cluster.url]
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
                GatewayProcess(folder / "data", listen=LISTEN, options=options).start(START_S)
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
def before(
    cluster: Callable[[], SharedRocketMQ], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], contextlib.AbstractContextManager[GatewayProcess]]:
    """A gateway before a broker, `embedded` or `cluster`; skips the test where that is missing."""

    @contextlib.contextmanager
    def started(broker: str) -> Iterator[GatewayProcess]:
        try:
            there = cluster() if broker == CLUSTER else None
        except Missing as what:
            missing(what)
        options = options_of(broker, (), there)
        with GatewayProcess(tmp_path_factory.mktemp(broker) / "data", options=options).start(START_S) as made:
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


@pytest.fixture(scope="module")
def interrupt(cluster: Callable[[], SharedRocketMQ]) -> Callable[[str, str, Path], tuple[Facts, str]]:
    """Runs `interrupted` with a client and a broker: SIGTERM at its first `ready`, SIGKILL at its second."""

    def run(client: str, broker: str, folder: Path) -> tuple[Facts, str]:
        command = command_of(client)
        options = options_of(broker, CHECK_SOON[broker], cluster() if broker == CLUSTER else None)
        with contextlib.ExitStack() as closing:
            gateway = closing.enter_context(GatewayProcess(folder / "data", options=options).start(START_S))
            params = prepare(gateway, "interrupted", f"{uuid.uuid4().hex[:6]}-{client}")
            endpoint = closing.enter_context(endpoint_for(client, gateway, folder))
            driver = Driver(command, endpoint, folder / "driver")
            closing.callback(driver.close)
            driver.run("it", "interrupted", params)
            for number, end in enumerate((GatewayProcess.terminate, GatewayProcess.kill), 1):
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


@pytest.fixture(scope="module")
def judged() -> Callable[[Future[tuple[Facts, str]]], Facts]:
    """The facts of a run that came to its end; skips or fails where there are none."""

    def wait(future: Future[tuple[Facts, str]]) -> Facts:
        return ended_well(lambda: future.result())

    return wait
