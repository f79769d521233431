from __future__ import annotations

import re
from collections.abc import Callable

NAMES = ["classic_door.send", "classic_door.batch", "classic_door.pull"]


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    lines = measured("classic_door.py")
    assert all(re.fullmatch(r"classic_door\.[a-z]+ \d+\.\d\d us/frame", line) for line in lines)
    assert [line.split()[0] for line in lines] == NAMES


def test_two_checkouts_take_turns(measured: Callable[..., list[str]]) -> None:
    lines = measured("classic_door.py", "--beside", ".")
    pattern = r"classic_door\.[a-z]+ [\d.]+ us/frame beside [\d.]+ ratio [\d.]+"
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert [line.split()[0] for line in lines] == NAMES
