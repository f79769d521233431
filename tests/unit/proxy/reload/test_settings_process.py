"""proxy.reload.settings_process: a child reads the settings; its last line is the reason for a failure."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest

from proxy.config.error import SettingsWrong
from proxy.reload.settings_process import read_anew, reason_told
from tests.support.waiting import until

GIVES = """
import os, pickle
from types import SimpleNamespace
with open(os.environ["_POPGATE_TRIAL"], "wb") as pipe:
    pickle.dump({"much": "x" * 300_000}, pipe)
"""


async def test_what_the_process_leaves_is_read_also_when_it_is_more_than_a_pipe_holds() -> None:
    assert await read_anew([sys.executable, "-c", GIVES]) == {"much": "x" * 300_000}


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            """import sys; print('{"message": "x is wrong"}', file=sys.stderr); sys.exit(2)""",
            "x is wrong",
        ),
        ("raise ImportError('half an upgrade')", "ended with 1: ImportError: half an upgrade"),
        ("", "ended with 0"),
    ],
)
async def test_the_reason_is_what_it_said_last(program: str, why: str) -> None:
    with pytest.raises(SettingsWrong, match=why):
        await read_anew([sys.executable, "-c", program])


async def test_a_process_that_hangs_is_given_up() -> None:
    with pytest.raises(SettingsWrong, match="not read within"):
        await read_anew([sys.executable, "-c", "import signal; signal.pause()"], longest_s=0.05)


HAS_A_CHILD = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
file = pathlib.Path(sys.argv[1])
file.with_suffix(".part").write_text(str(child.pid))
file.with_suffix(".part").rename(file)
child.wait()
"""


def has_ended(pid: int) -> bool:
    """Also when nobody has asked yet how."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(") ")[2].startswith("Z")


async def test_the_child_of_a_process_that_hangs_ends_with_it(tmp_path: Path) -> None:
    """The command line is understood there: a file of settings that gives nothing holds it up."""
    file = tmp_path / "pid"
    reading = asyncio.ensure_future(read_anew([sys.executable, "-c", HAS_A_CHILD, str(file)]))
    await until(file.exists)
    pid = int(file.read_text())
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    try:
        await until(lambda: has_ended(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_settings_of_another_version_are_a_reason_and_no_failure() -> None:
    program = GIVES.replace('pickle.dump({"much": "x" * 300_000}, pipe)', 'pipe.write(b"cproxy\\nNew\\n.")')
    with pytest.raises(SettingsWrong, match="the program is another version now"):
        await read_anew([sys.executable, "-c", program])


async def test_a_long_reason_of_another_version_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_given: bytes) -> None:
        raise ImportError("x" * 100_000)

    monkeypatch.setattr(pickle, "loads", fail)
    with pytest.raises(SettingsWrong) as raised:
        await read_anew([sys.executable, "-c", GIVES])
    assert len(str(raised.value)) < 2_200


async def test_a_group_that_may_not_be_ended_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    with pytest.raises(SettingsWrong, match="ended with 1: ImportError"):
        await read_anew([sys.executable, "-c", "raise ImportError('half an upgrade')"])


async def test_a_long_reason_is_cut() -> None:
    program = """import sys; print('{"message": "%s"}' % ("x" * 100_000), file=sys.stderr); sys.exit(2)"""
    with pytest.raises(SettingsWrong) as raised:
        await read_anew([sys.executable, "-c", program])
    assert len(str(raised.value)) == 2_000


async def test_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut_short(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    with pytest.raises(SettingsWrong):
        await read_anew([sys.executable, "-c", ""])
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", cut_short)
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await read_anew([sys.executable])
    assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_a_gateway_without_a_descriptor_for_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(SettingsWrong, match="the settings cannot be read: too many open files"):
        await read_anew([sys.executable, "-c", GIVES])


async def test_a_program_that_is_gone_is_told() -> None:
    with pytest.raises(SettingsWrong, match="no such file"):
        await read_anew(["/nowhere/python"])


def test_lines_that_are_no_sentences_are_passed_over() -> None:
    said = '{"message": "the reason"}\n{"event": "a line of the log"}\n[1]\nplain\n'
    assert reason_told(said, "ended with 2") == "the reason"
