"""The contents of the image, made with its own steps: the same each time, and enough for an ordinary user
who can write to the data folder only. No container engine is needed: a mount namespace stands in for it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from popgate.testing.made import Missing
from tests.support.needed import missing

pytestmark = pytest.mark.timeout(4000)

ROOT = Path(__file__).parents[2]
USER = 10_001
_MADE_WITHIN_S = 1800
"""Compiling takes five minutes on two cores."""
_REAL_PLACE = """
import os, sys
if sys.version_info < (3, 11): sys.exit("too old")
print(os.path.realpath(sys.executable))
"""
_READ_ONLY = """
mount -o remount,ro,bind /
mount -t tmpfs -o mode=700,uid={user},gid={user} tmpfs "$1"
exec setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs --bounding-set -all \
    "$2" serve --data "$1" --listen grpc://127.0.0.1:0 --listen remoting://127.0.0.1:0 --admin http://127.0.0.1:0
"""


def python_for_others() -> str:
    """A Python that another user can start: not one in a home folder that only its owner may enter."""
    for place in (shutil.which("python3"), "/usr/local/bin/python3", "/usr/bin/python3"):
        if place is None or not Path(place).exists():
            continue
        told = subprocess.run([place, "-c", _REAL_PLACE], capture_output=True, text=True, check=False)
        real = Path(told.stdout.strip() or "/nowhere")
        if told.returncode == 0 and all(above.stat().st_mode & 0o001 for above in real.parents):
            return str(real)
    return missing(Missing("there is no Python 3.11 or newer that another user can start"))


def run_steps(target: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The steps of the image, for the folder `target`."""
    environment = {**os.environ, "PYTHON": python_for_others(), **variables}
    command = ["sh", str(ROOT / "deploy" / "image.sh"), str(target)]
    return subprocess.run(
        command, check=False, timeout=_MADE_WITHIN_S, env=environment, stderr=subprocess.PIPE, text=True
    )


def make(target: Path, **variables: str) -> None:
    ended = run_steps(target, **variables)
    assert ended.returncode == 0, ended.stderr


def version_of(image: Path) -> str:
    """What its program says of itself."""
    command = [str(image / "bin" / "popgate"), "--version"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def machine_code_of(image: Path) -> list[str]:
    """The names of the modules of ours that are compiled."""
    (packages,) = image.glob("lib/python3.*/site-packages")
    places = (packages, packages / "popgate")
    found = [*places[0].glob("popgate_native_*.so"), *places[1].rglob("*.so")]
    return sorted(str(path.relative_to(packages)) for path in found)


def fingerprints(folder: Path) -> dict[str, str]:
    """What is in each file, and where each link leads."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("image")
    for above in (folder, *folder.parents[:3]):
        above.chmod(above.stat().st_mode | 0o011)  # another user starts it from there
    target = folder / "popgate"
    make(target)
    yield target
    shutil.rmtree(target)


def test_made_twice_it_is_the_same(image: Path) -> None:
    before = fingerprints(image)
    aside = image.rename(image.with_name("before"))
    make(image)  # in the same place: scripts name it
    shutil.rmtree(aside)
    assert fingerprints(image) == before


def test_it_has_the_compiled_form(image: Path) -> None:
    assert "(compiled)" in version_of(image)
    assert len(machine_code_of(image)) > 200


def test_the_plain_form_has_no_machine_code_and_needs_no_compiler(tmp_path: Path) -> None:
    target = tmp_path / "popgate"
    make(target, FORM="plain", CC="no-compiler")
    assert "(compiled)" not in version_of(target)
    assert machine_code_of(target) == []


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"FORM": "compiler"}, "FORM is compiler, it may be compiled or plain"),
        ({"FORM": "compiled", "CC": "no-compiler"}, "the compiled form needs no-compiler"),
    ],
)
def test_what_cannot_be_made_is_said_at_once(tmp_path: Path, variables: dict[str, str], why: str) -> None:
    ended = run_steps(tmp_path / "popgate", **variables)
    assert ended.returncode == 1
    assert why in ended.stderr
    assert not (tmp_path / "popgate").exists()


def test_tests_and_tools_are_not_in_it(image: Path) -> None:
    (packages,) = image.glob("lib/python3.*/site-packages")
    names = {path.name.lower() for path in packages.iterdir()}
    assert "popgate" in names
    assert not names & {"pip", "setuptools", "pytest", "tests", "pyspark", "hatchling"}
    assert [
        path for path in packages.rglob("*.py") if not list(path.parent.glob(f"__pycache__/{path.stem}.*"))
    ] == []


def test_the_bill_of_materials_names_every_package(image: Path) -> None:
    bill = json.loads((image / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    named = {re.sub("[-_.]+", "-", one["name"]).lower() for one in bill["components"]}
    (packages,) = image.glob("lib/python3.*/site-packages")
    installed = {
        re.sub("[-_.]+", "-", path.name.split("-")[0]).lower() for path in packages.glob("*.dist-info")
    }
    assert installed <= named | {"popgate"}
    assert len(installed) > 20


def test_it_serves_as_an_ordinary_user_who_writes_to_the_data_folder_only(
    image: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("unshare", "setpriv", "mount")):
        missing(Missing("a mount namespace is made by root only, with unshare, setpriv and mount"))
    data = tmp_path / "data"
    data.mkdir()
    for above in (tmp_path, *tmp_path.parents[:3]):
        above.chmod(above.stat().st_mode | 0o011)
    serving = subprocess.Popen(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-euc", _READ_ONLY.format(user=USER)),
            *("sh", str(data), str(image / "bin" / "popgate")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert serving.stdout is not None
        printed = []
        for line in serving.stdout:
            printed.append(line.strip())
            if printed[-1] == "ready":
                break
        assert printed[-1:] == ["ready"], serving.communicate(timeout=30)[1]
        (user,) = re.findall(r"^Uid:\s+(\d+)", Path(f"/proc/{serving.pid}/status").read_text(), re.MULTILINE)
        assert int(user) == USER
        doors = [line.removeprefix("listening ") for line in printed if line.startswith("listening ")]
        for door in doors:
            looked = subprocess.run(
                [str(image / "bin" / "popgate"), "doctor", door, "--timeout", "5s"],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert looked.returncode == 0, looked.stdout
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
    finally:
        serving.kill()
        serving.communicate()
