"""The rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest

from brokers.remote.broker import RemoteBroker
from processors.messaging import MessagingProcessor

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("popgate", "brokers", "processors", "protocols", "proxy")
HARD_CEILING = 400
EMPTY_NAMES = {"utils", "helpers", "common", "base", "impl", "manager", "misc"}
MOST_MODULES = 14
ENDINGS = ("ing", "er", "or", "ed", "s", "e")
FIELD_GERUNDS = {
    *("blocking", "mapping", "messaging", "naming", "numbering", "parsing", "probing", "remoting", "routing"),
    *("running", "sniffing", "timing"),
}
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


def packages() -> dict[Path, list[str]]:
    """The modules of each package, without its `__init__`."""
    found: dict[Path, list[str]] = {}
    for path in modules():
        if path.stem != "__init__":
            found.setdefault(path.parent, []).append(path.stem)
    return found


def stem_of(name: str) -> str:
    """A module's name without the endings that make other forms of a word."""
    return "_".join(
        next((word.removesuffix(end) for end in ENDINGS if word.endswith(end)), word)
        for word in name.split("_")
    )


def test_packages_stay_small() -> None:
    assert not {folder: names for folder, names in packages().items() if len(names) > MOST_MODULES}


def test_no_two_modules_of_a_package_differ_by_word_form() -> None:
    for folder, names in packages().items():
        stems = [stem_of(name) for name in names]
        assert len(stems) == len(set(stems)), folder


def test_modules_are_named_for_things_and_not_with_gerunds() -> None:
    names = {name for names in packages().values() for name in names}
    last = {name: name.rpartition("_")[2] for name in names}
    assert not {name for name, word in last.items() if word.endswith("ing")} - {
        name for name, word in last.items() if word in FIELD_GERUNDS
    }


def test_every_package_with_rooms_has_a_contract_that_orders_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    ordered = {name for one in contracts if one["type"] == "layers" for name in one.get("containers", ())}
    with_rooms = {str(folder.parent).replace("/", ".") for folder in packages() if len(folder.parts) > 1}
    assert with_rooms - ordered == {"popgate.testing"}


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
