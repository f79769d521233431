"""`popgate config`: check a configuration, compare it with the running one, reload it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended
from proxy.cli.console.options import DEFAULT_ADMIN, Shown
from proxy.cli.console.options import Admin as AdminOf
from proxy.cli.console.terminal import Output, Printer
from proxy.cli.gateway.serve import (
    AdminAt,
    Broker,
    Config,
    Data,
    Durability,
    Listen,
    LogFormat,
    LogLevel,
    Set,
    ShareBroker,
    Workers,
    flags_of,
)
from proxy.config.units import counted

if TYPE_CHECKING:
    from proxy.checks.findings import Configuration

_RELOAD_S = 90.0
"""How long a gateway may take to read its settings and to take them."""
_OWN = ("config", "data", "listen", "broker", "share_broker", "workers", "durability", "log_level")
_UNSEEN = "secrets that are set in both are not compared; without options of serve the gateway does so\n"
_MORE_OWN = ("log_format", "set_")

app = typer.Typer(
    no_args_is_help=True, help="Check the configuration, compare it with the running one, reload it."
)


@app.command()
def check(
    config: Config = None,
    data: Data = None,
    listen: Listen = None,
    admin: AdminAt = None,
    broker: Broker = None,
    share_broker: ShareBroker = None,
    workers: Workers = None,
    durability: Durability = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    set_: Set = None,
    output: Shown = Output.AUTO,
) -> None:
    """Look at the configuration as `serve` would read it: everything that is wrong, and what may be.

    Takes the options of `serve` and opens nothing. Exit code 2 when `serve` would not start with it.
    """
    flags = flags_of(
        data, listen, admin, broker, share_broker, workers, durability, log_level, log_format, set_
    )
    findings = _configuration(config, flags).findings()
    printer = Printer(output)
    for finding in findings if not printer.as_json else ():
        where = f"{finding.place}: " if finding.place else ""
        printer.item(
            (finding.level, finding.place, finding.name, finding.what),
            f"{finding.level.ljust(8)} {where}{finding.what}",
            None,
        )
    faults = sum(finding.level == "fault" for finding in findings)
    if printer.as_json:
        facts = [
            {"level": finding.level, "setting": finding.name, "place": finding.place, "what": finding.what}
            for finding in findings
        ]
        printer.done("", facts)
    else:
        sys.stdout.flush()
        sys.stderr.write(f"{counted(faults, 'fault')}, {counted(len(findings) - faults, 'warning')}\n")
    if faults:
        raise typer.Exit(Ended.USAGE)


@app.command()
def diff(
    context: typer.Context,
    config: Config = None,
    data: Data = None,
    listen: Listen = None,
    broker: Broker = None,
    share_broker: ShareBroker = None,
    workers: Workers = None,
    durability: Durability = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    set_: Set = None,
    admin: AdminOf = DEFAULT_ADMIN,
    output: Shown = Output.AUTO,
) -> None:
    """Show what a reload of the running gateway (--admin) would change, and when each change takes effect.

    Without options of `serve` the gateway reads its own file, environment and options anew. With them their
    configuration is compared with the running one. Exit code 1 when something differs.
    """
    given = any(
        getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
        for name in (*_OWN, *_MORE_OWN)
    )
    if given:
        flags = flags_of(
            data, listen, None, broker, share_broker, workers, durability, log_level, log_format, set_
        )
        changes = _compared(_configuration(config, flags), admin)
    else:
        with Gateway(admin) as gateway:
            changes = gateway.post("reload", body={"dry_run": True}, wait_s=_RELOAD_S)["changes"]
    _print(Printer(output), changes)
    if given:
        sys.stderr.write(_UNSEEN)
    if changes:
        raise typer.Exit(Ended.FAILED)


@app.command()
def reload(admin: AdminOf = DEFAULT_ADMIN, output: Shown = Output.AUTO) -> None:
    """Have the running gateway read its settings anew, as SIGHUP does; what is wrong changes nothing."""
    with Gateway(admin) as gateway:
        outcome = gateway.post("reload", body={}, wait_s=_RELOAD_S)
    printer = Printer(output)
    if printer.as_json:
        printer.done("", outcome)
        return
    _print(printer, outcome["changes"])
    waiting = sum(change["effect"] == "restart" for change in outcome["changes"])
    sys.stdout.flush()
    sys.stderr.write(f"{outcome['message']}\n")
    if waiting:
        sys.stderr.write(f"{counted(waiting, 'setting')} need a restart: until then the old value counts\n")


def _configuration(config: Any, flags: dict[str, Any]) -> Configuration:
    from proxy.checks.findings import Configuration
    from proxy.config.settings import Settings
    from proxy.logs import set_up_logs

    # Building the parts may say something in the log, which here has no place on standard output.
    set_up_logs(Settings.model_validate({"log": {"level": "error"}}).log)
    return Configuration(config, None, flags)


def _compared(configuration: Configuration, admin: str) -> list[dict[str, Any]]:
    """Raises Failure for a configuration that is wrong."""
    from proxy.cli.console.failure import Failure
    from proxy.reload.changes import shown_changes

    faults = [finding.what for finding in configuration.findings() if finding.level == "fault"]
    if configuration.settings is None or faults:
        raise Failure(Ended.USAGE, faults[0])
    with Gateway(admin) as gateway:
        running = gateway.get("settings")
    new = configuration.settings.model_dump(mode="json")
    return [finding.facts() for finding in shown_changes(running, new)]


def _print(printer: Printer, changes: list[dict[str, Any]]) -> None:
    rows = [
        (change["name"], _value(change["running"]), _value(change["new"]), change["effect"])
        for change in changes
    ]
    if changes or printer.as_json:
        printer.table(("setting", "running", "new", "takes effect"), rows, {"changes": changes})


def _value(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)
