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

RocketMQ's `mqadmin` works with every gateway that has a remoting listener: use the gateway's address as the
name server's, for example `sh mqadmin topicList -n 127.0.0.1:8080`. It is also the address of every broker.

The tables list all commands of `mqadmin` 5.5.0, with the embedded broker and in front of a RocketMQ cluster.
They are written by `tests/tools/document.py` from the table that the tests run with the unmodified tools:
each line is what the tests saw, except for commands that ask no gateway. A command that is refused, or
unknown to the gateway, is answered with code 3 and the reason; none is left without an answer.

In front of a cluster the gateway asks the brokers themselves for topics, groups, messages and offsets. It
asks all brokers, with its own account, for what only they know: statistics, settings, rates, and the clients
that are connected to any of them, through any gateway. It passes on nothing that changes the settings or the
rights of a broker. The clients that the tests look for are connected to another gateway than the one that is
asked.

If [several gateways](sharing.md) or [workers](workers.md) share an embedded broker, each of them shows and
reaches the clients of all, classic clients under their own addresses; this is tested without the tools
(`tests/e2e/test_shared_clients.py`).
"""


DASHBOARD_HEAD = """## The dashboard

Configure the gateway's address as the name server of RocketMQ's dashboard. The table lists all requests that
its services make, by page; the tests send each of them to a gateway, without the dashboard itself. It cannot
manage users and access rules through a gateway, and with the embedded broker it shows no rates.
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
