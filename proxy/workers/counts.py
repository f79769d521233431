"""The counters of processes that have ended: a sum over processes must not decrease when one of them ends.

Each process keeps its counters in a file, written when they are requested and when it ends; the supervisor
adds the file of an ended process to the total of all earlier ones.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from proxy.metrics.merged_scrapes import Sum

_PAST = "counts-past"
_MOST_REMEMBERED = 256
"""Numbers of members that were added, in case a caller has just asked one of them."""


def keep(folder: Path, number: int, lasting: str) -> None:
    """Write the counters of a running member to its file. Raises OSError."""
    _write(_own(folder, number), lasting)


def add_to_past(folder: Path, number: int) -> None:
    """The member of this number is gone. Raises OSError."""
    try:
        text = _own(folder, number).read_text("utf-8")
    except FileNotFoundError:
        text = ""
    numbers, before = _past(folder)
    total = Sum()
    total.add(before)
    total.add(text)
    remembered = " ".join(str(past_number) for past_number in [*numbers, number][-_MOST_REMEMBERED:])
    _write(folder / _PAST, f"{remembered}\n{total.text()}")
    with contextlib.suppress(FileNotFoundError):
        _own(folder, number).unlink()


def added(folder: Path, texts: dict[int, str], extra: Iterable[str] = ()) -> str:
    """The sum of the counters of running processes, by their numbers, and of those that have ended.

    This order neither counts a process twice nor omits one that ends meanwhile: first the running processes
    are asked, then the files of single processes are read, then that of the past, which lists its processes.
    """
    files = {number: text for number, text in _files(folder) if number not in texts}
    numbers, past = _past(folder)
    total = Sum()
    for number, text in (*texts.items(), *files.items()):
        if number not in numbers:
            total.add(text)
    total.add(past)
    for text in extra:
        total.add(text)
    return total.text()


def _files(folder: Path) -> Iterable[tuple[int, str]]:
    for path in folder.glob("counts-*"):
        number = path.name.removeprefix("counts-")
        if number.isdigit():
            with contextlib.suppress(FileNotFoundError):
                yield int(number), path.read_text("utf-8")


def _past(folder: Path) -> tuple[list[int], str]:
    try:
        head, _, text = (folder / _PAST).read_text("utf-8").partition("\n")
    except FileNotFoundError:
        return [], ""
    return [int(word) for word in head.split()], text


def _own(folder: Path, number: int) -> Path:
    return folder / f"counts-{number}"


def _write(path: Path, text: str) -> None:
    # Two scrapes at once are kept by two threads.
    fresh = path.with_name(f"fresh-{path.name}-{os.getpid()}-{threading.get_ident()}")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)
