"""What docs/command-line.md and docs/operations.md state of codes, commands, requests and metrics is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.app import App
from proxy.cli import make_app
from proxy.cli.console.failure import Ended
from proxy.metrics.names import SPECS

DOCS = Path(__file__).parents[3] / "docs"
COMMAND_LINE = (DOCS / "command-line.md").read_text()
OPERATIONS = (DOCS / "operations.md").read_text()


def test_every_exit_code_is_told_and_no_other() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", COMMAND_LINE, re.M)} == {*map(int, Ended)}


def test_every_command_is_told() -> None:
    app = make_app()
    told = re.sub(r"`, `", " ", COMMAND_LINE)
    for command in app.registered_commands:
        assert f"popgate {command.name}" in told
    for group in app.registered_groups:
        assert group.typer_instance is not None
        [line] = [" ".join(re.findall(rf"^\| `popgate {group.name} .*$", told, re.M))]
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__
            assert re.search(rf"\b{name} ?", line), f"{group.name} {name}"


def test_every_request_is_told_and_no_other(app: App) -> None:
    assert app.admin is not None
    router = app.admin._runner.app.router
    served = {
        f"{route.method} {route.resource.canonical}"
        for route in router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    told = set(re.findall(r"`((?:GET|POST|DELETE) /[^`?]*)", OPERATIONS))
    assert told == served


def test_metrics_that_are_named_exist() -> None:
    told = set(re.findall(r"`(popgate_[a-z_]+)`", OPERATIONS))
    assert told
    assert told <= SPECS.keys()


@pytest.mark.parametrize(
    "setting", ["stopping.drain_s", "metrics.max_topics", "log.format", "log.burst", "log.window_s"]
)
def test_settings_that_are_named_exist(setting: str) -> None:
    from proxy.config.loader import known_settings

    assert setting in {".".join(path) for path, _ in known_settings()}
    assert f"`{setting}`" in OPERATIONS
