from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    lines = measured("door.py")
    assert all(re.fullmatch(r"door\.[a-z0-9_]+ \d+\.\d\d us/message", line) for line in lines)
    assert [line.split()[0] for line in lines] == [
        "door.send_32",
        "door.receive_32",
        "door.send_1",
        "door.receive_1",
    ]
