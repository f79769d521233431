"""Official clients before a gateway with nginx (`grpc_pass`) or HAProxy between, plain and over TLS.

In the test command each client goes one way with one scenario, and every way is gone. In the long series
(sh tests/run.sh --long proxies) every client goes every way with all its scenarios.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator
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
SHORT = [(way, language, "normal") for way, language in zip(WAYS, LANGUAGES, strict=True)]
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
    return [
        (item.callspec.params["way"], item.callspec.params["language"], item.callspec.params["scenario"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec")
    ]


_begun: list[tuple[str, ...]] = []
"""The ways whose stages were begun, each time."""


@pytest.fixture(scope="module")
def stages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    _begun.append(request.param)
    everything = [run for run in selected(request) if run[0] in request.param]
    papers = Papers(tmp_path_factory.mktemp("papers"))
    papers.pair("proxy")
    gateways: dict[bool, GatewayProcess] = {}
    stages: Stages = {}
    with contextlib.ExitStack() as closing:
        for way, language, scenario in everything:
            creation = creates(scenario)
            if creation not in gateways:
                gateway = started(papers, tmp_path_factory.mktemp("gateway"), creation)
                gateways[creation] = closing.enter_context(gateway)
            if (way, creation) not in stages:
                stage = behind(way, gateways[creation], papers, tmp_path_factory.mktemp(way))
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


@pytest.mark.parametrize(
    ("stages", "way", "language", "scenario"),
    [pytest.param(TOGETHER[run[0]], *run, id="-".join(run)) for run in (ALL if LONG else SHORT)],
    indirect=["stages"],
    scope="module",  # else each test would have stages of its own, and play all runs again
)
def test_behind_a_proxy(stages: Stages, way: str, language: str, scenario: str) -> None:
    check = getattr(checks, f"test_{scenario}")
    more = {"client": language} if "client" in inspect.signature(check).parameters else {}
    check(stages[way, creates(scenario)].facts(language, scenario), **more)


def test_the_runs_of_a_way_are_played_once() -> None:
    assert len(_begun) == len(set(_begun))
