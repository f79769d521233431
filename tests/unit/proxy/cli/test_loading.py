"""What a command loads: its own module, not those of all the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proxy.cli import COMMANDS, GROUPS, make_app

_ROOT = Path(__file__).parents[4]
_LOADED = """\
import sys
from proxy.cli import make_app
make_app(sys.argv[1:])
print(*(name.removeprefix("proxy.cli.") for name in sys.modules if name.startswith("proxy.cli.")))
"""


def loaded(*arguments: str) -> set[str]:
    """The modules of `proxy.cli` after a command line was looked at."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *arguments], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_of_a_command_that_is_named_only_its_own_module_is_loaded() -> None:
    of_commands = {*COMMANDS.values(), *GROUPS.values()}
    assert loaded("serve", "--config", "x") & of_commands == {"gateway.serve"}
    assert loaded("nonsense") & of_commands == of_commands


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_every_command_is_there_when_it_is_named(name: str) -> None:
    app = make_app([name, "more"])
    commands = [command.name for command in app.registered_commands]
    groups = [group.name for group in app.registered_groups]
    assert commands + groups == [name]
    assert bool(groups) == (name in GROUPS)
