"""tests.isolation: what a test sets up for a whole process does not meet the next one."""

from __future__ import annotations

import gc
import io
import logging
import os
import signal
import sys
import weakref

import pytest
import structlog

from proxy.config.tables import Log
from proxy.garbage_collection import serve_long
from proxy.logs import logger, set_up_logs
from tests.isolation import process_kept


def test_a_log_that_was_set_up_is_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLogger("aiohttp").level)
    with process_kept():
        stream = io.StringIO()
        set_up_logs(Log(), stream=stream)
        stream.close()
        logging.disable(logging.ERROR)
        assert structlog.is_configured()
    assert (list(root.handlers), root.level, logging.getLogger("aiohttp").level) == before
    assert not structlog.is_configured()
    logger("popgate.test").warning("told as ever")
    told = capsys.readouterr()
    assert "told as ever" in told.out
    assert not told.err


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    before = dict(os.environ)
    with process_kept():
        os.environ["NEW"] = "1"
        os.environ["CHANGED"] = "2"
        del os.environ["KEPT"]
    assert dict(os.environ) == before


class Ring:
    """Refers to itself: only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def test_signals_hooks_and_the_collector_are_as_before() -> None:
    before = (signal.getsignal(signal.SIGTERM), sys.excepthook, gc.get_threshold(), gc.isenabled())
    with process_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.excepthook = lambda *_: None
        kept = weakref.ref(ring := Ring())
        serve_long()
        del ring
        gc.collect()
        assert kept() is not None, "what was there is not frozen"
        gc.disable()
    assert (signal.getsignal(signal.SIGTERM), sys.excepthook, gc.get_threshold(), gc.isenabled()) == before
    assert kept() is None
