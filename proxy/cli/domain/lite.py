"""`popgate lite …`: the lite topics of a topic."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown
from proxy.cli.console.terminal import Output, Printer
from proxy.cli.domain.topics import confirm

app = typer.Typer(help="Lite topics: light queues within a topic.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.command("list")
def list_(
    topic: Topic,
    after: Annotated[str, typer.Option(metavar="NAME", help="Only those behind this one.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many.")] = 100,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """List the lite topics of a topic by name."""
    with Gateway(admin) as gateway:
        lite_topics: list[dict[str, Any]] = gateway.get(
            "topics", topic, "lite", query={"after": after, "limit": limit}
        )["lite_topics"]
    rows = [
        (lite_topic["name"], lite_topic["maximum"] - lite_topic["minimum"], lite_topic["subscribers"])
        for lite_topic in lite_topics
    ]
    Printer(output).table(("lite topic", "messages", "subscribers"), rows, lite_topics)


@app.command()
def delete(
    topic: Topic,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Delete a lite topic; its clients are told."""
    confirm(f"Delete lite topic {name} of {topic}?", yes=yes)
    with Gateway(admin) as gateway:
        gateway.delete("topics", topic, "lite", name)
    Printer(output).done(
        f"lite topic {name} of {topic} deleted", {"topic": topic, "name": name, "deleted": True}
    )
