from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    ready, idle = measured("starting.py")
    assert re.fullmatch(r"gateway\.ready \d+\.\d\d s", ready)
    assert re.fullmatch(r"gateway\.idle \d+\.\d MB", idle)
