"""popgate.malloc: what is freed stays with the process. In processes of their own: nothing sets it back."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from popgate.malloc import keep_freed_memory
from tests.support.waiting import PATIENCE_S

FAULTS = """
import resource
from popgate.malloc import keep_freed_memory

{done}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    kept = [bytearray(300_000) for _ in range(8)]
    del kept
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(done: str) -> int:
    """Pages that were taken from the system anew for eight buffers, a hundred times."""
    command = [sys.executable, "-c", FAULTS.format(done=done)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_buffers_that_are_freed_are_used_again() -> None:
    assert faults("pass") > 5_000
    assert faults("assert keep_freed_memory(16 << 20)") < 1_000


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_nothing_is_done(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr("popgate.malloc.sys.platform", system)
    assert not keep_freed_memory(16 << 20)


def test_a_library_without_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popgate.malloc.sys.platform", "linux")
    monkeypatch.setattr("popgate.malloc.ctypes.CDLL", lambda _name: object())
    assert not keep_freed_memory(16 << 20)
