from __future__ import annotations

import re
from collections.abc import Callable

WORKS = ["send", "batch", "mixed_batch", "pull", "mixed_pull"]
NAMES = [f"classic_door.{work}" for work in WORKS]


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    lines = measured("classic_door.py")
    assert all(re.fullmatch(r"classic_door\.[a-z_]+ \d+\.\d\d us/frame", line) for line in lines)
    assert [line.split()[0] for line in lines] == NAMES


def test_two_checkouts_take_turns(measured: Callable[..., list[str]]) -> None:
    lines = measured("classic_door.py", "--beside", ".")
    pattern = r"classic_door\.[a-z_]+ [\d.]+ us/frame beside [\d.]+ ratio [\d.]+"
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert [line.split()[0] for line in lines] == NAMES
