"""`popgate topic …`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown, duration, pairs
from proxy.cli.console.terminal import Output, Printer
from proxy.config.units import duration_text, parse_size, size_text

app = typer.Typer(help="Topics: where messages are kept.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command()
def create(
    name: Name,
    message_type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            "-t",
            metavar="TYPE",
            help="NORMAL, FIFO, DELAY, TRANSACTION, LITE or PRIORITY; repeat it or write a list with"
            " commas. Default: all.",
        ),
    ] = None,
    queues: Annotated[int | None, typer.Option("--queues", "-q", help="Default: topics.queues.")] = None,
    retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Keep messages so long, like 3d.")
    ] = None,
    retention_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Keep at most so much, like 10GiB.")
    ] = None,
    permission: Annotated[
        str | None, typer.Option(metavar="WHAT", help="read-write (default), read, write or none.")
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Create a topic."""
    types = [word.strip().upper() for part in message_type or () for word in part.split(",") if word.strip()]
    seconds = duration(retention)
    wanted = {
        "name": name,
        "types": types,
        "queues": queues,
        "retention_ms": None if seconds is None else round(seconds * 1000),
        "retention_bytes": _size(retention_bytes),
        "permission": permission,
        "attributes": pairs(attribute) or None,
    }
    with Gateway(admin) as gateway:
        topic = gateway.post(
            "topics", body={key: value for key, value in wanted.items() if value is not None}
        )
    Printer(output).done(f"topic {name} created: {topic['queues']} queues, {_types(topic)}", topic)


@app.command("list")
def list_(admin: Admin = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """List the topics."""
    with Gateway(admin) as gateway:
        topics = gateway.get("topics")["topics"]
    rows = [
        (topic["name"], _types(topic), topic["queues"], topic["permission"], _retention(topic))
        for topic in topics
    ]
    Printer(output).table(("topic", "types", "queues", "permission", "retention"), rows, topics)


@app.command()
def show(name: Name, admin: Admin = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """Show a topic, and how much is in each queue."""
    with Gateway(admin) as gateway:
        topic = gateway.get("topics", name)
    printer = Printer(output)
    places = topic["places"]
    facts = {
        "topic": topic["name"],
        "types": _types(topic),
        "queues": topic["queues"],
        "permission": topic["permission"],
        "retention": _retention(topic),
        "messages": _messages(topic),
        **{f"attribute {key}": value for key, value in topic["attributes"].items()},
        **{
            f"queue {place['broker']}:{place['queue_id']}": f"{place['minimum']} to {place['maximum']}"
            for place in places
        },
    }
    printer.facts(facts, topic)


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Delete a topic with its messages."""
    confirm(f"Delete topic {name} with all its messages?", yes=yes)
    with Gateway(admin) as gateway:
        gateway.delete("topics", name)
    Printer(output).done(f"topic {name} deleted", {"name": name, "deleted": True})


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation. Without a terminal it must be given by an option: raises Failure."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(Ended.USAGE, f"{question} Nobody can be asked here: say --yes, and nothing is asked")
    # By hand: typer's own writes to standard output, which may be a pipe, or JSON.
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def _types(topic: dict[str, Any]) -> str:
    return ",".join(topic["types"]) or "all types"


def _is_compacted(topic: dict[str, Any]) -> bool:
    return bool(topic["attributes"].get("cleanup.policy") == "COMPACTION")


def _messages(topic: dict[str, Any]) -> int | str:
    """From the offsets: after compaction there are fewer."""
    count = sum(place["maximum"] - place["minimum"] for place in topic["places"])
    return f"at most {count}" if _is_compacted(topic) else count


def _retention(topic: dict[str, Any]) -> str:
    if _is_compacted(topic):
        return "the newest of each key"
    limits = []
    if topic["retention_ms"] is not None:
        limits.append(duration_text(topic["retention_ms"] / 1000))
    if topic["retention_bytes"] is not None:
        limits.append(size_text(topic["retention_bytes"]))
    return ", ".join(limits) or "default"


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
