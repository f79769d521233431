from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    lines = measured("remote_link.py")
    assert [line.split()[0] for line in lines] == [
        "remote_link.1_in_flight",
        "remote_link.32_in_flight",
        "remote_link.512_in_flight",
        "remote_link.512_in_flight_signed",
    ]
    form = re.compile(r"remote_link\.\w+ \d+ requests/s \d+\.\d us/request")
    assert [line for line in lines if not form.fullmatch(line)] == []
