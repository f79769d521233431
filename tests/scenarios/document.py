"""Writes docs/scenarios.md from `promises.toml` and the tests themselves; `--check` only looks.

A test named `test_scenario_NN_what_it_promises`, anywhere below tests/, is a proof of promise NN.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "scenarios.md"
NAME = re.compile(r"test_scenario_(\d\d)_(\w+)\Z")
ROWS = 40
LIVE = re.compile(r"tests/(?:contract/|cluster/|replicas/|scenarios/test_live_|conformance/)")
"""Where tests run before a real RocketMQ; those of the contract and the clients before both brokers."""

HEAD = """# Scenarios

What hurt users of such gateways elsewhere, as promises of this one, and the tests that keep each of them.
Written by `tests/scenarios/document.py` from the names of the tests; a test proves that it is current.
Several use [faults on order](faults.md): the seed is in the test. Those marked *live* run before a real
RocketMQ; those of the contract run before the embedded broker, too.
"""


def proofs(root: Path = ROOT) -> dict[int, list[tuple[str, str]]]:
    """By promise: (path of the test's file, what the test says), in the order of paths and lines."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text()
        if "test_scenario_" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                matched = NAME.match(node.name)
                if matched:
                    said = matched[2].replace("_", " ")
                    found.setdefault(int(matched[1]), []).append((str(path.relative_to(root)), said))
    return found


def is_live(path: str) -> bool:
    """Whether the tests of a file run before a real RocketMQ."""
    return LIVE.match(path) is not None


def promises() -> dict[int, dict[str, Any]]:
    return {int(row): about for row, about in tomllib.loads((HERE / "promises.toml").read_text()).items()}


def rendered() -> str:
    tested = proofs()
    lines = [HEAD]
    rows = promises()
    done = [row for row in rows if row in tested]
    paths = [path for row in done for path, _ in tested[row]]
    live = sum(map(is_live, paths))
    lines.append(
        f"{len(done)} of {len(rows)} promises have tests, {len(paths)} in all, {live} of them *live*.\n"
    )
    for row, about in rows.items():
        lines.append(f"## {row}. {about['title']}\n")
        lines.append(f"{about['promise']}\n")
        if "limits" in about:
            lines.append(f"*Limits:* {about['limits']}\n")
        if row in tested:
            lines += [
                f"- {said} ([{path}](../{path})){', *live*' if is_live(path) else ''}"
                for path, said in tested[row]
            ]
            lines.append("")
        else:
            lines.append(f"No test yet: it comes with {about['later']}.\n")
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> int:
    current = rendered()
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text() != current)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
