"""The rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from brokers.remote.broker import RemoteBroker
from processors.messaging import MessagingProcessor

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("popgate", "brokers", "processors", "protocols", "proxy")
HARD_CEILING = 400
EMPTY_NAMES = {"utils", "helpers", "common", "base", "impl", "manager", "misc"}
ROOMS = (
    "brokers/embedded",
    "brokers/remote",
    "brokers/shared",
    "popgate",
    "processors",
    "protocols/grpc",
    "protocols/remoting",
    "proxy",
)
"""Packages that are divided into rooms, each of which is small."""
UNDIVIDED = {Path("popgate/spark")}
"""Packages within these that are not divided yet."""
MOST_MODULES = 14
MOST_ANCESTORS = 7


def modules() -> list[Path]:
    return sorted(
        path.relative_to(ROOT)
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
        if "pb" not in path.parts
    )


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_modules_stay_below_the_hard_ceiling() -> None:
    lines = {str(path): len((ROOT / path).read_text().splitlines()) for path in modules()}
    too_long = {path: count for path, count in lines.items() if count > HARD_CEILING}
    assert not too_long, "which one thing is it about?"


def test_modules_say_what_they_are_for() -> None:
    assert not [path for path in modules() if not ast.get_docstring(ast.parse((ROOT / path).read_text()))]


def test_modules_have_names_that_say_something() -> None:
    assert not [path for path in modules() if {path.stem, path.parent.name} & EMPTY_NAMES]


def test_packages_that_have_rooms_stay_small() -> None:
    for package in ROOMS:
        for folder in {path.parent for path in modules() if path.is_relative_to(package)} - UNDIVIDED:
            found = [path.stem for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"]
            assert len(found) <= MOST_MODULES, folder


@pytest.mark.parametrize("whole", [RemoteBroker, MessagingProcessor])
def test_what_has_many_parts_is_put_together_by_composition(whole: type) -> None:
    assert len(whole.__mro__) <= MOST_ANCESTORS


def test_folders_that_are_no_packages_have_no_init() -> None:
    for name in ("proto", "tests", "deploy", "helm", "benchmarks", "docs"):
        assert not list((ROOT / name).rglob("__init__.py")), name


def test_no_committed_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    here = str(ROOT) + "/"
    if len(ROOT.parts) < 3:
        pytest.skip("the checkout lies too close to the root to tell")
    for path in tracked_files():
        if path.is_file() and path.stat().st_size < 1 << 20:
            assert here.encode() not in path.read_bytes(), path
