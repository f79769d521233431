"""Judges that others wrote: built or fetched once, kept in the cache of tests (`popgate.testing.made`)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import FETCH_TRIES, Missing, digest, made_once, run_tool
from popgate.testing.papers import Papers
from tests.support.needed import missing

HERE = Path(__file__).parent


def go_program(name: str, package: str) -> Path:
    """A command of the modules that the folder `name` pins, compiled once. Raises Missing."""
    sources = sorted(path for path in (HERE / name).iterdir() if path.suffix in (".go", ".mod", ".sum"))

    def compile_in(folder: Path) -> None:
        for source in sources:
            shutil.copy2(source, folder)
        run_tool(["go", "build", "-o", name, package], folder, tries=FETCH_TRIES)

    return made_once(name, digest(package, sources, HERE), compile_in, making=("go",)) / name


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
