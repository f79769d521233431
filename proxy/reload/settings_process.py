"""Reads the current settings in a child process, which builds everything and opens nothing.

It runs the same program, with the command line and the environment of this process, so that only files can
differ. Its result comes through a pipe, because the file system may be read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from typing import Any, cast

from proxy.config.error import SettingsWrong
from proxy.config.handover import TRIAL, Settled

LONGEST_S = 60.0
"""How long the process may take."""
_LONGEST_REASON = 2_000


class OfAnotherVersion(SettingsWrong):
    """The program on the disk is another version, with settings that this one cannot take."""


async def read_anew(command: Sequence[str] | None = None, longest_s: float = LONGEST_S) -> Settled:
    """Raises SettingsWrong with the reason, also when the program does not start as it is on the disk now."""
    try:
        pipe, theirs = os.pipe()
    except OSError as error:
        raise _unread(error) from None
    try:
        # A session of its own: it has a child of its own, which goes with it.
        process = await asyncio.create_subprocess_exec(
            *(command if command is not None else (sys.executable, *sys.orig_argv[1:])),
            env={**os.environ, TRIAL: f"/dev/fd/{theirs}", "POPGATE_OUTPUT": "json"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(theirs,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(pipe)
        raise _unread(error) from None
    except BaseException:
        os.close(pipe)
        raise
    finally:
        os.close(theirs)
    handed = asyncio.ensure_future(asyncio.to_thread(_all_of, pipe))
    try:
        async with asyncio.timeout(longest_s):
            _, stderr = await process.communicate()
    except TimeoutError:
        raise SettingsWrong(f"the settings were not read within {longest_s:g} s") from None
    finally:
        if process.returncode != 0:
            # It may be gone, or (as by a program of another user) not ours to end: that is no reason to fail.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        given = await handed
    if process.returncode or not given:
        raise SettingsWrong(reason_told(stderr.decode(errors="replace"), f"ended with {process.returncode}"))
    try:
        return cast("Settled", pickle.loads(given))  # noqa: S301 - from our own child
    except Exception as error:  # whatever another version is made of
        why = str(error)[:_LONGEST_REASON]
        raise OfAnotherVersion(
            f"the program is another version now, whose settings this one cannot take ({why}): restart it"
        ) from None


def _unread(error: OSError) -> SettingsWrong:
    return SettingsWrong(f"the settings cannot be read: {(error.strerror or str(error)).lower()}")


def _all_of(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as opened:
        return opened.read()


def reason_told(stderr: str, ended: str) -> str:
    """The last sentence for people in the output of a settings process; `ended`: how it ended."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            said: Any = json.loads(line)
            if isinstance(said, dict) and isinstance(said.get("message"), str):
                return str(said["message"])[:_LONGEST_REASON]
    last = f": {lines[-1][:300]}" if lines else ""
    return f"the program does not start as it is now: it {ended}{last}"
