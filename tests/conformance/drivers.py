"""Where the clients' drivers come from: each is made once, into a cache, and then only started.

A client is named by its language, the oldest published version of it with `-oldest` behind: `java`,
`java-oldest`. Every version has a place of its own, apart from this checkout: the folder that TEST_CACHE
names, or one in the home directory.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from popgate.testing.made import (
    FETCH_TRIES,
    Missing,
    ToolFailed,
    cache_folder,
    digest,
    locked,
    made_once,
    run_tool,
)
from tests.outside.go_programs import go_program

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TABLE: dict[str, dict[str, Any]] = tomllib.loads((HERE / "scenarios.toml").read_text())
PUBLISHED: dict[str, dict[str, str]] = tomllib.loads((HERE / "clients.toml").read_text())
LANGUAGES = tuple(PUBLISHED)
CLIENTS = (*LANGUAGES, *(f"{name}-oldest" for name, row in PUBLISHED.items() if "oldest" in row))

EMBEDDED, CLUSTER = BROKERS = ("embedded", "cluster")
"""What is behind the gateway: its own broker, or a real RocketMQ."""

MINIMUM_CARGO = (1, 88)
"""What the locked crates ask for."""

NOT_COMPILED = ("COMPILATION ERROR", "could not compile `conformance`")
"""What tools say of a driver that is wrong."""


def goes(row: Mapping[str, Any], client: str, broker: str = EMBEDDED) -> bool | str | None:
    """Whether a client has a scenario: True, the reason why not, or None where the oldest is not asked.

    In front of a cluster a scenario may be what the cluster cannot do, for all clients or for one language.
    """
    language, _, age = client.partition("-")
    said: bool | str | None = row.get("oldest", {}).get(language) if age else row[language]
    if said is True and broker == CLUSTER:
        there: bool | str | Mapping[str, str] = row.get("cluster", True)
        return there.get(language, True) if isinstance(there, Mapping) else there
    return said


def command_of(client: str) -> tuple[str, ...]:
    """How to start a client's driver; makes it first when its sources are new. Raises Missing."""
    language, _, age = client.partition("-")
    with _locks[client]:
        found = _commands[language](age)
    if isinstance(found, Missing):
        raise found
    return found


_locks = {client: threading.Lock() for client in CLIENTS}


# python


@functools.cache
def _python(age: str) -> tuple[str, ...] | Missing:
    driver = str(HERE / "python" / "driver.py")
    if not age:  # it is one of the tests' own requirements
        return (sys.executable, driver)
    wanted = f"{PUBLISHED['python']['package']}=={PUBLISHED['python'][age]}"
    constraints = ROOT / "deploy" / "constraints.txt"

    def make(made: Path) -> None:
        _ask([sys.executable, "-m", "venv", str(made)], made)
        python = str(made / "bin" / "python")
        # The constraints keep its requirements; the client itself is another version than theirs.
        lines = [line for line in constraints.read_text().splitlines() if not line.startswith("rocketmq")]
        kept = made / "constraints.txt"
        kept.write_text("\n".join(lines))
        quiet = ["--quiet", "--disable-pip-version-check", "--retries", "10", "--timeout", "60"]
        _ask([python, "-m", "pip", "install", *quiet, "-c", str(kept), wanted], made)

    made = _made("python-oldest", f"{wanted} {sys.version}", [constraints], make)
    return made if isinstance(made, Missing) else (str(made / "bin" / "python"), driver)


# java


@functools.cache
def _java(age: str) -> tuple[str, ...] | Missing:
    versions = PUBLISHED["java"]

    def make(made: Path) -> None:
        _copied("java", made)
        fetch = ["mvn", "-q", "-B", "-U", "dependency:copy-dependencies"]
        newest = [f"-Dclient.version={versions['newest']}", "compiler:compile"]
        oldest = [f"-Dclient.version={versions['oldest']}", "-DoutputDirectory=target/oldest"]
        with locked("maven"):  # processes that fill Maven's own cache at once spoil it
            _ask([*fetch, *newest], made)
            _ask([*fetch, *oldest], made)

    sources = [HERE / "java" / "pom.xml", *sorted((HERE / "java" / "src").rglob("*.java"))]
    made = _made("java", str(versions), sources, make, using=("java",), making=("javac", "mvn"))
    if isinstance(made, Missing):
        return made
    jars = made / "target" / (age or "dependency")
    path = os.pathsep.join([str(made / "target" / "classes"), str(jars / "*")])
    options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.home=.")
    return ("java", *options, "-cp", path, "popgate.conformance.Driver")


# node


@functools.cache
def _node(age: str) -> tuple[str, ...] | Missing:
    def make(made: Path) -> None:
        _copied("node", made)
        _ask(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], made)

    folder = HERE / "node"
    sources = [*sorted(folder.glob("*.js")), *sorted(folder.glob("*.json"))]
    made = _made("node", "", sources, make, using=("node",), making=("npm",))
    return made if isinstance(made, Missing) else ("node", str(made / "driver.js"))


# rust


@functools.cache
def _rust(age: str) -> tuple[str, ...] | Missing:
    folder = HERE / "rust"
    lock = folder / "Cargo.lock.in"

    def make(made: Path) -> None:
        cargo = _cargo()
        _copied("rust", made)
        _ask([cargo, "generate-lockfile", "--quiet"], made)
        complete = _with_sources(lock.read_text(), (made / "Cargo.lock").read_text())
        (made / "Cargo.lock").write_text(complete)
        # What the crates become is kept: another driver with the same ones is made in seconds.
        target = cache_folder() / f"rust-crates-{digest('', [lock], ROOT)}"
        _ask([cargo, "build", "--quiet", "--locked"], made, {"CARGO_TARGET_DIR": str(target)})
        for name in ("newest", "oldest"):
            shutil.copy2(target / "debug" / name, made / name)

    sources = [folder / "Cargo.toml", lock, *sorted((folder / "src").glob("*.rs"))]
    made = _made("rust", "", sources, make)
    return made if isinstance(made, Missing) else (str(made / (age or "newest")),)


def _cargo() -> str:
    """A cargo that is new enough. Raises Missing."""
    home = os.environ.get("CARGO_HOME") or str(Path.home() / ".cargo")
    found = shutil.which("cargo") or shutil.which("cargo", path=str(Path(home) / "bin"))
    if found is None:
        raise Missing("cargo is not on this machine")
    said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < MINIMUM_CARGO:
        wanted = ".".join(map(str, MINIMUM_CARGO))
        raise Missing(
            f"the Rust driver needs cargo {wanted} or newer, here is: {said.strip() or 'a broken one'}"
        )
    return found


def _with_sources(lock: str, example: str) -> str:
    """The kept lock file with the registry's name, which this repository does not hold, from another one."""
    source = re.search(r"^source = .*$", example, re.MULTILINE)
    if source is None:
        raise Missing("cargo made a lock file without a registry")
    return re.sub(r"^checksum = ", f"{source[0]}\nchecksum = ", lock, flags=re.MULTILINE)


def without_sources(lock: str) -> str:
    """A lock file of cargo as it is kept here."""
    return re.sub(r"^source = .*\n", "", lock, flags=re.MULTILINE)


# go


@functools.cache
def _go(age: str) -> tuple[str, ...] | Missing:
    try:
        return (str(go_program("go-client", ".", HERE / "go")),)
    except Missing as missing:
        return missing


# making


def _made(
    name: str,
    seed: str,
    sources: Sequence[Path],
    make: Callable[[Path], None],
    *,
    using: Sequence[str] = (),
    making: Sequence[str] = (),
) -> Path | Missing:
    """The folder that `make` fills, once for these sources; other processes wait for it."""
    try:
        return made_once(name, digest(seed, sources, ROOT), make, using=using, making=making)
    except Missing as missing:
        return missing


def _copied(language: str, made: Path) -> None:
    ignored = shutil.ignore_patterns("target", "node_modules")
    shutil.copytree(HERE / language, made, ignore=ignored, dirs_exist_ok=True)


def _ask(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a tool. Raises Missing where it fails again and again: mostly a registry that is out of reach."""
    try:
        run_tool(command, folder, environment, tries=FETCH_TRIES, unless=NOT_COMPILED)
    except ToolFailed as failed:
        if any(text in str(failed) for text in NOT_COMPILED):
            raise AssertionError(f"the driver does not compile: {failed}") from None
        raise


_commands: dict[str, Callable[[str], tuple[str, ...] | Missing]] = {
    "python": _python,
    "java": _java,
    "node": _node,
    "rust": _rust,
    "go": _go,
}
