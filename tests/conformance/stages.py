"""Scenarios that are played side by side before one gateway, each with the topics and groups that it needs.

A Python scenario has a process of its own; those of another client share one, and when it dies those that had
not ended run again, each alone, so that one crash hides no other result.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import pytest

from popgate.testing.client_programs import Driver, Facts
from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from tests.conformance.drivers import CLIENTS, TABLE, command_of
from tests.conformance.front import TlsFront
from tests.conformance.gateways import call_admin, dialled
from tests.support.needed import missing

SIDE_BY_SIDE = 6
"""Scenarios of one client at a time; most of them wait most of the time."""
AT_ONCE = threading.BoundedSemaphore(16)
"""Of all clients together: with more, clients on two busy cores run into their time-outs."""
TLS_ONLY = ("java-oldest",)
"""Clients that always speak TLS, to whatever certificate: something before the gateway ends it for them."""
ALONE = ("python", "python-oldest")
"""Clients of which every scenario has a process of its own; those of the others share one."""
NOTHING: Mapping[str, str] = MappingProxyType({})


@contextlib.contextmanager
def endpoint_for(client: str, gateway: GatewayProcess, folder: Path) -> Iterator[str]:
    """Where a client connects to. Raises Missing."""
    if client in TLS_ONLY:
        with TlsFront(gateway.endpoint, folder) as made:
            yield made.endpoint
    else:
        yield gateway.endpoint


def prepare(gateway: GatewayProcess, scenario: str, prefix: str, doors: Sequence[str] = ()) -> dict[str, str]:
    """Make the topics and groups that a scenario needs; its parameters. Raises Missing.

    `doors`: the addresses at which it can be dialled, instead of the gateway's own.
    """
    address = gateway.admin
    needs = TABLE[scenario]
    params = {name: f"{prefix}-{scenario}-{name}" for name in needs.get("names", ())}
    if needs.get("admin"):
        params["admin"] = address
    if "dial" in needs:
        params["dial"] = dialled(doors or gateway.addresses, needs["dial"])
    for name, types in needs.get("topics", {}).items():
        params[name] = f"{prefix}-{scenario}-{name}"
        call_admin(address, "/api/topics", {"name": params[name], "types": types})
    for name, settings in needs.get("groups", {}).items():
        params[name] = f"{prefix}-{scenario}-{name}"
        call_admin(address, "/api/groups", {"name": params[name], **settings})
    return params


@contextlib.contextmanager
def playing(client: str, scenario: str, gateway: GatewayProcess, folder: Path) -> Iterator[Driver]:
    """A driver that has begun a scenario as its run `it`, before a gateway that runs. Raises Missing."""
    params = prepare(gateway, scenario, f"{uuid.uuid4().hex[:6]}-{client}")
    with endpoint_for(client, gateway, folder) as endpoint:
        driver = Driver(command_of(client), endpoint, folder / "driver")
        try:
            driver.run("it", scenario, params)
            yield driver
        finally:
            driver.close()


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
        self,
        gateway: GatewayProcess,
        folder: Path,
        mark: str = "",
        *,
        proxy: str = "",
        params: Mapping[str, str] = NOTHING,
        environment: Mapping[str, str] = NOTHING,
    ) -> None:
        """`mark` begins the names of all topics and groups: others may use the broker, too.

        `proxy`: the address that clients dial in the place of the gateway's own. Every run has `params` and
        every driver's process the variables of `environment` beside its own.
        """
        self.gateway = gateway
        self._folder = folder
        self._mark = mark
        self._proxy = proxy
        self._params = params
        self._environment = environment
        self._pools = {client: ThreadPoolExecutor(SIDE_BY_SIDE, client) for client in CLIENTS}
        self._runs: dict[tuple[str, str], Future[Driver]] = {}
        self._drivers: list[Driver] = []
        self._shared: dict[str, Driver] = {}
        self._lock = threading.Lock()
        self._closing = contextlib.ExitStack()
        self._closed = False

    def launch(self, client: str, scenario: str) -> None:
        self._runs[client, scenario] = self._pools[client].submit(self._perform, client, scenario)

    def names_of(self, client: str, scenario: str) -> str:
        """What the names of the topics and groups of a run begin with."""
        return f"{self._mark}{client}-{scenario}"

    def facts(self, client: str, scenario: str) -> Facts:
        """Wait for a run and its facts. Fails the test when the run did not come to its end."""

        def wait() -> tuple[Facts, str]:
            driver = self._runs[client, scenario].result()
            return driver.wait(scenario, lambda facts: False), driver.last_words()

        return ended_well(wait)

    def _perform(self, client: str, scenario: str) -> Driver:
        """Run a scenario up to the closing of its clients, which may take long (Java) and needs nobody."""
        command = command_of(client)
        with AT_ONCE:
            return self._play(client, command, scenario)

    def _play(self, client: str, command: Sequence[str], scenario: str) -> Driver:
        params = self._prepared(scenario, client)
        before = TABLE[scenario].get("after")
        if before:
            self._run(self._started(client, command, f"{client}-{before}"), before, params)
        if client in ALONE:
            return self._run(self._started(client, command, f"{client}-{scenario}"), scenario, params)
        driver = self._run(self._shared_driver(client, command), scenario, params)
        if driver.dead and not driver.ended(scenario):
            again = self._prepared(scenario, f"{client}-alone")
            return self._run(self._started(client, command, f"{client}-{scenario}"), scenario, again)
        return driver

    def _prepared(self, scenario: str, prefix: str) -> dict[str, str]:
        doors = (f"grpc://{self._proxy}",) if self._proxy else ()
        return {**prepare(self.gateway, scenario, f"{self._mark}{prefix}", doors), **self._params}

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
        endpoint = self._proxy or self._closing.enter_context(
            endpoint_for(client, self.gateway, self._folder)
        )
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
