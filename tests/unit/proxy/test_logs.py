"""proxy.logs: lines that machines can read, and no flood of the same one."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.config.enums import LogFormat, LogLevel
from proxy.config.tables import Log
from proxy.logs import LogSampler, logger, loop_trouble, set_up_logs


class Watch:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def log(watch: Watch) -> io.StringIO:
    stream = io.StringIO()
    set_up_logs(Log(format=LogFormat.JSON, burst=2, window_s=60), stream=stream, now=watch)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_its_event_time_level_and_values(log: io.StringIO) -> None:
    logger("popgate.test").info("topic made", topic="orders", queues=8)
    [line] = lines(log)
    assert line["event"] == "topic made"
    assert (line["topic"], line["queues"], line["level"], line["logger"]) == (
        "orders",
        8,
        "info",
        "popgate.test",
    )
    assert line["timestamp"].endswith("Z")


def test_lines_of_libraries_come_out_alike(log: io.StringIO) -> None:
    logging.getLogger("some.library").warning("gave up after %d tries", 3)
    [line] = lines(log)
    assert (line["event"], line["level"], line["logger"]) == (
        "gave up after 3 tries",
        "warning",
        "some.library",
    )


def test_an_exception_is_one_line_with_its_traceback_inside(log: io.StringIO) -> None:
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logger("popgate.test").exception("failed")
    [line] = lines(log)
    assert "RuntimeError: broken" in line["exception"]


def test_scenario_18_repeated_lines_are_counted_instead_of_written(log: io.StringIO, watch: Watch) -> None:
    for number in range(100):
        logger("popgate.test").warning("no broker", attempt=number)
    assert [line["attempt"] for line in lines(log)] == [0, 1]
    watch.seconds = 61
    logger("popgate.test").warning("no broker", attempt=100)
    assert lines(log)[-1] == {**lines(log)[-1], "attempt": 100, "left_out": 98}


def test_what_libraries_repeat_is_counted_too(log: io.StringIO, watch: Watch) -> None:
    for number in range(5):
        logging.getLogger("some.library").error("lost %d", number)
    watch.seconds = 61
    logging.getLogger("some.library").error("lost %d", 5)
    assert [line["event"] for line in lines(log)] == ["lost 0", "lost 1", "lost 5 (left_out=3)"]


class ExecuteBatchError(Exception):
    """As gRPC's core has one."""


@pytest.mark.parametrize("level", [LogLevel.INFO, LogLevel.DEBUG])
def test_a_client_that_went_while_it_was_answered_is_no_error(level: LogLevel) -> None:
    stream = io.StringIO()
    set_up_logs(Log(format=LogFormat.JSON, level=level), stream=stream)
    for error in (ExecuteBatchError("gone"), ValueError("a bug")):
        try:
            raise error
        except Exception:
            logging.getLogger("grpc._cython.cygrpc").exception("%s raised in core", type(error).__name__)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [(line["level"], line["event"], "exception" in line) for line in lines]
    debug = [("debug", "ExecuteBatchError raised in core", False)]
    assert told == [*(debug if level is LogLevel.DEBUG else []), ("error", "ValueError raised in core", True)]


def test_different_errors_of_one_place_are_different_kinds() -> None:
    sampling = LogSampler(burst=1, window_s=60, now=lambda: 0.0)

    def record(error: Exception | None) -> logging.LogRecord:
        found = (type(error), error, None) if error is not None else None
        return logging.LogRecord("a", logging.ERROR, "", 0, {"event": "failed"}, None, found)

    assert sampling.filter(record(None))
    assert not sampling.filter(record(None))
    assert sampling.filter(record(OSError()))
    assert sampling.filter(record(ValueError()))
    assert not sampling.filter(record(ValueError()))


class Meeting(dict[Any, Any]):
    """Two threads look into it at once, where they can."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)

    def get(self, key: Any, default: Any = None) -> Any:
        known = super().get(key, default)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._both.wait(0.1)
        return known


def test_threads_that_log_at_once_are_sampled_together() -> None:
    sampling = LogSampler(burst=1, window_s=60, now=lambda: 0.0)
    sampling._kinds = Meeting()
    record = logging.LogRecord("a", logging.ERROR, "", 0, "here", None, None)
    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(sampling.filter, [record] * 2)) == [False, True]


def test_the_memory_of_the_sampling_is_bounded() -> None:
    sampling = LogSampler(burst=1, window_s=60, now=lambda: 0.0)
    for number in range(5000):
        assert sampling.filter(logging.LogRecord("a", logging.ERROR, "", 0, f"kind {number}", None, None))
    assert len(sampling._kinds) <= 1024


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    set_up_logs(Log(format=LogFormat.JSON, level=LogLevel.ERROR), stream=stream)
    logger("popgate.test").warning("quiet")
    logger("popgate.test").error("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_debug_lines_are_not_sampled() -> None:
    stream = io.StringIO()
    set_up_logs(Log(format=LogFormat.JSON, level=LogLevel.DEBUG, burst=1), stream=stream)
    for _ in range(3):
        logger("popgate.test").debug("detail")
    assert len(lines(stream)) == 3


def test_the_console_format_is_for_people() -> None:
    stream = io.StringIO()
    set_up_logs(Log(format=LogFormat.CONSOLE), stream=stream)
    logger("popgate.test").info("topic made", topic="orders")
    assert "topic made" in stream.getvalue()
    assert "topic=orders" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_auto_is_json_where_no_terminal_is() -> None:
    stream = io.StringIO()
    set_up_logs(Log(), stream=stream)
    logger("popgate.test").info("here")
    assert lines(stream)[0]["event"] == "here"


def test_setting_up_again_replaces_what_was_before() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logs(Log(format=LogFormat.JSON), stream=first)
    set_up_logs(Log(format=LogFormat.JSON), stream=second)
    logger("popgate.test").info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_trouble_in_the_loop_is_a_line_with_its_traceback(log: io.StringIO) -> None:
    try:
        raise ValueError("nobody awaited me")
    except ValueError as error:
        loop_trouble(None, {"message": "Task exception was never retrieved", "exception": error})
    [line] = lines(log)
    assert line["level"] == "error"
    assert "nobody awaited me" in line["exception"]
