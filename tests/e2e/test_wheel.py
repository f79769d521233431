"""The built wheel, in a clean environment, beside the packages whose names clash with ours.

`proxy.py` installs a package `proxy` and `proto-plus` one named `proto`; pip overwrites one with
the other without a word. The wheel must work, and leave them working, in both orders.
`TEST_COMPILED_WHEEL` is the path of a compiled one, which is tried instead (tests/support/compiled.py).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from popgate.testing.made import FETCH_TRIES, ToolFailed, run_tool
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
STRANGERS = ["proxy.py", "proto-plus"]
COMMAND_S = 12.5 * PATIENCE_S
"""For each command: on a busy machine pip takes minutes for two dozen packages from the network."""
COMPILED = os.environ.get("TEST_COMPILED_WHEEL")
PIP = ("--quiet", "--disable-pip-version-check", "--no-compile", "--retries", "10", "--timeout", "60")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.xdist_group("wheel")]


def clean_environment() -> dict[str, str]:
    """Without what points at the checkout, and without settings: unknown ones are refused."""
    ours = ("PYTHON", "VIRTUAL_ENV", "POPGATE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
        env=clean_environment(),
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILED is not None:
        return Path(COMPILED)
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("popgate-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a virtual environment: each test installs its packages, what these need stays."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)  # ours serves it, too, and is a newer one
    return folder


def install(environment: Path, *steps: list[str]) -> Path:
    """The folder of its commands, with the packages of these steps, one after the other."""
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python"]
    run(*pip, "uninstall", "--quiet", "--yes", "popgate", *STRANGERS)
    assert not list(environment.rglob("site-packages/popgate"))
    for packages in steps:
        try:
            run_tool([*map(str, pip), "install", *PIP, *packages], environment, tries=FETCH_TRIES)
        except ToolFailed as failed:
            reason = f"packages cannot be installed here: {failed}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
    return environment / "bin"


def test_the_wheel_installs_one_import_name_and_bundles_the_rest(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    libraries = {top for top in tops if top.startswith("popgate_native_") and top.endswith(".so")}
    assert bool(libraries) == (COMPILED is not None)
    # Spark looks for sources in modules of such names.
    found = {top for top in tops - libraries if not top.endswith(".dist-info")}
    assert found == {"popgate", "pyspark_rocketmq.py"}
    names = zipfile.ZipFile(wheel).namelist()
    for floor in ("brokers", "processors", "protocols", "proxy"):
        assert f"popgate/_app/{floor}/__init__.py" in names
    assert "popgate/_app/__init__.py" not in names
    assert "popgate/py.typed" in names
    assert not [name for name in names if "test_" in name]


@pytest.mark.parametrize("order", ["strangers first", "popgate first"])
def test_the_wheel_serves_beside_packages_of_the_same_names(
    wheel: Path, environment: Path, tmp_path: Path, order: str
) -> None:
    steps = [STRANGERS, [str(wheel)]] if order == "strangers first" else [[str(wheel)], STRANGERS]
    bin_folder = install(environment, *steps)
    python = bin_folder / "python"

    strangers = run(
        python, "-c", "import proxy, proto; print(proxy.__file__); print(proto.__file__)", cwd=tmp_path
    )
    assert "_app" not in strangers
    assert (
        run(python, "-c", "import proxy.proxy; print(proxy.proxy.Proxy.__name__)", cwd=tmp_path).strip()
        == "Proxy"
    )
    version = run(bin_folder / "popgate", "--version", cwd=tmp_path)
    assert version.startswith("popgate ")
    assert version.endswith("(compiled)\n") == (COMPILED is not None)
    assert "popgate" in run(python, "-m", "popgate", "--version", cwd=tmp_path)

    gateway = subprocess.Popen(
        [
            str(bin_folder / "popgate"),
            "serve",
            "--data",
            str(tmp_path / "data"),
            "--listen",
            "grpc://127.0.0.1:0",
            "--admin",
            "http://127.0.0.1:0",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    )
    try:
        assert gateway.stdout is not None
        said = []
        for line in gateway.stdout:
            said.append(line)
            if line.strip() == "ready":
                break
        admin = re.search(r"admin (http://\S+)", "".join(said))
        assert admin, said
        popgate = [bin_folder / "popgate"]
        reach = ["--admin", admin.group(1), "--output", "json"]
        run(*popgate, "send", "wheels", "hello", *reach, cwd=tmp_path)
        received = json.loads(run(*popgate, "receive", "wheels", "--group", "g", *reach, cwd=tmp_path))
        assert "hello" in json.dumps(received)
    finally:
        if gateway.poll() is None:
            gateway.send_signal(signal.SIGTERM)
        _, complaints = gateway.communicate(timeout=120)
        print(complaints)
    assert gateway.returncode == 0, complaints
