from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    form = r"remoting_door\.(\w+)\.ours per_s \d+\.\d gateway_us \d+\.\d"
    *lines, last = measured("remoting_door.py")
    works = [re.fullmatch(form, line)[1] for line in lines]  # type: ignore[index]
    assert works == ["send", "batch", "pull", "mapped"]
    # So few pulls may take less than a tick of the clock of processor time.
    assert re.fullmatch(r"remoting_door\.balancing (\d+\.\d\d|unknown) of a true pull", last)
