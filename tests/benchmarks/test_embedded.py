from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    lines = measured("embedded.py")
    assert all(re.fullmatch(r"embedded\.interval\.[a-z0-9_]+ \d+\.\d\d us/message", line) for line in lines)
    names = [line.split()[0].removeprefix("embedded.interval.") for line in lines]
    assert len(set(names)) == len(names)
    assert {"send_32", "pop_ack_32", "send_1", "pop_ack_1", "ordered_pop_ack_32"} <= set(names)
