"""`popgate backup` and `popgate restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import DEFAULT_ADMIN, Admin, Shown
from proxy.cli.console.terminal import Output, Printer
from proxy.config.units import moment_text, rough_size_text

_LONGEST_S = 24 * 3600.0


def backup(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Its name in the gateway's backup folder; default: the time. With --verify: its path,"
            " as --list tells it.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file of the backup in the folder NAME, and compare.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the backups of the running gateway.")] = False,
    admin: Admin = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Take a backup of the running gateway's store, which goes on serving meanwhile."""
    printer = Printer(output)
    if verify and list_:
        raise typer.BadParameter("--verify and --list are two things: give one of them")
    if verify:
        _verify(target, printer)
    elif list_:
        if target is not None:
            raise typer.BadParameter("--list takes no NAME")
        _list(admin, printer)
    else:
        with Gateway(admin) as gateway:
            taken = gateway.post("backups", body={"name": target or ""}, wait_s=_LONGEST_S)
        printer.done(f"backup {taken['name']} taken: {_told(taken)}, in {taken['path']}", taken)


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The folder of a backup.")],
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="The data folder of the gateway to be started.")
    ],
    output: Shown = Output.AUTO,
) -> None:
    """Make the store of a new gateway from a backup. No gateway may run on it."""
    from brokers.embedded.storage.backup_files import restore as restore_files
    from brokers.open_broker import STORE_FOLDER
    from popgate.errors import GatewayError

    target = data / STORE_FOLDER
    try:
        manifest = restore_files(source, target)
    except GatewayError as error:
        raise Failure(Ended.FAILED, error.sentence, error.fault.name) from None
    facts = {**manifest.facts, "files": len(manifest.files), "bytes": manifest.size, "path": str(target)}
    sentence = f"restored to {target}: {_told(facts)}, as of {moment_text(facts['taken_ms'])}"
    Printer(output).done(f"{sentence}; start it with: popgate serve --data {data}", facts)


def _verify(target: str | None, printer: Printer) -> None:
    if target is None:
        raise typer.BadParameter("--verify needs the folder of a backup")
    from brokers.embedded.storage.backup_files import verify
    from popgate.errors import GatewayError

    try:
        manifest = verify(Path(target))
    except GatewayError as error:
        hint = "" if Path(target).is_dir() else ": give its path, as `popgate backup --list` tells it"
        raise Failure(Ended.FAILED, error.sentence + hint, error.fault.name) from None
    facts = {**manifest.facts, "files": len(manifest.files), "bytes": manifest.size, "path": target}
    printer.done(f"backup {target} is sound: {_told(facts)}, as of {moment_text(facts['taken_ms'])}", facts)


def _list(admin: str, printer: Printer) -> None:
    with Gateway(admin) as gateway:
        backups = gateway.get("backups")["backups"]
    rows = [
        (
            backup["name"],
            moment_text(backup["taken_ms"]),
            backup["counts"]["messages"],
            backup["files"],
            rough_size_text(backup["bytes"]),
            backup["path"],
        )
        if "name" in backup
        else (None, None, None, None, None, backup["message"])
        for backup in backups
    ]
    printer.table(("backup", "taken", "messages", "files", "size", "path"), rows, backups)


def _told(facts: dict[str, Any]) -> str:
    counts = facts["counts"]
    return (
        f"{counts['messages']} messages, {counts['topics']} topics, {counts['groups']} groups,"
        f" {facts['files']} files, {rough_size_text(facts['bytes'])}"
    )
