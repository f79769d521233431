"""docs/clients.md cannot lie: its table is `scenarios.toml`, and each of its rows is a test that runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def test_the_table_in_the_documentation_is_current() -> None:
    done = subprocess.run([sys.executable, str(HERE / "document.py"), "--check"])
    assert done.returncode == 0, "run: python tests/conformance/document.py"


def test_every_scenario_that_works_has_a_test_and_every_test_a_scenario(
    table: dict[str, dict[str, Any]],
) -> None:
    functions = {
        node.name.removeprefix("test_")
        for module in ("test_clients.py", "test_interrupted.py")
        for node in ast.parse((HERE / module).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert functions == {name for name, row in table.items() if True in (row["python"], row["java"])}


def test_each_driver_has_the_scenarios_of_its_client_and_no_others(table: dict[str, dict[str, Any]]) -> None:
    python = (HERE / "python" / "scenarios.py").read_text()
    [java] = [path.read_text() for path in (HERE / "java").rglob("Scenarios.java")]
    for client, names in {
        "python": re.findall(r"^@scenario\ndef (\w+)", python, re.MULTILINE),
        "java": re.findall(r'ALL_OF_THEM\.put\("(\w+)"', java),
    }.items():
        mine = [row for row in table.values() if row[client] is True]
        wanted = {name for name, row in table.items() if row[client] is True}
        assert set(names) == wanted | {row["after"] for row in mine if "after" in row}


def test_a_client_that_lacks_a_scenario_says_why(table: dict[str, dict[str, Any]]) -> None:
    for name, row in table.items():
        for client in ("python", "java"):
            assert row[client] is True or len(row[client]) > 10, name
