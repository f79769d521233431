"""`popgate dead-letter …`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown
from proxy.cli.console.terminal import Output, Printer, Progress
from proxy.cli.domain.messages import print_message
from proxy.config.units import counted, moment_text

app = typer.Typer(help="Messages that a group could not consume.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP")]
Origin = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Only those from this topic.")]

_AT_ONCE = 256
_BEATS = 4
"""Steps a second when a rate is asked for."""


@app.command("list")
def list_(group: Group, admin: Admin = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """Count a group's dead letters, by the topic that they come from."""
    with Gateway(admin) as gateway:
        response = gateway.get("groups", group, "dead-letters")
    rows = [
        (topic["topic"], topic["count"], moment_text(topic["oldest_ms"]), moment_text(topic["newest_ms"]))
        for topic in response["topics"]
    ]
    Printer(output).table(("topic", "dead letters", "oldest", "newest"), rows, response)


@app.command()
def show(
    group: Group,
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID")] = "",
    topic: Origin = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, oldest first.")] = 20,
    only_body: Annotated[bool, typer.Option("--body", help="Print nothing but the bodies.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Show a group's dead letters, or one of them."""
    query: dict[str, str | int | None] = {
        "message_id": message_id or None,
        "topic": topic or None,
        "limit": limit,
    }
    with Gateway(admin) as gateway:
        letters = gateway.get("groups", group, "dead-letters", "messages", query=query)["messages"]
    if not letters and message_id:
        raise Failure(Ended.NOTHING, f"group {group} has no dead letter {message_id!r}", "MESSAGE_NOT_FOUND")
    printer = Printer(output)
    for message in letters:
        print_message(printer, message, only_body=only_body)


@app.command()
def redrive(
    group: Group,
    message: Annotated[
        list[str] | None, typer.Option("--message", "-m", metavar="ID", help="Only this one; repeatable.")
    ] = None,
    topic: Origin = "",
    rate: Annotated[
        str | None, typer.Option(metavar="N/s", help="At most so many a second, like 100/s.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Move nothing; say what would be.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Give dead letters to the group again, and to no other; oldest first. May be repeated safely."""
    per_second = _rate(rate)
    printer = Printer(output)
    moved: dict[str, int] = {}
    refused: list[dict[str, Any]] = []
    body: dict[str, Any] = {"messages": message or [], "topic": topic, "dry_run": dry_run}
    finished = answered = False
    try:
        with Gateway(admin) as gateway, Progress("redriving", limit) as advance:
            for step in _steps(gateway, group, body, limit, per_second):
                for letter in step["moved"]:
                    moved[letter["topic"]] = moved.get(letter["topic"], 0) + 1
                refused += step["refused"]
                advance(len(step["moved"]))
        finished = True
    except Failure as failure:
        # Refused as a whole: there is nothing to tell but why.
        answered = failure.code is not Ended.UNREACHABLE and not moved and not refused
        raise
    finally:
        if not answered:
            _tell(printer, group, moved, refused, dry_run=dry_run, finished=finished)
    if refused:
        raise Failure(
            Ended.FAILED, f"{counted(len(refused), 'dead letter')} not redriven: {refused[0]['message']}"
        )


def _steps(
    gateway: Gateway, group: str, body: dict[str, Any], limit: int | None, per_second: float | None
) -> Iterator[dict[str, Any]]:
    """Steps of a redrive, one request each, as fast as the rate allows."""
    at_once = _AT_ONCE if per_second is None else min(max(int(per_second / _BEATS), 1), _AT_ONCE)
    began, done = time.monotonic(), 0
    while limit is None or done < limit:
        body["limit"] = at_once if limit is None else min(at_once, limit - done)
        if body["messages"]:
            body["messages"], later = body["messages"][: body["limit"]], body["messages"][body["limit"] :]
        step = gateway.post("groups", group, "dead-letters", "redrive", body=body)
        yield step
        count = len(step["moved"])
        done += count
        if body["messages"]:
            if not later:
                return
            body["messages"] = later
        elif step["next"] is None:
            return
        else:
            body["next"], body["until"] = step["next"], step["until"]
        if per_second is not None:
            time.sleep(max(began + done / per_second - time.monotonic(), 0.0))


def _tell(
    printer: Printer,
    group: str,
    moved: dict[str, int],
    refused: list[dict[str, Any]],
    *,
    dry_run: bool,
    finished: bool,
) -> None:
    """Print the moved messages, also when the command is interrupted."""
    total = sum(moved.values())
    by_topic = ", ".join(f"{count} of {topic}" for topic, count in sorted(moved.items()))
    verb = "would be redriven" if dry_run else "redriven"
    sentence = f"{counted(total, 'dead letter')} {verb} to {group}" + (f": {by_topic}" if by_topic else "")
    if not finished:
        sentence += "; not finished, and one more step may have been done: it is safe to repeat"
    for refusal in refused:
        sentence += f"; {refusal['message_id'] or 'one'} stays: {refusal['message']}"
    value = {
        "group": group,
        "moved": total,
        "topics": moved,
        "refused": refused,
        "dry_run": dry_run,
        "finished": finished,
    }
    printer.done(sentence, value)


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    number = text.removesuffix("/s").strip()
    try:
        rate = float(number)
    except ValueError:
        rate = 0.0
    if not 0.001 <= rate <= 1_000_000:
        raise typer.BadParameter(f"{text!r} is no rate: write it like 100/s")
    return rate
