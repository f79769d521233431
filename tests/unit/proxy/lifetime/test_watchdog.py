"""A process that hangs is ended by force, and not before its time."""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import PATIENCE_S

HANGS = """
import threading
from proxy.lifetime.watchdog import Watchdog
Watchdog().arm(-4.9)
threading.Event().wait()
"""
"""As a disk does that does not answer: no signal is looked at, and no event loop turns."""


def test_a_process_that_hangs_is_ended_by_force() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (1, b"popgate: not ended in time, and ended by force\n")
