"""deploy/compile.py: which modules are compiled, and what none of them may have.

mypyc says of some things that it has not got them, and compiles others to code that does something else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from deploy import compile as compiling
from deploy.compile import INTERPRETED, ROOMS, ROOT, modules

WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)


@cache
def compiled() -> list[str]:
    return [path for paths in modules().values() for path in paths]


def classes_of(path: str) -> Iterator[ast.ClassDef]:
    tree = ast.parse((ROOT / path).read_text())
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def test_each_module_of_a_compiled_room_is_compiled_or_has_its_reason() -> None:
    left = set(" ".join(INTERPRETED.values()).split())
    assert not left.intersection(compiled())
    for package in " ".join(ROOMS.values()).split():
        files = [Path(ROOT, package)] if package.endswith(".py") else Path(ROOT, package).glob("[!_]*.py")
        names = {str(file.relative_to(ROOT)) for file in files}
        assert names
        assert names <= left.union(compiled())


def test_a_name_that_is_no_module_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "INTERPRETED", {"it is gone": "popgate/gone.py"})
    with pytest.raises(SystemExit, match=r"not a module: popgate/gone\.py"):
        modules()


@pytest.mark.parametrize("tree", [".", ".."])
def test_a_tree_over_the_checkout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: str
) -> None:
    """Packages of an earlier copy are removed from the folder: here that is the checkout itself."""
    checkout = tmp_path / "popgate"
    source = checkout / "popgate" / "clock.py"
    source.parent.mkdir(parents=True)
    source.write_text("changed, and not committed\n")
    monkeypatch.setattr(compiling, "ROOT", checkout)
    monkeypatch.setattr(compiling, "_tracked", list)
    monkeypatch.setattr(compiling, "build", lambda _root, _work: [])
    with pytest.raises(SystemExit, match="the checkout is in it"):
        compiling.make_tree((checkout / tree).resolve())
    assert source.is_file()


def test_no_compiled_dataclass_has_a_class_variable() -> None:
    """It would become a field that cannot be set: a property does the same."""
    found = [
        f"{path}: {owner.name}.{ast.unparse(line)}"
        for path in compiled()
        for owner in classes_of(path)
        if any("dataclass" in ast.unparse(decorator) for decorator in owner.decorator_list)
        for line in owner.body
        if isinstance(line, ast.AnnAssign) and "ClassVar" in ast.unparse(line.annotation)
    ]
    assert found == []


def test_no_compiled_coroutine_waits_while_it_handles_an_exception() -> None:
    """The exception that is handled belongs to the thread, not to the coroutine: others would see it, and put
    theirs in its place, so that `raise` has none or a wrong one, or the process dies."""
    found = []
    for path in compiled():
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            handling = []
            if isinstance(node, ast.ExceptHandler):
                handling = node.body
            elif isinstance(node, ast.Try):
                handling = node.finalbody
            found += [f"{path}:{line.lineno}" for line in waits_in(handling)]
    assert found == []


def waits_in(lines: Iterable[ast.AST]) -> Iterator[ast.expr | ast.stmt]:
    for line in lines:
        if isinstance(line, WAITS):
            yield line
        if not isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from waits_in(ast.iter_child_nodes(line))


def test_no_compiled_class_hands_options_to_its_base_by_two_stars() -> None:
    """They would be given as the first of its options."""
    found = [
        f"{path}:{call.lineno}"
        for path in compiled()
        for call in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).startswith("super().")
        and any(keyword.arg is None for keyword in call.keywords)
    ]
    assert found == []


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    """Python refuses it when the module is loaded."""
    names = {path.removesuffix(".py").replace("/", ".") for path in compiled()}
    found = []
    for top in ("popgate", "brokers", "processors", "protocols", "proxy"):
        for file in Path(ROOT, top).rglob("*.py"):
            path = str(file.relative_to(ROOT))
            if path in compiled():
                continue
            imported = {
                name.asname or name.name: line.module
                for line in ast.walk(ast.parse(file.read_text()))
                if isinstance(line, ast.ImportFrom)
                for name in line.names
            }
            found += [
                f"{path}: {owner.name}"
                for owner in classes_of(path)
                for base in owner.bases
                if imported.get(ast.unparse(base).partition("[")[0]) in names
            ]
    assert found == []
