"""proxy.relaunching: settings as plain values, handed from one program to the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from popgate.model import GroupConfig
from popgate.testing import GatewayProcess
from proxy import relaunching
from proxy.choices import Durability
from proxy.layers import load_settings
from proxy.values import limits_values


def test_plain_settings_have_the_same_values_and_show_themselves_alike() -> None:
    settings = load_settings(environment={}, flags={"durability": "sync", "limits": {"max_waiting": 7}})
    plain: Any = relaunching.settle(settings)
    assert plain.durability is Durability.SYNC
    assert plain.limits.max_waiting == 7
    assert plain.data == settings.data
    assert plain.model_dump(mode="json") == settings.model_dump(mode="json")
    assert limits_values(plain, GroupConfig("")) == limits_values(settings, GroupConfig(""))


def test_what_was_handed_over_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replaced(Exception):
        pass

    def replaced(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        assert (program, arguments) == (sys.executable, sys.orig_argv)
        number = environment[relaunching.VARIABLE]
        assert os.get_inheritable(int(number))
        monkeypatch.setenv(relaunching.VARIABLE, str(os.dup(int(number))))
        raise Replaced

    settings = load_settings(environment={}, flags={"data": "/somewhere/else"})
    monkeypatch.setattr(os, "execve", replaced)
    assert relaunching.handed_over() is None
    with pytest.raises(Replaced):
        relaunching.relaunch(settings)
    found = relaunching.handed_over()
    assert found is not None
    assert found.data == Path("/somewhere/else")
    assert relaunching.handed_over() is None


def test_where_a_program_cannot_be_replaced_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(os, "execve", refused)
    relaunching.relaunch(load_settings(environment={}))
    assert relaunching.VARIABLE not in os.environ


def test_the_program_that_serves_has_no_command_line_and_no_settings_library() -> None:
    with GatewayProcess() as gateway:
        maps = Path(f"/proc/{gateway.pid}/maps")
        if not maps.exists():
            pytest.skip("this system does not tell what a process has loaded")
        assert "rocksdict" in maps.read_text()
        assert "pydantic_core" not in maps.read_text()
        command = Path(f"/proc/{gateway.pid}/cmdline").read_bytes().split(b"\0")
        assert b"serve" in command
        assert b"popgate" in command


def test_a_program_without_settings_says_so() -> None:
    script = "import sys; sys.path.insert(0, '.'); from proxy.relaunched import main; main()"
    root = Path(relaunching.__file__).parent.parent
    environment = {name: value for name, value in os.environ.items() if name != relaunching.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "no settings were handed over" in done.stderr
