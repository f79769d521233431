"""The enumerations of settings, separate from the classes of the settings, which need a library."""

from __future__ import annotations

from enum import Enum


class Durability(Enum):
    SYNC = "sync"
    INTERVAL = "interval"
    NONE = "none"


class StartFrom(Enum):
    FIRST = "first"
    LAST = "last"


class RetryKind(Enum):
    CUSTOMIZED = "customized"
    EXPONENTIAL = "exponential"


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class TlsMode(Enum):
    OFF = "off"
    OPTIONAL = "optional"
    REQUIRED = "required"


class Verify(Enum):
    NAME = "name"
    CHAIN = "chain"
    NONE = "none"


class Namespaces(Enum):
    IGNORED = "ignored"
    PREFIXED = "prefixed"
