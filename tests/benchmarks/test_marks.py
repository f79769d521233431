from __future__ import annotations

import re
from collections.abc import Callable

from benchmarks.marks import MARKS


def test_every_mark_has_its_figure(measured: Callable[..., list[str]]) -> None:
    _, *lines = measured("marks.py")
    assert len(lines) == len(MARKS)
    for mark, line in zip(MARKS, lines, strict=True):
        name, words = line.split(" ", 1)
        assert re.sub(r"\d+", "N", name) == mark.name
        assert re.fullmatch(rf"[\d.]+ {mark.unit}, at most {mark.most}: (kept|MISSED)", words)
