"""popgate.testing.variables."""

from __future__ import annotations

import os
import threading

from popgate.testing.variables import variables


def test_variables_may_change_while_they_are_copied() -> None:
    names = [f"POPGATE_TEST_{n}" for n in range(50)]
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for name in names:
                os.environ[name] = "x"
            for name in names:
                os.environ.pop(name)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(2_000):
            assert variables()["PATH"] == os.environ["PATH"]
    finally:
        over.set()
        thread.join()
