from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    *figures, woken, after = measured("waiting.py")
    names = ["idle", "stored_1000", "polls_40"]
    assert [re.fullmatch(r"waiting\.(\w+) \d+\.\d MB", line)[1] for line in figures] == names  # type: ignore[index]
    assert woken == "waiting.woken 20 of 40 polls"
    assert re.fullmatch(r"waiting\.after \d+\.\d MB", after)
