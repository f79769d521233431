"""Writes the table in docs/clients.md from `scenarios.toml`; `--check` only looks whether it is current."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "clients.md"
BEGIN, END = "<!-- table: written by tests/conformance/document.py -->", "<!-- end of table -->"


def rendered() -> str:
    lines = ["| scenario | Python 5.1.2 | Java 5.2.0 |", "| --- | --- | --- |"]
    for name, row in tomllib.loads((HERE / "scenarios.toml").read_text()).items():
        cells = []
        for client in ("python", "java"):
            if row[client] is True:
                cells.append("works")
            else:
                cells.append(f"— {row[client]}")
        lines.append(f"| `{name}`: {row['shows']} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> int:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    current = f"{before}{BEGIN}\n\n{rendered()}\n\n{END}{after}"
    if "--check" in sys.argv:
        return int(current != page)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
