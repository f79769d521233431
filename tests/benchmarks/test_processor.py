from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    lines = measured("processor.py")
    assert all(re.fullmatch(r"processor\.[a-z0-9_]+ \d+\.\d\d us/op", line) for line in lines)
    names = [line.split()[0] for line in lines]
    assert len(set(names)) == len(names)
    assert {"processor.send_32", "processor.receive_32", "processor.ack_32"} <= set(names)
