from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    stored, in_flight = measured("opening.py")
    assert re.fullmatch(r"opening\.stored_500 \d+\.\d\d s", stored)
    assert re.fullmatch(r"opening\.in_flight_500 \d+\.\d\d s", in_flight)
