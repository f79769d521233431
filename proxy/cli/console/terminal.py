"""The output of commands: tables and colour on a terminal, tab-separated lines in a pipe, or JSON.

Text from outside (names, bodies, properties) is escaped first: an escape sequence in a message body must
have no effect on a terminal, and in a pipe each item is one line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any


class Output(StrEnum):
    AUTO = "auto"
    TABLE = "table"
    PLAIN = "plain"
    JSON = "json"


def _json(value: object) -> str:
    """In ASCII where standard output can write no more."""
    return json.dumps(value, ensure_ascii=not (sys.stdout.encoding or "").lower().startswith("utf"))


_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}


def visible(text: str) -> str:
    """One line without control characters: a newline becomes `\\n`, an escape `\\x1b`."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        _NAMED.get(c) or (c if c.isprintable() else c.encode("unicode_escape", "replace").decode())
        for c in text
    )


class Printer:
    """Prints in the way that was asked for, or that suits where standard output goes."""

    def __init__(self, output: Output) -> None:
        if output is Output.AUTO:
            output = Output.TABLE if sys.stdout.isatty() else Output.PLAIN
        self.output = output

    @property
    def as_json(self) -> bool:
        return self.output is Output.JSON

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], value: object) -> None:
        """A list: `value` is the whole of it for JSON; in a pipe the rows have no heading."""
        if self.output is Output.JSON:
            _line(_json(value))
        elif self.output is Output.PLAIN:
            for row in rows:
                _line("\t".join(_cell(cell) for cell in row))
        else:
            _rich_table(columns, [[_cell(cell) for cell in row] for row in rows])

    def facts(self, facts: Mapping[str, object], value: object) -> None:
        """One thing with its properties, a line each."""
        if self.output is Output.JSON:
            _line(_json(value))
        elif self.output is Output.PLAIN:
            for name, fact in facts.items():
                _line(f"{name}\t{_cell(fact)}")
        else:
            width = max(map(len, facts), default=0)
            for name, fact in facts.items():
                _line(f"{_styled(name.ljust(width), '2')}  {_cell(fact)}")

    def item(self, plain: Sequence[object], pretty: str, value: object) -> None:
        """One of a stream of things: a line each, in JSON too."""
        if self.output is Output.JSON:
            _line(_json(value))
        elif self.output is Output.PLAIN:
            _line("\t".join(_cell(cell) for cell in plain))
        else:
            _line(pretty)

    def done(self, sentence: str, value: object) -> None:
        """What was changed: a sentence on a terminal and in a pipe, the thing itself in JSON."""
        _line(_json(value) if self.output is Output.JSON else visible(sentence))


def title(text: str) -> str:
    """Stands out, where colours are shown."""
    return _styled(visible(text), "1;36")


def faint(text: str) -> str:
    return _styled(visible(text), "2")


def flush() -> None:
    """Before something is done that relies on the output having arrived."""
    sys.stdout.flush()


def raw(data: bytes) -> None:
    """A body as it is, and a newline."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n")


def body_bytes(message: Mapping[str, Any]) -> bytes:
    """The body of a message as the admin port tells it."""
    if "body" in message:
        return str(message["body"]).encode()
    import base64

    return base64.b64decode(message.get("body_base64", ""))


def body_text(message: Mapping[str, Any]) -> str:
    if "body" in message:
        return str(message["body"])
    return f"<{message.get('size', 0)} bytes, base64: {message.get('body_base64', '')}>"


def _styled(text: str, style: str) -> str:
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return f"\x1b[{style}m{text}\x1b[0m"
    return text


def _cell(cell: object) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, (list, tuple)):
        return ",".join(visible(str(part)) for part in cell) or "-"
    return visible(str(cell))


def _rich_table(columns: Sequence[str], rows: list[list[str]]) -> None:
    # Imported here: a pipe, JSON and `serve` never pay for it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        number = bool(rows) and all(row[at].lstrip("-").isdigit() or row[at] == "-" for row in rows)
        table.add_column(Text(column), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")


class Progress:
    """A bar on standard error while a person waits for many things, unless it stands among the output."""

    def __init__(self, label: str, total: int | None) -> None:
        self._what = label
        self._total = total
        self._bar: Any = None

    def __enter__(self) -> Callable[[int], None]:
        wanted = self._total is None or self._total >= _WORTH_A_BAR
        if not wanted or not sys.stderr.isatty() or sys.stdout.isatty():
            return _no_advance
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        task = self._bar.add_task(self._what, total=self._total)
        return lambda count: self._bar.advance(task, count)

    def __exit__(self, *_unused: object) -> None:
        if self._bar is not None:
            self._bar.stop()


_WORTH_A_BAR = 1000


def _no_advance(_count: int) -> None:
    """No progress is shown."""
