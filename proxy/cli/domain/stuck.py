"""`popgate stuck`: why a group makes no progress, and releasing the message that blocks it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from proxy.cli.console import terminal
from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown
from proxy.cli.console.terminal import Output, Printer
from proxy.config.units import local_moment_text, span_text

_COLUMNS = (
    *(
        "state",
        "message",
        "topic",
        "queue",
        "offset",
        "message group or lite topic",
        "holder",
        "since",
        "until",
    ),
    *("renewed", "attempt", "behind"),
)


def stuck(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    which: Annotated[
        str | None,
        typer.Argument(metavar="RECEIPT|MESSAGE_ID", help="With --free: what to free.", show_default=False),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    client: Annotated[
        str | None,
        typer.Option("--client", help="Only this client of a broadcast group."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=256, help="At most so many, held longest first.")
    ] = 20,
    free: Annotated[
        bool,
        typer.Option("--free", help="Free the message that is named, or the only one that is held."),
    ] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Tell which message blocks a group and who holds it, or why nothing is stuck; free it with --free."""
    if which is not None and not free:
        raise Failure(Ended.USAGE, f"{which!r} is only looked at with --free")
    printer = Printer(output)
    with Gateway(admin) as gateway:
        if free:
            body = {"topic": topic or "", "which": which or "", "client": client or ""}
            freed = gateway.post("groups", group, "free", body=body)
            printer.done(_told_freed(freed), freed)
            return
        explanation = gateway.get(
            "groups", group, "stuck", query={"topic": topic, "client": client, "limit": limit}
        )
    if printer.as_json:
        printer.facts({}, explanation)
        return
    _print(printer, explanation)


def _print(printer: Printer, explanation: dict[str, Any]) -> None:
    held, now_ms = explanation["held"], explanation["now_ms"]
    if printer.output is Output.PLAIN:
        for message in held:
            printer.item((*_row(message, now_ms), message["receipt"]), "", message)
        for reason in explanation["reasons"]:
            printer.item(("reason", reason), "", reason)
        return
    if len(held) == 1:
        printer.facts(_facts(held[0], now_ms), held)
    elif held:
        printer.table(_COLUMNS, [_row(message, now_ms) for message in held], held)
    for reason in explanation["reasons"]:
        printer.item((), terminal.visible(f"{reason[:1].upper()}{reason[1:]}."), reason)
    if held:
        command = f"popgate stuck {explanation['group']} --free" + (" MESSAGE_ID" if len(held) > 1 else "")
        printer.item((), terminal.faint(f"To give one to somebody else now: {command}"), command)


def _row(message: dict[str, Any], now_ms: int) -> tuple[object, ...]:
    return (
        message["state"],
        message["message_id"],
        message["topic"],
        f"{message['broker']}:{message['queue_id']}",
        message["offset"],
        message["lite_topic"] or message["message_group"],
        message["client"] or message["holder"],
        span_text(now_ms - message["since_ms"]),
        f"in {span_text(message['until_ms'] - now_ms)}",
        message["renewals"],
        message["attempt"],
        message["waiting_behind"],
    )


def _facts(message: dict[str, Any], now_ms: int) -> dict[str, object]:
    since, until = message["since_ms"], message["until_ms"]
    queue = f"{message['broker']}:{message['queue_id']}"
    return {
        "message": message["message_id"],
        "state": "held" if message["state"] == "held" else "rests after a failure",
        "topic": f"{message['topic']}, queue {queue}, offset {message['offset']}",
        "lite topic": message["lite_topic"],
        "message group": message["message_group"],
        "tag": message["tag"],
        "keys": message["keys"],
        "holder": message["client"] or message["holder"],
        "since": f"{span_text(now_ms - since)} ({local_moment_text(since)})",
        "comes back": f"in {span_text(until - now_ms)} ({local_moment_text(until)})",
        "renewed": f"{message['renewals']} times",
        "attempt": message["attempt"],
        "waiting behind": message["waiting_behind"],
        "receipt": message["receipt"],
    }


def _told_freed(freed: dict[str, Any]) -> str:
    where = f"message {freed['message_id']} of topic {freed['topic']}"
    if freed["dead_lettered"]:
        return f"{where} was freed; attempt {freed['attempt']} was its last one: it went to the dead letters"
    return f"{where} was freed after attempt {freed['attempt']}: whoever asks next gets it"
