from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_of_both_ways_is_one_line_with_their_ratio(measured: Callable[..., list[str]]) -> None:
    lines = measured("shared_broker.py")
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+_\d+ \d+\.\d\d (us/message|x)", line) for line in lines)
    figures = {f"{what}_{batch}" for what in ("send", "pop", "ack") for batch in (1, 32)}
    assert {line.split()[0] for line in lines} == {
        f"{way}.{figure}" for way in ("direct", "shared", "ratio") for figure in figures
    }
