"""Judges that others wrote: built or fetched once, kept in the cache of tests (`popgate.testing.made`)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.papers import Papers
from tests.outside import charts
from tests.outside.go_programs import go_program
from tests.support.needed import missing


@pytest.fixture(scope="session")
def judge() -> Callable[[str, str], Path]:
    """`go_program`; skips the test, or fails it where CI is true, for want of Go or its modules."""

    def found(name: str, package: str) -> Path:
        try:
            return go_program(name, package)
        except Missing as what:
            missing(what)

    return found


@pytest.fixture(scope="session")
def refuse() -> Callable[[Exception], NoReturn]:
    """`missing`, for what tests find out for themselves."""
    return missing


@pytest.fixture(scope="session")
def helm() -> Path:
    try:
        return charts.helm()
    except Missing as what:
        missing(what)


@pytest.fixture
def render(helm: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Renders the chart with options of Helm."""

    def with_options(*options: str) -> subprocess.CompletedProcess[str]:
        return charts.render(helm, *options, home=tmp_path)

    return with_options


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def gateway(papers: Papers) -> Iterator[GatewayProcess]:
    """Its second door speaks TLS."""
    certificate, key = papers.pair("gateway")
    with GatewayProcess(
        listen=("grpc://127.0.0.1:0", "grpc://127.0.0.1:0?tls=true"),
        options=("--set", f"tls.certificate={certificate}", "--set", f"tls.key={key}"),
    ) as gateway:
        yield gateway
