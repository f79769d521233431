from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    names = ["stored_500", "stored_500_best", "in_flight_500", "in_flight_500_best"]
    for name, line in zip(names, measured("opening.py"), strict=True):
        assert re.fullmatch(rf"opening\.{name} \d+\.\d\d s", line)
