"""The log: JSON or console lines on standard error, with ids and sizes, never bodies.

Every line passes through the standard library's logging, ours by structlog and those of libraries,
so that one place samples repeated lines: of one kind (same logger, event and error) only a burst is written
per window, and the number of suppressed ones is reported when the window is over.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

from proxy.config.enums import LogFormat

if TYPE_CHECKING:
    from proxy.config.tables import Log

# structlog loads rich where it finds it, for tracebacks in colour: 4 MB of memory and 40 ms of every
# start that a gateway has no use for.
_without_rich = "rich" not in sys.modules
if _without_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]
import structlog  # noqa: E402

if _without_rich:
    del sys.modules["rich"]

_MOST_KINDS = 1024


class LogSampler(logging.Filter):
    """Passes `burst` lines of a kind per `window_s` seconds; the next one reports how many were suppressed.

    Debug lines are not sampled, because they were requested explicitly.
    """

    def __init__(self, *, burst: int, window_s: float, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._burst = burst
        self._window_s = window_s
        self._now = now
        self._kinds: dict[tuple[str, str, str], list[float]] = {}
        # Filters of a handler are asked before it takes its own lock. An object that is freed may log, too.
        self._lock = threading.RLock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        with self._lock:
            return self._passes(record, self._now(), _kind(record))

    def _passes(self, record: logging.LogRecord, now: float, kind: tuple[str, str, str]) -> bool:
        window = self._kinds.get(kind)
        if window is None or now - window[0] >= self._window_s:
            left_out = int(window[1]) - self._burst if window is not None else 0
            if left_out > 0:
                _add(record, "left_out", left_out)
            self._kinds.pop(kind, None)
            if len(self._kinds) >= _MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[kind] = [now, 1]
            return True
        window[1] += 1
        return window[1] <= self._burst


class Departures(logging.Filter):
    """Suppresses the errors of clients that disconnect while they are being answered.

    gRPC's core logs them as errors of the method, with a traceback of its internals.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        if kind is None or kind.__name__ != "ExecuteBatchError":
            return True
        record.levelno, record.levelname, record.exc_info = logging.DEBUG, "DEBUG", None
        return logging.getLogger().isEnabledFor(logging.DEBUG)


def _kind(record: logging.LogRecord) -> tuple[str, str, str]:
    event = record.msg.get("event", "") if isinstance(record.msg, dict) else record.msg
    error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    return record.name, str(event)[:200], error


def _add(record: logging.LogRecord, key: str, value: int) -> None:
    if isinstance(record.msg, dict):
        record.msg[key] = value
    else:
        record.msg = f"{record.getMessage()} ({key}={value})"
        record.args = None


def set_up_logs(
    settings: Log,
    *,
    stream: TextIO | None = None,
    now: Callable[[], float] = time.monotonic,
    process: int | None = None,
) -> None:
    """Configure structlog and the standard library's root logger; a second call replaces the first.

    `process`: the number of a process of several, added to each of its lines.
    """
    target = sys.stderr if stream is None else stream
    as_json = settings.format is LogFormat.JSON or (settings.format is LogFormat.AUTO and not target.isatty())
    level = getattr(logging, settings.level.value.upper())
    shared: list[Callable[[Any, str, MutableMapping[str, Any]], Any]] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([_Numbered(process)] if process is not None else []),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    endings: list[Callable[[Any, str, MutableMapping[str, Any]], Any]]
    if as_json:
        endings = [
            structlog.processors.format_exc_info,
            _first_things_first,
            structlog.processors.JSONRenderer(),
        ]
    else:
        endings = [
            structlog.dev.ConsoleRenderer(
                colors=target.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *endings],
        )
    )
    handler.addFilter(Departures())
    handler.addFilter(LogSampler(burst=settings.burst, window_s=settings.window_s, now=now))
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, "from_popgate", False)]:
        root.removeHandler(old)
    handler.from_popgate = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(level)
    # Libraries speak up for warnings only: their info lines are per connection or per request.
    for name in ("asyncio", "aiohttp", "grpc"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


class _Numbered:
    """Adds which of several processes wrote a line."""

    def __init__(self, process: int) -> None:
        self._process = process

    def __call__(
        self, _logger: object, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event["process"] = self._process
        return event


def _first_things_first(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Put time, level, logger and event before the values: people read JSON too."""
    heads = {key: event.pop(key) for key in ("timestamp", "level", "logger", "event") if key in event}
    return {**heads, **event}


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for events: `logger("popgate.app").info("broker started", topics=3)`."""
    made: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return made


def loop_trouble(_loop: object, context: Mapping[str, Any]) -> None:
    """The event loop's exception handler: an unawaited failure is logged with its traceback, not printed."""
    error = context.get("exception")
    known = (type(error), error, error.__traceback__) if isinstance(error, BaseException) else None
    logging.getLogger("asyncio").error("%s", context.get("message", "trouble in the loop"), exc_info=known)
