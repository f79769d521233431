"""docs/clients.md cannot lie: its tables are `scenarios.toml`, and each "works" is a test that runs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PUBLISHED: dict[str, dict[str, str]] = tomllib.loads((HERE / "clients.toml").read_text())


def test_the_tables_in_the_documentation_are_current() -> None:
    done = subprocess.run([sys.executable, str(HERE / "document.py"), "--check"])
    assert done.returncode == 0, "run: python tests/conformance/document.py"


def test_every_scenario_that_works_has_a_test_and_every_test_a_scenario(
    table: dict[str, dict[str, Any]],
) -> None:
    functions = {
        node.name.removeprefix("test_")
        for module in ("test_clients.py", "test_drained.py", "test_interrupted.py")
        for node in ast.parse((HERE / module).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert functions == {name for name, row in table.items() if True in map(row.get, PUBLISHED)}


def test_each_driver_has_the_scenarios_of_its_client_and_no_others(table: dict[str, dict[str, Any]]) -> None:
    python = (HERE / "python" / "scenarios.py").read_text()
    [java] = [path.read_text() for path in (HERE / "java").rglob("Scenarios.java")]
    node = (HERE / "node" / "scenarios.js").read_text()
    rust = "".join(path.read_text() for path in sorted((HERE / "rust" / "src").glob("*.rs")))
    go = (HERE / "go" / "scenarios.go").read_text()
    for client, names in {
        "python": re.findall(r"^@scenario\ndef (\w+)", python, re.MULTILINE),
        "java": re.findall(r'ALL_OF_THEM\.put\("(\w+)"', java),
        "node": re.findall(r"^SCENARIOS\.(\w+) = ", node, re.MULTILINE),
        "rust": re.findall(r'^    \("(\w+)", \|run\| ', rust, re.MULTILINE),
        "go": re.findall(r'^\t"(\w+)": +\w+,$', go, re.MULTILINE),
    }.items():
        mine = [row for row in table.values() if row[client] is True]
        wanted = {name for name, row in table.items() if row[client] is True}
        assert set(names) == wanted | {row["after"] for row in mine if "after" in row}


def test_a_client_that_lacks_a_scenario_says_why(table: dict[str, dict[str, Any]]) -> None:
    old = {client for client, row in PUBLISHED.items() if "oldest" in row}
    for name, row in table.items():
        there = row.get("cluster", "every client works")
        for said in there.values() if isinstance(there, dict) else (there,):
            assert len(said) > 10, name
        assert not isinstance(there, dict) or there.keys() <= PUBLISHED.keys(), name
        for client in PUBLISHED:
            assert row[client] is True or len(row[client]) > 10, name
        if "oldest" in row:
            assert "java" in row["oldest"], name
            assert row["oldest"].keys() <= old, name
            for client, said in row["oldest"].items():
                assert said is True or len(said) > 10, name
                assert said is not True or row[client] is True, (
                    f"{name}: the oldest {client} runs the same code"
                )


def test_what_is_installed_are_the_versions_that_are_told() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    python = PUBLISHED["python"]
    assert f"{python['package']}=={python['newest']}" in groups["test"]
    pom = (HERE / "java" / "pom.xml").read_text()
    assert f"<client.version>{PUBLISHED['java']['newest']}</client.version>" in pom
    node = PUBLISHED["node"]
    for name in ("package.json", "package-lock.json"):
        described = json.loads((HERE / "node" / name).read_text())
        described = described["packages"][""] if "packages" in described else described
        assert described["dependencies"] == {node["package"]: node["newest"]}
    go = PUBLISHED["go"]
    assert f"require {go['package']} v{go['newest']}\n" in (HERE / "go" / "go.mod").read_text()
    rust = PUBLISHED["rust"]
    crates = tomllib.loads((HERE / "rust" / "Cargo.toml").read_text())["dependencies"]
    for age in ("newest", "oldest"):
        assert crates[f"rocketmq_{age}"] == {"package": rust["package"], "version": f"={rust[age]}"}


def test_the_lock_files_name_no_registry() -> None:
    assert '"resolved"' not in (HERE / "node" / "package-lock.json").read_text()
    assert "source = " not in (HERE / "rust" / "Cargo.lock.in").read_text()
