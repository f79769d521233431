"""Writes docs/tools.md from `commands.toml`, the table that the tests play; `--check` only looks."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "tools.md"
_RULE = "| --- | --- | --- | --- |"
_DASHBOARD_RULE = "| --- | --- | --- | --- | --- |"
DASHBOARD: dict[str, dict[str, Any]] = tomllib.loads((HERE / "dashboard.toml").read_text())
COMMANDS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "commands.toml").read_text())

HEAD = """# RocketMQ's tools

RocketMQ's `mqadmin` works at a gateway that has a remoting door: its address is the name server's and every
broker's. `sh mqadmin topicList -n 127.0.0.1:8080` is all that it takes.

These are all commands of `mqadmin` 5.5.0, in front of the embedded broker and in front of a RocketMQ cluster.
Written by `tests/tools/document.py` from the table that the tests play with the unmodified tools: each line
is what they saw, but of commands that ask no gateway. What is refused is answered with code 3 and the reason;
what a gateway has never heard of with code 3, and it never hangs.

In front of a cluster topics, groups, messages and offsets are asked of the brokers themselves, and what only
brokers can tell (their figures, settings and rates, and who is connected to any of them, through whichever
gateway) is asked of all of them, with the gateway's own account. Nothing is passed on that changes the
settings or the rights of a broker. The clients that the tests look at are connected to another gateway than
the one that is asked.

In front of an embedded broker that [several gateways](sharing.md) or [workers](workers.md) share, each of
them shows and asks the clients of all, classic ones at their own addresses; other tests look at that, without
the tools (`tests/e2e/test_shared_clients.py`).
"""


DASHBOARD_HEAD = """## The dashboard

RocketMQ's dashboard has the gateway's address as its name server's. These are all requests that its services
make, by page; the tests make each of them at a gateway, without the dashboard itself. Users and rules are not
decided by it at a gateway; in front of the embedded broker it shows no rates.
"""


def cell(row: dict[str, Any]) -> str:
    """Whether a command works."""
    if "refused" in row:
        return f"— {row['refused']}"
    if "untested" in row:
        return f"not tested: {row['untested']}"
    return f"works: {row['but']}" if "but" in row else "works"


def cells(row: dict[str, Any]) -> str:
    """In front of the embedded broker, and of a cluster where that is different."""
    here, there = cell(row), cell(row.get("cluster", row))
    return f"{here} | {'the same' if here == there else there}"


def outcome(row: dict[str, Any]) -> str:
    """What becomes of a request of the dashboard."""
    return "refused" if row.get("code", 0) else "answered"


def rendered() -> str:
    rows = {name: row for name, row in COMMANDS.items() if not name.startswith("@")}
    works = [name for name, row in rows.items() if cell(row).startswith("works")]
    there = [name for name, row in rows.items() if cell(row.get("cluster", row)).startswith("works")]
    lines = [HEAD, f"{len(works)} of {len(rows)} commands work, {len(there)} in front of a cluster.\n"]
    for section in dict.fromkeys(row["section"] for row in rows.values()):
        lines += [f"## {section}\n", "| command | shows or does | at a gateway | before a cluster |", _RULE]
        lines += [
            f"| `{name}` | {row['does']} | {cells(row)} |"
            for name, row in rows.items()
            if row["section"] == section
        ]
        lines.append("")
    lines += [DASHBOARD_HEAD, "| page | call | request | at a gateway | before a cluster |", _DASHBOARD_RULE]
    lines += [
        f"| {row['page']} | `{row['call']}` | `{name}` | {outcome(row)} |"
        f" {outcome(row.get('cluster', row))} |"
        for name, row in DASHBOARD.items()
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> int:
    current = rendered()
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text() != current)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
