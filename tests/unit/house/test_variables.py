"""Variables say what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VAGUE = {"found", "one", "told", "what"}
"""Words that would be right for any value."""
FLOORS = ("popgate", "brokers", "processors", "protocols", "proxy")


def vague_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines of variables and parameters with such a name; attributes of classes are none."""
    attributes = {
        id(target)
        for body in ast.walk(tree)
        if isinstance(body, ast.ClassDef)
        for statement in body.body
        for target in (getattr(statement, "target", None), *getattr(statement, "targets", ()))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in VAGUE:
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            if id(node) in attributes:
                continue
            yield node.lineno, node.id


@pytest.mark.parametrize("floor", FLOORS)
def test_variables_are_named_for_what_they_hold(floor: str) -> None:
    sources = (path for path in (ROOT / floor).rglob("*.py") if "pb" not in path.parts)
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sources
        for line, name in vague_names(ast.parse(path.read_text()))
    ]
    assert not vague


def test_every_kind_of_variable_is_seen() -> None:
    source = (
        "def f(one, *, told):\n    found = [what for what in one]\n    return lambda one: found\n"
        "class C:\n    told = 1\n"
    )
    assert sorted(vague_names(ast.parse(source))) == [
        (1, "one"),
        (1, "told"),
        (2, "found"),
        (2, "what"),
        (3, "one"),
    ]
