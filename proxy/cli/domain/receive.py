"""`popgate receive`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from proxy.cli.console import terminal
from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown, Topic, duration
from proxy.cli.console.terminal import Output, Printer
from proxy.cli.domain.messages import print_message

_SLICE_S = 10.0
_RECEIVE_BATCH = 32
_REST_S = 0.5
"""Between two questions, where the gateway lets nobody wait: it drains, or `api.max_wait_s` is small."""


def receive(
    topic: Topic,
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")],
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="At most so many; 0: all there are.")
    ] = 1,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="Wait so long for a message.")] = "5s",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on waiting until Ctrl-C.")] = False,
    tag: Annotated[str | None, typer.Option("--tag", help="Only these tags: 'a || b'.")] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", help="Only what this SQL92 expression holds for.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Do not acknowledge: they come back when --invisible is over.")
    ] = False,
    invisible: Annotated[
        str, typer.Option(metavar="DURATION", help="Hide what was received from others so long.")
    ] = "30s",
    only_body: Annotated[
        bool, typer.Option("--body", help="Print nothing but the bodies, as they are.")
    ] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Receive messages, print them, then acknowledge them."""
    if tag is not None and sql is not None:
        raise typer.BadParameter("give --tag or --sql, not both")
    wanted = {
        "group": group,
        "tag": tag,
        "sql": sql,
        "invisible_ms": round((duration(invisible) or 0) * 1000),
    }
    wanted = {name: value for name, value in wanted.items() if value is not None}
    patience = duration(wait) or 0.0
    limit = 0 if follow and count == 1 else count
    printer = Printer(output)
    received = 0
    with Gateway(admin) as gateway:
        while limit == 0 or received < limit:
            most = _RECEIVE_BATCH if limit == 0 else min(limit - received, _RECEIVE_BATCH)
            messages = _await_messages(
                gateway, topic, {**wanted, "max_messages": most}, patience, follow=follow
            )
            if not messages:
                break
            for message in messages:
                print_message(printer, message, only_body=only_body)
            # What was printed must have arrived before it is given up here.
            terminal.flush()
            if not keep:
                _acknowledge(gateway, topic, group, messages)
            received += len(messages)
    if not received:
        raise Failure(Ended.NOTHING, f"no message for group {group} on topic {topic} in {wait}")


def _await_messages(
    gateway: Gateway, topic: str, request: dict[str, Any], patience: float, *, follow: bool
) -> list[dict[str, Any]]:
    """Ask in slices, so that any patience works whatever the gateway's longest wait is."""
    end = time.monotonic() + patience
    while True:
        began = time.monotonic()
        left = max(end - began, 0.0)
        asked = min(_SLICE_S, _SLICE_S if follow else left)
        answer = gateway.post(
            "topics", topic, "receive", body={**request, "wait_ms": round(asked * 1000)}, wait_s=asked
        )
        messages: list[dict[str, Any]] = answer["messages"]
        if messages or (not follow and time.monotonic() >= end):
            return messages
        time.sleep(max(began + min(asked, _REST_S) - time.monotonic(), 0.0))


def _acknowledge(gateway: Gateway, topic: str, group: str, messages: list[dict[str, Any]]) -> None:
    receipts = [message["receipt"] for message in messages]
    answer = gateway.post("topics", topic, "ack", body={"group": group, "receipts": receipts})
    refused = [result for result in answer["results"] if result is not None]
    if refused:
        raise Failure(
            Ended.FAILED,
            f"{len(refused)} messages were printed but not acknowledged: {refused[0]['message']}",
            refused[0]["fault"],
        )
