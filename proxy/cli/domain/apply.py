"""`popgate apply` and `popgate export`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown
from proxy.cli.console.terminal import Output, Printer, visible
from proxy.cli.domain.topics import confirm

_KINDS = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_PATIENCE_S = 120.0


class Format(StrEnum):
    TOML = "toml"
    YAML = "yaml"
    JSON = "json"


def apply(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="TOML, YAML or JSON, by its name; - is standard input.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; exit code 1 when something would be.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete topics and groups that the file does not name.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --prune deletes.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Make or change topics and groups to match FILE. All is checked before anything is done."""
    try:
        _apply(file, admin, Printer(output), dry_run=dry_run, prune=prune, yes=yes)
    except Failure as failure:
        if failure.code in (Ended.FAILED, Ended.NOTHING):
            failure.code = Ended.USAGE  # 1 tells of differences here, as diff does
        raise


def export(
    kind: Annotated[Format, typer.Option("--format", "-f", help="How it is written.")] = Format.TOML,
    admin: Admin = DEFAULT_ADMIN,
) -> None:
    """Print all topics and groups so that `popgate apply` makes them elsewhere, or again."""
    from proxy.declaring.specs import group_spec, topic_spec, written

    with Gateway(admin) as gateway:
        declared = gateway.get("declared")
    topics = {config["name"]: topic_spec(config) for config in declared["topics"]}
    groups = {config["name"]: group_spec(config) for config in declared["groups"]}
    sys.stdout.write(written(kind.value, topics, groups))


def _apply(file: str, admin: str, printer: Printer, *, dry_run: bool, prune: bool, yes: bool) -> None:
    from proxy.declaring.sources import DeclarationWrong, read_source
    from proxy.declaring.validation import check

    text, kind, name = _read(file)
    try:
        declaration = check(read_source(text, kind, name))
    except DeclarationWrong as error:
        raise Failure(Ended.USAGE, "\n".join(error.sentences), "BAD_REQUEST") from None
    body: dict[str, Any] = {"topics": declaration.topics, "groups": declaration.groups}
    body |= {"prune": prune, "dry_run": True}
    with Gateway(admin) as gateway:
        outcome = gateway.post("apply", body=body, wait_s=_PATIENCE_S) if dry_run or prune else None
        if outcome is not None:
            _refuse(outcome, declaration)
            doomed = [change for change in outcome["changes"] if change["action"] == "delete"]
            if doomed and not dry_run:
                _ask(doomed, yes=yes)
            # What is made from here on was not asked about.
            body["doomed"] = {f"{kind}s": _names(doomed, kind) for kind in ("topic", "group")}
        if not dry_run:
            outcome = gateway.post("apply", body={**body, "dry_run": False}, wait_s=_PATIENCE_S)
            _refuse(outcome, declaration)
    assert outcome is not None  # noqa: S101 - one of the two was asked for
    _tell(printer, outcome, name, dry_run=dry_run)
    failed = [change for change in outcome["changes"] if change["error"] is not None]
    if failed:
        done = len(outcome["changes"]) - len(failed)
        sentences = [f"{change['kind']} {change['name']}: {change['error']['message']}" for change in failed]
        summary = f"{done} changes were done, {len(failed)} were not"
        raise Failure(Ended.USAGE, "\n".join([summary, *sentences]), failed[0]["error"]["fault"])
    if dry_run and outcome["changes"]:
        raise typer.Exit(1)


def _read(file: str) -> tuple[str, str, str]:
    """The text, its kind (empty: to be found out), and its name for people."""
    path = Path(file)
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode(), "", "standard input"
        kind = _KINDS.get(path.suffix.lower())
        if kind is None:
            raise Failure(Ended.USAGE, f"{file} is neither .toml nor .yaml nor .json; - reads standard input")
        return path.read_text(encoding="utf-8-sig"), kind, file
    except OSError as error:
        raise Failure(Ended.USAGE, f"{file} cannot be read: {(error.strerror or '').lower()}") from None
    except UnicodeDecodeError:
        raise Failure(Ended.USAGE, f"{file} is no UTF-8 text") from None


def _refuse(outcome: dict[str, Any], declaration: Any) -> None:
    """The gateway found something wrong: then nothing was done."""
    if outcome["errors"]:
        sentences = [
            f"{declaration.place(error['kind'], error['name'])}: {error['kind']}s.{error['name']}:"
            f" {error['message']}"
            for error in outcome["errors"]
        ]
        raise Failure(Ended.USAGE, "\n".join(sentences), outcome["errors"][0]["fault"])


def _names(things: list[dict[str, Any]], kind: str) -> list[str]:
    return [change["name"] for change in things if change["kind"] == kind]


def _ask(doomed: list[dict[str, Any]], *, yes: bool) -> None:
    names = [f"{change['kind']} {change['name']}" for change in doomed]
    names_text = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    if not yes and not sys.stdin.isatty():
        raise Failure(Ended.USAGE, f"--prune would delete {names_text}: say --yes to do so")
    confirm(f"Delete {names_text}, with all that is in them?", yes=yes)


def _tell(printer: Printer, outcome: dict[str, Any], name: str, *, dry_run: bool) -> None:
    if printer.as_json:
        printer.done("", {**outcome, "dry_run": dry_run})
        return
    from proxy.declaring.specs import difference

    for change in outcome["changes"]:
        if change["error"] is None:
            _print_lines(difference(change["kind"], change["name"], change["before"], change["after"], name))
    counts = dict.fromkeys(("create", "change", "delete"), 0)
    for change in outcome["changes"]:
        if change["error"] is None:
            counts[change["action"]] += 1
    words = {"create": "created", "change": "changed", "delete": "deleted"}
    parts = [f"{count} {words[action]}" for action, count in counts.items() if count]
    parts.append(f"{outcome['same']} as they should be")
    summary = ("would be: " if dry_run and outcome["changes"] else "") + ", ".join(parts)
    sys.stderr.write(f"{summary}\n")


_COLOURS = {"+": "32", "-": "31", "@": "36"}


def _print_lines(lines: Iterable[str]) -> None:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in lines:
        style = "1" if line.startswith(("---", "+++")) else _COLOURS.get(line[:1], "")
        text = visible(line) if not line.isprintable() else line
        sys.stdout.write(f"\x1b[{style}m{text}\x1b[0m\n" if coloured and style else f"{text}\n")
