"""Writes the tables in docs/clients.md from `scenarios.toml` and `clients.toml`.

`--check` only looks whether they are current.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "clients.md"
MARKS = {
    "versions": "<!-- versions: written by tests/conformance/document.py -->",
    "newest": "<!-- table: written by tests/conformance/document.py -->",
    "oldest": "<!-- oldest: written by tests/conformance/document.py -->",
}
END = "<!-- end of table -->"

CLIENTS: dict[str, dict[str, str]] = tomllib.loads((HERE / "clients.toml").read_text())
SCENARIOS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "scenarios.toml").read_text())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(said: bool | str) -> str:
    return "works" if said is True else f"— {said}"


def _both(row: dict[str, Any], client: str, here: bool | str) -> list[str]:
    """The cells before the embedded broker and before a cluster; what the client's API lacks is said once."""
    if here is not True:
        return [_cell(here), "—"]
    there = row.get("cluster", True)
    return [_cell(here), _cell(there.get(client, True) if isinstance(there, dict) else there)]


def _columns(age: str, clients: dict[str, dict[str, str]]) -> list[str]:
    pairs = [(f"{row['name']} {row[age]}", f"{row['name']}, cluster") for row in clients.values()]
    return [head for pair in pairs for head in pair]


def versions() -> str:
    rows = [
        [row["name"], f"`{row['package']}`", row["newest"], row.get("oldest", "—"), row["tls"]]
        for row in CLIENTS.values()
    ]
    return _table(["client", "package", "newest", "oldest", "TLS"], rows)


def newest() -> str:
    head = ["scenario", *_columns("newest", CLIENTS)]
    rows = []
    for name, row in SCENARIOS.items():
        differs = f". *Cluster:* {row['cluster_differs']}" if "cluster_differs" in row else ""
        cells = [f"`{name}`: {row['shows']}{differs}"]
        for client in CLIENTS:
            cells += _both(row, client, row[client])
        rows.append(cells)
    return _table(head, rows)


def oldest() -> str:
    """Clients that a scenario does not ask have empty cells."""
    old = {client: row for client, row in CLIENTS.items() if "oldest" in row}
    rows = []
    for name, row in SCENARIOS.items():
        if asked := row.get("oldest"):
            cells = [_both(row, client, asked[client]) if client in asked else ["", ""] for client in old]
            rows.append([f"`{name}`", *(cell for pair in cells for cell in pair)])
    return _table(["scenario", *_columns("oldest", old)], rows)


def filled(page: str) -> str:
    """The page with its tables written anew."""
    tables: dict[str, Callable[[], str]] = {"versions": versions, "newest": newest, "oldest": oldest}
    for name, mark in MARKS.items():
        before, found, rest = page.partition(mark)
        assert found, f"docs/clients.md has no place for the table {name}"
        _, _, after = rest.partition(END)
        page = f"{before}{mark}\n\n{tables[name]()}\n\n{END}{after}"
    return page


def main() -> int:
    page = PAGE.read_text()
    current = filled(page)
    if "--check" in sys.argv:
        return int(current != page)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
