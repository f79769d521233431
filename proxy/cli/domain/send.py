"""`popgate send`."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Iterator
from itertools import repeat
from typing import Annotated, Any

import typer

from proxy.cli.console import terminal
from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown, Topic, duration, pairs
from proxy.cli.console.terminal import Output, Printer

_BATCH = 100
_BATCH_BYTES = 1 << 20
_LARGEST_INPUT = 256 << 20
_READ_BYTES = 1 << 16
_CONTROLS = bytes({*range(32)} - {*b"\b\t\n\f\r"})
_ESCAPED = 6
"""Bytes that each of these takes in JSON."""


def send(
    topic: Topic,
    body: Annotated[str, typer.Argument(metavar="BODY|-", help="The body; - reads standard input.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="KEY", help="A key to find it by; repeatable.")
    ] = None,
    tag: Annotated[str, typer.Option("--tag", help="The tag, for filters.")] = "",
    message_group: Annotated[
        str, typer.Option("--message-group", "-g", help="Ordered within this message group.")
    ] = "",
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Deliver after this time, like 10s.")
    ] = None,
    lite_topic: Annotated[str, typer.Option("--lite-topic", help="Send it to this lite topic.")] = "",
    priority: Annotated[
        int | None, typer.Option(min=0, help="What is higher is delivered first, on topics that take it.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; repeatable."),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Send it so many times.")] = 1,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Send a message."""
    seconds = duration(delay)
    template = {
        "keys": key or [],
        "tag": tag,
        "message_group": message_group,
        "delay_ms": None if seconds is None else round(seconds * 1000),
        "properties": pairs(properties),
    }
    template = {name: value for name, value in template.items() if value}
    if lite_topic:
        template["lite_topic"] = lite_topic
    if priority is not None:
        template["priority"] = priority
    if lines and body != "-":
        raise typer.BadParameter("--lines reads standard input: give - as the body")
    printer = Printer(output)
    failed = 0
    with Gateway(admin) as gateway, terminal.Progress("sending", None if lines else count) as advance:
        for batch in _batches(_bodies(body, count, lines=lines)):
            answer = gateway.post(
                "topics",
                topic,
                "messages",
                body={"messages": [{**template, **_encoded(text)} for text in batch]},
            )
            failed += _print_sent(printer, topic, answer["results"])
            terminal.flush()
            advance(len(batch))
    if failed:
        raise Failure(Ended.FAILED, f"{failed} messages were not sent")


def _print_sent(printer: Printer, topic: str, results: list[dict[str, Any]]) -> int:
    """Print one line per message; how many failed."""
    failed = 0
    for result in results:
        if "message_id" not in result:
            failed += 1
            if failed == 1 and len(results) == 1:
                raise Failure(Ended.FAILED, result["message"], result["fault"])
            printer.item((result["fault"], result["message"]), f"not sent: {result['message']}", result)
            continue
        where = f"{result['broker']}:{result['queue_id']}"
        place = terminal.faint(f"{topic} {where} offset {result['offset']}")
        pretty = f"{terminal.title(result['message_id'])}  {place}"
        printer.item((result["message_id"], where, result["offset"]), pretty, result)
    return failed


def _bodies(body: str, count: int, *, lines: bool) -> Iterator[bytes | None]:
    """The bodies to send; None: the next one may take long, so flush."""
    if lines:
        for line in _lines():
            yield from repeat(line, 1 if line is None else count)
        return
    if body == "-":
        data = sys.stdin.buffer.read(_LARGEST_INPUT + 1)
        if len(data) > _LARGEST_INPUT:
            raise Failure(Ended.USAGE, f"standard input has more than {_LARGEST_INPUT} bytes")
    else:
        data = body.encode("utf-8", "surrogateescape")
    for _ in range(count):
        yield data


def _lines() -> Iterator[bytes | None]:
    """Non-empty lines of standard input, and None when all available input was returned."""
    begun = bytearray()
    source: Any = sys.stdin.buffer
    while data := source.read1(_READ_BYTES):
        *ended, rest = data.split(b"\n")
        for line in ended:
            begun += line
            if whole := bytes(begun).rstrip(b"\r\n"):
                yield whole
            begun.clear()
        begun += rest
        if len(begun) > _LARGEST_INPUT:
            raise Failure(Ended.USAGE, f"a line of standard input has more than {_LARGEST_INPUT} bytes")
        yield None
    if whole := bytes(begun).rstrip(b"\r\n"):
        yield whole


def _batches(bodies: Iterator[bytes | None]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (body is None or len(batch) >= _BATCH or size + len(body) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        if body is not None:
            batch.append(body)
            size += len(body)
    if batch:
        yield batch


def _encoded(body: bytes) -> dict[str, str]:
    """As text, unless there is none, or it would be longer in JSON: the gateway bounds its requests."""
    controls = len(body) - len(body.translate(None, _CONTROLS))
    with contextlib.suppress(UnicodeDecodeError):
        if controls * (_ESCAPED - 1) <= len(body) // 3:
            return {"body": body.decode()}
    return {"body_base64": base64.b64encode(body).decode()}
