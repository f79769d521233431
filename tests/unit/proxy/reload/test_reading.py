"""proxy.reload.reading: a process beside reads, and its last sentence is the reason when it cannot."""

from __future__ import annotations

import sys

import pytest

from proxy.reload.reading import read_anew, reason_told
from proxy.wrong import SettingsWrong

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


async def test_a_program_that_is_gone_is_told() -> None:
    with pytest.raises(SettingsWrong, match="no such file"):
        await read_anew(["/nowhere/python"])


def test_lines_that_are_no_sentences_are_passed_over() -> None:
    said = '{"message": "the reason"}\n{"event": "a line of the log"}\n[1]\nplain\n'
    assert reason_told(said, "ended with 2") == "the reason"
