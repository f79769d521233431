"""`popgate message …`, and the output of a message."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from proxy.cli.console import terminal
from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown, Topic, moment
from proxy.cli.console.terminal import Output, Printer
from proxy.config.units import moment_text

app = typer.Typer(help="Messages that are kept: look them up.", no_args_is_help=True)


@app.command()
def show(
    topic: Topic,
    message_id: Annotated[str, typer.Argument(metavar="ID")],
    only_body: Annotated[bool, typer.Option("--body", help="Print nothing but the body, as it is.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Show a message by its id."""
    with Gateway(admin) as gateway:
        messages = gateway.get("topics", topic, "messages", message_id)["messages"]
    printer = Printer(output)
    if only_body:
        terminal.raw(terminal.body_bytes(messages[0]))
    elif printer.as_json:
        printer.facts({}, messages)
    else:
        for message in messages:
            printer.facts(_facts(message), message)


@app.command()
def find(
    topic: Topic,
    key: Annotated[str, typer.Option("--key", "-k", help="The key it was sent with.")],
    begin: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Stored at or after.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Stored at or before.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 64,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Find messages by a key."""
    query: dict[str, str | int | None] = {
        "key": key,
        "limit": limit,
        "from": moment(begin),
        "to": moment(end),
    }
    with Gateway(admin) as gateway:
        messages = gateway.get("topics", topic, "messages", query=query)["messages"]
    if not messages:
        raise Failure(Ended.NOTHING, f"no message with key {key} on topic {topic}", "MESSAGE_NOT_FOUND")
    rows = [
        (
            message["message_id"],
            moment_text(message["stored_ms"]),
            f"{message['broker']}:{message['queue_id']}",
            message["offset"],
            message["tag"],
            message["size"],
        )
        for message in messages
    ]
    Printer(output).table(("message", "stored", "queue", "offset", "tag", "bytes"), rows, messages)


def print_message(printer: Printer, message: dict[str, Any], *, only_body: bool) -> None:
    if only_body:
        terminal.raw(terminal.body_bytes(message))
        return
    where = f"{message['broker']}:{message['queue_id']}"
    body = terminal.body_text(message)
    details = [f"{where} offset {message['offset']}", f"attempt {message['attempt']}"]
    for name in ("tag", "keys", "message_group"):
        if message[name]:
            value = message[name] if isinstance(message[name], str) else ",".join(message[name])
            details.append(f"{name.replace('_', ' ')} {value}")
    details += [f"{name}={value}" for name, value in message["properties"].items()]
    heading = f"{terminal.title(message['message_id'])}  {terminal.faint('  '.join(details))}"
    plain = (
        message["message_id"],
        where,
        message["offset"],
        message["attempt"],
        message["tag"],
        message["keys"],
        body,
    )
    printer.item(plain, f"{heading}\n{terminal.visible(body)}", message)


def _facts(message: dict[str, Any]) -> dict[str, object]:
    return {
        "message": message["message_id"],
        "topic": message["topic"],
        "queue": f"{message['broker']}:{message['queue_id']}",
        "offset": message["offset"],
        "tag": message["tag"],
        "keys": message["keys"],
        "message group": message["message_group"],
        "sent": f"{moment_text(message['born_ms'])} from {message['born_host'] or '-'}",
        "stored": moment_text(message["stored_ms"]),
        **{f"property {name}": value for name, value in message["properties"].items()},
        "bytes": message["size"],
        "body": terminal.body_text(message),
    }
