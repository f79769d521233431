"""Official clients before a gateway with nginx (`grpc_pass`) or HAProxy between, plain and over TLS.

In the test command each client goes one way with one scenario, and every way is gone. In the long series
(sh tests/run.sh --long proxies) every client goes every way with all its scenarios.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.papers import Papers
from tests.conformance import test_clients as checks
from tests.conformance.drivers import EMBEDDED, LANGUAGES, TABLE
from tests.conformance.gateways import (
    CHECK_SOON,
    CREATE_NOTHING,
    START_S,
    TRANSPORT,
    check_log,
    options_of,
)
from tests.conformance.stages import Stage
from tests.support import proxies
from tests.support.needed import missing

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

WAYS = ("haproxy-plain", "nginx-plain", "nginx-tls", "haproxy-tls")
"""A proxy, and whether both sides of it speak TLS."""
ELSEWHERE = ("by_address", "by_ipv6", "interrupted", "drained")
"""What needs other addresses of the gateway than that of a proxy, or other gateways."""
SHORT = [(way, language, "normal") for way, language in zip(itertools.cycle(WAYS), LANGUAGES, strict=False)]
ALL = [
    (way, language, scenario)
    for way in WAYS
    for scenario, row in TABLE.items()
    for language in LANGUAGES
    if row[language] is True and scenario not in ELSEWHERE
]
LONG = os.environ.get("TEST_PROXIES_ALL") == "true"
TOGETHER = {way: (way,) if LONG else WAYS for way in WAYS}
"""By way, the ways that are gone at the same time: with all runs of all ways some would wait very long."""

Run = tuple[str, str, str]
Stages = dict[tuple[str, bool], Stage]
"""By way, and by whether topics and groups are made on first use."""


def creates(scenario: str) -> bool:
    return bool(TABLE[scenario].get("creation", True))


def selected(request: pytest.FixtureRequest) -> list[Run]:
    """The way, the language and the scenario of each selected test of this module."""
    specs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    return [
        (spec.params["way"], spec.params["language"], spec.params["scenario"])
        for spec in specs
        if spec is not None
    ]


_begun: list[tuple[str, ...]] = []
"""The ways whose stages were begun, each time."""


@pytest.fixture(scope="module")
def stages_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Stages]]:
    """The stages of a way, which are closed when those of another one are asked for.

    No fixture with parameters: pytest makes that anew for each test whose other parameters differ.
    """
    current: dict[tuple[str, ...], Stages] = {}
    with contextlib.ExitStack() as closing:

        def find(way: str) -> Stages:
            ways = TOGETHER[way]
            if ways not in current:
                current.clear()
                closing.close()
                _begun.append(ways)
                runs = [run for run in selected(request) if run[0] in ways]
                current[ways] = closing.enter_context(played(runs, tmp_path_factory))
            return current[ways]

        yield find


@contextlib.contextmanager
def played(runs: Sequence[Run], folders: pytest.TempPathFactory) -> Iterator[Stages]:
    """Stages on which the runs have begun."""
    papers = Papers(folders.mktemp("papers"))
    papers.pair("proxy")
    gateways: dict[bool, GatewayProcess] = {}
    stages: Stages = {}
    with contextlib.ExitStack() as closing:
        for way, language, scenario in runs:
            creation = creates(scenario)
            if creation not in gateways:
                gateway = started(papers, folders.mktemp("gateway"), creation)
                gateways[creation] = closing.enter_context(gateway)
            if (way, creation) not in stages:
                stage = behind(way, gateways[creation], papers, folders.mktemp(way))
                try:
                    stages[way, creation] = closing.enter_context(stage)
                except Missing as what:
                    missing(what)
            stages[way, creation].launch(language, scenario)
        yield stages


@contextlib.contextmanager
def started(papers: Papers, folder: Path, creation: bool) -> Iterator[GatewayProcess]:
    """A gateway whose second door speaks TLS; unless `creation`, nothing is made on first use."""
    certificate, key = papers.pair("gateway")
    settings = CHECK_SOON[EMBEDDED] if creation else CREATE_NOTHING
    options = options_of(EMBEDDED, (f"tls.certificate={certificate}", f"tls.key={key}", *settings), None)
    door = f"grpc://127.0.0.1:0?transport={TRANSPORT}"
    with GatewayProcess(folder, listen=(door, f"{door}&tls=true"), options=options).start(START_S) as gateway:
        yield gateway
        check_log(gateway)


@contextlib.contextmanager
def behind(way: str, gateway: GatewayProcess, papers: Papers, folder: Path) -> Iterator[Stage]:
    """A stage whose clients go one way. Raises Missing."""
    name, _, kind = way.partition("-")
    secured = kind == "tls"
    door = gateway.addresses[int(secured)].partition("://")[2]
    trusted = str(papers.authority)
    # Of gRPC's library and its form for Node.js; and of OpenSSL, which Rust's libraries read, too.
    roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": trusted, "SSL_CERT_FILE": trusted}
    params = {"tls": "true"} if secured else {}
    with proxies.proxy(name, folder, door, papers if secured else None) as address:
        stage = Stage(gateway, folder, f"{way}-", proxy=address, params=params, environment=roots)
        with contextlib.closing(stage):
            yield stage


@pytest.mark.parametrize(("way", "language", "scenario"), ALL if LONG else SHORT)
def test_behind_a_proxy(stages_of: Callable[[str], Stages], way: str, language: str, scenario: str) -> None:
    check = getattr(checks, f"test_{scenario}")
    more = {"client": language} if "client" in inspect.signature(check).parameters else {}
    check(stages_of(way)[way, creates(scenario)].facts(language, scenario), **more)


def test_the_runs_of_a_way_are_played_once() -> None:
    assert len(_begun) == len(set(_begun))
