"""Writes the table of classic clients in docs/clients.md from `scenarios.toml` and `clients.toml`.

`--check` only looks whether it is current.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "clients.md"
MARK = "<!-- table: written by tests/classic/document.py -->"
END = "<!-- end of table -->"
CLUSTER, MAPPED = "cluster", "mapped"

CLIENTS: dict[str, dict[str, bool]] = tomllib.loads((HERE / "clients.toml").read_text())
SCENARIOS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "scenarios.toml").read_text())


def table() -> str:
    rows = [["scenario", *CLIENTS, CLUSTER, MAPPED], ["---"] * (len(CLIENTS) + 3)]
    for name, row in SCENARIOS.items():
        reasons = row.get("not", {})
        cells = ["works" if version not in reasons else f"— {reasons[version]}" for version in CLIENTS]
        places = row.get("places", [CLUSTER])
        there = "works" if any(CLUSTER in place for place in places) else "—"
        mapped = "works" if row.get(MAPPED) else ""
        rows.append([f"`{name}`: {row['shows']}", *cells, there, mapped])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def filled(page: str) -> str:
    """The page with its table written anew."""
    before, mark, rest = page.partition(MARK)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"{PAGE.name} has no place for {MARK}")
    return f"{before}{mark}\n\n{table()}\n\n{end}{after}"


def main() -> int:
    page = PAGE.read_text()
    wanted = filled(page)
    if "--check" in sys.argv[1:]:
        return int(page != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
