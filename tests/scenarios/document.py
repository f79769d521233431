"""Writes docs/scenarios.md from `promises.toml` and the tests themselves; `--check` only looks.

A test named `test_scenario_NN_what_it_promises`, anywhere below tests/, is a proof of promise NN.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "scenarios.md"
NAME = re.compile(r"test_scenario_(\d\d)_(\w+)\Z")
ROWS = 40
LIVE = re.compile(r"tests/(?:contract/|cluster/|replicas/|scenarios/test_live_|conformance/|tools/)")
"""Where tests run before a real RocketMQ; those of the contract and the clients before both brokers."""
REPLACED = re.compile(r"\b(?:differs|moved_by_hand)\(")
"""How a test of the contract, or what it asks for, says that another one holds before some brokers."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Proof(NamedTuple):
    """A test: the path of its file, what it says, and whether it holds before a real RocketMQ."""

    path: str
    said: str
    live: bool


HEAD = """# Scenarios

Problems that users of such gateways met elsewhere, as promises of this one, and the tests of each promise. Generated
by `tests/scenarios/document.py` from the names of the tests. Several use [fault injection](faults.md), with a
seed in the test. Tests marked *live* run with a real RocketMQ; contract tests also run with the embedded
broker, and those that are not marked have replacements on a cluster
([differences](real-cluster.md#what-differs)).
"""


def proofs(root: Path = ROOT) -> dict[int, list[Proof]]:
    """By promise: its tests, in the order of paths and lines."""
    found: dict[int, list[Proof]] = {}
    for path in sorted((root / "tests").rglob("*.py")):
        text = path.read_text()
        if "test_scenario_" not in text:
            continue
        told = str(path.relative_to(root))
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
        replaced = replaced_in(functions) if told.startswith("tests/contract/") else set()
        for node in functions:
            if matched := NAME.match(node.name):
                live = LIVE.match(told) is not None and node.name not in replaced
                proof = Proof(told, matched[2].replace("_", " "), live)
                found.setdefault(int(matched[1]), []).append(proof)
    return found


def replaced_in(functions: list[Function]) -> set[str]:
    """The names of tests and fixtures that may be replaced by others, themselves or by what they ask for."""
    asks = {one.name: {each.arg for each in one.args.args} for one in functions}
    found = {one.name for one in functions if REPLACED.search(ast.unparse(one))}
    while more := {name for name, asked in asks.items() if asked & found} - found:
        found |= more
    return found


def promises() -> dict[int, dict[str, Any]]:
    return {int(row): about for row, about in tomllib.loads((HERE / "promises.toml").read_text()).items()}


def rendered() -> str:
    tested = proofs()
    lines = [HEAD]
    rows = promises()
    done = [row for row in rows if row in tested]
    each = [proof for row in done for proof in tested[row]]
    live = sum(proof.live for proof in each)
    lines.append(
        f"{len(done)} of {len(rows)} promises have tests, {len(each)} in all, {live} of them *live*.\n"
    )
    for row, about in rows.items():
        lines.append(f"## {row}. {about['title']}\n")
        lines.append(f"{about['promise']}\n")
        if "limits" in about:
            lines.append(f"*Limits:* {about['limits']}\n")
        if row in tested:
            lines += [
                f"- {said} ([{path}](../{path})){', *live*' if live else ''}"
                for path, said, live in tested[row]
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
