from __future__ import annotations

import re
from collections.abc import Callable


def test_every_figure_is_one_comparable_line(measured: Callable[..., list[str]]) -> None:
    removed, quiet, deleting, ratio = measured("retention.py")
    found = re.fullmatch(r"retention\.removed (\d+) of 6000 messages", removed)
    assert found is not None
    assert int(found[1]) > 0
    assert re.fullmatch(r"retention\.send_p99_quiet \d+\.\d\d ms of \d+ sends", quiet)
    assert re.fullmatch(r"retention\.send_p99_deleting \d+\.\d\d ms of \d+ sends", deleting)
    assert re.fullmatch(r"retention\.ratio \d+\.\d\d", ratio)
