"""`popgate group …`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from popgate.lite import LITE_BIND_TOPIC
from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown, duration, moment, pairs
from proxy.cli.console.terminal import Output, Printer
from proxy.cli.domain.topics import confirm
from proxy.config.units import duration_text, moment_text

app = typer.Typer(help="Consumer groups: who reads what, and how far.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]


_POSITIONS = ("minimum", "committed", "frontier", "maximum")


class Start(StrEnum):
    FIRST = "first"
    LAST = "last"


@app.command()
def create(
    name: Name,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Deliver the messages of a message group in order.")
    ] = False,
    broadcast: Annotated[
        bool, typer.Option("--broadcast", help="Every client gets every message; from the last one on.")
    ] = False,
    max_attempts: Annotated[
        int | None,
        typer.Option(metavar="N", help="Deliveries, the first included, before the dead-letter topic."),
    ] = None,
    start: Annotated[
        Start | None,
        typer.Option(
            "--from",
            help="Where to start on a topic; default: first. A cluster starts young topics at the first.",
        ),
    ] = None,
    retry: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Rests between attempts: a list like 1s,5s,1m, or exponential:5s:2h:2"
            " (first, longest, factor).",
        ),
    ] = None,
    retry_from: Annotated[
        int | None,
        typer.Option(
            "--retry-from",
            metavar="N",
            min=0,
            help="Which rest of a list follows the first failure, counted from 0; default: 0.",
        ),
    ] = None,
    consume_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a push consumer may work on a message.")
    ] = None,
    lite: Annotated[
        str | None,
        typer.Option(
            "--lite",
            metavar="TOPIC",
            help=f"Deliver lite topics of TOPIC only: the attribute {LITE_BIND_TOPIC}.",
        ),
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
    consume: Annotated[
        bool | None,
        typer.Option("--consume/--no-consume", help="Whether it is delivered anything; default: it is."),
    ] = None,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Create a consumer group."""
    seconds = duration(consume_timeout)
    wanted = {
        "name": name,
        "ordered": ordered,
        "broadcast": broadcast or None,
        "max_attempts": max_attempts,
        "start_from": start.value if start else None,
        "retry": _retry_policy(retry, retry_from),
        "consume_timeout_ms": None if seconds is None else round(seconds * 1000),
        "consume_enabled": consume,
        "attributes": _attributes(attribute, lite) or None,
    }
    with Gateway(admin) as gateway:
        group = gateway.post(
            "groups", body={key: value for key, value in wanted.items() if value is not None}
        )
    kind = ("broadcast, " if group["broadcast"] else "") + ("ordered" if group["ordered"] else "unordered")
    bound = group["attributes"].get(LITE_BIND_TOPIC)
    Printer(output).done(
        f"group {name} created: {kind}, {group['max_attempts']} attempts,"
        f" from the {group['start_from']} message"
        + (f", lite topics of {bound}" if bound else "")
        + ("" if group["consume_enabled"] else ", nothing is delivered to it"),
        group,
    )


@app.command("list")
def list_(admin: Admin = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """List the consumer groups."""
    with Gateway(admin) as gateway:
        groups = gateway.get("groups")["groups"]
    rows = [
        (
            *(
                group["name"],
                group["ordered"],
                group["broadcast"],
                group["max_attempts"],
                group["start_from"],
            ),
            _retry(group["retry"]),
        )
        for group in groups
    ]
    columns = ("group", "ordered", "broadcast", "attempts", "from", "retry")
    Printer(output).table(columns, rows, groups)


@app.command()
def show(
    name: Name,
    queues: Annotated[bool, typer.Option("--queues", help="Queue by queue instead of by topic.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Show a group, and how far it is on every topic that it has read."""
    with Gateway(admin) as gateway:
        group = gateway.get("groups", name)
    printer = Printer(output)
    if queues and not printer.as_json:
        rows = [
            (
                progress["topic"],
                f"{place['broker']}:{place['queue_id']}{' retry' if place['retry'] else ''}",
                *(place[key] for key in _POSITIONS),
                *(place[key] for key in ("in_flight", "waiting", "lag")),
            )
            for progress in group["progress"]
            for place in progress["queues"]
        ]
        printer.table(("topic", "queue", *_POSITIONS, "in-flight", "waiting", "lag"), rows, group)
        return
    facts: dict[str, object] = {
        "group": group["name"],
        "ordered": group["ordered"],
        "broadcast": group["broadcast"],
        "max attempts": group["max_attempts"],
        "from": group["start_from"],
        "retry": _retry(group["retry"]),
        "consume timeout": duration_text(group["consume_timeout_ms"] / 1000),
        "clients": group["clients"],
        "classic push": _mapping_text(group["mapping"]),
        **{f"attribute {key}": value for key, value in group["attributes"].items()},
    }
    for member in group.get("members", []):
        lag = sum(topic["lag"] for topic in member["progress"])
        facts[f"member {member['client_id']}"] = f"{lag} to do, seen {moment_text(member['seen_ms'])}"
    for progress in group["progress"]:
        facts[f"topic {progress['topic']}"] = _standing_text(progress)
    printer.facts(facts, group)


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Delete a consumer group and its progress."""
    confirm(f"Delete group {name} and its progress?", yes=yes)
    with Gateway(admin) as gateway:
        gateway.delete("groups", name)
    Printer(output).done(f"group {name} deleted", {"name": name, "deleted": True})


@app.command()
def reset(
    name: Name,
    to: Annotated[
        str,
        typer.Option("--to", metavar="TIME", help="first, last, a time like 2025-01-31T12:00Z, or '2h ago'."),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only this one; repeatable. Default: all it read."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Move a group forwards or backwards; what it holds is forgotten."""
    target: str | int | None = to if to in ("first", "last") else moment(to)
    target_text = target if isinstance(target, str) else moment_text(target or 0)
    confirm(f"Reset group {name} to {target_text}?", yes=yes)
    with Gateway(admin) as gateway:
        done = gateway.post("groups", name, "reset", body={"to": target, "topics": topic or []})
    topics = ", ".join(done["topics"]) or "no topic: it has read none"
    Printer(output).done(f"group {name} reset to {target_text} on {topics}", done)


def _mapping_text(mapping: dict[str, Any]) -> str:
    """How classic push consumers of the group read."""
    return f"{'mapped onto pop' if mapping['mapped'] else 'true pull'}: {mapping['why']}"


def _standing_text(progress: dict[str, Any]) -> str:
    if progress["in_flight"] is None:
        # A cluster's: what came back lies in queues of its own, what is held is told to nobody.
        back = sum(queue["lag"] for queue in progress["queues"] if queue["retry"])
        return f"{progress['lag']} to do, {back} of them for another attempt; what is held is not told"
    return (
        f"{progress['lag']} to do, {progress['in_flight']} held,"
        f" {progress['waiting']} waiting for another attempt"
    )


def _attributes(texts: list[str] | None, lite: str | None) -> dict[str, str]:
    """Attributes of a new group, `--lite` among them. Raises BadParameter."""
    attributes = pairs(texts)
    if lite is not None:
        if not lite:
            raise typer.BadParameter("--lite names no topic")
        if attributes.setdefault(LITE_BIND_TOPIC, lite) != lite:
            raise typer.BadParameter(
                f"--lite {lite} contradicts --attribute {LITE_BIND_TOPIC}={attributes[LITE_BIND_TOPIC]}"
            )
    return attributes


def _retry_policy(text: str | None, first_step: int | None) -> dict[str, Any] | None:
    """The retry policy of a new group, None for the default. Raises BadParameter."""
    policy = parse_retry(text) if text else None
    if first_step is not None:
        if policy is None or policy["kind"] != "customized":
            raise typer.BadParameter("--retry-from needs a list of rests: --retry 1s,5s,1m")
        if first_step >= len(policy["delays_ms"]):
            raise typer.BadParameter(
                f"--retry-from is {first_step}, but --retry has {len(policy['delays_ms'])} rests,"
                " counted from 0"
            )
        policy["first_step"] = first_step
    return policy


def parse_retry(text: str) -> dict[str, Any]:
    """A retry policy for the admin port. Raises BadParameter."""
    kind, _, rest = text.partition(":")
    if kind == "exponential":
        parts = [*rest.split(":"), "", "", ""] if rest else ["", "", ""]
        policy: dict[str, Any] = {"kind": "exponential"}
        for key, part in zip(("initial_ms", "max_ms"), parts, strict=False):
            if part:
                policy[key] = round((duration(part) or 0) * 1000)
        if parts[2]:
            try:
                policy["multiplier"] = float(parts[2])
            except ValueError:
                raise typer.BadParameter(f"{parts[2]!r} is no factor") from None
        if any(parts[3:]):
            raise typer.BadParameter("exponential takes first rest, longest rest and factor")
        return policy
    rests = [round((duration(part) or 0) * 1000) for part in text.split(",") if part.strip()]
    return {"kind": "customized", "delays_ms": rests, "first_step": 0}


def _retry(policy: dict[str, Any]) -> str:
    if policy["kind"] == "exponential":
        first, longest = (duration_text(policy[key] / 1000) for key in ("initial_ms", "max_ms"))
        return f"exponential:{first}:{longest}:{policy['multiplier']:g}"
    delays = policy["delays_ms"]
    rests = [duration_text(ms / 1000) for ms in delays[min(policy["first_step"], len(delays) - 1) :]]
    return ",".join(rests[:4]) + (",…" if len(rests) > 4 else "")
