from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    *figures, woken = measured("lite_topics.py")
    forms = [
        r"lite\.idle \d+\.\d MB",
        r"lite\.topics_100 \d+\.\d MB",
        r"lite\.idle_cpu_100 \d+\.\d\d %",
        r"lite\.repeating_cpu_100 \d+\.\d\d %",
    ]
    assert [bool(re.fullmatch(form, line)) for form, line in zip(forms, figures, strict=True)] == [True] * 4
    assert woken == "lite.woken 1 of 4 polls"
