"""`popgate serve` and `popgate settings`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from proxy.cli.console.failure import Ended, Failure
from proxy.cli.console.options import Shown
from proxy.cli.console.terminal import Output, Printer

if TYPE_CHECKING:
    from proxy.config.settings import Settings

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="POPGATE_CONFIG", metavar="FILE", help="A TOML file of settings."),
]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of everything local; default ./data.")]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="A door for clients; may be repeated. Default grpc://127.0.0.1:8081 and"
        " remoting://127.0.0.1:8080; port 0: any.",
    ),
]
AdminAt = Annotated[
    str | None, typer.Option(metavar="URL", help="Admin port, default http://127.0.0.1:8083; off: none.")
]
Broker = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="embedded: (in the data folder), embedded:./path, rocketmq://ns-1:9876,ns-2:9876, or"
        " popgate://host:port, the broker of another gateway.",
    ),
]
ShareBroker = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Serve the embedded broker to other gateways: unix:/path or tcp://host:port."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Processes that serve; 0: one for each core, and one in all with an embedded broker.",
    ),
]
Durability = Annotated[
    str | None,
    typer.Option(metavar="sync|interval|none", help="When a sent message counts as kept; default interval."),
]
LogLevel = Annotated[str | None, typer.Option(metavar="debug|info|warning|error", help="Default info.")]
LogFormat = Annotated[
    str | None, typer.Option(metavar="auto|json|console", help="auto: console on a terminal, else json.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting, like limits.max_body_bytes=8MiB; repeatable."
    ),
]


def serve(
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
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C. A second signal skips the drain."""
    effective = _effective(
        config, data, listen, admin, broker, share_broker, workers, durability, log_level, log_format, set_
    )
    from proxy.config import handover as handing

    if handing.is_asked_for():
        handing.hand_over(effective)
    else:
        run(effective)


def run(effective: Settings) -> None:
    """Serve; what fails at the start ends the command. Raises Failure."""
    from proxy import running
    from proxy.config.error import SettingsWrong
    from proxy.config.handover import settle
    from proxy.start import run_as_set

    try:
        run_as_set(cast("Settings", settle(effective)))
    except SettingsWrong as error:
        raise Failure(Ended.USAGE, str(error)) from None
    except running.CannotStart as error:
        raise Failure(Ended.NOT_STARTED, str(error)) from None


def settings(
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
    """Check the configuration and print what `serve` would run with, as TOML or JSON."""
    effective = _effective(
        config, data, listen, admin, broker, share_broker, workers, durability, log_level, log_format, set_
    )
    from proxy.app import build
    from proxy.config.error import SettingsWrong
    from proxy.pages.reference import sample_file

    try:
        # Opens nothing; it only sees whether the values fit together.
        build(effective)
    except SettingsWrong as error:
        raise Failure(Ended.USAGE, str(error)) from None
    printer = Printer(output)
    if printer.as_json:
        printer.facts({}, effective.model_dump(mode="json"))
    else:
        typer.echo(sample_file(effective), nl=False)


def _effective(
    config: Path | None,
    data: Path | None,
    listen: list[str] | None,
    admin: str | None,
    broker: str | None,
    share_broker: str | None,
    workers: int | None,
    durability: str | None,
    log_level: str | None,
    log_format: str | None,
    assignments: list[str] | None,
) -> Settings:
    from proxy.config.error import SettingsWrong
    from proxy.config.loader import load_settings

    flags = flags_of(
        data, listen, admin, broker, share_broker, workers, durability, log_level, log_format, assignments
    )
    try:
        return load_settings(config=config, flags=flags)
    except SettingsWrong as error:
        raise Failure(Ended.USAGE, str(error)) from None


def flags_of(
    data: Path | None,
    listen: list[str] | None,
    admin: str | None,
    broker: str | None,
    share_broker: str | None,
    workers: int | None,
    durability: str | None,
    log_level: str | None,
    log_format: str | None,
    assignments: list[str] | None,
) -> dict[str, Any]:
    """The options of `serve` as a layer of settings. Raises Failure for an assignment that is none."""
    from proxy.config.error import SettingsWrong
    from proxy.config.loader import nest, parse_assignment

    flags: dict[str, Any] = {}
    try:
        for text in assignments or ():
            path, value = parse_assignment(text)
            nest(path, value, flags)
        for name, given in (
            ("data", data),
            ("listen", listen),
            ("admin", admin),
            ("broker", broker),
            ("share_broker", share_broker),
            ("workers", workers),
            ("durability", durability),
            ("log.level", log_level),
            ("log.format", log_format),
        ):
            # An empty text is told as wrong: it is mostly a variable that nobody set.
            if given is not None and given != []:
                nest(tuple(name.split(".")), given, flags)
    except SettingsWrong as error:
        raise Failure(Ended.USAGE, str(error)) from None
    return flags
