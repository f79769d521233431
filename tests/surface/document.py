"""Writes docs/grpc-fields.md and docs/pitfalls.md; `--check` only looks whether they are current."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"

FIELDS_HEAD = """# The gRPC API, field by field

What becomes of every field of every message of `apache.rocketmq.v2`. Written by
`tests/surface/document.py` from `tests/surface/fields.toml`, which a test compares with the descriptors.

- **honoured**: it decides something, or does what its row says that it is for
- **told**: the gateway fills it in; what a client writes there means nothing
- **echoed**: it comes back as it was sent

No field is ignored.

A code in the last column is what a value that cannot be is refused with; each is sent and seen refused by
`tests/unit/protocols/grpc/test_refusals.py`. Fields that are not known (of a newer client) are let pass.
"""

PITFALLS_HEAD = """# Pitfalls of the gRPC protocol

What goes wrong when RocketMQ's protocol is served slightly differently, what popgate does instead, and
the tests that show it. Numbers are those of the list that the gateway was built from: section, then
row. Written by `tests/surface/document.py` from `tests/surface/pitfalls.toml`; rows about other protocols
are left out.
"""


def fields() -> dict[str, Any]:
    return tomllib.loads((HERE / "fields.toml").read_text())


def pitfalls() -> dict[str, Any]:
    return tomllib.loads((HERE / "pitfalls.toml").read_text())


def fields_page() -> str:
    table = fields()
    kinds = Counter(
        told[0] for message in table.values() for name, told in message.items() if name != "_seen"
    )
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    lines = [FIELDS_HEAD, f"{sum(kinds.values())} fields: {counts}."]
    for message, rows in table.items():
        lines += ["", f"## {message}", "", "| field | | | refused with |", "| --- | --- | --- | --- |"]
        for name, told in rows.items():
            if name != "_seen":
                code = f"`{told[2]}`" if len(told) == 3 else ""
                lines.append(f"| `{name}` | {told[0]} | {told[1]} | {code} |")
        if rows["_seen"]:
            seen = ", ".join(f"`{name.rpartition('::')[2]}`" for name in rows["_seen"])
            lines += ["", f"Seen in {seen}."]
    return "\n".join(lines) + "\n"


def pitfalls_page() -> str:
    lines = [PITFALLS_HEAD, "| | what holds | seen in |", "| --- | --- | --- |"]
    for row, told in pitfalls().items():
        if "no" in told:
            lines.append(f"| {row} | cannot happen | {told['no']} |")
        else:
            seen = "<br>".join(f"`{name}`" for name in told["seen"])
            lines.append(f"| {row} | {told['says']} | {seen} |")
    return "\n".join(lines) + "\n"


PAGES = {"grpc-fields.md": fields_page, "pitfalls.md": pitfalls_page}


def main() -> int:
    stale = 0
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if "--check" in sys.argv:
            stale += not path.exists() or path.read_text() != text
        else:
            path.write_text(text)
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
