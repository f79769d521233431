"""proxy.serve_process, proxy.config.handover: a process that serves, and one that reads its settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from popgate.model import GroupConfig
from popgate.testing import GatewayProcess
from proxy.config import handover as handing
from proxy.config.enums import Durability
from proxy.config.handover import TRIAL
from proxy.config.loader import load_settings
from proxy.config.mapping import limits_values
from tests.support.waiting import PATIENCE_S


def test_plain_settings_have_the_same_values_and_show_themselves_alike() -> None:
    settings = load_settings(environment={}, flags={"durability": "sync", "limits": {"max_waiting": 7}})
    plain: Any = handing.settle(settings)
    assert plain.durability is Durability.SYNC
    assert plain.limits.max_waiting == 7
    assert plain.data == settings.data
    assert plain.model_dump(mode="json") == settings.model_dump(mode="json")
    assert limits_values(plain, GroupConfig("")) == limits_values(settings, GroupConfig(""))


def test_what_was_handed_over_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, theirs = os.pipe()
    monkeypatch.setenv(handing.VARIABLE, str(theirs))
    assert handing.is_asked_for()
    handing.hand_over(load_settings(environment={}, flags={"data": "/somewhere/else"}))
    found = handing.taken_from(pipe)
    assert found is not None
    assert found.data == Path("/somewhere/else")
    assert not handing.is_asked_for()


def test_a_process_that_does_not_wait_any_more_is_given_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, theirs = os.pipe()
    os.close(pipe)
    monkeypatch.setenv(handing.VARIABLE, str(theirs))
    handing.hand_over(load_settings(environment={}))


def test_nothing_handed_over_is_nothing() -> None:
    pipe, theirs = os.pipe()
    os.close(theirs)
    assert handing.taken_from(pipe) is None


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


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["serve", "--help"], 0, "Run the gateway until"),
        (["serve", "--nonsense"], 2, "No such option"),
        (["serve", "--set", "limits.max_body_bytes=many"], 2, "limits.max_body_bytes"),
    ],
)
def test_a_command_line_that_serves_nothing_is_answered_as_any_other(
    arguments: list[str], code: int, told: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "popgate", *arguments],
        cwd=Path(handing.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done
    assert told in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changes", "code"),
    [("", -signal.SIGTERM), ("os.kill = lambda *_: None", 128 + signal.SIGTERM)],
    ids=["usual", "first of a container"],
)
def test_a_signal_before_the_gateway_takes_it_ends_the_process(changes: str, code: int) -> None:
    """The first process of a container is ended by no signal without a handler, and is sent it once."""
    program = f"""
import os, signal, types, popgate.__main__ as start
{changes}
loaded = types.SimpleNamespace(main=lambda: signal.raise_signal(signal.SIGTERM))
start.import_module = lambda _: loaded
start.main()
"""
    done = subprocess.run([sys.executable, "-c", program, "serve"], timeout=PATIENCE_S, check=False)
    assert done.returncode == code


def test_a_look_at_settings_ends_by_itself_where_nobody_ends_it(tmp_path: Path) -> None:
    """Who asked was killed, and the file of settings gives nothing; its child ends, too."""
    settings = tmp_path / "settings.toml"
    os.mkfifo(settings)
    program = "import popgate.__main__ as start; start._LONGEST_TRIAL_S = 1; start.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--config", str(settings)],
        env={**os.environ, TRIAL: str(tmp_path / "settings")},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        process.communicate(timeout=PATIENCE_S)  # the child has the same pipe
        assert process.returncode == -signal.SIGALRM
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
