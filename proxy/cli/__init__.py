"""The command line, one module per subject; heavy imports are made by the command that needs them.

A named command loads only its own module: 0.14 s of CPU instead of 0.25 for `serve`, which runs a process
for its settings at every start.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated

import typer

from popgate import __version__
from popgate.build import version_text
from proxy.cli.console.failure import Ended, Failure, tell

COMMANDS = {
    "serve": "gateway.serve",
    "settings": "gateway.serve",
    "send": "domain.send",
    "receive": "domain.receive",
    "stuck": "domain.stuck",
    "doctor": "diagnosis.doctor",
    "cluster": "gateway.cluster",
    "apply": "domain.apply",
    "export": "domain.apply",
    "backup": "gateway.backups",
    "restore": "gateway.backups",
}
"""Commands, each a function of its name, and their modules; in the order in which help shows them."""
GROUPS = {
    "config": "gateway.config",
    "topic": "domain.topics",
    "lite": "domain.lite",
    "group": "domain.groups",
    "clients": "domain.clients",
    "message": "domain.messages",
    "dead-letter": "domain.dead_letters",
}
"""Words that have commands below them, each a module's `app`."""


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """The commands, with help in colour where a person reads it.

    Only the one that `arguments` begin with, if they begin with one.
    """
    named = arguments[0] if arguments and arguments[0] in {**COMMANDS, **GROUPS} else None
    app = typer.Typer(
        name="popgate",
        help="A gateway that speaks Apache RocketMQ 5, with its own broker inside.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage or configuration, 3 no gateway"
        " answers, 4 not found or nothing received, 5 serve could not start.",
    )
    app.callback()(_top)
    for name, module in COMMANDS.items():
        if named in (None, name):
            app.command(name)(getattr(import_module(f"proxy.cli.{module}"), name))
    for name, module in GROUPS.items():
        if named in (None, name):
            app.add_typer(import_module(f"proxy.cli.{module}").app, name=name)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"popgate {version_text(__version__)}")
        raise typer.Exit


def _top(
    _version_wanted: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Options before any command."""


def main() -> None:
    """Run the command line and end the process with a code of `Ended`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Where the locale has no Unicode, a character is shown by its number.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            make_app(sys.argv[1:])(prog_name="popgate")
        finally:
            if sys.stdout is not None:  # the process that reads the settings of a gateway may have none
                sys.stdout.flush()
    except Failure as failure:
        tell(failure, as_json=asked_for_json(sys.argv))
        _leave(failure.code)
    except KeyboardInterrupt:
        _leave(Ended.INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        _leave(Ended.FAILED)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        tell(
            Failure(Ended.FAILED, f"the output cannot be written: {(error.strerror or '').lower()}"),
            as_json=False,
        )
        _drop_output()
        _leave(Ended.FAILED)


def _drop_output() -> None:
    """Standard output is closed or full: the interpreter must not try to flush it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def asked_for_json(arguments: list[str]) -> bool:
    after = {"--output", "-o"}
    pairs = pairwise(arguments)
    return (
        any(name in after and value == "json" for name, value in pairs)
        or not {"--output=json", "-ojson"}.isdisjoint(arguments)
        or os.environ.get("POPGATE_OUTPUT") == "json"
    )


def _leave(code: Ended) -> None:
    sys.exit(int(code))
