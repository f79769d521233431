"""Options that many commands share."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from proxy.cli.console.terminal import Output
from proxy.config.units import parse_duration, parse_moment

DEFAULT_ADMIN = "http://127.0.0.1:8083"

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Admin = Annotated[
    str,
    typer.Option(
        "--admin", envvar="POPGATE_ADMIN", metavar="URL", help="Admin address of the running gateway."
    ),
]
Shown = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        envvar="POPGATE_OUTPUT",
        help="table or plain lines; auto: a table on a terminal, plain lines in a pipe.",
    ),
]


def duration(text: str | None) -> float | None:
    """Seconds of an option's text. Raises BadParameter with the sentence of `parse_duration`."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def moment(text: str | None) -> int | None:
    """Epoch milliseconds of an option's text. Raises BadParameter with the sentence of `parse_moment`."""
    if text is None:
        return None
    try:
        return parse_moment(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def pairs(texts: list[str] | None) -> dict[str, str]:
    """Parse options of the form name=value. Raises BadParameter."""
    by_name = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} does not name a value: write name=value")
        by_name[name] = value
    return by_name
