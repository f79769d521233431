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
    from proxy.declaring.writing import group_spec, topic_spec, written

    with Gateway(admin) as gateway:
        found = gateway.get("declared")
    topics = {one["name"]: topic_spec(one) for one in found["topics"]}
    groups = {one["name"]: group_spec(one) for one in found["groups"]}
    sys.stdout.write(written(kind.value, topics, groups))


def _apply(file: str, admin: str, printer: Printer, *, dry_run: bool, prune: bool, yes: bool) -> None:
    from proxy.declaring.checking import check
    from proxy.declaring.sources import DeclarationWrong, read_source

    text, kind, name = _read(file)
    try:
        declaration = check(read_source(text, kind, name))
    except DeclarationWrong as error:
        raise Failure(Ended.USAGE, "\n".join(error.sentences), "BAD_REQUEST") from None
    body: dict[str, Any] = {"topics": declaration.topics, "groups": declaration.groups}
    body |= {"prune": prune, "dry_run": True}
    with Gateway(admin) as gateway:
        found = gateway.post("apply", body=body, wait_s=_PATIENCE_S) if dry_run or prune else None
        if found is not None:
            _refuse(found, declaration)
            doomed = [one for one in found["changes"] if one["action"] == "delete"]
            if doomed and not dry_run:
                _ask(doomed, yes=yes)
            # What is made from here on was not asked about.
            body["doomed"] = {f"{kind}s": _names(doomed, kind) for kind in ("topic", "group")}
        if not dry_run:
            found = gateway.post("apply", body={**body, "dry_run": False}, wait_s=_PATIENCE_S)
            _refuse(found, declaration)
    assert found is not None  # noqa: S101 - one of the two was asked for
    _tell(printer, found, name, dry_run=dry_run)
    failed = [one for one in found["changes"] if one["error"] is not None]
    if failed:
        done = len(found["changes"]) - len(failed)
        sentences = [f"{one['kind']} {one['name']}: {one['error']['message']}" for one in failed]
        told = f"{done} changes were done, {len(failed)} were not"
        raise Failure(Ended.USAGE, "\n".join([told, *sentences]), failed[0]["error"]["fault"])
    if dry_run and found["changes"]:
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


def _refuse(found: dict[str, Any], declaration: Any) -> None:
    """The gateway found something wrong: then nothing was done."""
    if found["errors"]:
        sentences = [
            f"{declaration.place(one['kind'], one['name'])}: {one['kind']}s.{one['name']}: {one['message']}"
            for one in found["errors"]
        ]
        raise Failure(Ended.USAGE, "\n".join(sentences), found["errors"][0]["fault"])


def _names(things: list[dict[str, Any]], kind: str) -> list[str]:
    return [one["name"] for one in things if one["kind"] == kind]


def _ask(doomed: list[dict[str, Any]], *, yes: bool) -> None:
    names = [f"{one['kind']} {one['name']}" for one in doomed]
    told = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    if not yes and not sys.stdin.isatty():
        raise Failure(Ended.USAGE, f"--prune would delete {told}: say --yes to do so")
    confirm(f"Delete {told}, with all that is in them?", yes=yes)


def _tell(printer: Printer, found: dict[str, Any], name: str, *, dry_run: bool) -> None:
    if printer.as_json:
        printer.done("", {**found, "dry_run": dry_run})
        return
    from proxy.declaring.writing import difference

    for one in found["changes"]:
        if one["error"] is None:
            _print_lines(difference(one["kind"], one["name"], one["before"], one["after"], name))
    counts = dict.fromkeys(("create", "change", "delete"), 0)
    for one in found["changes"]:
        if one["error"] is None:
            counts[one["action"]] += 1
    words = {"create": "created", "change": "changed", "delete": "deleted"}
    told = [f"{count} {words[action]}" for action, count in counts.items() if count]
    told.append(f"{found['same']} as they should be")
    summary = ("would be: " if dry_run and found["changes"] else "") + ", ".join(told)
    sys.stderr.write(f"{summary}\n")


_COLOURS = {"+": "32", "-": "31", "@": "36"}


def _print_lines(lines: Iterable[str]) -> None:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in lines:
        style = "1" if line.startswith(("---", "+++")) else _COLOURS.get(line[:1], "")
        told = visible(line) if not line.isprintable() else line
        sys.stdout.write(f"\x1b[{style}m{told}\x1b[0m\n" if coloured and style else f"{told}\n")
