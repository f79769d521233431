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


def _before_cluster(row: dict[str, Any], client: str) -> str:
    """The cell of the column of a RocketMQ cluster; what the client's API lacks is said once."""
    if row[client] is not True:
        return "—"
    said = row.get("cluster", True)
    return _cell(said.get(client, True) if isinstance(said, dict) else said)


def versions() -> str:
    rows = [
        [row["name"], f"`{row['package']}`", row["newest"], row.get("oldest", "—"), row["tls"]]
        for row in CLIENTS.values()
    ]
    return _table(["client", "package", "newest", "oldest", "TLS"], rows)


def newest() -> str:
    head = ["scenario"]
    for client in CLIENTS.values():
        head += [f"{client['name']} {client['newest']}", f"{client['name']}, cluster"]
    rows = []
    for name, row in SCENARIOS.items():
        differs = f". *Cluster:* {row['cluster_differs']}" if "cluster_differs" in row else ""
        cells = [f"`{name}`: {row['shows']}{differs}"]
        for client in CLIENTS:
            cells += [_cell(row[client]), _before_cluster(row, client)]
        rows.append(cells)
    return _table(head, rows)


def oldest() -> str:
    old = {client: row for client, row in CLIENTS.items() if "oldest" in row}
    head = ["scenario", *(f"{row['name']} {row['oldest']}" for row in old.values())]
    rows = [
        [f"`{name}`", *(_cell(row["oldest"][client]) for client in old)]
        for name, row in SCENARIOS.items()
        if "oldest" in row
    ]
    return _table(head, rows)


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
