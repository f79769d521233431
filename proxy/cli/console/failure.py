"""Failures of commands: meaningful exit codes, and one sentence on standard error."""

from __future__ import annotations

import json
import sys
from enum import IntEnum


class Ended(IntEnum):
    """The exit codes; `docs/command-line.md` tells them to users."""

    OK = 0
    FAILED = 1
    """The gateway answered that it could not be done."""
    USAGE = 2
    """The command line or the configuration is wrong."""
    UNREACHABLE = 3
    """No gateway answered."""
    NOTHING = 4
    """The requested object does not exist, or nothing was received in time."""
    NOT_STARTED = 5
    """`serve` could not start: port in use, data folder locked or not writable."""
    INTERRUPTED = 130
    """Ctrl-C, as shells count it."""


class Failure(Exception):
    """Ends the command: `code` for the shell, the sentence for a person, `fault` for a program."""

    def __init__(self, code: Ended, sentence: str, fault: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.fault = fault or code.name


def tell(failure: Failure, *, as_json: bool) -> None:
    """Write the failure to standard error, as one line."""
    if as_json:
        line = json.dumps({"fault": failure.fault, "message": failure.sentence}, ensure_ascii=False)
    else:
        line = f"popgate: {failure.sentence}"
        if sys.stderr.isatty():
            line = f"\x1b[31mpopgate:\x1b[0m {failure.sentence}"
    print(line, file=sys.stderr)  # noqa: T201
