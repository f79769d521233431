"""docs/grpc-fields.md and docs/pitfalls.md cannot lie: they are complete, current, and their tests exist."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc

HERE = Path(__file__).parent
TESTS = HERE.parent
FIELDS: dict[str, Any] = tomllib.loads((HERE / "fields.toml").read_text())
PITFALLS: dict[str, Any] = tomllib.loads((HERE / "pitfalls.toml").read_text())
KINDS = {"honoured", "set", "echoed", "refused"}
ROWS = {"9.1": range(1, 19), "9.2": range(19, 28), "9.3": range(28, 41), "9.4": range(41, 56)} | {
    "9.6": range(72, 84),
    "9.7": range(84, 93),
}
"""Rows of the pitfalls by section; 9.5 is about remoting."""


@cache
def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    }


def exists(name: str, folder: Path) -> bool:
    file, _, function = name.partition("::")
    path = folder / file
    return path.is_file() and function in functions_of(path)


def test_the_pages_are_current() -> None:
    done = subprocess.run([sys.executable, str(HERE / "document.py"), "--check"])
    assert done.returncode == 0, "run: python tests/surface/document.py"


def test_every_field_of_every_message_is_in_the_table_and_no_other() -> None:
    there = {
        f"{name}.{field.name}"
        for file in (pb, rpc)
        for name, message in file.DESCRIPTOR.message_types_by_name.items()
        for field in message.fields
    }
    table = {f"{message}.{name}" for message, rows in FIELDS.items() for name in rows if name != "_seen"}
    assert table == there


@pytest.mark.parametrize("message", FIELDS)
def test_a_message_of_the_table_is_told_in_full(message: str) -> None:
    for name, told in FIELDS[message].items():
        if name == "_seen":
            continue
        assert told[0] in KINDS, name
        assert told[1].strip(), f"{name} needs words"
        if len(told) == 3:
            assert told[2] in pb.Code.keys(), name  # noqa: SIM118 - the keys of a wrapper
            assert told[0] in ("honoured", "echoed", "refused"), name
        if told[0] == "refused":
            assert len(told) == 3, f"{name} needs the code it is refused with"


@pytest.mark.parametrize("message", FIELDS)
def test_the_tests_that_show_a_message_are_there(message: str) -> None:
    seen = FIELDS[message]["_seen"]
    assert seen, "name the tests that show its fields"
    assert [name for name in seen if not exists(name, TESTS / "unit" / "protocols" / "grpc")] == []


def test_every_row_of_the_pitfalls_that_touches_grpc_is_told() -> None:
    assert set(PITFALLS) == {f"{section}.{row}" for section, rows in ROWS.items() for row in rows}


@pytest.mark.parametrize("row", PITFALLS)
def test_a_pitfall_has_tests_that_are_there_or_a_reason(row: str) -> None:
    told = PITFALLS[row]
    if "no" in told:
        assert set(told) == {"no"}
        assert len(told["no"]) > 20
        return
    assert told["says"]
    assert told["seen"]
    assert [name for name in told["seen"] if not exists(name, TESTS)] == []
